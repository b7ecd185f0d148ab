package iwarp_test

import (
	"io"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/iwarp/rdmap"
	"github.com/softrnic/softrnic/verbs"
)

// An application that moves its QP itself may post between Disconnect and ERR: the stream still ends in order, and what
// was posted is flushed.
func TestPostAfterDisconnect(t *testing.T) {
	bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
		id, p := d.dialID(t)
		p.frame()
		p.write(encode(t, reply()))
		must(t, id.connected())
		must(t, id.createQP(d))
		defer id.qp.Destroy()
		for _, to := range []verbs.QPState{verbs.StateInit, verbs.StateRTS} {
			attr, mask, err := id.QPAttr(to)
			must(t, err)
			must(t, id.qp.Modify(&attr, mask))
		}
		must(t, id.Establish())
		p.begin(false, false, true)
		p.next()
		s := &session{node: d, qp: id.qp, p: p}
		s.post(&verbs.SendWR{ID: 0, Opcode: verbs.Send, Flags: verbs.SendSignaled})
		must(t, id.ID.Disconnect())
		s.post(&verbs.SendWR{ID: 1, Opcode: verbs.Send})
		p.expect(rdmap.Send)
		if err := p.closed(); err != io.EOF {
			t.Errorf("stream: %v", err)
		}
		must(t, id.qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState))
		s.statuses(d.scq, verbs.WCSuccess, verbs.WCWRFlushErr)
		p.s.Close()
		<-id.Ended()
	})
}
