package iwarptransport

// The sender's view of the send queue: the next request, and the offset in it.

import "github.com/softrnic/softrnic/verbs"

// requestState is the sender's state of a work request.
type requestState struct {
	done bool // it is sent completely, and its response, if any, is placed
	// The error of a local operation, reported when it is the oldest request; 0 if there is none.
	refused verbs.WCStatus
}

// progress is how far the next request is sent.
type progress uint8

const (
	// notStarted: nothing is sent.
	notStarted progress = iota
	// inMessage: a part of its message is sent, and the rest goes through the stream.
	inMessage
	// partlyMoved: a part of its message was moved directly to the peer's memory. The rest may be
	// moved directly too.
	partlyMoved
	// beforeImmediate: the data of a WRITE with immediate is sent, but not the immediate data.
	beforeImmediate
)

// cursor is the position in the send queue. Work requests are numbered from the start of the
// stream. The queue holds the requests from first on. Those before next are sent completely.
type cursor struct {
	requests []requestState // by number modulo its length, a power of two
	first    uint64         // the oldest request that is not complete
	next     uint64         // the request of the cursor
	off      uint64         // bytes of its message that are sent
	progress progress       // how far that message is sent
}

// init sets the capacity of the queue, a power of two.
func (c *cursor) init(capacity int) { c.requests = make([]requestState, capacity) }

// reset clears the queue and keeps its memory.
func (c *cursor) reset() {
	clear(c.requests)
	*c = cursor{requests: c.requests}
}

func (c *cursor) at(n uint64) *requestState { return &c.requests[n&uint64(len(c.requests)-1)] }

// index returns a request's distance from the oldest.
func (c *cursor) index(n uint64) int { return int(n - c.first) }

// unsent returns the number of queued requests that are not sent completely.
func (c *cursor) unsent(queued int) int { return int(c.first + uint64(queued) - c.next) }

// atOldest reports whether the next request is the oldest, so that all before it are complete.
func (c *cursor) atOldest() bool { return c.next == c.first }

// is reports whether the next request has the given progress.
func (c *cursor) is(p progress) bool { return c.progress == p }

// mayMove reports whether the rest of the next request can be moved directly, because no part of it
// was sent through the stream.
func (c *cursor) mayMove() bool { return c.progress == notStarted || c.progress == partlyMoved }

// inData reports whether a part of the next request's message is sent.
func (c *cursor) inData() bool { return c.progress == inMessage || c.progress == partlyMoved }

// advance moves over n bytes of the next request's message, sent through the stream.
func (c *cursor) advance(n uint64) {
	c.off += n
	c.progress = inMessage
}

// advanceToImmediate records that all data of the next request is sent, but not its immediate data.
func (c *cursor) advanceToImmediate() { c.progress = beforeImmediate }

// useStream records that the rest of the next request goes through the stream.
func (c *cursor) useStream() {
	if c.progress == partlyMoved {
		c.progress = inMessage
	}
}

// step moves to the next request, because the current one is sent completely. done says that it has
// no response.
func (c *cursor) step(done bool) {
	c.at(c.next).done = done
	c.next++
	c.off, c.progress = 0, notStarted
}

// refuse records the error of the next request, which is a local operation.
func (c *cursor) refuse(status verbs.WCStatus) { c.at(c.next).refused = status }

// refusal returns the error recorded by refuse.
func (c *cursor) refusal() verbs.WCStatus { return c.at(c.next).refused }

// responded records that the response to request n was placed.
func (c *cursor) responded(n uint64) { c.at(n).done = true }

// oldestDone reports whether the oldest request can be completed.
func (c *cursor) oldestDone() bool { return c.at(c.first).done }

// isDone reports whether request n is sent completely and its response is placed.
func (c *cursor) isDone(n uint64) bool { return c.at(n).done }

// completeOldest removes the oldest request.
func (c *cursor) completeOldest() {
	*c.at(c.first) = requestState{}
	c.first++
}

// movedTo records that the first off bytes of the next request's message were moved directly.
func (c *cursor) movedTo(off uint64) { c.off, c.progress = off, partlyMoved }

// moved removes the next request, which is the oldest, because all of its message was moved
// directly.
func (c *cursor) moved() {
	c.first++
	c.next++
	c.off, c.progress = 0, notStarted
}
