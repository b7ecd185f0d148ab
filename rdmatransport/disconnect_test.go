package rdmatransport_test

import (
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/verbs"
)

// polledLink passes frames on like a link that the application polls. An acknowledgement may be
// delayed until the application posts or polls again.
type polledLink struct{ link.Link }

func (l polledLink) Attach(recv link.Receiver) {
	l.Link.Attach(func(frames []link.Frame) {
		for i := range frames {
			frames[i].Polled = true
		}
		recv(frames)
	})
}

// TestDisconnectAfterReceive checks that a receiver of the last message may disconnect or close
// its QP at once. The peer's SEND still completes: the acknowledgement comes before the end of the
// connection.
func TestDisconnectAfterReceive(t *testing.T) {
	for name, end := range map[string]func(e *end) error{
		"disconnect": func(e *end) error { return e.ID().Disconnect() },
		"close":      func(e *end) error { return e.ID().Close() },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := &newEnds(t, setting{transport: verbs.RoCEv2, devices: 2,
					wrap: func(l link.Link) link.Link { return polledLink{l} }}, 64).side
				ok(t, e[0].QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{e[0].mr.SGE(0, 64)}}))
				e[1].post(t, &verbs.SendWR{WRID: 7, Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{e[1].mr.SGE(0, 8)}})
				synctest.Wait() // the message has arrived, no time has passed
				ok(t, end(&e[0]))
				synctest.Wait()
				if wc := e[1].next(t); wc.WRID != 7 || wc.Status != verbs.WCSuccess {
					t.Errorf("the peer's SEND: %d %v, want success", wc.WRID, wc.Status)
				}
			})
		})
	}
}
