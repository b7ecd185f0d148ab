#!/bin/sh
# Versions: rdma-core 44.0 (Debian 12), 56.1 (Debian 13) and 65.0 (sid). It needs curl, gcc,
# dpkg-deb and objdump, and an x86-64 Linux with libc's headers.
#
# Guess: the public structures of <infiniband/verbs.h> keep their sizes while the library is
# libibverbs.so.1, so that one C file may assert them, and two objects may pass them to each other.
#
# Seen: two have grown. The library is told by each program which size it knows: the header's
# ibv_query_port is inline and passes sizeof(struct ibv_port_attr). Two objects that were built with
# different headers are not told.
#
#   44.0-2: libibverbs.so.1, ibv_port_attr 52, ibv_qp_ex 352, ibv_device_attr_ex 400, ibv_wc 48
#   56.1-1: libibverbs.so.1, ibv_port_attr 56, ibv_qp_ex 360, ibv_device_attr_ex 400, ibv_wc 48
#   65.0-1.1: libibverbs.so.1, ibv_port_attr 56, ibv_qp_ex 360, ibv_device_attr_ex 400, ibv_wc 48
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >sizes.c <<'EOF'
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	printf("ibv_port_attr %zu, ibv_qp_ex %zu, ibv_device_attr_ex %zu, ibv_wc %zu\n", sizeof(struct ibv_port_attr),
	       sizeof(struct ibv_qp_ex), sizeof(struct ibv_device_attr_ex), sizeof(struct ibv_wc));
}
EOF
cat >sums <<'EOF'
78e87d12fb642bc41b04cb2e2f3f2f23cee14b89978a846b83defe945f388f72  libibverbs-dev_44.0-2_amd64.deb
3833759895e1435663a0bc2f9d9d82feb467f8cf8f19afb57c75b5c1f6bb1f1a  libibverbs-dev_56.1-1_amd64.deb
c36f57d9b11d48827eb0e01c9c0e353984620bcf741fa3b13a039b53ecca6a67  libibverbs-dev_65.0-1.1_amd64.deb
35054815259fee46173240254246d03b673a5cd5c528aaac96fd15ac428a8d59  libibverbs1_44.0-2_amd64.deb
4c3b889607586e6328964a5f98e01ef01daa415be24334d743d6654aab4c47a4  libibverbs1_56.1-1_amd64.deb
de960e34425301d883d23d0210726f4ddac28fe19f0b468e1a403beb7b09f221  libibverbs1_65.0-1.1_amd64.deb
EOF
while read -r _ file; do
	curl -sSfO "http://deb.debian.org/debian/pool/main/r/rdma-core/$file" || exit 2
done <sums
sha256sum -c sums >log || { cat log >&2; exit 2; }
for version in 44.0-2 56.1-1 65.0-1.1; do
	for package in libibverbs-dev libibverbs1; do dpkg-deb -x ${package}_${version}_amd64.deb $version || exit 2; done
	gcc -I$version/usr/include -o sizes sizes.c || exit 2
	soname=$(objdump -p $version/usr/lib/x86_64-linux-gnu/libibverbs.so.1 | sed -n 's/ *SONAME *//p')
	echo "$version: $soname, $(./sizes)"
done >seen
cat seen
cat >expected <<'EOF'
44.0-2: libibverbs.so.1, ibv_port_attr 52, ibv_qp_ex 352, ibv_device_attr_ex 400, ibv_wc 48
56.1-1: libibverbs.so.1, ibv_port_attr 56, ibv_qp_ex 360, ibv_device_attr_ex 400, ibv_wc 48
65.0-1.1: libibverbs.so.1, ibv_port_attr 56, ibv_qp_ex 360, ibv_device_attr_ex 400, ibv_wc 48
EOF
cmp seen expected
