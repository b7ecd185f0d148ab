package shm

import (
	"errors"
	"net"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/ring"
)

// queueBytes is how many bytes of frames wait for room in a peer's ring.
const queueBytes = 16 << 20

// Frames are passed to the receiver in batches of what there is, as far as they fit into an arena. A frame in place ends its
// batch: it is best looked at while it is in the processor's cache, and its room is wanted back.
const (
	arenaLen    = ring.MaxFrame + 32<<10
	batchFrames = 64
)

// Frames are left in place if they are longer than shortFrame, and their headers can be those of RoCE over IPv4 or IPv6.
const (
	shortFrame = 1024
	minHeaders = link.EthernetHeaderLen + 20 + 8
	maxHeaders = link.EthernetHeaderLen + 40 + 8
)

// spinTime is how long a peer's goroutine looks for more frames before it sleeps.
const spinTime = 50 * time.Microsecond

// peer is another process on the segment.
type peer struct {
	segment *segment
	process *process
	conn    *net.UnixConn
	mac     [6]byte
	id      id
	sw      bool // it is a switch
	began   bool // this process has connected to the other

	ended   atomic.Bool // the pair is to end
	waiting atomic.Bool // there are frames in the queue

	// In. receiving is held by whoever receives: the peer's goroutine, or who polls.
	receiving sync.Mutex
	recv      link.Receiver // nil: nobody receives yet, or any more
	in        *ring.Consumer
	inMemory  []byte
	arena     []byte
	frames    []link.Frame
	rest      [1][]byte

	// Out.
	mu        sync.Mutex
	closed    bool
	out       *ring.Producer
	outMemory []byte
	queue     []link.Frame // each with Data of its own
	queued    atomic.Int64 // bytes in it; written with mu held
	raw       syscall.RawConn
	ring      func(fd uintptr) bool // made once, as it is allocated
}

