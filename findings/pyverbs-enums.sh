#!/bin/sh
# Versions: pyverbs 44.0, 56.1 and 65.0 of rdma-core (Debian 12, Debian 13, sid), with the Python of
# each: 3.11, 3.13, 3.14. It needs apt, Debian's keys, and an x86-64 Linux.
#
# Guess 1: "from pyverbs.enums import IBV_QPT_RC" works with every pyverbs.
#
# Seen 1: it works up to 56.1. That has a second module, libibverbs_enums, with the same names, and
# 65.0 has only the second. There the constants are members of their classes, and no names of the
# module any more. One program for all three tries both modules, and asks the class:
# ibv_qp_type.IBV_QPT_RC. The same goes for cm_enums and librdmacm_enums.
#
# Guess 2: ibv_wc_status(n) is a ValueError if no status has the number n, as in 44.0.
#
# Seen 2: from 56.1 on the classes are IntFlag, also where their values are just numbered. Each
# number is taken, and has the name of a member whose bits are among its own. A loop over a
# class sees all members nevertheless, although IntFlag usually leaves out those of several bits.
#
#   pyverbs 44.0-2, Python 3.11
#     enums: IBV_QPT_RC 2, ibv_qp_type.IBV_QPT_RC 2
#     libibverbs_enums: ModuleNotFoundError
#     ibv_wc_status: 24 members, a loop sees 24
#     ibv_wc_status(1000): ValueError
#   pyverbs 56.1-1, Python 3.13
#     enums: IBV_QPT_RC 2, ibv_qp_type.IBV_QPT_RC 2
#     libibverbs_enums: IBV_QPT_RC 2, ibv_qp_type.IBV_QPT_RC 2
#     ibv_wc_status: 24 members, a loop sees 24
#     ibv_wc_status(1000): 1000, named IBV_WC_LOC_ACCESS_ERR|992
#   pyverbs 65.0-1.1, Python 3.14
#     enums: ModuleNotFoundError
#     libibverbs_enums: IBV_QPT_RC is missing, ibv_qp_type.IBV_QPT_RC 2
#     ibv_wc_status: 24 members, a loop sees 24
#     ibv_wc_status(1000): 1000, named IBV_WC_LOC_ACCESS_ERR|992
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >seen.py <<'EOF'
import importlib

for name in "enums", "libibverbs_enums":
    try:
        module = importlib.import_module("pyverbs." + name)
    except ModuleNotFoundError as e:
        print("  %s: %s" % (name, type(e).__name__))
        continue
    print("  %s: IBV_QPT_RC %s, ibv_qp_type.IBV_QPT_RC %d" % (
        name, getattr(module, "IBV_QPT_RC", "is missing"), module.ibv_qp_type.IBV_QPT_RC))
    found = module
statuses = found.ibv_wc_status
print("  ibv_wc_status: %d members, a loop sees %d" % (len(statuses.__members__), len(list(statuses))))
try:
    print("  ibv_wc_status(1000): %d, named %s" % (statuses(1000), statuses(1000).name))
except ValueError as e:
    print("  ibv_wc_status(1000): %s" % type(e).__name__)
EOF

# pyverbs unpacks pyverbs of a suite of Debian, with the libraries and the Python that it needs, and
# runs seen.py with them.
pyverbs() {
	suite=$1 version=$2 python=$3 librdmacm=$4
	mkdir -p $suite/lists/partial $suite/cache/archives/partial $suite/parts $suite/debs $suite/root
	echo "deb [arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian $suite main" >$suite/list
	: >$suite/status
	apt="apt-get -qq -o Dir::Etc::sourcelist=$dir/$suite/list -o Dir::Etc::sourceparts=$dir/$suite/parts
		-o Dir::Etc::preferencesparts=$dir/$suite/parts -o Dir::State::lists=$dir/$suite/lists
		-o Dir::State::status=$dir/$suite/status -o Dir::Cache=$dir/$suite/cache -o APT::Architecture=amd64
		-o APT::Architectures=amd64 -o APT::Sandbox::User=root -o Acquire::Check-Valid-Until=false -o Acquire::Languages=none"
	{
		$apt update &&
		(cd $suite/debs && $apt download python3-pyverbs=$version libibverbs1=$version $librdmacm=$version \
			libnl-3-200 libnl-route-3-200 libc6 zlib1g libexpat1 libgcc-s1 \
			python$python-minimal libpython$python libpython$python-minimal libpython$python-stdlib) &&
		for deb in $suite/debs/*.deb; do dpkg-deb -x "$deb" $suite/root || exit 2; done
	} >log 2>&1 || { cat log >&2; exit 2; }
	root=$dir/$suite/root
	echo "pyverbs $version, Python $python"
	PYTHONHOME=$root/usr PYTHONPATH=$root/usr/lib/python3/dist-packages \
		"$(find $root -name ld-linux-x86-64.so.2 | head -n 1)" \
		--library-path $root/lib/x86_64-linux-gnu:$root/usr/lib/x86_64-linux-gnu $root/usr/bin/python$python seen.py
}

{
	pyverbs bookworm 44.0-2 3.11 librdmacm1
	pyverbs trixie 56.1-1 3.13 librdmacm1t64
	pyverbs sid 65.0-1.1 3.14 librdmacm1t64
} >seen
cat seen
cat >expected <<'EOF'
pyverbs 44.0-2, Python 3.11
  enums: IBV_QPT_RC 2, ibv_qp_type.IBV_QPT_RC 2
  libibverbs_enums: ModuleNotFoundError
  ibv_wc_status: 24 members, a loop sees 24
  ibv_wc_status(1000): ValueError
pyverbs 56.1-1, Python 3.13
  enums: IBV_QPT_RC 2, ibv_qp_type.IBV_QPT_RC 2
  libibverbs_enums: IBV_QPT_RC 2, ibv_qp_type.IBV_QPT_RC 2
  ibv_wc_status: 24 members, a loop sees 24
  ibv_wc_status(1000): 1000, named IBV_WC_LOC_ACCESS_ERR|992
pyverbs 65.0-1.1, Python 3.14
  enums: ModuleNotFoundError
  libibverbs_enums: IBV_QPT_RC is missing, ibv_qp_type.IBV_QPT_RC 2
  ibv_wc_status: 24 members, a loop sees 24
  ibv_wc_status(1000): 1000, named IBV_WC_LOC_ACCESS_ERR|992
EOF
cmp seen expected
