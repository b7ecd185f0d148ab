package ring

import (
	"errors"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/rest"
)

// QueueBytes is how many bytes of frames wait for room in the ring of the other side of a pair.
const QueueBytes = 16 << 20

// Frames are passed to the receiver in batches of what there is, as far as they fit into an arena. A frame in place ends its
// batch: it is best looked at while it is in the processor's cache, and its room is wanted back.
const (
	arenaLen    = MaxFrame + 32<<10
	batchFrames = 64
)

// Frames are left in place if they are longer than shortFrame, and their headers can be those of RoCE over IPv4 or IPv6.
const (
	shortFrame = 1024
	minHeaders = link.EthernetHeaderLen + 20 + 8
	maxHeaders = link.EthernetHeaderLen + 40 + 8
)

// spinTime is how long a pair's goroutine looks for more frames before it sleeps, where that has been worth it.
const spinTime = 50 * time.Microsecond

// Pair is two rings between this process and another, one each way, and the connection of theirs: by it one side wakes the other,
// with a message of one byte that is sent only if a ring says that the other sleeps, and its end is the end of the pair. The
// kernel closes it when a process dies, at whatever instruction.
//
// Send never waits: two who wait for room in each other's rings, each on the goroutine that would make room, would wait for ever.
// What does not fit is kept in this process, up to QueueBytes, and beyond that lost and counted.
type Pair struct {
	group *Group
	quota *Quota
	conn  *net.UnixConn

	ended   atomic.Bool // the pair is to end
	waiting atomic.Bool // there are frames in the queue

	// In. receiving is held by whoever receives: the pair's goroutine, or who polls.
	receiving sync.Mutex
	recv      link.Receiver // nil: nobody receives yet, or any more
	in        *Consumer
	inMemory  []byte
	arena     []byte
	frames    []link.Frame
	rest      [1][]byte

	// Out.
	mu        sync.Mutex
	closed    bool
	out       *Producer
	outMemory []byte
	queue     []link.Frame // each with Data of its own
	queued    atomic.Int64 // bytes in it; written with mu held
	raw       syscall.RawConn
	ding      func(fd uintptr) bool // made once, as it is allocated
}

// Quota is how many bytes may wait in the queues of several pairs together.
type Quota struct {
	Bytes  int64
	queued atomic.Int64
}

// NewPair makes a pair of a group, whose rings are in memory that is mapped and from now on the pair's; Serve is to be called, and
// Close. Without memory to put frames into, out is nil, nothing can be sent.
func NewPair(g *Group, q *Quota, conn *net.UnixConn, in, out []byte) (p *Pair, err error) {
	p = &Pair{group: g, quota: q, conn: conn, inMemory: in, outMemory: out, arena: make([]byte, arenaLen), frames: make([]link.Frame, 0, batchFrames)}
	if p.in, err = NewConsumer(in); err != nil {
		return nil, err
	}
	p.closed = out == nil
	if !p.closed {
		if p.out, err = NewProducer(out); err != nil {
			return nil, err
		}
	}
	if p.raw, err = conn.SyscallConn(); err != nil {
		return nil, err
	}
	p.ding = func(fd uintptr) bool { Ring(fd); return true }
	return p, nil
}

// Ring wakes the reader of a connection. A bell that does not fit into the socket is not needed: there are others.
func Ring(fd uintptr) { _ = unix.Sendto(int(fd), bell, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) }

var bell = []byte{1}

// wake rings the bell.
func (p *Pair) wake() { _ = p.raw.Write(p.ding) }

// Send puts frames into the peer's ring, or into the queue before it.
func (p *Pair) Send(frames []link.Frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	for i := range frames {
		if len(p.queue) == 0 {
			ok, err := p.out.Put(&frames[i])
			if err != nil {
				p.HangUp()
				return
			}
			if ok {
				continue
			}
		}
		p.enqueue(&frames[i])
	}
	p.flush()
}

// enqueue copies a frame to the queue. It is called with p.mu held.
func (p *Pair) enqueue(f *link.Frame) {
	n := f.Len()
	if int(p.queued.Load())+n > QueueBytes || p.quota.queued.Load()+int64(n) > p.quota.Bytes {
		p.group.dropped.Add(1)
		return
	}
	c := *f
	c.Data, c.More = append(make([]byte, 0, n), f.Data...), nil
	for _, m := range f.More {
		c.Data = append(c.Data, m...)
	}
	p.queue = append(p.queue, c)
	p.queued.Add(int64(n))
	p.quota.queued.Add(int64(n))
	p.waiting.Store(true)
}

