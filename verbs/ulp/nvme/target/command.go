package target

import (
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// command is a received command, in the memory of its receive request. Until the response is
// posted, one goroutine at a time has it, except for the parts of its data.
type command struct {
	q       *queue
	capsule []byte
	recv    verbs.RecvWR

	sqe    nvme.Command
	inline []byte // data in the capsule
	result uint64
	last   bool          // the queue ends after the response
	failed atomic.Uint32 // the first status that is not Success

	// The movement of data (transfer.go).
	way     direction
	ns      *namespace // whose data it is; nil: buf
	off     int64      // of the data in the backend
	buf     []byte
	length  int              // of the data, bytes
	next    int              // the part that is not started yet
	pending atomic.Int32     // parts that are not finished, and 1 while parts are started
	tail    *transfer        // data that is sent with the response
	then    func(c *command) // called with the data, or after it is written; nil: respond
}

// start initializes a command whose capsule has n bytes.
func (c *command) start(sqe *nvme.Command, n int) {
	c.sqe, c.inline = *sqe, c.capsule[nvme.CommandLen:n]
	c.result, c.last = 0, false
	c.failed.Store(0)
	c.ns, c.off, c.buf, c.length, c.next, c.tail, c.then = nil, 0, nil, 0, 0, nil, nil
}

// setFailed sets the status, unless there is one.
func (c *command) setFailed(s nvme.Status) {
	if s != nvme.Success {
		c.failed.CompareAndSwap(0, uint32(s))
	}
}

func (c *command) status() nvme.Status { return nvme.Status(c.failed.Load()) }

// fail completes the command with a status that a repetition would have too.
func (c *command) fail(s nvme.Status) { c.complete(s | nvme.DoNotRetry) }

// complete completes the command.
func (c *command) complete(s nvme.Status) {
	c.setFailed(s)
	if s = c.status(); s != nvme.Success {
		c.q.failed(c, s)
	}
	c.q.respond(c)
}

// sync completes the command when sync, of a namespace or of all, has ended. The queue's end waits
// for that, so that a host with a slow disk has no more connections than others.
func (c *command) sync(sync func(func(nvme.Status))) {
	q := c.q
	if !q.hold() {
		return
	}
	sync(func(s nvme.Status) {
		defer q.workers.Done()
		c.complete(s)
	})
}

// succeed completes the command with a result.
func (c *command) succeed(result uint64) {
	c.result = result
	c.complete(nvme.Success)
}
