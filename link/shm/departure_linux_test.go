package shm

import (
	"testing"

	"github.com/softrnic/softrnic/link"
)

// TestDepartures checks that every departure is reported once, after Close or a kill. The end of a
// connection alone is not reported: the processes connect again.
func TestDepartures(t *testing.T) {
	t.Parallel()
	dir := directory(t)
	a := join(t, dir, nil)
	a.Attach(func([]link.Frame) {})
	left := make(chan [6]byte, 16)
	a.WatchDepartures(func(mac [6]byte) { left <- mac })
	gone := func(mac [6]byte) {
		t.Helper()
		if got := <-left; got != mac {
			t.Errorf("%x has left, want %x", got, mac)
		}
	}
	connectedTo := func(n int) { t.Helper(); await(t, "they connect", func() bool { return len(a.Peers()) == n }) }
	mac := [6]byte{2, 0, 0, 0, 0, 9}
	for range 3 { // with one address
		b := join(t, dir, &Config{MAC: mac[:]})
		b.Attach(func([]link.Frame) {})
		connectedTo(1)
		if err := b.Close(); err != nil {
			t.Error(err)
		}
		gone(mac)
	}

	b := join(t, dir, &Config{MAC: mac[:]})
	b.Attach(func([]link.Frame) {})
	connectedTo(1)
	first := a.medium.(*segment).peer(mac)
	first.Shutdown()
	await(t, "they connect again", func() bool { p := a.medium.(*segment).peer(mac); return p != nil && p != first })

	kill := start(t, dir)
	connectedTo(2)
	var other [6]byte
	for _, p := range a.Peers() {
		if [6]byte(p) != mac {
			other = [6]byte(p)
		}
	}
	kill()
	gone(other)
	if err := b.Close(); err != nil {
		t.Error(err)
	}
	gone(mac) // only now, and only once
	if len(left) > 0 {
		t.Errorf("%x has left too", <-left)
	}
}
