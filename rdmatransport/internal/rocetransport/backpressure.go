package rocetransport

import "github.com/softrnic/softrnic/stack"

// Send path: backpressure. Packets to the peer's process may go through shared memory. Packets that
// do not fit wait in a limited backlog in this process. A QP with a large backlog on its path sends
// nothing for a while, so that nothing is lost.
//
// An adapter may have a queue for each path (see [stack.Queued]). A QP whose queue is full sends no
// requests and READ responses until the adapter calls it. Acknowledgements wait for the READ
// responses before them only.

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
	if q.room&backlogRoom == 0 {
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

// pathRoom is where packets of a path may wait.
type pathRoom uint8

const (
	backlogRoom  pathRoom = 1 << iota // the path is a stack.Backlogged
	queueRoom                         // the path is a stack.Queued with a queue
	requestsTurn                      // the requests were the last to find the queue empty
)

// hasQueue reports whether the path has a queue in the adapter.
func (q *qp) hasQueue() bool { return q.room&queueRoom != 0 }

// roomOf opens the queue of the QP's path in the adapter, if it has one.
func (q *qp) roomOf(p stack.Path) pathRoom {
	if a, ok := p.(stack.Queued); ok && a.Queue(q.onRoom) {
		return queueRoom
	}
	if backlogged(p) != nil {
		return backlogRoom
	}
	return 0
}

// full reports whether the QP must wait for room in the adapter, which then calls onRoom.
func (q *qp) full() bool { return q.hasQueue() && q.queueFull() }

// queueFull is full for a QP with a queue. Gathered packets are sent first, so that they count.
func (q *qp) queueFull() bool {
	if q.out != nil {
		q.out.Flush()
		q.out = nil
	}
	p, _ := q.path.(stack.Queued)
	return p.Full()
}

// onRoom is called when the adapter has sent the packets of the QP. READ responses and requests are
// the first in turns, as either may fill the queue again.
func (q *qp) onRoom() {
	q.h.Lock()
	q.room ^= requestsTurn
	if s := q.h.State(); q.room&requestsTurn != 0 && !q.destroyed && receives(s) && sends(s) {
		q.sendRequests()
	}
	q.sendDueAndUnlock()
}
