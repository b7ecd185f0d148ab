//go:build linux

package sockets

import (
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs/admission"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// asProgram is the environment variable that makes TestAccepted be the agent's program.
const asProgram = "SOFTRNIC_TEST_PROGRAM"

// bounceAll sends back what the connections of a listener send.
func bounceAll(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			_, _ = io.Copy(c, struct{ io.Reader }{c})
		}()
	}
}

// settled returns how many connections the agent has admitted and not ended, or refused.
func (a *Agent) settled() int64 {
	s := a.Accepted()
	return int64(s.Held) + int64(s.Refused)
}

// TestAccepted: hostile peers open as many connections as an agent accepts, and more. One, and two,
// of them leave places for another peer, whose bytes go on to come back, and none for more than the
// limit when they are many.
func TestAccepted(t *testing.T) {
	if os.Getenv("SOFTRNIC_LONG") == "" {
		t.Skip("this test belongs to the long run: .ci/run long limits")
	}
	if os.Getenv(asProgram) != "" {
		l, err := net.FileListener(os.NewFile(3, "listener"))
		ok(t, err)
		go bounceAll(l)
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	var most unix.Rlimit
	ok(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &most))
	if most.Cur < maxAccepted+1000 {
		t.Skipf("the agent may have %d descriptors only", most.Cur)
	}
	lan, err := pipe.New(nil)
	ok(t, err)
	a, _, _ := newAgent(t, lan)
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	ok(t, err)
	to := netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), parse(l.Addr()).Port())
	f, err := l.File()
	ok(t, err)
	a.mu.Lock()
	a.bound.put(cookieOf(int(f.Fd())), to)
	a.mu.Unlock()
	a.listen(int(f.Fd()))
	program := exec.Command("/proc/self/exe", "-test.run=^TestAccepted$")
	program.Env = append(os.Environ(), asProgram+"=1")
	program.ExtraFiles, program.Stderr = []*os.File{f}, os.Stderr
	in, err := program.StdinPipe()
	ok(t, err)
	ok(t, errors.Join(program.Start(), f.Close(), l.Close()))
	defer func() {
		_ = in.Close()
		ok(t, program.Wait())
	}()

	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	cfg := &rsocket.Config{SQSize: 16, RQSize: 16, SendBuffer: 4096, RecvBuffer: 4096, Linger: time.Millisecond}
	good := otherHost(t, lan, 2)
	goodConn, err := rsocket.Dial(ctx, good, to.String(), cfg)
	ok(t, err)
	defer goodConn.Close()
	bounce := func() {
		t.Helper()
		_ = goodConn.SetDeadline(time.Now().Add(10 * time.Second))
		_, err := goodConn.Write(make([]byte, 4096))
		ok(t, err)
		_, err = io.ReadFull(goodConn, make([]byte, 4096))
		ok(t, err)
	}
	speed := func() float64 {
		began := time.Now()
		for range 2000 {
			bounce()
		}
		return 2000 / time.Since(began).Seconds()
	}
	alone := speed()

	// take makes a hostile peer open connections until some are refused. They stay.
	var slowest time.Duration
	var connected atomic.Int64 // with the good peer's
	connected.Add(1)
	take := func(peer int) {
		t.Helper()
		most := admission.Share(0, a.Accepted().Held, maxAccepted)
		dev := otherHost(t, lan, peer)
		before := a.Accepted()
		for a.Accepted().Refused < before.Refused+10 {
			if s := a.Accepted(); s.Held > maxAccepted || ctx.Err() != nil {
				t.Fatalf("peer %d is not limited: %+v", peer, s)
			}
			var dialing sync.WaitGroup
			for range 64 {
				dialing.Go(func() {
					if c, err := rsocket.Dial(ctx, dev, to.String(), cfg); err == nil {
						connected.Add(1)
						t.Cleanup(func() { _ = c.Close() })
					}
				})
			}
			began := time.Now()
			bounce()
			slowest = max(slowest, time.Since(began))
			dialing.Wait()
			for a.settled() < connected.Load()-1 && ctx.Err() == nil { // it accepts them later; one of the good peer has ended
				time.Sleep(time.Millisecond)
			}
		}
		if got := a.Accepted().Held - before.Held; got > most || got < most*9/10 { // some may have ended
			t.Errorf("peer %d has %d connections, want %d", peer, got, most)
		}
	}
	for peer := 3; a.Accepted().Held < maxAccepted; peer++ {
		take(peer)
		if peer == 4 { // a second connection of the good peer
			accepted, held := a.cfg.Counters.Accepted.Load(), a.Accepted().Held
			c, err := rsocket.Dial(ctx, good, to.String(), cfg)
			ok(t, err)
			for a.cfg.Counters.Accepted.Load() == accepted {
				ok(t, ctx.Err())
				time.Sleep(time.Millisecond)
			}
			ok(t, c.Close())
			for a.Accepted().Held > held { // its place is the next peer's
				ok(t, ctx.Err())
				time.Sleep(time.Millisecond)
			}
		}
	}
	full := speed()
	t.Logf("result: %d connections of %d; good peer: %.0f/s alone, %.0f/s beside them (%.2f), at most %v while they connect",
		a.Accepted().Held, connected.Load(), alone, full, full/alone, slowest.Round(time.Millisecond))
	if full < 0.8*alone {
		t.Error("the good peer has not kept 0.8 of its speed")
	}
	cancel()
}
