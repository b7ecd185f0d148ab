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
		{wire.RCAck, wire.SelectiveMark, 0, nil},
		{wire.RCAck, wire.SelectiveMark, 8, nil},
		{wire.RCAck, wire.SelectiveMark, wire.MaxSackLen, nil},
		{wire.Opcode(wire.XRC)<<5 | wire.RCAck, wire.SelectiveMark, 8, nil},
		{wire.Opcode(wire.UC)<<5 | wire.RCAck, wire.SelectiveMark, 8, wire.ErrOpcode},
		{wire.RCAck, wire.SelectiveMark, 4, wire.ErrPayload},
		{wire.RCAck, wire.SelectiveMark, wire.MaxSackLen + 8, wire.ErrPayload},
		{wire.RCAck, 0, 8, wire.ErrPayload},
		{wire.RCAck, 1, 8, wire.ErrPayload},
		{wire.RCReadRequest, wire.SelectiveMark, 8, wire.ErrPayload},
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
