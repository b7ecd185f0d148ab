package rocetransport

import "github.com/softrnic/softrnic/stack"

// Send path: backpressure. If packets go to the peer's process through shared memory, those that do
// not fit wait in a bounded backlog in this process. A QP with a large backlog on its path sends
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

// blockedBy is blocked for a datagram's path, or nil.
func (q *qp) blockedBy(b stack.Backlogged) bool {
	if b != nil {
		if n, _ := b.Backlog(); n >= backlogLimit {
			q.pacer().wake = q.e.now() + backlogPause
			return true
		}
	}
	if p := q.pace; p != nil && !p.needed() { // it was only there for the wait
		q.pace = nil
	}
	return false
}
