package shm

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/ring"
)

// shown returns what C code reads from the memory of Arrivals: whether the state is known, and
// whether frames have arrived.
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

// TestArrivals checks that a frame is shown as arrived from its Write to its reception, and that
// peers that have left show nothing.
func TestArrivals(t *testing.T) {
	dir := directory(t)
	a := join(t, dir, nil)
	memory, err := a.Arrivals()
	if err != nil {
		t.Fatal(err)
	}
	expectShown := func(when string, known, arrived bool) {
		t.Helper()
		await(t, when, func() bool { k, is := shown(memory); return k == known && is == arrived })
	}
	expectShown("alone", false, false)
	b, err := Open("x", &Config{Directory: dir})
	if err != nil {
		t.Fatal(err)
	}
	expectShown("a peer", true, false)
	f := linktest.Plain(a.MAC(), b.MAC(), 100, "a frame")
	send(t, b, f)
	if known, arrived := shown(memory); !known || !arrived { // nothing has received it yet
		t.Errorf("after Write: known %v, arrived %v", known, arrived)
	}
	got := linktest.Receive(a)
	expect(t, got, f)
	expectShown("after reception", true, false)
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	expectShown("the peer has left", false, false)

	// Pages are reused. With more peers than pages nothing is known.
	var more []*Link
	for range ring.ArrivalSlots {
		more = append(more, join(t, dir, nil))
	}
	await(t, "all are connected", func() bool { return len(a.Peers()) == len(more) })
	expectShown("as many peers as pages", true, false)
	last, err := Open("x", &Config{Directory: dir})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "one more", func() bool { return len(a.Peers()) == len(more)+1 })
	expectShown("one peer more than pages", false, false)
	if err := last.Close(); err != nil {
		t.Fatal(err)
	}
	expectShown("one has left", true, false)
}
