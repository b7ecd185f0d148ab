package send

import "testing"

// Every cell of the table in the comment of mode.go.
func TestTransitions(t *testing.T) {
	const (
		order, back, probing, wait, selective, failed = InOrder, GoneBack, Probing, RNRWait, Selective, Failed
	)
	table := map[Mode][modeEvents]Mode{
		//         progress   NAK     timeout probe      over       gap        recovered RNR     RNR over   failure
		order:     {order, back, order, probing, order, selective, order, wait, order, failed},
		back:      {order, back, order, probing, order, selective, back, wait, back, failed},
		probing:   {probing, back, order, probing, order, selective, probing, wait, probing, failed},
		selective: {selective, back, order, selective, selective, selective, order, wait, selective, failed},
		wait:      {wait, wait, order, wait, wait, selective, wait, wait, order, failed},
		failed:    {failed, failed, failed, failed, failed, failed, failed, failed, failed, failed},
	}
	if len(table) != modes {
		t.Fatalf("%d modes in the table, there are %d", len(table), modes)
	}
	for from, row := range table {
		for e, to := range row {
			m := mode{now: from}
			if m.on(modeEvent(e)); m.now != to {
				t.Errorf("%v, event %d: %v, want %v", from, e, m.now, to)
			}
		}
	}
}
