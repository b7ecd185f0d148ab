package netstack_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// during lets a clock's time pass until f returns.
func during(sim *stacktest.Clock, f func()) {
	done := make(chan struct{})
	go func() {
		f()
		close(done)
	}()
	for {
		select {
		case <-done:
			return
		case <-time.After(100 * time.Microsecond):
			sim.Advance(50 * time.Millisecond)
		}
	}
}

// TestClock: the resolution of neighbours, the time of a ping and the deadlines of a stream are
// those of the link's clock.
func TestClock(t *testing.T) {
	const delay = time.Second
	sim, lan := stacktest.NewClock(1), new(pipe.Switch)
	slow, err := impair.New(sim.On(lan.Port()), &impair.Config{Out: impair.Direction{Delay: delay}})
	if err != nil {
		t.Fatal(err)
	}
	a := newHost(t, slow, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	b := newHost(t, sim.On(lan.Port()), &netstack.Config{Addrs: []string{"10.0.0.2/24"}})
	if a.Clock() != clock.New(sim) {
		t.Error("the host does not have its link's clock")
	}
	during(sim, func() {
		took, err := a.Ping(t.Context(), netip.MustParseAddr("10.0.0.2"))
		if err != nil || took < delay {
			t.Errorf("ping: %v, %v", took, err)
		}
	})
	during(sim, func() {
		start := sim.Now()
		ctx, cancel := a.Clock().WithTimeout(t.Context(), time.Minute)
		defer cancel()
		nic, silent := a.NICs()[0], netip.MustParseAddr("10.0.0.9")
		if err := nic.Resolve(ctx, netip.MustParseAddr("10.0.0.1"), silent); err == nil || sim.Now().Sub(start) < time.Second {
			t.Errorf("a host that does not exist: %v after %v", err, sim.Now().Sub(start))
		}
	})

	ln, err := b.ListenStream(netip.MustParseAddrPort("10.0.0.2:80"))
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	during(sim, func() {
		s, err := a.DialStream(context.Background(), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.2:80"))
		if err != nil {
			t.Error(err)
			return
		}
		defer s.Abort()
		for what, wait := range map[string]func(stack.Stream) error{
			"Wait": stack.Stream.Wait,
			"Read": func(s stack.Stream) error {
				_, err := s.Read(make([]byte, 1))
				return err
			},
			"Write": func(s stack.Stream) error {
				_, err := s.Write(make([]byte, 64<<20))
				return err
			},
		} {
			start := sim.Now()
			if err := s.SetDeadline(start.Add(delay)); err != nil {
				t.Error(err)
			}
			var timeout net.Error
			if err := wait(s); !errors.As(err, &timeout) || !timeout.Timeout() || sim.Now().Sub(start) < delay {
				t.Errorf("%s: %v after %v", what, err, sim.Now().Sub(start))
			}
			if err := s.SetDeadline(time.Time{}); err != nil {
				t.Error(err)
			}
		}
	})
}

// TestClocksDiffer: all links of a host have one clock.
func TestClocksDiffer(t *testing.T) {
	lan := new(pipe.Switch)
	_, err := netstack.New(lan.Port(), &netstack.Config{NICs: []netstack.NICConfig{{Link: stacktest.NewClock(1).On(lan.Port())}}})
	if err == nil || !strings.Contains(err.Error(), "NICs[0].Link") {
		t.Errorf("New: %v", err)
	}
}
