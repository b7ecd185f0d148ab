package netstack_test

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/netstack"
)

func TestSource(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24", "10.0.1.1/16"},
			Gateways: []string{"10.0.0.254"}})
		n := h.NICs()[0]
		linkLocal := n.GIDs()[0].String()
		for dst, want := range map[string]struct {
			src    string
			direct bool
		}{
			"10.0.0.7": {"10.0.0.1", true}, "10.0.7.7": {"10.0.1.1", true}, "10.0.1.1": {"10.0.1.1", true},
			"1.1.1.1": {"10.0.0.1", false}, "fe80::7": {linkLocal, true},
			"224.0.0.1": {"10.0.0.1", true}, "239.1.2.3": {"10.0.0.1", true}, "ff02::5": {linkLocal, true},
			"ff05::5": {linkLocal, true}, "2001:db8::1": {}, "127.0.0.1": {}, "::": {}, "255.255.255.255": {},
		} {
			src, direct, err := n.Source(netip.MustParseAddr(dst))
			if want.src == "" {
				if err == nil || dst == "2001:db8::1" && !errors.Is(err, syscall.ENETUNREACH) {
					t.Errorf("%s: %v, %v", dst, src, err)
				}
			} else if err != nil || src.String() != want.src || direct != want.direct {
				t.Errorf("%s: %v, %t, %v; want %+v", dst, src, direct, err, want)
			}
		}
	})
}

func TestResolveWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		a := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}}).NICs()[0]
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		if err := a.Resolve(ctx, a4, b4); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a neighbour: %v", err)
		}
		done := make(chan error)
		go func() { done <- a.Resolve(t.Context(), a4, b4) }()
		time.Sleep(5 * time.Second)
		newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24"}})
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := a.Resolve(t.Context(), b4, a4); err == nil {
			t.Error("from an address of another host")
		}
	})
}

// TestJoin checks that a host notifies routers and switches when it joins or leaves a group.
func TestJoin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		var mu sync.Mutex
		seen := map[byte]int{} // IPv4 protocol, IPv6 next header
		router := lan.Port()
		router.Attach(func(frames []link.Frame) {
			mu.Lock()
			defer mu.Unlock()
			for _, f := range frames {
				if len(f.Data) > 40 && f.Data[12] == 8 && f.Data[13] == 0 {
					seen[f.Data[23]]++
				}
			}
		})
		defer router.Close()
		n := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}}).NICs()[0]
		time.Sleep(time.Minute)
		const igmp = 2
		count := func() int {
			mu.Lock()
			defer mu.Unlock()
			return seen[igmp]
		}
		before := count()
		group := netip.MustParseAddr("239.1.2.3")
		if err := n.Join(group); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		joined := count()
		if joined == before {
			t.Error("no IGMP report")
		}
		if err := n.Leave(group); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if count() == joined {
			t.Error("no message about leaving")
		}
		if err := n.Leave(group); err == nil {
			t.Error("left twice")
		}
		if err := n.Join(a4); err == nil {
			t.Error("joined a host")
		}
	})
}

// TestResolveEndsWithHost checks that Close ends waits for a neighbour.
func TestResolveEndsWithHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHost(t, new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
		done := make(chan error)
		go func() { done <- h.NICs()[0].Resolve(context.Background(), a4, b4) }()
		time.Sleep(time.Second)
		h.Close()
		if err := <-done; err == nil {
			t.Error("an absent neighbour was resolved")
		}
	})
}
