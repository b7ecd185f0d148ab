package host

import (
	"context"
	"errors"
	"sync"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

const (
	chunkSize = 128 << 10 // bytes
	slabSize  = 1 << 20   // bytes; chunks that are registered together
)

const remoteAccess = verbs.AccessLocalWrite | verbs.AccessRemoteRead | verbs.AccessRemoteWrite

// pool is the memory that data moves through if it does not fit into a slot.
type pool struct {
	pd    *verbs.PD
	clock verbs.Clock
	limit int // of slabs
	free  chan *chunk

	mu    sync.Mutex
	slabs []*verbs.MR
}

// chunk is a piece of the pool.
type chunk struct {
	mr  *verbs.MR
	off int
}

func (c *chunk) bytes(n int) []byte { return c.mr.Buf()[c.off : c.off+n : c.off+n] }

func newPool(pd *verbs.PD, c verbs.Clock, size int) *pool {
	limit := size / slabSize
	return &pool{pd: pd, clock: c, limit: limit, free: make(chan *chunk, limit*(slabSize/chunkSize))}
}

// get returns a chunk. If there is none, it waits, or returns nil without wait.
func (p *pool) get(ctx context.Context, wait bool) (*chunk, error) {
	for {
		select {
		case c := <-p.free:
			return c, nil
		default:
		}
		grown, err := p.grow()
		switch {
		case err != nil:
			return nil, err
		case grown:
			continue
		case !wait:
			return nil, nil
		}
		if c, ok := wakeup.Take(p.clock, p.free, ctx.Done()); ok {
			return c, nil
		}
		return nil, ctx.Err()
	}
}

// grow adds chunks, and returns true unless the pool has its size.
func (p *pool) grow() (bool, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.slabs) == p.limit {
		return false, nil
	}
	mr, err := p.pd.RegMR(make([]byte, slabSize), remoteAccess)
	if err != nil {
		return false, err
	}
	p.slabs = append(p.slabs, mr)
	for off := 0; off < slabSize; off += chunkSize {
		p.free <- &chunk{mr, off}
	}
	return true, nil
}

// put returns a chunk. The channel has room for all.
func (p *pool) put(c *chunk) { p.free <- c }

// close frees the memory.
func (p *pool) close() (err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limit = len(p.slabs)
	for _, mr := range p.slabs {
		err = errors.Join(err, mr.Close())
	}
	return err
}

// Memory is registered memory of the application. Commands move its data without a copy.
type Memory struct {
	c  *Controller
	mr *verbs.MR
}

// Register registers memory for commands of this controller. It must not be in use by a command
// when it is closed, and it is closed before the controller.
func (c *Controller) Register(buf []byte) (*Memory, error) {
	access := remoteAccess
	if c.cfg.Windows {
		access = verbs.AccessLocalWrite | verbs.AccessMWBind
	}
	mr, err := c.pd.RegMR(buf, access)
	if err != nil {
		return nil, err
	}
	return &Memory{c, mr}, nil
}

// Bytes returns the memory.
func (m *Memory) Bytes() []byte { return m.mr.Buf() }

// Close deregisters the memory. When it returns, the target has no access any more.
func (m *Memory) Close() error { return m.mr.Close() }

// check checks a range of the memory for a controller.
func (m *Memory) check(c *Controller, at, n int) error {
	const op = "use memory"
	switch {
	case m == nil:
		return verbs.Errorf(verbs.ErrInvalid, op, "there is no Memory")
	case m.c != c:
		return verbs.Errorf(verbs.ErrInvalid, op, "the Memory is of another controller")
	case at < 0 || n < 0 || at > len(m.Bytes()) || n > len(m.Bytes())-at:
		return verbs.Errorf(verbs.ErrInvalid, op, "%d bytes at %d: it has %d", n, at, len(m.Bytes()))
	}
	return nil
}
