package roce

import "github.com/softrnic/softrnic/stack"

// On the path: before packets are built. Where they are handed to the peer's process through
// memory, those that it has no room for wait in this process, up to a bound. A QP whose path is
// crowded sends nothing for a while, so that nothing is lost.

// backlogged is a path that may have a backlog, or nil.
func backlogged(p stack.Path) stack.Backlogged {
	if b, ok := p.(stack.Backlogged); ok {
		if _, may := b.Backlog(); may {
			return b
		}
	}
	return nil
}

// crowded reports whether a connection is to wait before it sends more; then the timer will try
// again.
func (q *qp) crowded() bool {
	if !q.mayCrowd {
		return false
	}
	b, _ := q.path.(stack.Backlogged)
	return q.crowdedTo(b)
}

// crowdedTo is crowded for a datagram's path, or nil.
func (q *qp) crowdedTo(b stack.Backlogged) bool {
	if b != nil {
		if n, _ := b.Backlog(); n >= crowdedBytes {
			q.pacer().wake = q.e.now() + crowdedPause
			return true
		}
	}
	if p := q.pace; p != nil && !p.needed() { // it was there for the wait only
		q.pace = nil
	}
	return false
}
