package rocetransport

import "github.com/softrnic/softrnic/stack"

// Send path: backpressure. Packets to the peer's process may go through shared memory. Packets that
// do not fit wait in a limited backlog in this process. A QP with a large backlog on its path sends
// nothing for a while, so that nothing is lost.

// backlogged returns a path that may have a backlog, or nil.
func backlogged(p stack.Path) stack.Backlogged {
	if b, ok := p.(stack.Backlogged); ok {
		if _, may := b.Backlog(); may {
			return b
		}
	}
	return nil
}

// blocked reports whether a connection must wait before it sends more. The timer then tries again.
func (q *qp) blocked() bool {
	if !q.hasBacklog {
		return false
	}
	b, _ := q.path.(stack.Backlogged)
	return q.blockedBy(b)
}

// blockedBy is like blocked, for a datagram's path, which may be nil.
func (q *qp) blockedBy(b stack.Backlogged) bool {
	if b != nil {
		if n, _ := b.Backlog(); n >= backlogLimit {
			q.pacer().wake = q.e.now() + backlogPause
			return true
		}
	}
	if p := q.pace; p != nil && !p.needed() { // the pacer existed only for this wait
		q.pace = nil
	}
	return false
}
