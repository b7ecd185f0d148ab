#!/bin/bash
# Creates the peer's kernel, its initramfs and a disk with more programs, files `kernel`,
# `initramfs` and `disk`, in the current directory.
# Arguments: the agent's binary, and the init script. Needs root and a Debian amd64 with its apt
# sources.
set -euo pipefail
agent=$1 init=$2
export DEBIAN_FRONTEND=noninteractive LC_ALL=C
aptget() { apt-get -qq -y -o DPkg::Lock::Timeout=300 -o Dpkg::Use-Pty=0 --no-install-recommends "$@"; }

aptget update
kernel=$(apt-cache depends linux-image-amd64 | sed -n 's/^ *Depends: linux-image-//p' | head -n 1)
[[ $kernel ]] || { echo "apt knows no linux-image-amd64: the sources must be Debian's" >&2; exit 1; }
source=linux-source-${kernel%%.[0-9]*-*}
apt-cache show "$source" >/dev/null 2>&1 || source=linux-source-$(cut -d. -f1,2 <<<"$kernel")

# On this machine: only the tools that build and run the image.
aptget install qemu-system-x86 iproute2 cpio kmod gcc make libelf-dev "linux-headers-$kernel" "$source"

# Debian's kernel and modules, without their maintainer scripts.
aptget download "linux-image-$kernel"
dpkg-deb -x linux-image-*.deb unpacked
mv unpacked/boot/vmlinuz-* kernel

# Debian's kernel lacks siw: build it from Debian's own source against Debian's own headers.
siw=drivers/infiniband/sw/siw
tar -xf "/usr/src/$source.tar.xz" "$source/$siw"
make -s -C "/usr/src/linux-headers-$kernel" M="$PWD/$source/$siw" CONFIG_RDMA_SIW=m modules
cp "$source/$siw/siw.ko" "unpacked/lib/modules/$kernel/kernel/"
depmod -b unpacked "$kernel"

# The userland: packages with all their dependencies, as if nothing were installed here, unpacked
# into a tree.
mkdir -p debs/partial more/partial {root,storage}/usr/{bin,sbin,lib,lib64} root/{etc,proc,sys,dev,tmp,run,root}
: >nothing-installed
download() { # into a directory
  aptget -o Dir::State::status="$PWD/nothing-installed" -o Dir::Cache::archives="$PWD/$1" -o Debug::NoLocking=1 \
    install --download-only "${@:2}"
}
unpack() { # files into a tree
  for dir in bin sbin lib lib64; do ln -s "usr/$dir" "$1/$dir"; done
  for deb in "${@:2}"; do
    case ${deb##*/} in
    perl* | libperl* | lib*-perl_* | libdb5* | dpkg_* | tar_* | udev_* | adduser_* | passwd_* | debconf_* | usrmerge_* | pci.ids_*) ;;
    *) dpkg-deb --fsys-tarfile "$deb" | tar -C "$1" -x --keep-directory-symlink ;;
    esac
  done
  rm -rf "$1"/usr/share/{doc,man,locale,info,lintian}
}
programs=(busybox-static dash iproute2 kmod ethtool tcpdump perftest ibverbs-utils ibverbs-providers
  rdmacm-utils qperf python3-pyverbs open-iscsi wireguard-tools iperf3)
download debs "${programs[@]}"
unpack root debs/*.deb
ln -sf dash root/bin/sh
rm -rf root/usr/lib/python3.11/{test,idlelib,ensurepip,lib2to3,tkinter,config-*}
for applet in $(root/bin/busybox --list); do
  [[ -e root/bin/$applet || -e root/sbin/$applet ]] || ln -s busybox "root/bin/$applet"
done
chroot root python3 -m compileall -q usr/lib/python3 usr/lib/python3.11 >/dev/null || true # only to start faster
printf 'root:x:0:0:root:/root:/bin/sh\n' >root/etc/passwd
printf '127.0.0.1 localhost\n' >root/etc/hosts

# Programs of storage are large, and few tests need them. They are on a disk, not in memory.
cp -l debs/*.deb more/
download more "${programs[@]}" nvme-cli fio e2fsprogs xfsprogs nfs-common nfs-kernel-server
for deb in debs/*.deb; do rm "more/${deb##*/}"; done
unpack storage more/*.deb
mke2fs -q -t ext4 -O ^has_journal -m 0 -d storage disk "$(($(du -sm storage | cut -f1) * 5 / 4 + 16))M"

modules=(virtio_pci virtio_net virtio_console crc32_generic crc32-pclmul crc32c_generic crc32c-intel
  rdma_rxe siw rdma_ucm ib_umad 8021q ib_iser sd_mod ext4 virtio_blk nvme_rdma xfs rpcrdma nfs nfsv3 nfsv4 nfsd
  nvmet_rdma null_blk wireguard)
for module in "${modules[@]}"; do
  modprobe -d "$PWD/unpacked" -S "$kernel" --show-depends "$module" | sed -n 's/^insmod \([^ ]*\).*/\1/p'
done | sort -u | while read -r file; do
  mkdir -p "root/lib/modules/$kernel/$(dirname "${file#*"/$kernel/"}")"
  cp "$file" "root/lib/modules/$kernel/${file#*"/$kernel/"}"
done
cp "unpacked/lib/modules/$kernel"/modules.{order,builtin,builtin.modinfo} "root/lib/modules/$kernel/"
depmod -b root "$kernel"

install -m 755 "$agent" root/bin/agent
install -m 755 "$init" root/init
# Not compressed: under emulation, inflating takes longer than reading.
(cd root && find . -print0 | cpio --null --create --format=newc --quiet) >initramfs
rm -rf root storage debs more unpacked "$source" nothing-installed linux-image-*.deb
