package ipid_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/ipid"
)

const start = 24 * time.Hour

var flow = ipid.Flow{Src: netip.MustParseAddr("10.0.0.2"), Dst: netip.MustParseAddr("10.0.0.1"), SrcPort: 50000}

// event is a packet with an identification, some time after the previous one.
type event struct {
	after  time.Duration
	id     uint16
	forged bool // its PSN is wrong
	accept bool
}

func TestAccept(t *testing.T) {
	const none, second = 0, time.Second
	for _, c := range []struct {
		name   string
		events []event
	}{
		{"the first packet may have any", []event{{none, 0xabcd, false, true}}},
		{"a counter", []event{{none, 100, false, true}, {none, 101, false, true}, {none, 102, false, true}}},
		{"the same again", []event{{none, 100, false, true}, {none, 100, false, true}}},
		{"lost packets up to the bound", []event{{none, 100, false, true}, {none, 100 + ipid.Ahead, false, true}}},
		{"overtaken up to the bound", []event{{none, 100, false, true}, {none, 100 - ipid.Behind, false, true}}},
		{"overtaken too far", []event{{none, 100, false, true}, {none, 99 - ipid.Behind, false, false}}},
		{"around the end of the numbers", []event{{none, 65530, false, true}, {none, 4, false, true}, {none, 65535, false, true}}},
		{"a burst of loss costs one packet more", []event{
			{none, 100, false, true}, {none, 101 + ipid.Ahead, false, false}, {none, 102 + ipid.Ahead, false, true},
			{none, 103 + ipid.Ahead, false, true}}},
		{"the counter restarts", []event{{none, 100, false, true}, {none, 40000, false, false},
			{none, 40001, false, true}, {none, 40002, false, true}, {none, 101, false, false}}},
		{"damaged packets do not agree with each other", []event{
			{none, 100, false, true}, {none, 40000, false, false}, {none, 20000, false, false},
			{none, 50000, false, false}, {none, 101, false, true}}},
		{"the same damaged packet twice does not agree either",
			[]event{{none, 100, false, true}, {none, 40000, false, false}, {none, 40000, false, false}}},
		{"a candidate is not kept for long",
			[]event{{none, 100, false, true}, {none, 40000, false, false}, {ipid.Probation + 1, 40001, false, false}}},
		{"idle time widens the window", []event{{none, 100, false, true},
			{10 * second, 100 + ipid.Ahead + 10*ipid.PerSecond, false, true}}},
		{"idle time does not widen it further",
			[]event{{none, 100, false, true}, {10 * second, 101 + ipid.Ahead + 10*ipid.PerSecond, false, false}}},
		{"it widens for packets that waited with the first", []event{
			{none, 100, false, true}, {second, 101, false, true}, {ipid.Backlog, 101 + ipid.Ahead + ipid.PerSecond, false, true}}},
		{"it does not widen further for those",
			[]event{{none, 100, false, true}, {second, 101, false, true}, {none, 102 + ipid.Ahead + ipid.PerSecond, false, false}}},
		{"it does not widen for longer", []event{{none, 100, false, true}, {second, 101, false, true},
			{ipid.Backlog + 1, 101 + ipid.Ahead + ipid.PerSecond, false, false}}},
		{"a long idle time allows any", []event{{none, 100, false, true}, {66 * second, 99 - ipid.Behind, false, true}}},
		{"so does a very long idle time", []event{{none, 100, false, true}, {200 * 365 * 24 * time.Hour, 99 - ipid.Behind, false, true}}},
		{"a clock that goes back does not matter", []event{{none, 100, false, true}, {-time.Hour, 101, false, true}}},
		{"a forgery does not advance it", []event{
			{none, 100, false, true}, {none, 100 + ipid.Ahead, true, true}, {none, 100 + 2*ipid.Ahead, true, false},
			{none, 101, false, true}}},
		{"two forgeries that agree do not either",
			[]event{{none, 100, false, true}, {none, 40000, true, false}, {none, 40001, true, true}, {none, 101, false, true}}},
		{"a forged first packet is not recorded", []event{{none, 40000, true, true}, {none, 100, false, true}, {none, 101, false, true}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p ipid.Peers
			now := start
			for i, e := range c.events {
				now += e.after
				got := p.Accept(flow, e.id, now)
				if got != e.accept {
					t.Fatalf("packet %d, ID %d: accepted %t, want %t", i, e.id, got, e.accept)
				}
				if got && !e.forged {
					p.Advance(flow, e.id, now)
				}
			}
		})
	}
}

// TestFloodOfForgeries checks that a peer that counts is never refused, whatever others forge.
func TestFloodOfForgeries(t *testing.T) {
	var p ipid.Peers
	rnd := rand.New(rand.NewPCG(1, 2))
	id := uint16(rnd.Uint32())
	p.Advance(flow, id, start)
	for range 1 << 20 {
		if rnd.IntN(8) > 0 {
			p.Accept(flow, uint16(rnd.Uint32()), start)
			continue
		}
		id += uint16(1 + rnd.IntN(10))
		if !p.Accept(flow, id, start) {
			t.Fatalf("ID %d of the peer was refused", id)
		}
		p.Advance(flow, id, start)
	}
}

