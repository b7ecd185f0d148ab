package classify

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
)

// The values of Linux's rdma_cm for a DREQ.
const (
	timeout    = 4096 * time.Millisecond // for the peer's answer
	maxRetries = 15
)

// A process may die with many connections, so the messages sent at once are limited.
const (
	burst = 64
	pause = time.Millisecond
)

// notifier sends DREQs for dead processes.
type notifier struct {
	pending []*connection // not yet notified
	waiting []*connection // for an answer, in the order of due
	psn     uint32
}

// notice is the state of a connection's DREQ to its peer.
type notice struct {
	over bool // the connection has ended, or the process's numbers have a new owner
	tid  uint64
	sent int
	due  int64
}

// start begins to notify the peer of a connection's end.
func (s *notifier) start(o *connection) {
	o.tid = randomTID()
	s.pending = append(s.pending, o)
}

// SendDue implements hub.Classifier.
func (c *classifier) SendDue(now int64, send hub.SendFunc) (again int64) {
	s := &c.notifier
	for range burst {
		o := s.next(now)
		if o == nil {
			break
		}
		if o.sent > maxRetries {
			o.lease.remove(o)
			continue
		}
		s.send(send, stack.PathAttr{Src: o.own, Dst: o.peer, TrafficClass: o.trafficClass, Priority: o.priority}, o.tid,
			&mad.DREQ{LocalCommID: o.local, RemoteCommID: o.remote, RemoteQPN: o.qpn})
		o.sent++
		o.due = now + int64(timeout)
		s.waiting = append(s.waiting, o)
	}
	s.waiting = s.waiting[over(s.waiting):]
	s.pending = s.pending[over(s.pending):]
	switch {
	case len(s.pending) > 0:
		return int64(pause)
	case len(s.waiting) > 0:
		return max(s.waiting[0].due-now, int64(pause))
	}
	s.pending, s.waiting = nil, nil
	return 0
}

// next returns the next connection whose peer must be notified, or nil.
func (s *notifier) next(now int64) (o *connection) {
	for _, queue := range []*[]*connection{&s.waiting, &s.pending} {
		*queue = (*queue)[over(*queue):]
		if q := *queue; len(q) > 0 && q[0].due <= now {
			*queue = q[1:]
			return q[0]
		}
	}
	return nil
}

// over returns the number of connections at the start of the list that have ended.
func over(queue []*connection) (n int) {
	for n < len(queue) && queue[n].over {
		n++
	}
	return n
}

// send sends a message.
func (s *notifier) send(send hub.SendFunc, path stack.PathAttr, tid uint64, m mad.Message) {
	var b [mad.Size]byte
	mad.Encode(&b, tid, m)
	s.psn = (s.psn + 1) & (1<<24 - 1)
	pkt := wire.Packet{
		BTH:     wire.BTH{Opcode: wire.UDSendOnly, PKey: defaultPKey, DestQP: mad.QPN, PSN: s.psn},
		DETH:    wire.DETH{QKey: mad.QKey, SrcQP: mad.QPN},
		Payload: b[:],
	}
	path.SrcPort, path.HopLimit = sourcePort, hopLimit
	send(path, pkt.Size(), func(header, payload []byte) { pkt.Encode(header, payload) })
}

const (
	sourcePort = 49152 + mad.QPN
	hopLimit   = 64
)
