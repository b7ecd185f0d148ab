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
	"github.com/softrnic/softrnic/link/idle"
)

// QueueBytes is the number of bytes of frames that may wait for room in the peer's ring.
const QueueBytes = 16 << 20

// A batch consists of the frames that are available and fit into the arena. It is passed to the
// receiver in one call. A frame in place ends its batch: it should be read while it is in the
// cache, and the peer needs the room.
const (
	arenaLen    = MaxFrame + 32<<10
	batchFrames = 64
)

// Frames stay in place if they are longer than shortFrame and their headers may be those of RoCE
// over IPv4 or IPv6.
const (
	shortFrame = 1024
	minHeaders = link.EthernetHeaderLen + 20 + 8
	maxHeaders = link.EthernetHeaderLen + 40 + 8
)

// Pair is two rings between this process and another, one in each direction, and their connection.
// The connection carries wakeups: messages of one byte, sent only if the ring says that the peer
// sleeps. The end of the connection ends the pair. If a process dies, the kernel closes the
// connection.
//
// Send never waits. If two processes each waited for room in the other's ring, on the goroutine
// that makes room, they would deadlock. Frames that do not fit are queued in this process, up to
// QueueBytes. Further frames are dropped and counted.
type Pair struct {
	group *Group
	quota *Quota
	conn  *net.UnixConn

	ended   atomic.Bool // the pair is about to end
	waiting atomic.Bool // the queue has frames

	// The field receiving is held by the receiver: the pair's goroutine or a poller.
	receiving sync.Mutex
	recv      link.Receiver // nil: before Serve and after Close
	in        *Consumer
	inMemory  []byte
	arena     []byte
	frames    []link.Frame
	more      [1][]byte

	// Sending.
	mu         sync.Mutex
	closed     bool
	out        *Producer
	outMemory  []byte
	queue      []link.Frame // each frame has its own Data
	queued     atomic.Int64 // bytes in the queue; written with mu held
	raw        syscall.RawConn
	sendWakeup func(fd uintptr) bool // made once, because a closure allocates
}

// Quota limits the bytes in the queues of several pairs together.
type Quota struct {
	Bytes  int64
	queued atomic.Int64
}

// NewPair returns a pair of a group. The rings are in mapped memory that belongs to the pair from
// now on. The caller calls Serve and Close. If out is nil, the pair cannot send.
func NewPair(g *Group, q *Quota, conn *net.UnixConn, in, out []byte) (p *Pair, err error) {
	p = &Pair{group: g, quota: q, conn: conn, inMemory: in, outMemory: out,
		arena: make([]byte, arenaLen), frames: make([]link.Frame, 0, batchFrames)}
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
	p.sendWakeup = func(fd uintptr) bool { WakePeer(fd); return true }
	return p, nil
}

// WakePeer wakes the reader of a connection. If the socket's buffer is full, other wakeups are
// pending and this one is not needed.
func WakePeer(fd uintptr) { _ = unix.Sendto(int(fd), wakeup, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil) }

var wakeup = []byte{1}

// wake sends the peer a wakeup.
func (p *Pair) wake() { _ = p.raw.Write(p.sendWakeup) }

// Send puts frames into the peer's ring. If that is full, it puts them into the queue.
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
				p.Shutdown()
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

// enqueue copies a frame to the queue. p.mu is held.
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

