# A server of ssh for the user of the container. It gives its sessions none of the container's
# environment variables.
set -e
ssh-keygen -q -t ed25519 -N "" -f /dev/shm/key
exec /usr/sbin/sshd -D -e -p 2222 -h /dev/shm/key -o PidFile=none -o UsePAM=no -o StrictModes=no -o AuthorizedKeysFile=/id/id.pub
