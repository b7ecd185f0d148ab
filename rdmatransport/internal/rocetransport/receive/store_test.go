package receive

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/internal/sacktest"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

const testMTU = 1024

var testSpan = Span(send.DefaultWindow, testMTU)

// write returns a packet of a WRITE.
func write(psn uint32) *wire.Packet {
	return &wire.Packet{
		BTH: wire.BTH{Opcode: wire.RCWriteMiddle, PSN: psn}, Payload: bytes.Repeat([]byte{byte(psn)}, testMTU),
	}
}

func newStore(t *testing.T, expected uint32) *store {
	t.Helper()
	return new(stores).get(expected, testMTU, send.DefaultWindow, time.Minute)
}

// keptBehind returns the distances in a selective acknowledgement.
func (k *store) keptBehind(expected uint32) string {
	return fmt.Sprint(sacktest.Distances(k.sack(expected)))
}

func TestStoreAdds(t *testing.T) {
	type step struct {
		p             *wire.Packet
		gap, tell, ok bool
	}
	other := write(12)
	other.Payload[5]++
	asks, marked := write(12), write(12)
	asks.AckReq, marked.Reserved7 = true, 9
	shorter := write(12)
	shorter.Payload = shorter.Payload[:1020]
	last := write(12)
	last.Opcode = wire.RCWriteLast
	first, elsewhere := write(12), write(12)
	first.Opcode, elsewhere.Opcode, elsewhere.RETH.Addr = wire.RCWriteFirst, wire.RCWriteFirst, 4096
	for _, c := range []struct {
		name  string
		steps []step
		sack  string
	}{
		{"one gap", []step{{write(11), true, false, true}, {write(12), false, false, true}}, "[1 2]"},
		{"two gaps", []step{{write(11), true, false, true}, {write(14), true, false, true}}, "[1 4]"},
		{"the gap between is filled", []step{{write(13), true, false, true}, {write(12), false, false, true}}, "[2 3]"},
		{"the same twice", []step{{write(12), true, false, true}, {write(12), false, false, true}}, "[2]"},
		{"it asks", []step{{asks, true, true, true}}, "[2]"},
		{"the same with another mark, and an acknowledgement request",
			[]step{{marked, true, false, true}, {asks, false, true, true}}, "[2]"},
		{"another payload", []step{{write(12), true, false, true}, {other, false, false, false}}, "[2]"},
		{"another opcode", []step{{write(12), true, false, true}, {last, false, false, false}}, "[2]"},
		{"another address", []step{{first, true, false, true}, {elsewhere, false, false, false}}, "[2]"},
		{"far apart", []step{{write(210), true, false, true}, {write(12), false, false, true}}, "[2 200]"},
		{"another length", []step{{write(12), true, false, true}, {shorter, false, false, false}}, "[2]"},
	} {
		k := newStore(t, 10)
		for i, s := range c.steps {
			if gap, tell, ok := k.add(s.p); gap != s.gap || tell != s.tell || ok != s.ok {
				t.Errorf("%s: packet %d: gap %v, tell %v, ok %v", c.name, i, gap, tell, ok)
			}
		}
		if got := k.keptBehind(10); got != c.sack {
			t.Errorf("%s: %s, want %s", c.name, got, c.sack)
		}
	}
}

// The first report follows soon after a gap, later ones at intervals.
func TestStoreTells(t *testing.T) {
	k := newStore(t, 10)
	var reported []uint32
	for psn := uint32(11); psn < 60; psn++ {
		if _, tell, _ := k.add(write(psn)); tell {
			reported = append(reported, psn)
		}
	}
	first := uint32(11 + send.LossEvidence - 1)
	if want := fmt.Sprint([]uint32{first, first + sackEvery, first + 2*sackEvery}); fmt.Sprint(reported) != want {
		t.Errorf("reported at %v, want %v", reported, want)
	}
}

// Packets leave the store in order. PSN 10 was expected.
func TestStoreNext(t *testing.T) {
	for _, c := range []struct {
		name     string
		expected uint32   // after 10 was executed
		keep     []uint32 // before
		take     []uint32
		left     int
	}{
		{"all", 11, []uint32{11, 12, 13}, []uint32{11, 12, 13}, 0},
		{"up to the next gap", 11, []uint32{11, 13}, []uint32{11}, 1},
		{"the next is missing, too", 11, []uint32{12}, nil, 1},
		{"10 found no receive request", 10, []uint32{11}, nil, 1},
		{"10 was a READ of 4", 14, []uint32{11, 12, 14, 15}, []uint32{14, 15}, 0},
		{"10 was a READ longer than the span", 10 + 2*testSpan, []uint32{11, 12}, nil, 0},
	} {
		k := newStore(t, 10)
		for _, psn := range c.keep {
			k.add(write(psn))
		}
		k.begin(10)
		var took []uint32
		var p wire.Packet
		for next := c.expected; k.next(next, &p); next++ {
			if p.PSN != next || !bytes.Equal(p.Payload, write(next).Payload) {
				t.Errorf("%s: %d is %d, %d bytes", c.name, next, p.PSN, len(p.Payload))
			}
			took = append(took, p.PSN)
		}
		if fmt.Sprint(took) != fmt.Sprint(c.take) || k.count != c.left {
			t.Errorf("%s: %v, and %d are left", c.name, took, k.count)
		}
		if k.extend(time.Hour); (k.deadline == time.Hour) != (c.expected != 10) {
			t.Errorf("%s: the deadline is %v", c.name, k.deadline)
		}
	}
}

