package inlet

import (
	"net/netip"
	"testing"
)

// TestWatch: who looks receives what is there, and otherwise soon gives up, or at once if somebody polls.
func TestWatch(t *testing.T) {
	r := &awayWhile{asked: make(chan struct{}, 1), got: make(chan bool, 1)}
	s, err := Open(netip.MustParseAddr("127.14.9.6"), "", r)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	watch := func() (again bool) {
		if err := s.raw.Control(func(fd uintptr) { again = s.watch(fd) }); err != nil {
			t.Fatal(err)
		}
		return again
	}
	for s.batch.vigil.ShouldSpin() { // ends, as none of these is luck
		if watch() {
			t.Fatal("it has seen something where there is nothing")
		}
	}
	send(t, s)
	for !watch() { // it looks seldom
	}
	if len(r.got) != 1 || !s.batch.vigil.ShouldSpin() {
		t.Error("it has not received what was there")
	}
	<-r.got
	if r.polled.Store(true); !watch() {
		t.Error("it would sleep until something comes, while somebody polls who will stop to")
	}
}