// flush moves what fits from the queue to the ring, and shows it to the peer. It is called with p.mu held.
func (p *Pair) flush() {
	if p.closed {
		return
	}
	for {
		for len(p.queue) > 0 {
			ok, err := p.out.Put(&p.queue[0])
			if err != nil {
				p.HangUp()
				return
			}
			if !ok {
				break
			}
			n := int64(len(p.queue[0].Data))
			p.queued.Add(-n)
			p.quota.queued.Add(-n)
			p.queue[0] = link.Frame{}
			p.queue = p.queue[1:]
		}
		if p.out.Publish() {
			p.wake()
		}
		if len(p.queue) == 0 {
			p.queue = nil
			p.waiting.Store(false)
			return
		}
		if sleep, err := p.out.Sleep(len(p.queue[0].Data)); err != nil {
			p.HangUp()
			return
		} else if sleep {
			return // the peer will ring
		}
	}
}

// HangUp has the peer's goroutine end the pair.
func (p *Pair) HangUp() {
	p.ended.Store(true)
	if p.conn != nil {
		_ = p.conn.CloseRead() // which wakes it
	}
}

// Ended tells whether the pair is about to end.
func (p *Pair) Ended() bool { return p.ended.Load() }

// Queued is how many bytes wait for room in the other side's ring.
func (p *Pair) Queued() int { return int(p.queued.Load()) }

// Reserve sets room for a frame of up to n bytes aside, if the peer takes frames in place.
func (p *Pair) Reserve(n int) (r link.Room) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.queue) > 0 || !p.out.InPlace() {
		return r
	}
	if r.At, r.Data = p.out.Reserve(n); r.Data != nil {
		r.In = p
	}
	return r
}

// Commit implements link.Committer.
func (p *Pair) Commit(at uint64, f *link.Frame, n int) {
	if p.commit(at, f, n) {
		p.wake() // without a lock: a thread of a program in C may be interrupted here, and exit in the handler
	}
}

// commit is Commit, but for the bell, and reports whether that is to ring.
func (p *Pair) commit(at uint64, f *link.Frame, n int) (ring bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Commit(at, f, n)
	if p.closed {
		p.unmapOut()
		return false
	}
	return p.out.Publish()
}

// Close ends the pair.
func (p *Pair) Close() {
	p.receiving.Lock()
	p.recv = nil
	_ = unix.Munmap(p.inMemory)
	p.receiving.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.queue = true, nil
	p.quota.queued.Add(-p.queued.Swap(0))
	_ = p.conn.Close()
	p.unmapOut()
}

// unmapOut unmaps the memory that frames are put into, when nobody builds one there. It is called with p.mu held.
func (p *Pair) unmapOut() {
	if p.out != nil && p.out.Reserved() == 0 {
		_ = unix.Munmap(p.outMemory)
	}
}

// Serve passes what the other side sends to recv, and the messages on the connection that are longer than a bell, with their
// descriptors, to hear, until the pair ends or hear returns an error. The error is that, or says what was wrong with the ring, if
// it was the ring. A message is valid during the call, and the descriptors are closed afterwards. Without hear, messages are all
// bells. While an application polls the group, Serve sleeps.
func (p *Pair) Serve(recv link.Receiver, hear func(message []byte, fds []int) error) error {
	err := p.serve(recv, hear)
	if errors.Is(err, ErrCorrupt) {
		p.group.malformed.Add(1)
	}
	return err
}

