package iwarp_test

import (
	"io"
	"testing"
	"testing/synctest"

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

// A peer that accepts, sends and closes at once was connected: its message is there, and the disconnection is told
// behind the connection.
func TestClosedBeforeEstablish(t *testing.T) {
	bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
		id, p := d.dialID(t)
		p.frame()
		p.write(encode(t, reply()))
		p.begin(false, false, true)
		p.send(p.untagged(rdmap.Send, []byte("bye")))
		p.s.Close()
		must(t, id.connected())
		must(t, id.createQP(d))
		defer id.qp.Destroy()
		bring := func(to verbs.QPState) {
			attr, mask, err := id.QPAttr(to)
			must(t, err)
			must(t, id.qp.Modify(&attr, mask))
		}
		bring(verbs.StateInit)
		must(t, id.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{d.mr.SGE(0, 10)}}))
		bring(verbs.StateRTS)
		synctest.Wait()
		must(t, id.Establish())
		if wcs := drain(t, d.rcq); len(wcs) != 1 || wcs[0].Status != verbs.WCSuccess || string(d.buf[:3]) != "bye" {
			t.Errorf("got %+v", wcs)
		}
		<-id.Ended()
	})
}
