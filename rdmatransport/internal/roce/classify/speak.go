package classify

import (
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce/cm/mad"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/stack"
)

// What Linux's rdma_cm uses for a DREQ.
const (
	timeout    = 4096 * time.Millisecond // for the peer to answer
	maxRetries = 15
)

// A process may have died with many connections: what is said at once is bounded.
const (
	burst = 64
	pause = time.Millisecond
)

// speech is what is to be said for the dead.
type speech struct {
	fresh   []*connection // of which nothing was said yet
	waiting []*connection // for an answer, in the order of due
	psn     uint32
}

// speaking is how far the end of a connection has been told to its peer.
type speaking struct {
	over bool // it is, or the process's numbers are another's by now
	tid  uint64
	said int
	due  int64
}

// begin begins to tell the peer of a connection that it is over.
func (s *speech) begin(o *connection) {
	o.tid = randomTID()
	s.fresh = append(s.fresh, o)
}

// SendDue implements stack.Classifier.
func (c *Classifier) SendDue(now int64, send stack.SendFunc) (again int64) {
	s := &c.speech
	for range burst {
		o := s.next(now)
		if o == nil {
			break
		}
		if o.said > maxRetries {
			o.lease.remove(o)
			continue
		}
		s.say(send, stack.PathAttr{Src: o.own, Dst: o.peer, TrafficClass: o.trafficClass, Priority: o.priority}, o.tid,
			&mad.DREQ{LocalCommID: o.local, RemoteCommID: o.remote, RemoteQPN: o.qpn})
		o.said++
		o.due = now + int64(timeout)
		s.waiting = append(s.waiting, o)
	}
	s.waiting = s.waiting[over(s.waiting):]
	s.fresh = s.fresh[over(s.fresh):]
	switch {
	case len(s.fresh) > 0:
		return int64(pause)
	case len(s.waiting) > 0:
		return max(s.waiting[0].due-now, int64(pause))
	}
	s.fresh, s.waiting = nil, nil
	return 0
}

// next takes the next connection whose peer is to be told, or nil.
func (s *speech) next(now int64) (o *connection) {
	for _, queue := range []*[]*connection{&s.waiting, &s.fresh} {
		*queue = (*queue)[over(*queue):]
		if q := *queue; len(q) > 0 && q[0].due <= now {
			*queue = q[1:]
			return q[0]
		}
	}
	return nil
}

// over is how many of the first connections are.
func over(queue []*connection) (n int) {
	for n < len(queue) && queue[n].over {
		n++
	}
	return n
}

// say sends a message.
func (s *speech) say(send stack.SendFunc, way stack.PathAttr, tid uint64, m mad.Message) {
	var b [mad.Size]byte
	mad.Encode(&b, tid, m)
	s.psn = (s.psn + 1) & (1<<24 - 1)
	pkt := wire.Packet{
		BTH:     wire.BTH{Opcode: wire.UDSendOnly, PKey: defaultPKey, DestQP: mad.QPN, PSN: s.psn},
		DETH:    wire.DETH{QKey: mad.QKey, SrcQP: mad.QPN},
		Payload: b[:],
	}
	way.SrcPort, way.HopLimit = sourcePort, hopLimit
	send(way, pkt.Size(), func(header, payload []byte) { pkt.Encode(header, payload) })
}

const (
	sourcePort = 49152 + mad.QPN
	hopLimit   = 64
)
