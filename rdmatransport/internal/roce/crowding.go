package roce

import (
	"time"

	"github.com/softrnic/softrnic/stack"
)

// On the path: before packets are built. Where they are handed to the peer's process through memory, those that it has no room
// for wait in this process, up to a bound. A QP whose path is crowded sends nothing for a while, so that nothing is lost.

// crowding is how a QP looks at its path's backlog.
type crowding struct {
	path  stack.Backlogged // of a connection
	until time.Duration    // when to look again; 0 if nothing waits for that
}

// backlogged is a path that may have a backlog, or nil.
func backlogged(p stack.Path) stack.Backlogged {
	if b, ok := p.(stack.Backlogged); ok {
		if _, may := b.Backlog(); may {
			return b
		}
	}
	return nil
}

// crowding is that of a connection over a path; nil if that never has a backlog.
func newCrowding(p stack.Path) *crowding {
	if b := backlogged(p); b != nil {
		return &crowding{path: b}
	}
	return nil
}

// crowded tells whether a connection is to wait before it sends more; then the timer will try again.
func (q *qp) crowded() bool { return q.crowd != nil && q.crowd.path != nil && q.waitsFor(q.crowd.path) }

// crowdedTo is crowded for a datagram's path.
func (q *qp) crowdedTo(b stack.Backlogged) bool {
	if b == nil {
		return false
	}
	if q.crowd == nil {
		q.crowd = new(crowding)
	}
	return q.waitsFor(b)
}

func (q *qp) waitsFor(b stack.Backlogged) bool {
	if n, _ := b.Backlog(); n < crowdedBytes {
		q.crowd.until = 0
		return false
	}
	q.crowd.until = q.e.now() + crowdedPause
	return true
}
