#!/bin/bash
# Creates the peer's kernel, its initramfs and a disk with more programs, and the names of all their
# packages: files `kernel`, `initramfs`, `disk` and `packages`, in the current directory.
# Arguments: the agent's binary, the init script, and the archives of one Debian release, such as
# bookworm bookworm-security. Needs root and a Debian amd64 with its apt sources.
set -euo pipefail
agent=$1 init=$2 archives=("${@:3}") here=$PWD
export DEBIAN_FRONTEND=noninteractive LC_ALL=C

# apt for that release, as if nothing were installed here. A snapshot of sid may be older than its
# Valid-Until.
mkdir -p apt/{lists/partial,archives/partial,sources,none}
: >apt/nothing-installed
mirror() { apt-get indextargets --format '$(REPO_URI)' 'Origin: Debian' 'Label: Debian' | head -n 1; }
mirror=$(mirror)
[[ $mirror ]] || { apt-get -qq update; mirror=$(mirror); }
[[ $mirror ]] || { echo "apt's sources must be Debian's" >&2; exit 1; }
for archive in "${archives[@]}"; do
  uri=$mirror
  [[ $archive != *-security ]] || uri=${mirror%/}-security/
  echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $archive main"
done >apt/sources/peer.list
cat >apt/conf <<CONF
Dir::State "$here/apt"; Dir::State::status "$here/apt/nothing-installed"; Dir::Cache "$here/apt";
Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "$here/apt/sources"; Dir::Etc::preferencesparts "$here/apt/none";
APT::Architecture "amd64"; APT::Architectures "amd64"; APT::Sandbox::User "root"; APT::Install-Recommends "false";
Acquire::Check-Valid-Until "false"; Acquire::Languages "none"; Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
CONF
aptget() { apt-get -qq -y -c "$here/apt/conf" "$@"; }
aptcache() { apt-cache -c "$here/apt/conf" "$@"; }
download() { # packages with all their dependencies, into a directory
  mkdir -p "$1/partial"
  aptget -o Dir::Cache::archives="$here/$1" -o Debug::NoLocking=1 install --download-only "${@:2}"
}
unpack() { # files into a tree, without maintainer scripts
  mkdir -p "$1"/usr/{bin,sbin,lib,lib64} "$1"/{etc,proc,sys,dev,tmp,run,root}
  for dir in bin sbin lib lib64; do [[ -e $1/$dir ]] || ln -s "usr/$dir" "$1/$dir"; done
  for deb in "${@:2}"; do
    case ${deb##*/} in
    perl* | libperl* | lib*-perl_* | libdb5* | dpkg_* | tar_* | udev_* | adduser_* | passwd_* | debconf_* | usrmerge_* | pci.ids_*) ;;
    *) dpkg-deb --fsys-tarfile "$deb" | tar -C "$1" -x --keep-directory-symlink ;;
    esac
  done
  rm -rf "$1"/usr/share/{doc,man,locale,info,lintian}
}
tools() { # for a tree: a shell, and busybox for all else that is missing
  ln -sf dash "$1/bin/sh"
  for applet in $("$1/bin/busybox" --list); do
    [[ -e $1/bin/$applet || -e $1/sbin/$applet ]] || ln -s busybox "$1/bin/$applet"
  done
}

aptget update
kernel=$(aptcache depends linux-image-amd64 | sed -n 's/^ *Depends: linux-image-//p' | head -n 1)
[[ $kernel ]] || { echo "apt knows no linux-image-amd64" >&2; exit 1; }

# Debian's kernel and modules. Some releases have them in several packages.
mkdir kernels
for part in image binary modules base; do
  aptcache show "linux-$part-$kernel" >/dev/null 2>&1 || continue
  (cd kernels && aptget download "linux-$part-$kernel")
