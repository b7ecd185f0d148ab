package target

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/admission"
)

const (
	chunkSize = 64 << 10 // bytes; a transfer's data stays in the processor's cache between two copies
	slabSize  = 1 << 20  // bytes; chunks that are registered together

	slabChunks = slabSize / chunkSize
)

// pool is the memory that data of commands passes through. It has chunks of one size, so that none
// of its memory is lost in fragments. A large command uses several, one after the other. Data of a
// Memory mostly does not pass through it: the pool then limits the pages that are in use.
type pool struct {
	pd    *verbs.PD
	limit int // of slabs

	mrs  sync.Map     // of *slab to *verbs.MR: the memory of backends
	lent atomic.Int64 // pages of backends in use, of at most limit slabs

	waited atomic.Uint64 // times that a queue had to wait

	mu      sync.Mutex // taken after the locks of queues
	slabs   []*verbs.MR
	used    map[*hostWork]int // chunks of the hosts at an address
	free    []*chunk
	waiting []*queue // each once
}

// region returns the MR of a backend's memory. Each is registered at its first use.
func (p *pool) region(s *slab) (*verbs.MR, error) {
	if mr, ok := p.mrs.Load(s); ok {
		return mr.(*verbs.MR), nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if mr, ok := p.mrs.Load(s); ok {
		return mr.(*verbs.MR), nil
	}
	mr, err := p.pd.RegMR(s.buf, verbs.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	p.mrs.Store(s, mr)
	return mr, nil
}

// reserve allows a host the use of n pages of backends until unreserve, or returns false.
func (p *pool) reserve(h *hostWork, n int) bool {
	mine, all := h.lent.Add(int64(n)), p.lent.Add(int64(n))
	limit := p.limit * (slabSize / pageSize)
	if int(all) <= limit && int(mine) <= admission.Share(int(mine), int(all), limit) {
		return true
	}
	p.unreserve(h, n)
	return false
}

func (p *pool) unreserve(h *hostWork, n int) {
	h.lent.Add(-int64(n))
	p.lent.Add(-int64(n))
}

// lease is the memory of a transfer: a chunk, or pages.
type lease struct {
	chunk  *chunk
	memory *Memory // of pages
	pages  []page
}

// end ends a host's use of memory.
func (p *pool) end(h *hostWork, l lease) {
	if l.chunk != nil {
		p.put(h, l.chunk)
		return
	}
	p.unreserve(h, len(l.pages))
	for i := range l.pages {
		l.memory.put(&l.pages[i])
	}
}

// chunk is a piece of registered memory.
type chunk struct {
	mr  *verbs.MR
	off int
}

// bytes returns the first n bytes.
func (c *chunk) bytes(n int) []byte { return c.mr.Buf()[c.off : c.off+n : c.off+n] }

// sge returns the SGE of the first n bytes.
func (c *chunk) sge(n int) verbs.SGE { return c.mr.SGE(c.off, n) }

// get returns a chunk. If there is none, or the queue's host has its share, it returns nil, and
// q.resume will be called when there is.
func (p *pool) get(q *queue) (*chunk, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	mine, all := p.used[q.host], len(p.slabs)*slabChunks-len(p.free)
	mayHave := mine < admission.Share(mine, all, p.limit*slabChunks)
	if mayHave && len(p.free) == 0 && len(p.slabs) < p.limit {
		if err := p.grow(); err != nil {
			return nil, err
		}
	}
	n := len(p.free)
	if n == 0 || !mayHave {
		if !slices.Contains(p.waiting, q) {
			p.waiting = append(p.waiting, q)
			p.waited.Add(1)
		}
		return nil, nil
	}
	c := p.free[n-1] // the last used, which is likely in the processor's cache
	p.free = p.free[:n-1]
	p.used[q.host]++
	return c, nil
}

func (p *pool) grow() error {
	mr, err := p.pd.RegMR(make([]byte, slabSize), verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	p.slabs = append(p.slabs, mr)
	for off := slabSize - chunkSize; off >= 0; off -= chunkSize {
		p.free = append(p.free, &chunk{mr, off})
	}
	return nil
}

// put returns a host's chunk, and wakes the queues that wait.
func (p *pool) put(h *hostWork, c *chunk) {
	p.mu.Lock()
	if p.used[h]--; p.used[h] == 0 {
		delete(p.used, h)
	}
	p.free = append(p.free, c)
	waiting := p.waiting
	p.waiting = nil
	p.mu.Unlock()
	for _, q := range waiting {
		q.spawn(q.resume)
	}
}

// forget removes a queue that waits.
func (p *pool) forget(q *queue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = slices.DeleteFunc(p.waiting, func(w *queue) bool { return w == q })
}

// close frees the memory. No queue is left.
func (p *pool) close() (err error) {
	for _, mr := range p.slabs {
		err = errors.Join(err, mr.Close())
	}
	p.mrs.Range(func(_, mr any) bool {
		err = errors.Join(err, mr.(*verbs.MR).Close())
		return true
	})
	return err
}