// flush moves as many frames from the queue to the ring as fit, and publishes them. p.mu is held.
func (p *Pair) flush() {
	if p.closed {
		return
	}
	for {
		for len(p.queue) > 0 {
			ok, err := p.out.Put(&p.queue[0])
			if err != nil {
				p.Shutdown()
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
		if sleep, err := p.out.sleep(len(p.queue[0].Data)); err != nil {
			p.Shutdown()
			return
		} else if sleep {
			return // the peer will send a wakeup
		}
	}
}

// Shutdown makes the pair's goroutine end the pair.
func (p *Pair) Shutdown() {
	p.ended.Store(true)
	if p.conn != nil {
		_ = p.conn.CloseRead() // wakes the goroutine
	}
}

// Ended reports whether the pair is about to end.
func (p *Pair) Ended() bool { return p.ended.Load() }

// Queued returns the number of bytes that wait for room in the peer's ring.
func (p *Pair) Queued() int { return int(p.queued.Load()) }

// Reserve reserves room for a frame of up to n bytes, if the peer takes frames in place.
func (p *Pair) Reserve(n int) (r link.Reservation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || len(p.queue) > 0 || !p.out.InPlace() {
		return r
	}
	if r.At, r.Data = p.out.reserve(n); r.Data != nil {
		r.Owner = p
	}
	return r
}

// Commit implements link.Committer.
func (p *Pair) Commit(at uint64, f *link.Frame, n int) {
	if p.commit(at, f, n) {
		// This takes no lock: a signal may interrupt a C program's thread here, and the handler may exit.
		p.wake()
	}
}

// commit is Commit without the wakeup. It reports whether the peer must be woken.
func (p *Pair) commit(at uint64, f *link.Frame, n int) (wake bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.commit(at, f, n)
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

// unmapOut unmaps the outgoing ring once no frame is being built in it. p.mu is held.
func (p *Pair) unmapOut() {
	if p.out != nil && p.out.reservations() == 0 {
		_ = unix.Munmap(p.outMemory)
	}
}

// Serve passes the peer's frames to recv until the pair ends or onMessage returns an error.
// onMessage gets the messages that are longer than a wakeup, with their descriptors. A message is
// valid during the call, and its descriptors are closed afterwards. If onMessage is nil, all
// messages are wakeups. Serve returns the error of onMessage, or one that says how the ring is
// corrupt. While an application polls the group, Serve sleeps.
func (p *Pair) Serve(recv link.Receiver, onMessage func(message []byte, fds []int) error) error {
	err := p.serve(recv, onMessage)
	if errors.Is(err, errCorrupt) {
		p.group.malformed.Add(1)
	}
	return err
}

func (p *Pair) serve(recv link.Receiver, onMessage func(message []byte, fds []int) error) error {
	p.receiving.Lock()
	p.recv = recv
	if p.group.inPlace.Load() {
		p.in.AllowInPlace()
	}
	p.receiving.Unlock()
	messages := newMessageReader(p.conn, p.raw, onMessage)
	taken := 0
	reader := idle.NewReader(p.group.spinner, idle.WaitAdaptive)
	for !p.ended.Load() {
		p.receiving.Lock()
		n, err := p.receive(false)
		p.receiving.Unlock()
		if err != nil {
			return err
		}
		p.flushWaiting()
		wait := true
		switch {
		case p.group.isPolled():
			reader.Stop()
		case n > 0:
			reader.Received(false)
			taken += n
			wait = false
		case !reader.Empty() || !p.sleeps():
			continue
		}
		// Without the second condition, a message would wait until no frames are left.
		if wait || onMessage != nil && taken >= messageInterval {
			taken = 0
			if wait {
				idle.YieldBeforeSleep()
			}
			// The wait is ended by a wakeup from the peer, by the end of the connection, or by the deadline
			// that handOver sets.
			switch ended, err := messages.next(wait); {
			case err != nil:
				return errors.Join(err, p.drain())
			case ended:
				return p.drain()
			}
		}
		if !wait {
			runtime.Gosched() // goroutines that the frames have woken run first
			reader.Yielded()
			continue
		}
		p.receiving.Lock()
		p.in.awake()
		p.receiving.Unlock()
	}
	return nil
}

// drain receives the frames that a departed peer has left in its ring. A peer that is alive after
// all may keep adding frames, so drain takes at most as many frames as the ring can hold.
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

// wait waits until no goroutine receives.
func (p *Pair) wait() {
	p.receiving.Lock()
	defer p.receiving.Unlock()
}

// sleeps asks the peer to wake this side for the next frame. It returns false if there are frames
// already.
func (p *Pair) sleeps() bool {
	p.receiving.Lock()
	defer p.receiving.Unlock()
	return p.recv == nil || p.in.sleep()
}

// handOver makes the pair's goroutine receive again, because no application polls any more.
func (p *Pair) handOver() {
	if !p.sleeps() {
		_ = p.conn.SetReadDeadline(time.Unix(1, 0)) // a deadline in the past wakes the goroutine
	}
}

// poll receives unless another goroutine is receiving.
func (p *Pair) poll() bool {
	if !p.receiving.TryLock() {
		return false
	}
	n := 0
	if p.recv != nil {
		var err error
		p.in.awake()
		if n, err = p.receive(true); err != nil {
			p.Shutdown()
		}
	}
	p.receiving.Unlock()
	p.flushWaiting()
	return n > 0
}

// flushWaiting flushes the queue unless it is empty.
func (p *Pair) flushWaiting() {
	if p.waiting.Load() {
		p.mu.Lock()
		p.flush()
		p.mu.Unlock()
	}
}

// receive passes a batch of frames to the receiver, and returns the number of frames that were
// taken from the ring. p.receiving is held.
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
			f = p.in.TakeHeaders(room, h, &p.more)
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