// Full packets of the whole span fit, also where PSNs wrap, and none beyond it. A window is at most
// the span. The peer can parse the list of all, and of those that fit with another gap at the end.
func TestStoreSpan(t *testing.T) {
	const expected = 1<<24 - 100
	for _, window := range []uint32{send.LeastWindow, send.DefaultWindow, send.MaxWindow} {
		for _, mtu := range []uint32{256, 512, 1024, 2048, 4096} {
			span := Span(window, mtu)
			full := func(d uint32) *wire.Packet {
				p := write(wire.PSNAdd(expected, d))
				p.Opcode, p.Payload = wire.RCWriteOnlyImm, make([]byte, mtu)
				return p
			}
			if p := full(0); !fits(p, int32(span-1), mtu, window) || fits(p, int32(span), mtu, window) || fits(p, 1, mtu-HeaderRoom, window) ||
				span < send.Window(window, mtu) {
				t.Errorf("window %d, path MTU %d: other packets fit than a span of %d", window, mtu, span)
			}
			k := new(stores).get(expected, mtu, window, time.Minute)
			for d := uint32(1); d < span; d++ {
				if d == span-3 {
					continue
				}
				k.add(full(d))
			}
			parses(t, k.sack(expected))
			k.add(full(span - 3))
			parses(t, k.sack(expected))
			if got := sacktest.Distances(k.sack(expected)); len(got) != int(span-1) || got[0] != 1 || got[span-2] != span-1 {
				t.Errorf("window %d, path MTU %d: it covers %d packets, want %d", window, mtu, len(got), span-1)
			}
			k.begin(expected)
			var p wire.Packet
			for d := uint32(1); d < span; d++ {
				if psn := wire.PSNAdd(expected, d); !k.next(psn, &p) || p.PSN != psn {
					t.Fatalf("%d is missing", d)
				}
			}
			if k.count != 0 {
				t.Error(k.count, "are left")
			}
		}
	}
}

// parses checks that the peer accepts a selective acknowledgement.
func parses(t *testing.T, s wire.Sack) {
	t.Helper()
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, Reserved7: 1}, AETH: wire.AETH{Syndrome: wire.NakPSNSeq}, Payload: s}
	b := make([]byte, p.Size())
	copy(b[p.EncodeHeader(b):], s)
	if err := new(wire.Packet).Parse(b); err != nil {
		t.Errorf("list of %d bytes: %v", len(s), err)
	}
}

// A selective acknowledgement fits into a packet, whatever is missing. The first gaps have
// priority.
func TestSackFits(t *testing.T) {
	const expected = 1<<24 - 100
	for _, c := range []struct {
		mtu, every uint32 // one of this many packets is missing
		reported   uint32 // at least
		all        bool
	}{
		{1024, 100, 0, true}, {1024, 70, 0, true}, {1024, 3, 512 * 15, false}, {4096, 3, 0, true},
		{256, 1000, 0, true}, {256, 100, 64 * 100, false}, {256, 3, 128 * 15, false},
	} {
		k := new(stores).get(expected, c.mtu, send.MaxWindow, time.Minute)
		window := send.Window(send.MaxWindow, c.mtu)
		var want []uint32
		for d := uint32(1); d < window; d++ {
			if d%c.every != 0 {
				p := write(wire.PSNAdd(expected, d))
				p.Payload = p.Payload[:4]
				k.add(p)
				want = append(want, d)
			}
		}
		sack := k.sack(expected)
		n, all := sack.Covered()
		if len(sack) > int(c.mtu) || all != c.all || n < c.reported {
			t.Errorf("path MTU %d, one of %d missing: %d bytes cover %d packets (all: %v)", c.mtu, c.every, len(sack), n, all)
		}
		if got := sacktest.Distances(sack); len(got) > len(want) || !slices.Equal(got, want[:len(got)]) || all && len(got) != len(want) {
			t.Errorf("path MTU %d, one of %d missing: it covers %d packets, of %d", c.mtu, c.every, len(got), len(want))
		}
		if allocs := testing.AllocsPerRun(10, func() { k.sack(expected) }); allocs != 0 {
			t.Errorf("%v allocations", allocs)
		}
	}
}

// The number of stores is bounded, and a store is empty when it is taken from the pool.
func TestStores(t *testing.T) {
	var s stores
	var all []*store
	for range MaxStores {
		all = append(all, s.get(10, testMTU, send.DefaultWindow, 0))
	}
	if all[MaxStores-1] == nil || s.get(10, testMTU, send.DefaultWindow, 0) != nil {
		t.Fatal("there are not", MaxStores)
	}
	all[0].add(write(11))
	all[0].setReported()
	s.put(all[0])
	k := s.get(10, testMTU, send.DefaultWindow, 0)
	if k == nil || k.count != 0 || k.reported {
		t.Fatal("not a new store")
	}
	if k.add(write(12)); k.keptBehind(10) != "[2]" {
		t.Errorf("it keeps %s", k.keptBehind(10))
	}
}

// TestProtocolPage: PROTOCOL.md, from which others may write a peer, has the limits of early
// packets.
func TestProtocolPage(t *testing.T) {
	text, err := os.ReadFile("../../../../PROTOCOL.md")
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(strings.Fields(string(text)), " ")
	want := fmt.Sprintf("keeps early packets within %d windows from the expected PSN, but within at least %d and at most %d,%d packets",
		keptWindows, minSpan, maxSpan/1000, maxSpan%1000)
	if !strings.Contains(words, want) {
		t.Errorf("PROTOCOL.md does not say %q", want)
	}
}
