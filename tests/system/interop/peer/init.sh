#!/bin/sh
# The peer's process 1: it sets up devices and addresses, then runs the agent.
export PATH=/usr/bin:/usr/sbin HOME=/root
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/shm /dev/pts
mount -t tmpfs shm /dev/shm
mount -t tmpfs tmp /tmp
mount -t debugfs debug /sys/kernel/debug
ulimit -l unlimited
for option in $(cat /proc/cmdline); do
  case $option in peer.*=*) eval "${option#peer.}" ;; esac
done
modprobe -a -q crc32_generic crc32-pclmul # newer kernels have them built in
modprobe -a virtio_pci virtio_net virtio_console rdma_rxe rdma_ucm ib_umad
ip link set lo up
ip link set eth0 mtu "$mtu" up
ip addr add "$addr4" dev eth0
ip addr add "$addr6" dev eth0 nodad
# siw computes a wrong CRC if a socket's send buffer is full when it begins an FPDU: it adds the
# data to the CRC again when it goes on. So the buffer is larger than what a test has outstanding.
echo "4096 16777216 16777216" >/proc/sys/net/ipv4/tcp_wmem
rdma link add rxe0 type rxe netdev eth0
/bin/agent </dev/null
poweroff -f
