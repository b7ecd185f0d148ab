package iwarptransport_test

import (
	"fmt"
	"io"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// An application that modifies its QP itself may post between Disconnect and ERR. The stream still
// ends in an orderly way, and posted requests are flushed.
func TestPostAfterDisconnect(t *testing.T) {
	bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
		id, p := d.dialID(t)
		p.frame()
		p.write(encode(t, reply()))
		must(t, id.connected())
		must(t, id.createQP(d))
		defer id.qp.Close()
		for _, to := range []verbs.QPState{verbs.StateInit, verbs.StateRTS} {
			attr, mask, err := id.QPAttr(to)
			must(t, err)
			must(t, id.qp.Modify(&attr, mask))
		}
		must(t, id.Establish())
		p.begin(false, false, true)
		p.next()
		s := &session{node: d, qp: id.qp, p: p}
		s.post(&verbs.SendWR{WRID: 0, Opcode: verbs.Send, Flags: verbs.SendSignaled})
		must(t, id.ID.Disconnect())
		s.post(&verbs.SendWR{WRID: 1, Opcode: verbs.Send})
		p.expect(rdmap.Send)
		if err := p.closed(); err != io.EOF {
			t.Errorf("stream: %v", err)
		}
		must(t, id.qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState))
		s.statuses(d.scq, verbs.WCSuccess, verbs.WCWRFlushErr)
		p.s.Close()
		<-id.Done()
	})
}

// A peer that accepts, sends and closes at once: its message arrives, and DISCONNECTED is reported
// after ESTABLISHED.
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
		defer id.qp.Close()
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
		<-id.Done()
	})
}

// A QP that the application creates and modifies itself goes to ERR and is flushed when its stream
// ends. It need not send anything, or have an rdma_cm ID.
func TestOwnQPFlushed(t *testing.T) {
	for name, end := range map[string]func(p *peer){
		"reset": func(p *peer) { p.s.(*stream).Abort() },
		"FIN":   func(p *peer) { p.s.Close() },
	} {
		for _, initiator := range []bool{true, false} {
			t.Run(fmt.Sprint(name, ", initiator: ", initiator), func(t *testing.T) {
				bubble(t, &network{}, 4096, func(t *testing.T, d *node) {
					x, p := &dialledID{}, (*peer)(nil)
					if initiator {
						x, p = d.dialID(t)
						p.frame()
						f := reply()
						f.Enhanced.PeerToPeer = false
						p.write(encode(t, f))
						must(t, x.connected())
					} else {
						l, err := rdmacm.CreateSyncID(rdmacm.TCP, d.dev)
						must(t, err)
						defer l.Close()
						must(t, l.SetTransports(verbs.IWARP))
						must(t, l.Bind(netip.MustParseAddrPort(nodeAddr+nodePort)))
						must(t, l.Listen(1))
						p = dialNode(t, d.net, request())
						x.SyncID, err = l.GetRequest(t.Context())
						must(t, err)
						defer x.SyncID.Close()
					}
					must(t, x.createQP(d))
					defer x.qp.Close()
					for _, to := range []verbs.QPState{verbs.StateInit, verbs.StateRTS} {
						attr, mask, err := x.QPAttr(to)
						must(t, err)
						must(t, x.qp.Modify(&attr, mask))
						if to == verbs.StateInit {
							must(t, x.qp.PostRecv(&verbs.RecvWR{WRID: 0}, &verbs.RecvWR{WRID: 1}))
						}
					}
					s := &session{node: d, qp: x.qp, p: p}
					if initiator {
						must(t, x.Establish())
					} else {
						must(t, x.ID.Accept(nil))
						p.frame()
					}
					time.Sleep(time.Minute) // no more zero-length WRITEs
					s.statuses(d.rcq)
					end(p)
					s.statuses(d.rcq, verbs.WCWRFlushErr, verbs.WCWRFlushErr)
					if st := x.qp.State(); st != verbs.StateErr {
						t.Errorf("QP in %v", st)
					}
					<-x.Done()
				})
			})
		}
	}
}