func newPeer(conn *net.UnixConn, in, out []byte) (p *peer, err error) {
	p = &peer{conn: conn, inMemory: in, outMemory: out, arena: make([]byte, arenaLen), frames: make([]link.Frame, 0, batchFrames)}
	if p.in, err = ring.NewConsumer(in); err != nil {
		return nil, err
	}
	if p.out, err = ring.NewProducer(out); err != nil {
		return nil, err
	}
	if p.raw, err = conn.SyscallConn(); err != nil {
		return nil, err
	}
	bell := []byte{1}
	p.ring = func(fd uintptr) bool {
		_ = unix.Sendto(int(fd), bell, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
		return true // one that does not fit is not needed
	}
	return p, nil
}

// wake rings the bell. It is called with p.mu held.
func (p *peer) wake() { _ = p.raw.Write(p.ring) }

// send puts frames into the peer's ring, or into the queue before it.
func (p *peer) send(frames []link.Frame) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	for i := range frames {
		if len(p.queue) == 0 {
			ok, err := p.out.Put(&frames[i])
			if err != nil {
				p.hangUp()
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
func (p *peer) enqueue(f *link.Frame) {
	n := f.Len()
	if int(p.queued.Load())+n > queueBytes || int(p.process.queued.Load())+n > processQueueBytes {
		p.segment.dropped.Add(1)
		return
	}
	c := *f
	c.Data, c.More = append(make([]byte, 0, n), f.Data...), nil
	for _, m := range f.More {
		c.Data = append(c.Data, m...)
	}
	p.queue = append(p.queue, c)
	p.queued.Add(int64(n))
	p.process.queued.Add(int64(n))
	p.waiting.Store(true)
}

// flush moves what fits from the queue to the ring, and shows it to the peer. It is called with p.mu held.
func (p *peer) flush() {
	if p.closed {
		return
	}
	for {
		for len(p.queue) > 0 {
			ok, err := p.out.Put(&p.queue[0])
			if err != nil {
				p.hangUp()
				return
			}
			if !ok {
				break
			}
			n := int64(len(p.queue[0].Data))
			p.queued.Add(-n)
			p.process.queued.Add(-n)
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
			p.hangUp()
			return
		} else if sleep {
			return // the peer will ring
		}
	}
}

// hangUp has the peer's goroutine end the pair.
func (p *peer) hangUp() {
	p.ended.Store(true)
	_ = p.conn.CloseRead() // which wakes it
}

// reserve sets room for a frame of up to n bytes aside, if the peer takes frames in place.
func (p *peer) reserve(n int) (r link.Room) {
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
func (p *peer) Commit(at uint64, f *link.Frame, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out.Commit(at, f, n)
	if p.closed {
		p.unmapOut()
	} else if p.out.Publish() {
		p.wake()
	}
}

// close ends the pair.
func (p *peer) close() {
	p.receiving.Lock()
	p.recv = nil
	_ = unix.Munmap(p.inMemory)
	p.receiving.Unlock()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed, p.queue = true, nil
	if p.process != nil {
		p.process.queued.Add(-p.queued.Swap(0))
	}
	_ = p.conn.Close()
	p.unmapOut()
}

// unmapOut unmaps the memory that frames are put into, when nobody builds one there. It is called with p.mu held.
func (p *peer) unmapOut() {
	if p.out.Reserved() == 0 {
		_ = unix.Munmap(p.outMemory)
	}
}

// serve passes the peer's frames to recv until the pair ends; it returns what was wrong with the ring, if it was the ring.
// While an application polls, it sleeps.
func (p *peer) serve(recv link.Receiver) error {
	p.receiving.Lock()
	p.recv = recv
	if p.segment.inPlace.Load() {
		p.in.TakeInPlace()
	}
	p.receiving.Unlock()
	bell := make([]byte, 16)
	last := time.Now()
	for !p.ended.Load() {
		p.receiving.Lock()
		n, err := p.receive(false)
		p.receiving.Unlock()
		if err != nil {
			return err
		}
		p.flushWaiting()
		if !p.segment.isPolled() {
			if n > 0 {
				last = time.Now()
				runtime.Gosched() // whom the frames have woken runs before more are waited for
				continue
			}
			if time.Since(last) < spinTime {
				runtime.Gosched()
				continue
			}
			if !p.sleeps() {
				continue
			}
		}
		// Of the peer's bells, the end of the connection, and handOver's deadline, the first ends the sleep.
		if n, err := p.conn.Read(bell); (n == 0 || err != nil) && !errors.Is(err, os.ErrDeadlineExceeded) {
			return p.drain()
		} else if err != nil {
			_ = p.conn.SetReadDeadline(time.Time{})
		}
		p.receiving.Lock()
		p.in.Awake()
		p.receiving.Unlock()
		last = time.Now()
	}
	return nil
}

// drain passes on what a peer that has gone has left in its ring. The peer may not have gone, and go on putting frames in: no more are
// taken than fit into the ring at once, the shortest with a header of 32 bytes each.
func (p *peer) drain() error {
	p.receiving.Lock()
	defer p.receiving.Unlock()
	for left := len(p.inMemory) / 64; left > 0; {
		n, err := p.receive(false)
		if n == 0 || err != nil {
			return err
		}
		left -= n
	}
	return nil
}

// sleeps has the peer ring from now on when it sends; false if there is something already.
func (p *peer) sleeps() bool {
	p.receiving.Lock()
	defer p.receiving.Unlock()
	return p.recv == nil || p.in.Sleep()
}

// handOver has the peer's goroutine receive, as nobody polls any more.
func (p *peer) handOver() {
	if !p.sleeps() {
		_ = p.conn.SetReadDeadline(time.Unix(1, 0)) // it is up
	}
}

// poll receives unless somebody else does.
func (p *peer) poll() bool {
	if !p.receiving.TryLock() {
		return false
	}
	n := 0
	if p.recv != nil {
		var err error
		p.in.Awake()
		if n, err = p.receive(true); err != nil {
			p.hangUp()
		}
	}
	p.receiving.Unlock()
	p.flushWaiting()
	return n > 0
}

// flushWaiting moves what waits for room, if anything does.
func (p *peer) flushWaiting() {
	if p.waiting.Load() {
		p.mu.Lock()
		p.flush()
		p.mu.Unlock()
	}
}

// receive passes a batch of frames to the receiver, and returns how many were taken from the ring. It is called with
// p.receiving held.
func (p *peer) receive(polled bool) (taken int, err error) {
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
		if f.Validate(link.MaxSuperframe, offloads) != nil || f.NoICRC && !p.segment.inPlace.Load() {
			p.segment.malformed.Add(1)
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
		p.mu.Lock()
		p.wake()
		p.mu.Unlock()
	}
	return taken, err
}
