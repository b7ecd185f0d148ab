#!/bin/bash
# Runs programs with memory of a real GPU of NVIDIA's on SoftRNIC, in less than 8 minutes:
#
#	tests/system/dropin/gpu.sh build FILE.tar.gz   on a machine with Go, gcc and the headers of rdma-core
#	tests/system/dropin/gpu.sh FILE.tar.gz         on a machine with a GPU, and for NCCL PyTorch
#
# The file has less than 60 MiB, and all that the second machine needs: that may lack a network,
# privileges, gcc and headers. Without a GPU the second command says so and does nothing. With OUT,
# a directory, it leaves the output of everything there.
#
#	tests/system/dropin/gpu.sh build FILE.tar.gz LIBS        the libraries and softrnic are built, in LIBS
#	tests/system/dropin/gpu.sh FILE.tar.gz HOW…              only these transfers, or nccl
set -u
here=$(dirname "$(realpath "$0")")

if [ "${1:-}" = build ]; then
	set -e
	file=$(realpath "${2:?the file to make}")
	dir=$(mktemp -d)
	trap 'rm -rf "$dir"' EXIT
	if [ $# -gt 2 ]; then
		cp -a "$3" "$dir/lib"
	else
		cd "$here/../../.."
		go run ./cmd/dropin/build -o "$dir/lib"
		CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o "$dir/lib/" ./cmd/softrnic
	fi
	# NVIDIA's driver has its functions by the names of the tests' libcuda.so.1.
	cd "$here"
	gcc -O2 -shared -fPIC -Wl,-soname,libcuda.so.1 -o "$dir/libcuda.so.1" testdata/libcuda.c -lpthread
	gcc -O2 -DREAL_CUDA -o "$dir/lib/gpu-program" testdata/gpu.c "$dir"/lib/librdmacm.so.1 "$dir"/lib/libibverbs.so.1 \
		"$dir/libcuda.so.1" -lpthread -ldl
	tar -C "$dir" -I "gzip -1" -cf "$file" lib
	exit
fi

if ! nvidia-smi -L 2>/dev/null | grep GPU; then
	echo "gpu.sh: skipped, because this machine has no GPU of NVIDIA's"
	exit 0
fi
file=$(realpath "${1:?the file that \"gpu.sh build\" has made}")
shift
[ $# -gt 0 ] || set -- move measure nccl busy freed destroyed free destroy # what may leave the GPU in a bad state comes last
export work
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tar -C "$work" -xzf "$file" || exit 1
out=${OUT:-$work}
end=$((SECONDS + 450))
failed=0
count=0
check() { # LIMIT NAME COMMAND…
	local limit=$1 name=$2 left=$((end - SECONDS))
	shift 2
	count=$((count + 1))
	local log=$out/$count.log
	if [ $left -lt 5 ]; then
		echo "FAILED: $name: no time is left"
		failed=1
	elif timeout -k 5 $((left < limit ? left : limit)) "$@" >"$log" 2>&1; then
		echo "passed: $name"
		grep '^result:' "$log"
	else
		echo "FAILED: $name ($?)"
		tail -n 30 "$log" | cut -c 1-300
		failed=1
	fi
}

libs=$work/lib
libcuda=
if ! ldconfig -p | grep -q 'libcuda\.so\.1 .*x86-64'; then # as in containers
	for dir in /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/nvidia/lib64 /usr/local/cuda/compat /usr/lib/wsl/lib; do
		[ ! -e $dir/libcuda.so.1 ] || libcuda=$libcuda:$dir
	done
fi
export LD_LIBRARY_PATH=$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}$libcuda XDG_RUNTIME_DIR=$work SOFTRNIC_SHARED=0

check 60 "the callers' questions" env SOFTRNIC_LINK=pipe SOFTRNIC_ADDR=10.9.0.1/24 "$libs/gpu-program" ask

transfer() { # PORT LINK SERVER CLIENT TRANSPORT HOW
	: >"$work/server"
	env SOFTRNIC_LINK="$2" SOFTRNIC_ADDR="$3" SOFTRNIC_TRANSPORT="$5" "$work/lib/gpu-program" server "${3%/*}" "$1" "$6" >"$work/server" 2>&1 &
	local server=$! status
	until grep -q listens "$work/server" || ! kill -0 $server 2>/dev/null; do sleep 0.1; done
	env SOFTRNIC_LINK="$2" SOFTRNIC_ADDR="$4" SOFTRNIC_TRANSPORT="$5" "$work/lib/gpu-program" client "${3%/*}" "$1" "$6"
	status=$?
	[ $status = 0 ] || kill $server 2>/dev/null
	wait $server || status=1
	[ $status = 0 ] || cat "$work/server"
	return $status
}
export -f transfer
port=20000
transfers() { # HOW
	local transport link
	for transport in roce iwarp; do
		for link in "shm:gpu 10.9.0.1/24 10.9.0.2/24" "kernel:lo 127.18.0.1 127.18.0.2"; do
			port=$((port + 1))
			check 40 "$transport, $1, $link" bash -c "transfer $port $link $transport $1"
		done
	done
}

# NCCL: two ranks on one GPU, which believe that they are on two hosts. They use the network alone.
cat >"$work/ranks.py" <<'PY'
import os, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(0)
dist.init_process_group("nccl")
for n in (8, 1 << 10, 1 << 20, 16 << 20):
    x = torch.arange(n, dtype=torch.float32, device="cuda") % 1000 + rank
    dist.all_reduce(x)
    want = (torch.arange(n, dtype=torch.float32, device="cuda") % 1000) * 2 + 1
    assert torch.equal(x, want), n
print("sums are right, NCCL", torch.cuda.nccl.version(), flush=True)
dist.destroy_process_group()
PY
nccl() {
	export MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 WORLD_SIZE=2 NCCL_DEBUG=INFO NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_P2P_DISABLE=1
	export NCCL_SHM_DISABLE=1 NCCL_NET=IB NCCL_NET_GDR_LEVEL=SYS NCCL_IB_HCA=mlx5_0 NCCL_SOCKET_IFNAME=lo NCCL_MNNVL_ENABLE=0
	local pids=() status=0 rank
	for rank in 0 1; do
		RANK=$rank NCCL_HOSTID=host$rank "$work/lib/softrnic" run --card connectx7 --link shm:nccl --addr 10.9.0.$((rank + 1))/24 -- \
			python3 "$work/ranks.py" >"$work/rank$rank" 2>&1 &
		pids+=($!)
	done
	for pid in "${pids[@]}"; do wait "$pid" || status=1; done
	cat "$work"/rank?
	grep -h 'GDRDMA\|sums are right' "$work"/rank? | sed 's/^/result: /' | head -4
	grep -q GDRDMA "$work/rank0" && [ $status = 0 ]
}
export -f nccl

for how in "$@"; do
	if [ "$how" != nccl ]; then
		transfers "$how"
	elif python3 -c 'import torch' 2>/dev/null; then
		check 150 "NCCL over IB with GDRDMA" bash -c nccl
	else
		echo "gpu.sh: NCCL is skipped, because there is no PyTorch"
	fi
done
exit $failed
