# enter.sh ROOT TEMP PATH... -- COMMAND...: runs a command in a root file system, in the mount
# namespace that this process has for itself. The paths are those of this machine there, and TEMP is
# /tmp. A chroot would not do: in it, no user may create a user namespace.
set -eu
root=$1 temp=$2
shift 2
mount --bind "$root" "$root"
for path in /proc /sys /dev; do mount --rbind "$path" "$root$path"; done
mount --bind "$temp" "$root/tmp"
cp /etc/resolv.conf "$root/etc/resolv.conf"
while [ "$1" != -- ]; do
	mkdir -p "$root$1"
	mount --bind "$1" "$root$1"
	shift
done
shift
directory=$PWD
cd "$root"
pivot_root . .
umount -l .
cd "$directory"
exec "$@"
