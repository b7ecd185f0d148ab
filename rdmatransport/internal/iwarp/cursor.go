package iwarp

// The send queue as the sender sees it: which request is sent next, and from where in it.

import "github.com/softrnic/softrnic/verbs"

// requestState is what the sender remembers of a work request.
type requestState struct {
	done    bool           // it is sent in full, and its response was placed if it has one
	refused verbs.WCStatus // why a local operation failed that waits until it is the oldest request; 0 if it did not
}

// progress is how much of a request is sent.
type progress uint8

const (
	// untouched: nothing is.
	untouched progress = iota
	// inMessage: some of its message is, and the rest goes through the stream.
	inMessage
	// movedInPart: some of its message was moved directly to the peer's memory, and the rest may
	// be.
	movedInPart
	// beforeImmediate: the data of a WRITE with immediate data is, the immediate data is not.
	beforeImmediate
)

// cursor is the place in the send queue up to which all is sent. Work requests are numbered from
// the start of the stream: the queue holds those from first on, and those before next are sent in
// full.
type cursor struct {
	requests []requestState // by number modulo its length, a power of two
	first    uint64         // the oldest that is not complete
	next     uint64         // the one to send from
	off      uint64         // bytes of its message that are sent
	progress progress       // what else is known of how far it is
}

// init sets how many requests the queue can hold, a power of two.
func (c *cursor) init(capacity int) { c.requests = make([]requestState, capacity) }

// reset starts anew. The memory stays.
func (c *cursor) reset() {
	clear(c.requests)
	*c = cursor{requests: c.requests}
}

func (c *cursor) at(n uint64) *requestState { return &c.requests[n&uint64(len(c.requests)-1)] }

// index is the place of request n behind the oldest.
func (c *cursor) index(n uint64) int { return int(n - c.first) }

// unsent is how many requests are not sent in full, of as many as are queued.
func (c *cursor) unsent(queued int) int { return int(c.first + uint64(queued) - c.next) }

// atOldest reports whether the next request is the oldest: all before it are complete.
func (c *cursor) atOldest() bool { return c.next == c.first }

// is tells how much of the next request is sent.
func (c *cursor) is(p progress) bool { return c.progress == p }

// mayMove reports whether nothing of the next request went through the stream: the rest of it may
// be moved directly.
func (c *cursor) mayMove() bool { return c.progress == untouched || c.progress == movedInPart }

// inData reports whether some of the next request's message is sent, and not all.
func (c *cursor) inData() bool { return c.progress == inMessage || c.progress == movedInPart }

// advance moves over n bytes of the next request's message, which went through the stream.
func (c *cursor) advance(n uint64) {
	c.off += n
	c.progress = inMessage
}

// advanceToImmediate notes that all of the next request is sent but its immediate data.
func (c *cursor) advanceToImmediate() { c.progress = beforeImmediate }

// useStream notes that the rest of the next request goes through the stream.
func (c *cursor) useStream() {
	if c.progress == movedInPart {
		c.progress = inMessage
	}
}

// step moves to the request behind the next one, which is sent in full; done tells that it has no
// response.
func (c *cursor) step(done bool) {
	c.at(c.next).done = done
	c.next++
	c.off, c.progress = 0, untouched
}

// refuse notes why the next request, a local operation, failed.
func (c *cursor) refuse(status verbs.WCStatus) { c.at(c.next).refused = status }

// refusal is what refuse noted of the next request.
func (c *cursor) refusal() verbs.WCStatus { return c.at(c.next).refused }

// responded notes that the response to request n was placed.
func (c *cursor) responded(n uint64) { c.at(n).done = true }

// oldestDone reports whether the oldest request can be completed.
func (c *cursor) oldestDone() bool { return c.at(c.first).done }

// isDone reports whether request n is sent in full, and its response placed.
func (c *cursor) isDone(n uint64) bool { return c.at(n).done }

// completeOldest takes the oldest request off the queue.
func (c *cursor) completeOldest() {
	*c.at(c.first) = requestState{}
	c.first++
}

// movedTo notes that the first off bytes of the next request's message were moved directly.
func (c *cursor) movedTo(off uint64) { c.off, c.progress = off, movedInPart }

// moved takes the next request, which is the oldest, off the queue: the rest of it was moved
// directly.
func (c *cursor) moved() {
	c.first++
	c.next++
	c.off, c.progress = 0, untouched
}
