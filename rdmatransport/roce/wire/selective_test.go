package wire_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// TestSack: only a marked acknowledgement may have one, of whole words and no more than the longest.
func TestSack(t *testing.T) {
	for _, c := range []struct {
		opcode wire.Opcode
		mark   uint8
		n      int
		want   error
	}{
		{wire.RCAck, 7, 0, nil},
		{wire.RCAck, 7, 8, nil},
		{wire.RCAck, 7, wire.MaxSackLen, nil},
		{wire.Opcode(wire.XRC)<<5 | wire.RCAck, 7, 8, nil},
		{wire.Opcode(wire.UC)<<5 | wire.RCAck, 7, 8, wire.ErrOpcode},
		{wire.RCAck, 7, 4, wire.ErrPayload},
		{wire.RCAck, 7, wire.MaxSackLen + 8, wire.ErrPayload},
		{wire.RCAck, 0, 8, wire.ErrPayload},
		{wire.RCReadRequest, 7, 8, wire.ErrPayload},
	} {
		p := wire.Packet{BTH: wire.BTH{Opcode: c.opcode, Reserved7: c.mark}, Payload: make([]byte, c.n)}
		var got wire.Packet
		if err := got.Parse(encode(&p, header4)); !errors.Is(err, c.want) {
			t.Errorf("%v, mark %#x, %d bytes: %v, want %v", c.opcode, c.mark, c.n, err, c.want)
		} else if err == nil && len(got.Payload) != c.n {
			t.Errorf("%d bytes of %d", len(got.Payload), c.n)
		}
	}
	s := make(wire.Sack, 16)
	s.PutWord(0, 1|1<<63)
	s.PutWord(1, 2)
	if got := slices.Collect(s.All); !slices.Equal(got, []uint32{1, 64, 66}) {
		t.Errorf("distances %v", got)
	}
}

// TestMark: each connection has two values, never zero, and different ones mostly have different ones.
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
