#!/bin/bash
# Runs programs with memory of a real GPU of NVIDIA's on the drop-in libraries, in less than 8
# minutes:
#
#	go run ./cmd/dropin/build -o DIR    on any machine with Go
#	tests/system/dropin/gpu.sh DIR      on a machine with a GPU, gcc, and for NCCL PyTorch
#
# It needs no network. Without a GPU it says so and does nothing.
set -u
cd "$(dirname "$0")" || exit 1
if ! nvidia-smi -L 2>/dev/null | grep GPU; then
	echo "gpu.sh: skipped, because this machine has no GPU of NVIDIA's"
	exit 0
fi
libs=$(realpath "${1:?the directory of the libraries}")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0
check() { # NAME COMMAND…
	local name=$1
	shift
	if timeout 120 "$@" >"$work/log" 2>&1; then
		echo "passed: $name"
		grep '^result:' "$work/log"
	else
		echo "FAILED: $name ($?)"
		cat "$work/log"
		failed=1
	fi
}

libcuda=$(ldconfig -p | awk '/libcuda.so.1 .*x86-64/ {print $NF; exit}')
export LD_LIBRARY_PATH=$libs${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} XDG_RUNTIME_DIR=$work SOFTRNIC_SHARED=0
# The headers are rdma-core's, or copies of them in the directory of the libraries.
gcc -O2 -DREAL_CUDA -I"$libs/include" -o "$work/gpu" testdata/gpu.c \
  "$libs"/librdmacm.so.1 "$libs"/libibverbs.so.1 "$libcuda" -lpthread -ldl || exit 1

check "the callers' questions" env SOFTRNIC_LINK=pipe SOFTRNIC_ADDR=10.9.0.1/24 "$work/gpu" ask

port=20000
transfer() { # LINK SERVER CLIENT TRANSPORT HOW
	port=$((port + 1))
	env SOFTRNIC_LINK="$1" SOFTRNIC_ADDR="$2" SOFTRNIC_TRANSPORT="$4" "$work/gpu" server "${2%/*}" $port "$5" >"$work/server" 2>&1 &
	local server=$!
	until grep -q listens "$work/server" || ! kill -0 $server 2>/dev/null; do sleep 0.1; done
	env SOFTRNIC_LINK="$1" SOFTRNIC_ADDR="$3" SOFTRNIC_TRANSPORT="$4" "$work/gpu" client "${2%/*}" $port "$5"
	local status=$?
	kill $server 2>/dev/null
	[ $status = 0 ] || cat "$work/server"
	return $status
}
export -f transfer
export work port
for transport in roce iwarp; do
	for how in move destroy destroyed measure; do
		for link in "shm:gpu 10.9.0.1/24 10.9.0.2/24" "kernel:lo 127.18.0.1 127.18.0.2"; do
			port=$((port + 1))
			check "$transport, $how, $link" bash -c "transfer $link $transport $how"
		done
	done
done

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
dist.destroy_process_group()
print("sums are right")
PY
nccl() {
	export MASTER_ADDR=127.0.0.1 MASTER_PORT=29511 WORLD_SIZE=2 NCCL_DEBUG=INFO NCCL_MULTI_RANK_GPU_ENABLE=1 NCCL_P2P_DISABLE=1
	export NCCL_SHM_DISABLE=1 NCCL_NET=IB NCCL_NET_GDR_LEVEL=SYS NCCL_IB_HCA=mlx5_0 SOFTRNIC_LINK=shm:nccl SOFTRNIC_DEVICE=mlx5_0,
	local pids=() status=0
	for rank in 0 1; do
		RANK=$rank NCCL_HOSTID=host$rank SOFTRNIC_ADDR=10.9.0.$((rank + 1))/24 python3 "$work/ranks.py" >"$work/rank$rank" 2>&1 &
		pids+=($!)
	done
	for pid in "${pids[@]}"; do wait "$pid" || status=1; done
	grep -h 'GDRDMA\|sums are right' "$work"/rank? | sed 's/^/result: /' | head -4
	grep -q GDRDMA "$work/rank0" && [ $status = 0 ] || { cat "$work"/rank?; return 1; }
}
export -f nccl
if python3 -c 'import torch' 2>/dev/null; then
	check "NCCL over IB with GDRDMA" bash -c nccl
else
	echo "gpu.sh: NCCL is skipped, because there is no PyTorch"
fi
exit $failed