func (p *Pair) serve(recv link.Receiver, hear func(message []byte, fds []int) error) error {
	p.receiving.Lock()
	p.recv = recv
	if p.group.inPlace.Load() {
		p.in.TakeInPlace()
	}
	p.receiving.Unlock()
	ear := newEar(p.conn, p.raw, hear)
	var (
		taken int
		fresh bool      // frames were received since the goroutine last looked for more, or slept
		until time.Time // when to stop looking for more; zero: it does not
		vigil rest.Vigil
	)
	for !p.ended.Load() {
		p.receiving.Lock()
		n, err := p.receive(false)
		p.receiving.Unlock()
		if err != nil {
			return err
		}
		p.flushWaiting()
		wait := true
		if p.group.isPolled() {
			until = time.Time{}
		} else {
			switch {
			case n > 0:
				if !until.IsZero() {
					vigil.Looked(true)
				}
				fresh, until = true, time.Time{}
				taken += n
				wait = false
			case fresh && vigil.Due():
				fresh, until = false, time.Now().Add(spinTime)
				continue
			case !until.IsZero() && time.Now().Before(until):
				p.group.giveWay()
				continue
			case !p.sleeps():
				continue
			case !until.IsZero():
				vigil.Looked(false)
				until = time.Time{}
			}
		}
		if wait || hear != nil && taken >= hearInterval { // else messages would wait for the stream of frames to end
			taken = 0
			if wait {
				rest.LetRun()
			}
			// Of the other's bells, the end of the connection, and handOver's deadline, the first ends the sleep.
			switch ended, err := ear.listen(wait); {
			case err != nil:
				return errors.Join(err, p.drain())
			case ended:
				return p.drain()
			}
		}
		if !wait {
			runtime.Gosched() // whom the frames have woken runs before more are waited for
			continue
		}
		p.receiving.Lock()
		p.in.Awake()
		p.receiving.Unlock()
	}
	return nil
}

// drain passes on what a peer that has gone has left in its ring. The peer may not have gone, and go on putting frames in: no more are
// taken than fit into the ring at once, the shortest with a header of 32 bytes each.
func (p *Pair) drain() error {
	p.receiving.Lock()
	defer p.receiving.Unlock()
	if p.recv == nil {
		return nil
	}
	for left := len(p.inMemory) / 64; left > 0; {
		n, err := p.receive(false)
		if n == 0 || err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// wait waits until nobody receives.
func (p *Pair) wait() {
	p.receiving.Lock()
	defer p.receiving.Unlock()
}

// sleeps has the peer ring from now on when it sends; false if there is something already.
func (p *Pair) sleeps() bool {
	p.receiving.Lock()
	defer p.receiving.Unlock()
	return p.recv == nil || p.in.Sleep()
}

// handOver has the peer's goroutine receive, as nobody polls any more.
func (p *Pair) handOver() {
	if !p.sleeps() {
		_ = p.conn.SetReadDeadline(time.Unix(1, 0)) // it is up
	}
}

// poll receives unless somebody else does.
func (p *Pair) poll() bool {
	if !p.receiving.TryLock() {
		return false
	}
	n := 0
	if p.recv != nil {
		var err error
		p.in.Awake()
		if n, err = p.receive(true); err != nil {
			p.HangUp()
		}
	}
	p.receiving.Unlock()
	p.flushWaiting()
	return n > 0
}

// flushWaiting moves what waits for room, if anything does.
func (p *Pair) flushWaiting() {
	if p.waiting.Load() {
		p.mu.Lock()
		p.flush()
		p.mu.Unlock()
	}
}

// receive passes a batch of frames to the receiver, and returns how many were taken from the ring. It is called with
// p.receiving held.
func (p *Pair) receive(polled bool) (taken int, err error) {
	p.frames = p.frames[:0]
	for room := p.arena; len(p.frames) < batchFrames; taken++ {
		var n int
		if n, err = p.in.Next(); n == 0 || n > len(room) {
			break
		}
		h, inPlace := p.in.HeaderLen(), false
		var f link.Frame
		if inPlace = n > shortFrame && h >= minHeaders && h <= maxHeaders; inPlace {
			f = p.in.TakeHeaders(room, h, &p.rest)
			room = room[h:]
		} else {
			f = p.in.Take(room)
			room = room[n:]
		}
		if f.Validate(link.MaxSuperframe, Offloads) != nil || f.NoICRC && !p.group.inPlace.Load() {
			p.group.malformed.Add(1)
		} else {
			f.Polled = polled
			p.frames = append(p.frames, f)
		}
		if inPlace {
			taken++
			break
		}
	}
	if len(p.frames) > 0 {
		p.recv(p.frames)
	}
	if p.in.Release() {
		p.wake()
	}
	return taken, err
}
