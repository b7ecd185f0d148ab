//go:build linux

package interop

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// streamLab is a peer whose network is a unix socket of QEMU, and softrnic, as nobody, at the other
// end.
type streamLab struct {
	peer    *peer.Peer
	program string
}

// command returns the program, with the node's flags after args. softrnic trace checks its packets
// after the test.
func (l streamLab) command(ctx context.Context, t *testing.T, args string) *exec.Cmd {
	t.Helper()
	capture := filepath.Join(forNobody(t), "capture.pcapng")
	t.Cleanup(func() { traced(t, capture, 0) })
	args += fmt.Sprintf(" --counters --link stream:%s --addr %s --mtu %d --capture %s", l.peer.Socket(), softrnicCIDR4, l.peer.MTU, capture)
	cmd := exec.CommandContext(ctx, "setpriv", asNobody(l.program, args)...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // so that the capture is complete
	cmd.WaitDelay = patience
	return cmd
}

// softrnic starts it.
func (l streamLab) softrnic(ctx context.Context, t *testing.T, args string) *process {
	t.Helper()
	return startProcess(t, l.command(ctx, t, args))
}

// newStreamLab boots a peer with one of the transports.
func newStreamLab(t *testing.T, transport verbs.Transport) streamLab {
	t.Helper()
	id := map[verbs.Transport]int{verbs.RoCEv2: 44, verbs.IWARP: 94}[transport]
	l := streamLab{program: softrnicProgram(t), peer: peer.Boot(t, peer.Config{ID: id, Stream: true})[0]}
	useTransport(t, l.peer, transport)
	return l
}

// TestStreamPingpong runs a ping-pong of each QP type that rxe has, and mckey in both roles, with
// rxe in a virtual machine and without privileges on this side. rxe has no XRC.
func TestStreamPingpong(t *testing.T) {
	gate.System(t)
	l := newStreamLab(t, verbs.RoCEv2)
	t.Run("mckey/to the kernel", l.mckeySends)
	t.Run("mckey/from the kernel", l.mckeyReceives)
	for service, args := range map[string]string{
		"rc": "-n 20 -s 100000 -m 1024", "uc": "-n 20 -s 100000 -m 1024", "ud": "-n 20 -s 1024", "srq": "-n 20 -s 4096 -m 1024 -q 4",
	} {
		t.Run(service, func(t *testing.T) {
			tries(t, func() bool { return l.pingpong(t, service, args) })
		})
	}
}

// pingpong returns true if a packet of an unreliable service was lost, as rxe loses some on a
// loaded machine. Both sides then wait for it for ever.
func (l streamLab) pingpong(t *testing.T, service, args string) (again bool) {
	unreliable := service == "uc" || service == "ud"
	limit := time.Minute
	if unreliable {
		limit /= 2
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	serving, err := l.peer.Start(fmt.Sprintf("ibv_%s_pingpong -c %s -d rxe0 -g %d", service, args, gidIndex(t, l.peer, l.peer.Addr4())))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = serving.Kill() }()
	l.peer.Run(t, untilPingpongListens)
	p := l.softrnic(ctx, t, fmt.Sprintf("pingpong %s -c %s %v", service, args, l.peer.Addr4()))
	if unreliable {
		select {
		case <-ctx.Done():
			<-p.ended
			t.Log("a packet was lost: retrying")
			return true
		case err := <-p.ended:
			p.ended <- err
		}
	}
	p.wait(t)
	p.noDamage(t)
	if code, err := serving.Wait(ctx); err != nil || code != 0 {
		t.Errorf("ibv_%s_pingpong: exit status %d, %v\n%s", service, code, err, serving.Output())
	}
	return false
}

const streamGroup, streamMckey = "239.7.7.7", "mckey -m 239.7.7.7 -C 20 -S 1000"

// mckeySends sends to a group that the kernel's mckey is in.
func (l streamLab) mckeySends(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	receiving, err := l.peer.Start(fmt.Sprintf("%s -b %v", streamMckey, l.peer.Addr4()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = receiving.Kill() }()
	l.peer.Run(t, "until ip maddr show dev eth0 | grep -q "+streamGroup+"; do sleep 0.05; done")
	p := l.softrnic(ctx, t, streamMckey+" -s")
	p.wait(t)
	if code, err := receiving.Wait(ctx); err != nil || code != 0 {
		t.Errorf("mckey: exit status %d, %v\n%s", code, err, receiving.Output())
	}
}

// mckeyReceives receives what the kernel's mckey sends to a group.
func (l streamLab) mckeyReceives(t *testing.T) {
	tries(t, func() bool {
		return mckeyFromKernel(t, l.peer, fmt.Sprintf("%s -b %v -s", streamMckey, l.peer.Addr4()), func(ctx context.Context) *exec.Cmd {
			return l.command(ctx, t, streamMckey)
		})
	})
}

// TestStreamRping: rping over rxe and over siw in a virtual machine, in both roles, without
// privileges on this side.
func TestStreamRping(t *testing.T) {
	gate.System(t)
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		l := newStreamLab(t, transport)
		const options = "-S 20000 -C 50 -v -V"
		t.Run(fmt.Sprintf("%v/client", transport), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			serving, err := l.peer.Start(fmt.Sprintf("rping -s -a %v -S 20000 -v", l.peer.Addr4()))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = serving.Kill() }()
			l.peer.Run(t, untilRpingListens)
			p := l.softrnic(ctx, t, fmt.Sprintf("rping -c -a %v %s --transport %v", l.peer.Addr4(), options, transport))
			p.wait(t)
			if code, err := serving.Wait(ctx); err != nil || code != 0 {
				t.Errorf("rping -s: exit status %d, %v\n%.2000s", code, err, serving.Output())
			}
			p.rpings(t)
		})
		t.Run(fmt.Sprintf("%v/server", transport), func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			p := l.softrnic(ctx, t, fmt.Sprintf("rping -s -d -v -S 20000 --transport %v", transport))
			p.await(t, "msg=listening")
			out, code, err := rpingClient(ctx, l.peer, fmt.Sprintf("rping -c -a %v %s", softrnicAddr4, options))
			if err != nil || code != 0 {
				t.Errorf("rping -c: exit status %d, %v\n%.2000s", code, err, out)
				cancel()
			}
			p.wait(t)
			p.rpings(t)
		})
	}
}
