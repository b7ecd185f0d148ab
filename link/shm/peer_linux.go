package shm

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/internal/ring"
)

// queueBytes is how many bytes of frames wait for room in a peer's ring.
const queueBytes = 16 << 20

// Frames are passed to the receiver in batches of what there is, as far as they fit into an arena.
const (
	arenaLen    = ring.MaxFrame + 32<<10
	batchFrames = 64
)

// spinTime is how long a peer's goroutine looks for more frames before it sleeps.
const spinTime = 50 * time.Microsecond

// peer is another process on the segment.
type peer struct {
	conn  *net.UnixConn
	mac   [6]byte
	id    id
	began bool // this process has connected to the other

	ended   atomic.Bool // the pair is to end
	waiting atomic.Bool // there are frames in the queue

	// In: of the peer's goroutine alone.
	in       *ring.Consumer
	inMemory []byte
	arena    []byte
	frames   []link.Frame

	// Out.
	mu        sync.Mutex
	out       *ring.Producer // nil: the pair has ended
	outMemory []byte
	queue     []link.Frame // each with Data of its own
	queued    int          // bytes in it
	dropped   *atomic.Uint64
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
	if p.out == nil {
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
	if p.queued+n > queueBytes {
		p.dropped.Add(1)
		return
	}
	c := *f
	c.Data, c.More = append(make([]byte, 0, n), f.Data...), nil
	for _, m := range f.More {
		c.Data = append(c.Data, m...)
	}
	p.queue = append(p.queue, c)
	p.queued += n
	p.waiting.Store(true)
}

// flush moves what fits from the queue to the ring, and shows it to the peer. It is called with p.mu held.
func (p *peer) flush() {
	if p.out == nil {
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
			p.queued -= len(p.queue[0].Data)
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

// close ends the pair. Nobody receives from it any more.
func (p *peer) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.out, p.queue = nil, nil
	_ = p.conn.Close()
	_ = unix.Munmap(p.inMemory)
	_ = unix.Munmap(p.outMemory)
}

// serve passes the peer's frames to recv until the pair ends; it returns what was wrong with the ring, if it was the ring.
func (p *peer) serve(recv link.Receiver, malformed *atomic.Uint64) error {
	bell := make([]byte, 16)
	last := time.Now()
	for !p.ended.Load() {
		n, err := p.receive(recv, malformed)
		if err != nil {
			return err
		}
		if p.waiting.Load() {
			p.mu.Lock()
			p.flush()
			p.mu.Unlock()
		}
		if n > 0 {
			last = time.Now()
			runtime.Gosched() // whom the frames have woken runs before more are waited for
			continue
		}
		if time.Since(last) < spinTime {
			runtime.Gosched()
			continue
		}
		if !p.in.Sleep() {
			continue
		}
		if n, err := p.conn.Read(bell); n == 0 || err != nil {
			return nil // and the ring is empty
		}
		p.in.Awake()
		last = time.Now()
	}
	return nil
}

// receive passes a batch of frames to recv, and returns how many were taken from the ring.
func (p *peer) receive(recv link.Receiver, malformed *atomic.Uint64) (taken int, err error) {
	p.frames = p.frames[:0]
	for room := p.arena; len(p.frames) < batchFrames; taken++ {
		var n int
		if n, err = p.in.Next(); n == 0 || n > len(room) {
			break
		}
		f := p.in.Take(room)
		room = room[n:]
		if f.Validate(link.MaxSuperframe, offloads) != nil {
			malformed.Add(1)
			continue
		}
		p.frames = append(p.frames, f)
	}
	if taken > 0 && p.in.Release() {
		p.mu.Lock()
		p.wake()
		p.mu.Unlock()
	}
	if len(p.frames) > 0 {
		recv(p.frames)
	}
	return taken, err
}
