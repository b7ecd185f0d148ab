package inlet

import (
	"net/netip"
	"testing"
)

// TestVigil: a reader looks for more as long as that finds something, and after bad luck only once in a while.
func TestVigil(t *testing.T) {
	var v vigil
	looks := func(n int, found bool) (looks int) {
		for range n {
			if v.due() {
				looks++
				v.looked(found)
			}
		}
		return looks
	}
	for _, c := range []struct {
		what     string
		sleeps   int
		found    bool
		min, max int
	}{
		{"nothing has come yet", seldom - 1, false, 0, 0},
		{"the first luck", 1, true, 1, 1},
		{"more luck", 100, true, 100, 100},
		{"the luck ends", mostLuck, false, mostLuck, mostLuck},
		{"bad luck", 100 * seldom, false, 99, 100},
		{"luck again", 2 * seldom, true, seldom, 2 * seldom},
	} {
		if got := looks(c.sleeps, c.found); got < c.min || got > c.max {
			t.Errorf("%s: %d looks before %d sleeps, want %d to %d", c.what, got, c.sleeps, c.min, c.max)
		}
	}
}

// TestWatch: who looks receives what is there, and otherwise soon gives up, or at once if somebody polls.
func TestWatch(t *testing.T) {
	r := &awayWhile{asked: make(chan struct{}, 1), got: make(chan bool, 1)}
	s, err := Open(netip.MustParseAddr("127.14.9.6"), "", r)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	watch := func() (again bool) {
		s.batch.vigil.luck = 1
		if err := s.raw.Control(func(fd uintptr) { again = s.watch(fd) }); err != nil {
			t.Fatal(err)
		}
		return again
	}
	if watch() || s.batch.vigil.luck != 0 {
		t.Error("it looks for ever where there is nothing, or calls that luck")
	}
	send(t, s)
	if !watch() || len(r.got) != 1 || s.batch.vigil.luck != mostLuck {
		t.Error("it has not received what was there")
	}
	<-r.got
	if r.polled.Store(true); !watch() {
		t.Error("it would sleep until something comes, while somebody polls who will stop to")
	}
}
