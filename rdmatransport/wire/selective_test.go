package wire_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/internal/sacktest"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// TestSackPayload checks that only a marked acknowledgement may have a payload, and that the
// payload's items must be valid.
func TestSackPayload(t *testing.T) {
	one, long := []uint16{0x4001, 0}, make([]uint16, wire.MaxSackLen/2)
	for i := range long {
		long[i] = 1
	}
	for _, c := range []struct {
		opcode wire.Opcode
		mark   uint8
		items  []uint16
		want   error
	}{
		{wire.RCAck, 7, nil, nil},
		{wire.RCAck, 7, one, nil},
		{wire.RCAck, 7, long, nil},
		{wire.Opcode(wire.XRC)<<5 | wire.RCAck, 7, one, nil},
		{wire.RCAck, 7, []uint16{0, 0}, nil},
		{wire.RCAck, 7, []uint16{3, 0x4001, 0x8000, 0xffff}, nil},
		{wire.RCAck, 7, []uint16{0x7fff, 0x3fff, 0x7fff, 0x7fff, 3, 0}, nil},
		// More than 65,535 packets.
		{wire.RCAck, 7, []uint16{0x7fff, 0x3fff, 0x7fff, 0x7fff, 4, 0}, wire.ErrPayload},
		{wire.RCAck, 7, []uint16{0x4000, 0}, wire.ErrPayload},
		{wire.RCAck, 7, []uint16{0, 0x4001}, wire.ErrPayload}, // nothing may follow the end
		{wire.RCAck, 7, append(long, 1, 1), wire.ErrPayload},
		{wire.Opcode(wire.UC)<<5 | wire.RCAck, 7, one, wire.ErrOpcode},
		{wire.RCAck, 0, one, wire.ErrPayload},
		{wire.RCReadRequest, 7, one, wire.ErrPayload},
	} {
		p := wire.Packet{BTH: wire.BTH{Opcode: c.opcode, Reserved7: c.mark}, Payload: items(c.items...)}
		var got wire.Packet
		if err := got.Parse(encode(&p, header4)); !errors.Is(err, c.want) {
			t.Errorf("%v, mark %#x, %#x: %v, want %v", c.opcode, c.mark, c.items, err, c.want)
		} else if err == nil && !bytes.Equal(got.Payload, p.Payload) {
			t.Errorf("%x of %x", got.Payload, p.Payload)
		}
	}
}

func items(all ...uint16) (b []byte) {
	for _, item := range all {
		b = binary.BigEndian.AppendUint16(b, item)
	}
	return b
}

// TestSack checks the encoding of selective acknowledgements.
func TestSack(t *testing.T) {
	run := func(from, n uint32) (all []uint32) {
		for i := range n {
			all = append(all, from+i)
		}
		return all
	}
	for _, c := range []struct {
		name      string
		distances []uint32
		want      []uint16
	}{
		{"the next", run(1, 1), []uint16{0x4001, 0}},
		{"a run", run(1, 1000), []uint16{0x4000 | 1000, 0}},
		{"after a gap", run(101, 7), []uint16{100, 0x4007, 0, 0}},
		{"one gap in a long run", slices.Concat(run(1, 100), run(102, 100)), []uint16{0x4064, 0xfffe, 0x4000 | 86, 0}},
		{"one by one", []uint32{1, 3, 4, 20}, []uint16{0x800d, 0x8010, 0, 0}},
		{"across words", slices.Concat(run(1, 60), run(70, 100)), []uint16{0x4000 | 60, 0xfe00, 0x4000 | 94, 0}},
		{"longer than an item", run(1, 16384), []uint16{0x7fff, 0x4001, 0, 0}},
		{"far away", []uint32{32768}, []uint16{16383, 16383, 0x8002, 0}},
	} {
		s := sacktest.Of(c.distances...)
		if !bytes.Equal(s, items(c.want...)) {
			t.Errorf("%s: %x, want %x", c.name, []byte(s), items(c.want...))
		}
		if got := sacktest.Distances(s); !slices.Equal(got, c.distances) {
			t.Errorf("%s: it covers %d packets, want %d", c.name, len(got), len(c.distances))
		}
		if _, all := s.Covered(); !all {
			t.Errorf("%s: it is not complete", c.name)
		}
	}
}

// TestTrimmedSack: a list that says which packet was trimmed is one of no received packets, which a
// peer that does not know of trimming takes for that. No other list is one.
func TestTrimmedSack(t *testing.T) {
	for _, distance := range []uint32{0, 1, 2, 14, 15, 16, 1<<14 - 1, 1 << 14, 1<<15 - 2, 1 << 15, wire.MaxSackPackets} {
		s := wire.AppendTrimmed([]byte{1, 2, 3}, distance)[3:]
		got, is := s.Trimmed()
		n, all := s.Covered()
		if !is || got != distance || n != distance || !all || len(s)%4 != 0 || len(s) > 12 {
			t.Errorf("%d: %x, of %d, %t, %d, %t", distance, s, got, is, n, all)
		}
		if seen := parsed(t, s); seen == nil || len(seen) > 0 {
			t.Errorf("%d: %x is parsed as %v", distance, s, seen)
		}
	}
	for _, b := range [][]byte{items(), items(1), items(5, 1), items(0x4001, 0), items(3, 0x4001, 0, 0), items(0x4001, 2, 0, 0),
		items(0x8000, 0), items(0x8001, 3, 0, 0), items(1, 0x4000)} {
		if n, is := wire.Sack(b).Trimmed(); is {
			t.Errorf("%x says that %d was trimmed", b, n)
		}
	}
}