// TestFewAccepted checks that the share of accepted random identifications, as damage causes them,
// is that in PROTOCOL.md.
func TestFewAccepted(t *testing.T) {
	var p ipid.Peers
	p.Advance(flow, 1000, start)
	accepted := 0
	for id := range 1 << 16 {
		// In an order in which no two consecutive ones are close.
		if p.Accept(flow, uint16(id*40503), start) {
			accepted++
		}
	}
	if want := ipid.Ahead + ipid.Behind + 1; accepted != want {
		t.Errorf("%d of 65536 identifications are accepted, want %d", accepted, want)
	}
}

// TestBoundedPeers checks that the number of stored peers is bounded, and that the most recently
// used ones are kept.
func TestBoundedPeers(t *testing.T) {
	var p ipid.Peers
	nth := func(i int) ipid.Flow {
		return ipid.Flow{Src: netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), Dst: flow.Dst, SrcPort: 50000}
	}
	for i := range 3 * ipid.MaxPeers {
		p.Accept(nth(1<<20+i), 1, start) // forged: not stored
		p.Advance(nth(i), 100, start)
		p.Advance(nth(0), 100, start)
	}
	if n := p.Len(); n != ipid.MaxPeers {
		t.Fatalf("%d peers are kept, want %d", n, ipid.MaxPeers)
	}
	for _, i := range []int{0, 3*ipid.MaxPeers - 1, 5*ipid.MaxPeers/2 + 1} {
		if p.Accept(nth(i), 40000, start) {
			t.Errorf("peer %d was forgotten", i)
		}
	}
	if !p.Accept(nth(1), 40000, start) {
		t.Error("the oldest peer is still kept")
	}
}

// TestFlows checks that flows of one pair of addresses may have one counter or several. Those of
// other pairs do not count.
func TestFlows(t *testing.T) {
	var p ipid.Peers
	sibling, other := flow, flow
	sibling.SrcPort++
	other.Dst = netip.MustParseAddr("10.0.0.3")
	p.Advance(flow, 100, start)
	for _, f := range []ipid.Flow{sibling, other} {
		if !p.Accept(f, 40000, start) {
			t.Errorf("the first packet of %v was refused", f)
		}
		p.Advance(f, 40000, start)
	}
	for _, c := range []struct {
		name string
		flow ipid.Flow
		id   uint16
		want bool
	}{
		{"its own", flow, 101, true},
		{"its own", sibling, 40001, true},
		{"the pair's", flow, 40001, true},
		{"not its own, and no longer the pair's", sibling, 101, false},
		{"its own", other, 40001, true},
		{"another pair's", other, 101, false},
	} {
		if got := p.Accept(c.flow, c.id, start); got != c.want {
			t.Errorf("%s: ID %d of %v accepted: %t, want %t", c.name, c.id, c.flow, got, c.want)
		}
	}
}

// TestBetweenDatagrams checks that occasional packets are accepted between thousands of datagrams.
// Forged datagrams cause no refusals, and nothing is recorded for an address without a reliable
// connection.
func TestBetweenDatagrams(t *testing.T) {
	var p ipid.Peers
	other := flow
	other.SrcPort++
	p.Note(other, 5, start)
	if p.Len() != 0 {
		t.Error("an address with datagrams only is recorded")
	}
	now, id := start, uint16(100)
	p.Advance(flow, id, now)
	for range 100 {
		for range 5000 { // in a second
			now += time.Second / 5000
			id++
			p.Note(other, id, now)
		}
		id++
		if !p.Accept(flow, id, now) {
			t.Fatalf("ID %d, after datagrams, was refused", id)
		}
		p.Advance(flow, id, now)
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for range 1 << 16 {
		p.Note(other, uint16(rnd.Uint32()), now)
		if rnd.IntN(8) == 0 {
			id += uint16(1 + rnd.IntN(10))
			if !p.Accept(flow, id, now) {
				t.Fatalf("ID %d, between forged datagrams, was refused", id)
			}
			p.Advance(flow, id, now)
		}
	}
	for range 201 { // no idle time is left
		now += ipid.Backlog / 200
		p.Advance(flow, id, now)
	}
	p.Note(other, id+20000, now)
	accepted := 0
	for i := range 1 << 16 {
		if p.Accept(flow, uint16(i*40503), now) {
			accepted++
		}
	}
	if want := 2 * (ipid.Ahead + ipid.Behind + 1); accepted != want {
		t.Errorf("%d of 65536 identifications are accepted, want %d", accepted, want)
	}
}

func BenchmarkPeers(b *testing.B) {
	var p ipid.Peers
	var id uint16
	b.ReportAllocs()
	for b.Loop() {
		id++
		if !p.Accept(flow, id, start) {
			b.Fatal(id)
		}
		p.Advance(flow, id, start)
	}
}
