//go:build linux && amd64

package interop

import (
	"context"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/spdk"
	"github.com/softrnic/softrnic/verbs"
)

// TestSPDKKernel runs SPDK on the drop-in libraries, as nobody, with the peer's kernel: the kernel
// connects to SPDK's target, and SPDK's hosts to the kernel's target.
func TestSPDKKernel(t *testing.T) {
	gate.Long(t)
	installed := spdk.Find(t)
	saveTable(t)
	l := dropinLab{libs: buildLibraries(t)}
	for _, l.transport = range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(l.transport.String(), func(t *testing.T) {
			l.peer = cmPeer(t, 2, l.transport)
			t.Run("nvmf_tgt", func(t *testing.T) { l.nvmfTarget(t, installed) })
			t.Run("nvmet", func(t *testing.T) {
				serveNVMet(t, l.peer)
				s := l.spdk(t, installed, l.peer.Addr4().String(), nvmeNQN)
				s.With, s.Slow = "Linux's target", true
				s.Hosts(t)
			})
		})
	}
}

// spdk returns SPDK on this side, and its target's address and NQN.
func (l *dropinLab) spdk(t *testing.T, installed *spdk.Installed, addr, nqn string) *spdk.Side {
	t.Helper()
	dir := forNobody(t)
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 20*time.Minute) // until a cleanup has interrupted the target
	t.Cleanup(cancel)
	return &spdk.Side{Installed: installed, Dir: dir, Address: addr, NQN: nqn, IWARP: l.transport == verbs.IWARP, Over: l.against(),
		Run: func(program string, args ...string) *exec.Cmd {
			run := asNobody(filepath.Join(l.libs, "softrnic"), "run --no-shared --link kernel:"+l.peer.Netns.Bridge+" --addr "+
				dropinAddr.String()+" -- "+program)
			cmd := l.peer.Netns.Command(ctx, "setpriv", append(run, args...)...)
			cmd.Env = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "XDG_RUNTIME_DIR=" + dir, "TMPDIR=" + dir,
				"SOFTRNIC_TRANSPORT=" + map[verbs.Transport]string{verbs.RoCEv2: "roce", verbs.IWARP: "iwarp"}[l.transport]}
			return cmd
		}}
}

// nvmfTarget has the kernel discover SPDK's target ten times, write and verify with requests of all
// sizes, 128 deep, and make a file system.
func (l *dropinLab) nvmfTarget(t *testing.T, installed *spdk.Installed) {
	spdk.Until(t, l.spdk(t, installed, dropinAddr.String(), spdk.NQN).Target(t), spdk.Listening)
	host := nvmeLab{cmLab: cmLab{peer: l.peer, transport: l.transport}}
	host.prepare(t)
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Minute)
	defer cancel()
	out, code, err := l.peer.Exec(ctx, strings.NewReplacer("10.77.0.100", dropinAddr.String(), nvmeNQN, spdk.NQN).Replace(`
. /storage.sh
set -e
for try in $(seq 10); do nvme discover -t rdma -a 10.77.0.100 -s 4420 | grep -q 'subnqn:  `+nvmeNQN+`'; done
`+nvmeConnect+" --queue-size 128"+untilDisk+`
nvme id-ctrl $ctrl | grep SPDK
nvme smart-log $ctrl >/dev/null
fio="fio --name=v --iodepth=128 --ioengine=libaio --direct=1 --verify=crc32c --verify_fatal=1 --output-format=terse"
for size in 512 1024 2048 4096 8192 16384 32768 65536 131072 262144 524288 1048576; do
  $fio --filename=$disk --bs=$size --rw=randwrite --size=$((size < 65536 ? 2097152 : size * 32)) >/dev/null
  echo $size bytes are verified
done
mkfs.ext4 -q -F $disk
mkdir -p /mnt
mount $disk /mnt
$fio --filename=/mnt/f --bsrange=4k-1M --rw=randrw --size=16M >/dev/null
sha256sum /mnt/f >/sum
nvme reset $ctrl
umount /mnt
mount $disk /mnt
sha256sum -c /sum
umount /mnt
fsck.ext4 -fn $disk
nvme disconnect -n `+nvmeNQN))
	if err != nil || code != 0 {
		t.Fatalf("exits with %d, %v\n%s", code, err, out)
	}
	t.Logf("%s", out)
}
