package rxsocket

import (
	"net/netip"
	"testing"
)

// TestSpin checks that a spinning socket receives a pending datagram, otherwise soon gives up, and
// stops at once if an application polls.
func TestSpin(t *testing.T) {
	r := &pollingReceiver{asked: make(chan struct{}, 1), got: make(chan bool, 1)}
	s, err := Open(netip.MustParseAddr("127.14.9.6"), "", r)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	watch := func() (again bool) {
		if err := s.raw.Control(func(fd uintptr) { again = s.spin(fd) }); err != nil {
			t.Fatal(err)
		}
		return again
	}
	for s.batch.adaptive.ShouldSpin() { // ends, as no spin finds anything
		if watch() {
			t.Fatal("spin received a datagram that was not sent")
		}
	}
	send(t, s)
	for !watch() { // spins are rare now
	}
	if len(r.got) != 1 || !s.batch.adaptive.ShouldSpin() {
		t.Error("spin did not receive the pending datagram")
	}
	<-r.got
	if r.polled.Store(true); !watch() {
		t.Error("spin would sleep while an application polls")
	}
}
