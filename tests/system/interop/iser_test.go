//go:build linux && amd64

package interop

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
	"github.com/softrnic/softrnic/verbs"
)

// TestISER: tgtd on the drop-in libraries exports a disk over iSER, and the kernel's initiator,
// ib_iser, logs in over rxe or siw. It mounts the file system on the disk, reads a file and writes
// another.
func TestISER(t *testing.T) {
	gate.Long(t) // SCSI is slow on an emulated machine
	saveTable(t)
	libs := buildLibraries(t)
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) {
			l := dropinLab{libs: libs, transport: transport, peer: cmPeer(t, 2, transport)}
			programs.Ran(t, "tgtd -f --iser with ib_iser of its kernel", l.against())
			l.iser(t)
		})
	}
}

const (
	iserTarget    = "iqn.2026-11.test.softrnic:disk"
	iserInitiator = "iqn.2026-11.test.softrnic:peer"
	iserPort      = 3261
)

func (l *dropinLab) iser(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	dir := forNobody(t)
	path := func(name string) string { return filepath.Join(dir, name) }
	counters, disk := path("counters"), path("disk")
	here := func(name string, args ...string) {
		t.Helper()
		if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %s: %v\n%s", name, args, err, out)
		}
	}
	want := make([]byte, 3<<20+12345)
	_, _ = rand.Read(want) // never fails
	if err := os.MkdirAll(path("files"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path("files/read"), want, 0o644); err != nil {
		t.Fatal(err)
	}
	here("mke2fs", "-q", "-t", "ext2", "-d", path("files"), disk, "16M")
	if err := os.Chown(disk, 65534, 65534); err != nil {
		t.Fatal(err)
	}

	target := l.dropin(ctx, t, fmt.Sprintf("tgtd -f --iser port=%d --iscsi portal=%v:3260", iserPort, dropinAddr), counters)
	socket := "TGT_IPC_SOCKET=" + path("tgtd")
	target.Env = append(target.Env, socket)
	tgtd := startProcess(t, target)
	t.Cleanup(func() { _ = tgtd.cmd.Process.Kill() })
	const once, untilDone = false, true
	tgtadm := func(args string, again bool) {
		t.Helper()
		for {
			cmd := l.peer.Netns.Command(ctx, "setpriv", asNobody("/usr/sbin/tgtadm", "--lld iser --mode "+args)...)
			cmd.Env = []string{socket}
			out, err := cmd.CombinedOutput()
			if err == nil {
				return
			}
			select {
			case <-time.After(100 * time.Millisecond):
				if again && ctx.Err() == nil {
					continue
				}
				t.Fatalf("tgtadm %s: %v\n%s", args, err, out)
			case ended := <-tgtd.ended:
				t.Fatalf("tgtadm %s: %v\n%s\ntgtd: %v", args, err, out, ended)
			}
		}
	}
	// tgtd does not accept commands at once after its start.
	tgtadm("target --op new --tid 1 --targetname "+iserTarget, untilDone)
	tgtadm("logicalunit --op new --tid 1 --lun 1 -b "+disk, once)
	tgtadm("target --op bind --tid 1 -I ALL", once) // over iSER, tgtd wants both
	tgtadm("target --op bind --tid 1 -Q "+iserInitiator, once)
	t.Cleanup(func() {
		if t.Failed() {
			out, _, _ := l.peer.Exec(context.Background(), "dmesg | tail -n 40")
			t.Logf("the peer's kernel:\n%s\ntgtd:\n%s%s", out, tgtd.stdout.String(), tgtd.stderr.String())
		}
	})

	node := fmt.Sprintf("iscsiadm -m node -T %s -p %v:%d", iserTarget, dropinAddr, iserPort)
	out := l.peer.Run(t, strings.Join([]string{
		"set -e",
		"modprobe -a sd_mod ext4 ib_iser",
		"mkdir -p /etc/iscsi /var/lib/iscsi /run/lock/iscsi /mnt",
		"echo InitiatorName=" + iserInitiator + " >/etc/iscsi/initiatorname.iscsi",
		"kill -0 $(cat /run/iscsid.pid) || iscsid",
		node + " -o new -I iser",
		node + " --login",
		// The disk appears a moment after the session.
		"for try in $(seq 300); do for d in /sys/block/sd*; do [ -e $d ] && disk=/dev/${d##*/}; done; [ -b \"$disk\" ] && break; sleep " +
			"0.1; done",
		"cat /sys/class/scsi_host/host*/proc_name",
		"mount -t ext4 $disk /mnt",
		"cp /mnt/read /mnt/written",
		"umount /mnt",
		"mount -t ext4 $disk /mnt",
		"cmp /mnt/read /mnt/written",
		"umount /mnt",
		node + " --logout",
		node + " -o delete",
	}, "\n"))
	if !strings.Contains(out, "iscsi_iser") {
		t.Errorf("the disk is not on iSER:\n%s", out)
	}
	here("e2fsck", "-fn", disk)
	here("debugfs", "-R", "dump /written "+path("back"), disk)
	if got, err := os.ReadFile(path("back")); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the data that the peer has written differs from the data it has read: %d bytes, want %d (%v)", len(got), len(want), err)
	}
	if l.transport == verbs.IWARP {
		// tgtd waits for TIMEWAIT_EXIT, which iWARP does not have. It does not end, and writes no
		// counters.
		return
	}
	// tgtd forgets the session after the connection's time wait, and ends only on SIGKILL.
	tgtadm("target --op delete --tid 1", untilDone)
	tgtadm("system --op delete", once)
	tgtd.wait(t)
	c, err := programs.Counted(counters)
	if err != nil {
		t.Fatal(err)
	}
	sent, received := 4*c["port_xmit_data"], 4*c["port_rcv_data"]
	if min(sent, received) < uint64(len(want)) {
		t.Errorf("the target's device has sent %d bytes and received %d, want %d each at least", sent, received, len(want))
	}
}
