//go:build linux

package interop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
)

// TestMckey sends to a group that `softrnic mckey` and the kernel's mckey are in, from either.
func TestMckey(t *testing.T) {
	gate.System(t)
	const group, options = "239.7.7.7", "-m 239.7.7.7 -C 20 -S 1000"
	program, captures := softrnicProgram(t), captureDir(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	capture := func(t *testing.T) string { return filepath.Join(captures, strings.ReplaceAll(t.Name(), "/", ",")) }
	args := func(t *testing.T, more ...string) []string {
		return append(append([]string{"mckey"}, strings.Fields(options)...), append(more,
			"--link", "tap:softrnic0,bridge="+p.Netns.Bridge, "--mac", softrnicMAC.String(), "--addr", softrnicCIDR4,
			"--capture", capture(t))...)
	}
	kernel := fmt.Sprintf("mckey %s -b %v", options, p.Addr4())

	t.Run("to the kernel", func(t *testing.T) {
		receiving, err := p.Start(kernel)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = receiving.Kill() }()
		p.Run(t, "until ip maddr show dev eth0 | grep -q "+group+"; do sleep 0.05; done")
		if out, err := p.Netns.Command(ctx, program, args(t, "-s")...).CombinedOutput(); err != nil {
			t.Errorf("softrnic: %v\n%s", err, out)
		}
		if code, err := receiving.Wait(ctx); err != nil || code != 0 {
			t.Errorf("mckey: exit status %d, %v\n%s", code, err, receiving.Output())
		}
	})
	t.Run("from the kernel", func(t *testing.T) {
		tries(t, func() bool {
			return mckeyFromKernel(t, p, kernel+" -s", func(ctx context.Context) *exec.Cmd {
				_ = os.Remove(capture(t)) // of an earlier try
				return p.Netns.Command(ctx, program, args(t)...)
			})
		})
	})
}

// mckeyFromKernel lets the kernel's mckey send to softrnic's, which is in its group. It returns
// true if rxe has not sent all: mckey does not wait for its requests before it destroys the QP. See
// peer.DropsPosted.
func mckeyFromKernel(t *testing.T, p *peer.Peer, kernel string, softrnic func(context.Context) *exec.Cmd) (again bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	receiving, said := softrnic(ctx), newAwaited("joined")
	receiving.Stdout, receiving.Stderr = said, said
	if err := receiving.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- receiving.Wait() }()
	select {
	case <-said.seen:
	case err := <-ended:
		t.Fatalf("softrnic: %v\n%s", err, said)
	}
	before := rxeSent(t, p)
	if out, code, err := p.Exec(ctx, kernel); err != nil || code != 0 {
		t.Errorf("mckey: exit status %d, %v\n%s", code, err, out)
		cancel()
	} else if sent := rxeSent(t, p) - before; sent < 20 && p.Kernel.Has(peer.DropsPosted) {
		t.Logf("rxe has sent %d of 20 messages: retrying", sent)
		cancel()
		<-ended
		return true
	}
	if err := <-ended; err != nil {
		t.Errorf("softrnic: %v\n%s", err, said)
	}
	return false
}

// rxeSent is the number of packets that a peer's rxe has sent.
func rxeSent(t *testing.T, p *peer.Peer) (n int) {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimSpace(p.Run(t, "cat /sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts")))
	if err != nil {
		t.Fatal(err)
	}
	return n
}
