//go:build linux && amd64

package dropin

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// TestISER: tgtd exports a file over iSER. Initiators of libiscsi in another network namespace,
// iscsi-inq and qemu's tools, copy a file system there and back. tgtd listens on the same port for
// IPv4 and IPv6. libiscsi's iSER moves at most 256 KiB per command, so the copy is cut into pieces.
func TestISER(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/sbin/tgtd", "tgt")
	needs(t, "/usr/bin/iscsi-inq", "libiscsi-bin")
	needs(t, "/usr/bin/qemu-io", "qemu-utils")
	needs(t, "/usr/lib/x86_64-linux-gnu/qemu/block-iscsi.so", "qemu-block-extra")
	needs(t, "/usr/sbin/mke2fs", "e2fsprogs")
	const (
		size, piece = 8 << 20, 128 << 10
		target      = "iqn.2026-11.test.softrnic:disk"
		initiators  = "iqn.2007-10.com.github:sahlberg:libiscsi:iscsi-inq iqn.2008-11.org.linux-kvm"
	)
	programs.Ran(t, "tgtd -f --iser with iscsi-inq, qemu-io and qemu-img", "sockets (RoCEv2)")
	softrnic := command(t)
	w := newNetwork(t)
	image, disk, back := filepath.Join(w.dirs[1], "image"), filepath.Join(w.dirs[0], "disk"), filepath.Join(w.dirs[1], "back")
	counters := [2]string{filepath.Join(w.dirs[0], "counters"), filepath.Join(w.dirs[1], "counters")}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	at := func(side int, line ...string) *exec.Cmd {
		cmd := w.command(ctx, side, line...)
		cmd.Env = append(cmd.Env, "TGT_IPC_SOCKET="+filepath.Join(w.dirs[0], "tgtd"), "SOFTRNIC_COUNTERS="+counters[side])
		return cmd
	}
	do := func(side int, line ...string) string {
		t.Helper()
		out, err := at(side, line...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		return string(out)
	}
	onDevice := func(line ...string) []string {
		return append([]string{softrnic, "run", "--log-level", "debug", "--link", "kernel:veth0", "--"}, line...)
	}
	do(1, "mke2fs", "-q", "-t", "ext2", "-d", "/etc/apt", image, fmt.Sprint(size>>10, "k"))
	do(0, "truncate", "-s", fmt.Sprint(size), disk)

	tgtd := at(0, onDevice("tgtd", "-f", "--iser", "port=3261", "--iscsi", "portal="+addresses[0]+":3260")...)
	var said proc.Output
	tgtd.Stdout, tgtd.Stderr = &said, &said
	if err := tgtd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- tgtd.Wait() }()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("tgtd:\n%s", said.String())
		}
	})
	for _, listens := range []string{"addr=0.0.0.0:3261", "addr=[::]:3261"} {
		if err := said.WaitFor(listens, ended); err != nil {
			t.Fatal(err)
		}
	}
	tgtadm := func(args string) { t.Helper(); do(0, strings.Fields("tgtadm --lld iser --mode "+args)...) }
	for try := 0; at(0, strings.Fields("tgtadm --lld iser --mode target --op new --tid 1 --targetname "+target)...).Run() != nil; try++ {
		if try == 100 { // tgtd accepts commands soon after it listens
			t.Fatal("tgtd does not take a target")
		}
		time.Sleep(100 * time.Millisecond)
	}
	tgtadm("logicalunit --op new --tid 1 --lun 1 -b " + disk)
	tgtadm("target --op bind --tid 1 -I ALL")
	for name := range strings.FieldsSeq(initiators) { // over iSER, tgtd wants both
		tgtadm("target --op bind --tid 1 -Q " + name)
	}
	url := "iser://" + addresses[0] + ":3261/" + target + "/1"

	t.Run("iscsi-inq", func(t *testing.T) {
		programs.Ran(t, "iscsi-inq iser://…", "sockets (RoCEv2), tgtd on SoftRNIC too")
		if out := do(1, onDevice("iscsi-inq", url)...); !strings.Contains(out, "Product:VIRTUAL-DISK") {
			t.Errorf("iscsi-inq:\n%s", out)
		}
	})
	t.Run("qemu-io and qemu-img", func(t *testing.T) {
		programs.Ran(t, "qemu-io write iser://…", "sockets (RoCEv2), tgtd on SoftRNIC too")
		programs.Ran(t, "qemu-img dd if=iser://…", "sockets (RoCEv2), tgtd on SoftRNIC too")
		want, err := os.ReadFile(image)
		if err != nil {
			t.Fatal(err)
		}
		write := []string{"qemu-io", "-f", "raw"}
		for from := 0; from < size; from += piece {
			name := fmt.Sprint(image, from)
			if err := os.WriteFile(name, want[from:from+piece], 0o644); err != nil {
				t.Fatal(err)
			}
			write = append(write, "-c", fmt.Sprintf("write -q -s %s %d %d", name, from, piece))
		}
		do(1, onDevice(append(write, "-c", "flush", url)...)...)
		if got, err := os.ReadFile(disk); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the disk is not as the image (%v)", err)
		}
		do(1, onDevice("qemu-img", "dd", "-f", "raw", "-O", "raw", fmt.Sprint("bs=", piece), "if="+url, "of="+back)...)
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, want) {
			t.Errorf("the copied image differs (%v)", err)
		}
		do(1, "e2fsck", "-fn", back)
	})

	cancel()
	<-ended
	if c, err := programs.Counted(counters[1]); err != nil || 4*min(c["port_xmit_data"], c["port_rcv_data"]) < size {
		t.Errorf("the initiators' device has counted %v (%v), want %d bytes each way at least", c, err, size)
	}
}
