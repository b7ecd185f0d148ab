package programs

// trials has the packages of Debian 12 and sid that depend on a library of rdma-core, and further
// projects.
var trials = []trial{
	{"librados2", "", "run by the programs of Ceph. A Ceph process that cannot open its device fails an assertion, and ended " +
		"with SIGABRT in " +
		"60 of 60 runs (16.2.15)."},
	{"gfio", "", "not run: fio's graphical interface"},
	{"libdapl2", "2.1.10.1.f1e05b7a-3+b1", "run by the programs of dapl2-utils, over the providers cma and scm. The provider " +
		"ucm identifies peers " +
		"by LIDs."},
	{"libfabric1 libopenmpi3", "", "run by fi_pingpong and MPI programs. The openib of Open MPI 4 needs LIDs, because Debian's " +
		"build has no rdma_cm."},
	{"libucx0", "1.23.0~rc1-1", "no module for InfiniBand in sid. UCX 1.23.0 of commit 9466d104a, built with verbs, is run by " +
		"its tools, by sid's Open MPI and MPICH, and by UCC."},
	{"libmpich12", "5.0.2-2", "run over RDMA with that UCX"},
	{"libucc1", "1.9.0-2", "run by UCC's programs, with that UCX"},
	{"libgloo0", "0.0~git20250912.d97133a-2", "run by testdata/gloo.cc. libgloo0 of Debian 12 was not run. With that of " +
		"Debian 13 (0.0~git20231202.5354032-3) the collectives end with its own \"Unbound buffers not supported yet for ibverbs transport\"."},
	{"libgloo-rocm-0", "", "not run: the same transport, for AMD's graphics cards"},
	{"libiscsi7", "", "run by iscsi-inq and QEMU's tools, with tgt"},
	{"qemu-system-arm qemu-system-mips qemu-system-misc qemu-system-ppc qemu-system-riscv qemu-system-s390x qemu-system-sparc", "",
		"not run: their migration code is that of qemu-system-x86"},
	{"infiniband-diags", "", "`ibstat` and `ibstatus` run. The others send MADs, and there is no `/dev/infiniband/umad0`."},
	{"ibacm", "65.0-1.1", "it ends with an error. Version 44.0-2 said \"softrnic0 port 1 is not an InfiniBand port\"."},
	{"srptools", "65.0-1.1", "`srp_daemon -o -c` finds no target, and exits with 0. `ibsrpdm -c`: \"Unsupported link layer Ethernet\"."},
	{"pcp-pmda-infiniband", "7.2.2-1", "`pmdaib`: \"can't open UMAD port (softrnic0:1)\", \"No IB ports found to monitor\". It " +
		"reads its counters by MADs."},
	{"mstflint", "4.33.0+1-1.1", "`mstflint -d mlx5_0 q` with `--card connectx7`: \"Cannot open Device\". It reads the " +
		"registers of the card."},
	{"libibmad5 libibnetdisc5 libibnetdisc5t64 libosmvendor5 libumad2sim0 ibsim-utils libibumad-dev libibmad-dev libibnetdisc-dev", "",
		"not run: libraries and tools for MADs"},
	{"opa-address-resolution opa-basic-tools opa-fastfabric opa-fm libopamgt0 libopasadb1", "", "not run: they manage Omni-Path by MADs"},
	{"slurm-wlm-basic-plugins", "26.05.5-1", "not run: one plugin reads InfiniBand's counters by MADs"},
	{"dpdk-dev librte-common-mlx5-26 librte-net-mlx5-26", "25.11.4-1", "`dpdk-testpmd --no-huge --in-memory` with `--card " +
		"connectx7`: \"mlx5_net: " +
		"Cannot get IB device \"mlx5_0\" ports number\", \"No probed ethernet devices\", and no crash. The driver asks the kernel " +
		"by netlink."},
	{"librte-compress-mlx5-26 librte-crypto-mlx5-26 librte-regex-mlx5-26 librte-vdpa-mlx5-26 librte-net-mlx4-26", "",
		"not run: drivers that access the registers of ConnectX"},
	{"librte-net-mana26", "25.11.4-1", "installed: a probe of dpdk-testpmd finds no device, as no `--card` has the IDs of Azure's MANA"},
	{"libibverbs-dev librdmacm-dev librdmacm1 librdmacm1t64 ibverbs-providers", "", "the libraries that SoftRNIC stands in for, " +
		"and headers"},
	{"libcufile-rdma1 nsight-systems-target", "", "not run: not free software, and only for NVIDIA's hardware"},
	{"samba", "2:4.25.1+dfsg-1", "not run: it has no SMB Direct. `smbd` links none of the libraries, and RDMA appears only as a " +
		"capability that the option `interfaces` announces."},
	{"valkey-server", "9.1.2-1", "run by `--sockets`. With `--rdma-bind` it says \"Missing implement of connection type rdma\". " +
		"Built from the same source with RDMA, it runs, with Valkey's `runtest-rdma`."},
	{"fabtests", "2.1.0", "run from its source with sid's libfabric: [SUITES.md](SUITES.md#fabtests) has the counts"},
	{"SPDK", "", "not run with sid: on 2026-11-29 Debian has DPDK 25.11.4-1, and no package of SPDK. SPDK v26.05 has rows above."},
	{"Mooncake", "0.3.12.post1, commit 3b5a59413", "its transfer engine is built from its source with sid's packages, and with " +
		"yalantinglibs 0.5.7, which is no package: [SUITES.md](SUITES.md#mooncake) has the counts"},
	{"3FS", "commit e2cef82", "not built: its verbs code, `src/common/net/ib`, is written with folly's coroutines. Debian has no package " +
		"of folly, nor of scnlib, clickhouse-cpp and FoundationDB's client, which the program of its tests links too."},
	{"librccl1-tests", "5.4.3-3+b1", "not run: sid cannot install it, as libamdhip64-5 needs libamd-comgr2, which is gone. It has " +
		"tests of collectives for AMD's cards, and no `NetIbMPI`."},
}
