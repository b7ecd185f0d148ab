package shm

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/ring"
)

// shown is what code that is not Go's reads in the memory of Arrivals: whether anything is known, and whether there are frames.
func shown(b []byte) (known, arrived bool) {
	word := func(at int) uint32 { return (*atomic.Uint32)(unsafe.Pointer(&b[at])).Load() }
	pages, size := word(0), int(word(4))
	for i := range ring.ArrivalSlots {
		page := (1 + i) * size
		tail, head := (*atomic.Uint64)(unsafe.Pointer(&b[page])), (*atomic.Uint64)(unsafe.Pointer(&b[page+128]))
		arrived = arrived || pages>>i&1 != 0 && tail.Load() != head.Load()
	}
	return pages != 0, arrived
}

// TestArrivals: frames show from when they are written until they are received, and of those who have gone nothing.
func TestArrivals(t *testing.T) {
	dir := directory(t)
	a := join(t, dir)
	memory, err := a.Arrivals()
	if err != nil {
		t.Fatal(err)
	}
	expectShown := func(when string, known, arrived bool) {
		t.Helper()
		await(t, when, func() bool { k, is := shown(memory); return k == known && is == arrived })
	}
	expectShown("alone", false, false)
	b, err := Open("x", Directory(dir))
	if err != nil {
		t.Fatal(err)
	}
	expectShown("a peer", true, false)
	f := linktest.Plain(a.MAC(), b.MAC(), 100, "to be seen")
	send(t, b, f)
	if known, arrived := shown(memory); !known || !arrived { // nobody receives yet
		t.Errorf("a frame that was written: known %v, arrived %v", known, arrived)
	}
	got := linktest.Receive(a)
	expect(t, got, f)
	expectShown("the frame is received", true, false)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	expectShown("the peer has gone", false, false)

	// Pages are used again, and where there are more peers than pages, nothing is known.
	var more []*Link
	for range ring.ArrivalSlots {
		more = append(more, join(t, dir))
	}
	await(t, "all have met", func() bool { return len(a.Peers()) == len(more) })
	expectShown("as many peers as pages", true, false)
	last, err := Open("x", Directory(dir))
	if err != nil {
		t.Fatal(err)
	}
	await(t, "one more", func() bool { return len(a.Peers()) == len(more)+1 })
	expectShown("one more", false, false)
	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	expectShown("one has gone", true, false)
}