// FuzzSack checks that an encoded acknowledgement matches the packets, and covers all of them if
// there is room. It also checks that a parsed one lists packets in ascending order.
func FuzzSack(f *testing.F) {
	f.Add([]byte{1, 2, 3}, uint32(20), uint16(8))
	f.Add(bytes.Repeat([]byte{0xff, 0xff, 0xfe}, 1000), uint32(20000), uint16(256))
	f.Add(bytes.Repeat([]byte{0x55, 0}, 2048), uint32(32767), uint16(4096))
	f.Add(items(0x7fff, 0x3fff, 3, 0x8001, 0x4001, 0), uint32(1), uint16(4))
	f.Fuzz(func(t *testing.T, b []byte, n uint32, room uint16) {
		parsed(t, b)
		n, room = n%(1<<15), room%(wire.MaxSackLen+1)&^3
		kept := append(bytes.Clone(b), make([]byte, 1<<12+16)...)
		s := wire.AppendSack(nil, int(room), n, func(i uint32) uint64 {
			if i >= n {
				t.Fatalf("packet %d of %d was requested", i, n)
			}
			w := binary.LittleEndian.Uint64(kept[i/8:])>>(i%8) | uint64(kept[i/8+8])<<(64-i%8)
			return w
		})
		if len(s) > int(room) {
			t.Fatalf("%d bytes, more than the limit of %d", len(s), room)
		}
		seen := parsed(t, s)
		length, all := s.Covered()
		if !all && len(s) < int(room) {
			t.Fatal("there is room for more")
		}
		for d := uint32(1); d <= n && (all || d <= length); d++ {
			if want := kept[(d-1)/8]>>((d-1)%8)&1 != 0; seen[d] != want {
				t.Fatalf("packet %d: %v, want %v", d, seen[d], want)
			}
		}
		if _, is := s.Trimmed(); is && len(seen) > 0 {
			t.Fatal("it says that a packet was trimmed")
		}
		for d := range seen {
			if d > n {
				t.Fatalf("it covers packet %d of %d", d, n)
			}
		}
	})
}

// parsed returns the packets in a selective acknowledgement. It returns nil if it does not parse.
func parsed(t *testing.T, b []byte) map[uint32]bool {
	p := wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, Reserved7: 7}, Payload: b}
	if len(b)%4 != 0 || p.Parse(encode(&p, header4)) != nil {
		return nil
	}
	seen, last := map[uint32]bool{}, uint32(0)
	length, _ := wire.Sack(p.Payload).Covered()
	if d, is := wire.Sack(p.Payload).Trimmed(); is && d != length {
		t.Fatalf("%x: %d was trimmed, and the length is %d", b, d, length)
	}
	for d, n := range wire.Sack(p.Payload).All {
		if d <= last || n == 0 || d+n-1 > length || length > 1<<16-1 {
			t.Fatalf("%x: %d packets from %d on, after %d, and the length is %d", b, n, d, last, length)
		}
		last = d + n - 1
		for i := range n {
			seen[d+i] = true
		}
	}
	return seen
}

// TestMark checks that each connection has two values, which are never zero, and that different
// connections mostly have different values.
func TestMark(t *testing.T) {
	const n = 1 << 14
	count := map[uint8]int{}
	for i := range uint32(n) {
		m := wire.MarkOf(0x10000+i%7, 0x20000+i/7, 0xabcdef)
		if a, b := m.Newest(), m.Again(); a == b || a == 0 || b == 0 || a > 127 || b > 127 {
			t.Fatalf("mark %d: values %d and %d", m, a, b)
		}
		count[m.Newest()]++
	}
	if m := wire.MarkOf(0x10000, 0x20000, 0xabcdef); m != 118 {
		t.Errorf("mark %d", m) // as in PROTOCOL.md
	}
	for v, k := range count {
		if k > 3*n/127 {
			t.Errorf("%d of %d connections have %d", k, n, v)
		}
	}
	a := wire.MarkOf(1000, 2000, 3000)
	if a == wire.MarkOf(2000, 1000, 3000) && a == wire.MarkOf(1000, 2000, 3001) && a == wire.MarkOf(1001, 2000, 3000) {
		t.Error("the mark depends on nothing")
	}
	if none := wire.Mark(0); none.Newest() != 0 || none.Again() != 0 {
		t.Error("no mark is a mark")
	}
}