done
unpack unpacked kernels/*.deb
mv unpacked/boot/vmlinuz-* kernel 2>/dev/null || mv "unpacked/lib/modules/$kernel/vmlinuz" kernel

# Debian's kernel lacks siw: build it from Debian's own source against Debian's own headers, with
# that release's compiler.
source=$(aptcache depends linux-source | sed -n 's/^ *Depends: //p' | head -n 1)
siw=drivers/infiniband/sw/siw
download compiler make gcc libc6-dev bash dash coreutils sed grep busybox-static "linux-headers-$kernel"
unpack build compiler/*.deb
tools build
aptget download "$source"
dpkg-deb --fsys-tarfile "$source"_*.deb | tar -xO "./usr/src/$source.tar.xz" | tar -xJ -C build "$source/$siw"
unshare --mount bash -c "mount --rbind /dev build/dev && mount -t proc proc build/proc &&
  chroot build make -s -C /usr/src/linux-headers-$kernel M=/$source/$siw CONFIG_RDMA_SIW=m modules"
cp "build/$source/$siw/siw.ko" "unpacked/lib/modules/$kernel/kernel/"
depmod -b "$here/unpacked" "$kernel"
rm -rf build compiler

# The userland: packages with all their dependencies, unpacked into a tree.
programs=(busybox-static dash iproute2 kmod ethtool tcpdump perftest ibverbs-utils ibverbs-providers
  rdmacm-utils qperf python3-pyverbs open-iscsi wireguard-tools iperf3)
download debs "${programs[@]}"
unpack root debs/*.deb
tools root
rm -rf root/usr/lib/python3.*/{test,idlelib,ensurepip,lib2to3,tkinter,config-*}
# Only to start faster.
chroot root python3 -m compileall -q /usr/lib/python3 $(cd root && echo usr/lib/python3.*) >/dev/null || true
printf 'root:x:0:0:root:/root:/bin/sh\n' >root/etc/passwd
printf '127.0.0.1 localhost\n' >root/etc/hosts

# Programs of storage are large, and few tests need them. They are on a disk, not in memory.
mkdir more
cp -l debs/*.deb more/
download more "${programs[@]}" nvme-cli fio e2fsprogs xfsprogs nfs-common nfs-kernel-server
for deb in debs/*.deb; do rm "more/${deb##*/}"; done
unpack storage more/*.deb
mke2fs -q -t ext4 -O ^has_journal -m 0 -d storage disk "$(($(du -sm storage | cut -f1) * 5 / 4 + 16))M"

# Newer kernels have the checksums built in.
checksums=(crc32_generic crc32-pclmul crc32c_generic crc32c-intel)
modules=(virtio_pci virtio_net virtio_console rdma_rxe siw rdma_ucm ib_umad 8021q ib_iser sd_mod ext4 virtio_blk
  nvme_rdma xfs rpcrdma nfs nfsv3 nfsv4 nfsd nvmet_rdma null_blk wireguard)
depends() { modprobe -d "$here/unpacked" -S "$kernel" --show-depends "$1" | sed -n 's/^insmod \([^ ]*\).*/\1/p'; }
{
  for module in "${modules[@]}"; do depends "$module"; done
  for module in "${checksums[@]}"; do depends "$module" 2>/dev/null || true; done
} | sort -u | while read -r file; do
  mkdir -p "root/lib/modules/$kernel/$(dirname "${file#*"/$kernel/"}")"
  cp "$file" "root/lib/modules/$kernel/${file#*"/$kernel/"}"
done
find root/lib/modules/ -name '*.ko.xz' -exec xz -d {} +
find root/lib/modules/ -name '*.ko.zst' -exec zstd -qd --rm {} +
cp "unpacked/lib/modules/$kernel"/modules.{order,builtin,builtin.modinfo} "root/lib/modules/$kernel/"
depmod -b root "$kernel"

install -m 755 "$agent" root/bin/agent
install -m 755 "$init" root/init
# Not compressed: under emulation, inflating takes longer than reading.
(cd root && find . -print0 | cpio --null --create --format=newc --quiet) >initramfs

# NAME_VERSION, a package a line.
for deb in kernels/*.deb more/*.deb debs/*.deb; do deb=${deb##*/}; echo "${deb%_*.deb}"; done | sort >packages
rm -rf root storage debs more unpacked kernels apt "$source"_*.deb
