package host

import (
	"cmp"
	"context"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// Queue is an I/O queue of one goroutine, which keeps many commands outstanding. Its methods must
// not be called at the same time.
type Queue struct {
	q     *queue
	depth int
}

// Op is a command of a Queue. It and its memory belong to the Queue from Post on, until Poll or
// Wait returns it. All fields but Err are of the application.
type Op struct {
	Opcode    nvme.Opcode // nvme.Read, Write, Compare, WriteZeroes or Flush
	Namespace *Namespace
	Offset    int64 // in the namespace, bytes
	Len       int   // bytes: of Memory, with WriteZeroes of the range, with Flush 0
	Memory    *Memory
	At        int // of the data in Memory
	ID        uint64

	Err error // the outcome
}

// OpenQueue connects an I/O queue besides those that namespaces share, for a number of outstanding
// commands. If the controller's queues end meanwhile, as by Close or Reset, the error wraps a
// LostError.
func (c *Controller) OpenQueue(ctx context.Context, depth int) (*Queue, error) {
	const op = "open queue"
	if depth < 1 || depth > maxDepth {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "depth %d: must be 1 to %d", depth, maxDepth)
	}
	s, err := c.current()
	if err != nil {
		return nil, err
	}
	wakeup.Lock(c.clock, &s.opening)
	defer s.opening.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := s.beginOpening(cancel); err != nil {
		return nil, err
	}
	id := s.freeID()
	if id == 0 {
		return nil, verbs.Errorf(verbs.ErrNoMemory, op, "the target allows %d I/O queues", s.granted)
	}
	q, err := s.open(ctx, id, depth, s.id)
	if err != nil {
		return nil, &verbs.Error{Op: op, Err: cmp.Or(s.reason(), err)}
	}
	return &Queue{q, q.depth}, nil
}

// freeID returns the ID of an I/O queue that is not in use, or 0. An ID is not reused soon, because
// the target may not have noticed the end of its last queue.
func (s *session) freeID() uint16 {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range s.granted {
		s.lastID = s.lastID%uint16(s.granted) + 1
		if s.queues[s.lastID] == nil {
			return s.lastID
		}
	}
	return 0
}

// Depth returns the number of commands that may be outstanding, which may be less than requested.
func (r *Queue) Depth() int { return r.depth }

// Post sends a command. The error is verbs.ErrQueueFull if Depth commands are outstanding, and
// otherwise about the command, or a LostError.
func (r *Queue) Post(op *Op) error {
	ns, q := op.Namespace, r.q
	if ns == nil || ns.c != q.s.c {
		return verbs.Errorf(verbs.ErrInvalid, "post command", "the Namespace is nil or of another controller")
	}
	cmd := nvme.Command{Opcode: op.Opcode, NSID: ns.id}
	var d transfer
	switch op.Opcode {
	case nvme.Read, nvme.Write, nvme.Compare:
		if err := op.Memory.check(ns.c, op.At, op.Len); err != nil {
			return err
		}
		if op.Len > q.s.maxTransfer() {
			return ns.invalid(verb(op.Opcode), "%d bytes: must be %d at most", op.Len, q.s.maxTransfer())
		}
		d = transfer{way: fromHost, n: op.Len, mr: op.Memory.mr, off: op.At, application: true}
		if op.Opcode == nvme.Read {
			d.way = toHost
		}
	case nvme.WriteZeroes, nvme.Flush:
	default:
		return ns.invalid("use", "opcode %#x is not that of a command of a Queue", uint8(op.Opcode))
	}
	if op.Opcode != nvme.Flush {
		if err := ns.within(verb(op.Opcode), op.Offset, int64(op.Len)); err != nil {
			return err
		}
		blocks := op.Len >> ns.shift
		if blocks < 1 || blocks > maxBlocks {
			return ns.invalid(verb(op.Opcode), "%d blocks: must be 1 to %d", blocks, maxBlocks)
		}
		cmd.SetRange(uint64(op.Offset)>>ns.shift, uint32(blocks))
	}
	q.mu.Lock()
	s := q.take()
	err := q.err
	q.mu.Unlock()
	switch {
	case err != nil:
		return err
	case s == nil:
		if _, err := r.reap(); err != nil {
			return err
		}
		q.mu.Lock()
		s = q.take()
		q.mu.Unlock()
		if s == nil {
			return verbs.Errorf(verbs.ErrQueueFull, "post command", "%d commands are outstanding", r.depth)
		}
	}
	s.op, s.endless = op, false
	return q.submit(s, &cmd, &d)
}

// reap handles the completions that there are.
func (r *Queue) reap() (n int, err error) {
	q := r.q
	q.poll.Lock()
	defer q.poll.Unlock()
	if q.ended() {
		return 0, nil
	}
	if n, err = q.cq.Poll(q.wcs[:]); err != nil {
		q.fail(err)
		return 0, nil
	}
	q.handleAll(n)
	return n, nil
}

// collect moves finished commands to done.
func (r *Queue) collect(done []*Op) (n int, err error) {
	q := r.q
	q.mu.Lock()
	defer q.mu.Unlock()
	n = copy(done, q.finished)
	rest := copy(q.finished, q.finished[n:])
	clear(q.finished[rest:])
	q.finished = q.finished[:rest]
	if n == 0 {
		err = q.err
	}
	return n, err
}

// Poll returns up to len(done) completed commands, with their outcomes, and does not wait. After
// the end of the queue, each outstanding command is returned, with a LostError, and then Poll fails
// with it.
func (r *Queue) Poll(done []*Op) (n int, err error) {
	if _, err := r.reap(); err != nil {
		return 0, err
	}
	return r.collect(done)
}

// Wait is like Poll, and waits until there is a completed command. The error may also be that of
// ctx. Outstanding commands then remain.
func (r *Queue) Wait(ctx context.Context, done []*Op) (n int, err error) {
	if len(done) == 0 {
		return 0, verbs.Errorf(verbs.ErrInvalid, "wait for commands", "done is empty")
	}
	for {
		if n, err = r.collect(done); n > 0 || err != nil {
			return n, err
		}
		if err := r.await(ctx); err != nil {
			return 0, err
		}
	}
}

// await waits for completions, and handles them, unless the queue has ended.
func (r *Queue) await(ctx context.Context) error {
	q := r.q
	q.poll.Lock()
	defer q.poll.Unlock()
	if q.ended() {
		return nil
	}
	return q.progress(ctx)
}

// Close ends the queue. Outstanding commands are not completed any more, and their memory is not
// accessed.
func (r *Queue) Close() error {
	q := r.q
	q.mu.Lock()
	ended := q.err != nil
	if !ended {
		q.err = errClosed
	}
	q.mu.Unlock()
	if !ended {
		q.quit()
	}
	s := q.s
	wakeup.Lock(s.c.clock, &s.freeing) // destroy may be closing it
	s.mu.Lock()
	mine := s.queues[q.id] == q
	if mine {
		delete(s.queues, q.id)
	}
	s.mu.Unlock()
	s.freeing.Unlock()
	if !mine { // Close or Reset of the controller has freed it
		return nil
	}
	return q.close()
}
