package receive

import "testing"

// The last READs, of 4 packets each from PSN 4·i on, are found.
func TestHistory(t *testing.T) {
	read := func(i int) *Response { return &Response{PSN: uint32(4 * i), Packets: 4, Orig: uint64(i)} }
	for _, c := range []struct {
		name     string
		limit    uint8
		n        int // READs
		then     uint8
		more     int
		from, to int // the READs that are found
	}{
		{"fewer than may be outstanding", 4, 3, 4, 0, 0, 3},
		{"the oldest is forgotten", 4, 6, 4, 0, 2, 6},
		{"more are allowed", 4, 6, 6, 0, 2, 6},
		{"and kept", 4, 6, 6, 2, 2, 8},
		{"and forgotten in order", 4, 6, 6, 3, 3, 9},
		{"fewer are allowed", 4, 6, 2, 0, 2, 6},
		{"and as many kept", 4, 6, 2, 1, 3, 7},
	} {
		var h history
		h.init(c.limit)
		for i := range c.n {
			h.remember(read(i), c.limit)
		}
		h.setLimit(c.then)
		for i := range c.more {
			h.remember(read(c.n+i), c.then)
		}
		for i := range c.n + c.more + 1 {
			r, into := h.find(uint32(4*i + 3))
			if found := r != nil; found != (i >= c.from && i < c.to) || found && (into != 3 || r.Orig != uint64(i)) {
				t.Errorf("%s: READ %d: %v, %d", c.name, i, r, into)
			}
		}
	}
}

// PSNs wrap: the newest counts.
func TestHistoryNewestFirst(t *testing.T) {
	var h history
	h.init(3)
	for i, psn := range []uint32{8, 100, 8} {
		h.remember(&Response{PSN: psn, Packets: 4, Orig: uint64(i)}, 3)
	}
	if r, into := h.find(9); r == nil || r.Orig != 2 || into != 1 {
		t.Errorf("%v, %d", r, into)
	}
}
