package receive

import (
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

func TestMarking(t *testing.T) {
	const mark = wire.Mark(5)
	for _, c := range []struct {
		name   string
		mark   wire.Mark // of the connection
		marked bool      // an expected packet had the mark
		packet uint8
		want   marking
		lacks  bool
	}{
		{"marks are not checked", 0, false, 0, unmarked, false},
		{"not yet marked", mark, false, 0, unmarked, false},
		{"another connection's mark", mark, true, 6, unmarked, true},
		{"no mark from a peer that marks", mark, true, 0, unmarked, true},
		{"newest", mark, true, mark.Newest(), newest, false},
		{"retransmitted", mark, true, mark.Again(), again, false},
	} {
		var e expected
		e.init(0, c.mark)
		if c.marked {
			e.setMarked()
		}
		m := e.marking(&wire.Packet{BTH: wire.BTH{Reserved7: c.packet}})
		if m != c.want || e.lacksMark(m) != c.lacks {
			t.Errorf("%s: %d, lacks %v", c.name, m, e.lacksMark(m))
		}
	}
}

// PSNs and MSNs have 24 bits.
func TestExpectedWraps(t *testing.T) {
	e := expected{psn: 1<<24 - 2, msn: 1<<24 - 1}
	e.advance(3)
	e.endMessage()
	if e.psn != 1 || e.msn != 0 {
		t.Errorf("PSN %#x, MSN %#x", e.psn, e.msn)
	}
}
