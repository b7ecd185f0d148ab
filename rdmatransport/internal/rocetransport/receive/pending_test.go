package receive

import (
	"fmt"
	"strings"
	"testing"
)

// String returns the response's PSN and packets, with a quote if it answers a duplicate.
func (r *Response) String() string {
	s := fmt.Sprintf("%d+%d", r.PSN, r.Packets)
	if r.replay {
		s += "'"
	}
	return s
}

func (p *pending) String() string {
	var all []string
	for i := range p.queue {
		all = append(all, p.queue[i].String())
	}
	return strings.Join(all, " ")
}

func TestPending(t *testing.T) {
	response := func(psn, packets uint32) *Response { return &Response{PSN: psn, Packets: packets} }
	replay := func(psn, packets uint32) *Response { return &Response{PSN: psn, Packets: packets, replay: true} }
	for _, c := range []struct {
		name     string
		insert   []*Response
		want     string
		original int
	}{
		{"in order", []*Response{response(1, 4), response(5, 1)}, "1+4 5+1", 2},
		{"a duplicate comes before", []*Response{response(5, 1), replay(1, 4)}, "1+4' 5+1", 1},
		{"over the end of PSNs", []*Response{response(0, 1), replay(1<<24-4, 4)}, fmt.Sprintf("%d+4' 0+1", 1<<24-4), 1},
		{"in place of the original", []*Response{response(1, 4), replay(3, 2)}, "3+2'", 0},
		{"in place of several", []*Response{replay(1, 1), replay(2, 1), replay(3, 1), replay(2, 2)}, "1+1' 2+2'", 0},
		{"next to its neighbours", []*Response{replay(1, 2), replay(5, 1), replay(3, 2)}, "1+2' 3+2' 5+1'", 0},
	} {
		var p pending
		p.init(4)
		for _, r := range c.insert {
			p.insert(r, 4)
		}
		if p.String() != c.want || p.original() != c.original {
			t.Errorf("%s: %v, %d not requested again", c.name, &p, p.original())
		}
	}
}

// Duplicates do not make the queue grow, and new requests are always accepted.
func TestPendingIsBounded(t *testing.T) {
	const limit = 4
	var p pending
	p.init(limit)
	for psn := range uint32(1000) {
		p.insert(&Response{PSN: psn, Packets: 1, replay: true}, limit)
	}
	if len(p.queue) != 2*limit+maxReplays {
		t.Errorf("%d duplicates", len(p.queue))
	}
	if p.insert(&Response{PSN: 2000, Packets: 1}, limit); p.original() != 1 {
		t.Error("a new one is not accepted")
	}
}

func TestPendingCovers(t *testing.T) {
	var p pending
	p.init(4)
	p.insert(&Response{PSN: 10, Packets: 4}, 4)
	p.insert(&Response{Kind: Atomic, PSN: 20, Packets: 1, Deferred: true}, 4)
	for _, c := range []struct {
		psn, n uint32
		want   bool
	}{{10, 4, true}, {12, 2, true}, {12, 3, false}, {9, 2, false}, {14, 1, false}, {20, 1, false}} {
		if got := p.covers(c.psn, c.n); got != c.want {
			t.Errorf("%d+%d: %v", c.psn, c.n, got)
		}
	}
	if !p.deferred() {
		t.Error("nothing is deferred")
	}
	p.queue[1].executed(7)
	if p.deferred() || p.queue[1].Orig != 7 {
		t.Errorf("executed: %+v", p.queue[1])
	}
}

// A READ's response as it is sent.
func TestResponseNext(t *testing.T) {
	r := Response{PSN: 1<<24 - 1, Packets: 2}
	r.RETH.Addr, r.RETH.Length = 4096, 1500
	first := r.First()
	if r.next(1, 1024); !first || r.First() || r.PSN != 0 || r.Packets != 1 || r.RETH.Addr != 5120 ||
		r.RETH.Length != 476 || r.total() != 2 {
		t.Errorf("%v then %+v", first, r)
	}
	if p := (Response{partial: true}); p.First() {
		t.Error("the end of a READ begins with its first packet")
	}
}
