package target

import (
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs"
)

// Memory is a Backend in memory. A target registers this memory, so that the data of a Read is sent
// from it. A Write of a whole page of 64 KiB receives its data into another page, which then
// replaces that of the content. Other Writes copy their data into the content.
//
// A page that Reads use is not changed: a Write replaces it by a copy, and these Reads have the old
// content. Reads and Writes are therefore atomic within a page. Over several pages, commands that
// overlap at the same time have no order: a Read may have old data on one page and new data on the
// next.
type Memory struct {
	mu      sync.RWMutex // protects size and the length of pages
	size    int
	pages   []*page          // the content; elements i, i+len(stripes), … are protected by stripe i too
	stripes [64]sync.RWMutex // taken after mu

	spareMu sync.Mutex // taken after the others
	spare   []*page    // that are not in use
}

const pageSize = chunkSize

// slab is memory that is registered as a whole.
type slab struct {
	buf   []byte
	pages []page
}

// page is a part of a slab.
type page struct {
	slab  *slab
	index int
	refs  atomic.Int32 // of the content and of transfers; a page of the content gets more under its stripe
}

var (
	_ Backend   = (*Memory)(nil)
	_ Discarder = (*Memory)(nil)
	_ Zeroer    = (*Memory)(nil)
	_ TryReader = (*Memory)(nil)
	_ TryWriter = (*Memory)(nil)
)

// NewMemory returns a Backend of a size in bytes, with zeros. A negative size counts as 0.
func NewMemory(size int) *Memory {
	m := &Memory{}
	m.Resize(size)
	return m
}

// newSlab allocates n pages, which have zeros and one reference.
func newSlab(n int) *slab {
	s := &slab{make([]byte, n*pageSize), make([]page, n)}
	for i := range s.pages {
		p := &s.pages[i]
		p.slab, p.index = s, i
		p.refs.Store(1)
	}
	return s
}

// bytes returns the page's memory.
func (p *page) bytes() []byte { return p.slab.buf[p.index*pageSize:][:pageSize:pageSize] }

// alone returns the page as a slice.
func (p *page) alone() []page { return p.slab.pages[p.index:][:1] }

// take returns a page with any content and one reference. The number of pages that are not part of
// the content is limited by the transfers that use them.
func (m *Memory) take() *page {
	m.spareMu.Lock()
	defer m.spareMu.Unlock()
	if len(m.spare) == 0 {
		s := newSlab(slabSize / pageSize)
		for i := range s.pages {
			m.spare = append(m.spare, &s.pages[i])
		}
	}
	last := len(m.spare) - 1
	p := m.spare[last]
	m.spare = m.spare[:last]
	p.refs.Store(1)
	return p
}

// put ends a reference.
func (m *Memory) put(p *page) {
	if p.refs.Add(-1) > 0 {
		return
	}
	m.spareMu.Lock()
	defer m.spareMu.Unlock()
	m.spare = append(m.spare, p)
}

// Size implements Backend.
func (m *Memory) Size() int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return int64(m.size)
}

// Resize changes the size. Data beyond the new size is lost, and added bytes are zeros. It does not
// return memory to the system.
func (m *Memory) Resize(size int) {
	size = max(size, 0)
	n := size / pageSize
	if size%pageSize > 0 {
		n++
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if used := size % pageSize; used > 0 && size < m.size {
		clear(m.writable(n-1, used, pageSize-used))
	}
	for len(m.pages) > n {
		last := len(m.pages) - 1
		m.put(m.pages[last])
		m.pages = m.pages[:last]
	}
	for len(m.pages) < n && m.spares() > 0 {
		p := m.take()
		clear(p.bytes())
		m.pages = append(m.pages, p)
	}
	s := newSlab(n - len(m.pages))
	for i := range s.pages {
		m.pages = append(m.pages, &s.pages[i])
	}
	m.size = size
}

func (m *Memory) spares() int {
	m.spareMu.Lock()
	defer m.spareMu.Unlock()
	return len(m.spare)
}

// check checks a range. mu is held.
func (m *Memory) check(off, n int64) error {
	if size := int64(m.size); off < 0 || n < 0 || off > size || n > size-off {
		return verbs.Errorf(verbs.ErrInvalid, "access memory", "%d bytes at %d: the size is %d", n, off, size)
	}
	return nil
}

// stripe returns the lock of page i.
func (m *Memory) stripe(i int) *sync.RWMutex { return &m.stripes[i%len(m.stripes)] }

// writable returns n bytes of page i, which the caller writes. If transfers use the page, it is
// replaced by a copy. The stripe is locked for writing, or mu is.
func (m *Memory) writable(i, at, n int) []byte {
	p := m.pages[i]
	if p.refs.Load() > 1 {
		fresh := m.take()
		b, old := fresh.bytes(), p.bytes()
		copy(b[:at], old)
		copy(b[at+n:], old[at+n:])
		m.pages[i] = fresh
		m.put(p)
		p = fresh
	}
	return p.bytes()[at : at+n]
}

// each calls f for the pieces of a range, each within one page, and locks that.
func (m *Memory) each(off, n int64, write bool, f func(piece []byte)) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.check(off, n); err != nil {
		return err
	}
	for n > 0 {
		i, at := int(off/pageSize), int(off%pageSize)
		k := int(min(n, int64(pageSize-at)))
		stripe := m.stripe(i)
		if write {
			stripe.Lock()
			f(m.writable(i, at, k))
			stripe.Unlock()
		} else {
			stripe.RLock()
			f(m.pages[i].bytes()[at : at+k])
			stripe.RUnlock()
		}
		off, n = off+int64(k), n-int64(k)
	}
	return nil
}

// lend returns pages with the first k of n bytes from off on, which are adjacent in a slab. They do
// not change until they are put. k is 0 if the range is not within the content.
func (m *Memory) lend(off int64, n int) (pages []page, k int) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.check(off, int64(n)) != nil {
		return nil, 0
	}
	first := int(off / pageSize)
	head, count := (*page)(nil), 0
	for k = -int(off % pageSize); k < n; k += pageSize {
		stripe := m.stripe(first + count)
		stripe.RLock()
		p := m.pages[first+count]
		if head == nil {
			head = p
		}
		next := p.slab == head.slab && p.index == head.index+count
		if next {
			p.refs.Add(1)
		}
		stripe.RUnlock()
		if !next {
			break
		}
		count++
	}
	return head.slab.pages[head.index:][:count], min(k, n)
}

// replace makes p, with one reference, the page of the content at off, unless the content has
// become shorter. It takes over the reference.
func (m *Memory) replace(off int64, p *page) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if err := m.check(off, pageSize); err != nil {
		m.put(p)
		return err
	}
	i := int(off / pageSize)
	stripe := m.stripe(i)
	stripe.Lock()
	old := m.pages[i]
	m.pages[i] = p
	stripe.Unlock()
	m.put(old)
	return nil
}

// ReadAt implements Backend. It reads all of p or nothing.
func (m *Memory) ReadAt(p []byte, off int64) (n int, err error) {
	err = m.each(off, int64(len(p)), false, func(piece []byte) { n += copy(p[n:], piece) })
	return n, err
}

// WriteAt implements Backend. It writes all of p or nothing.
func (m *Memory) WriteAt(p []byte, off int64) (n int, err error) {
	err = m.each(off, int64(len(p)), true, func(piece []byte) { n += copy(piece, p[n:]) })
	return n, err
}

// TryReadAt implements TryReader.
func (m *Memory) TryReadAt(p []byte, off int64) (done bool, err error) {
	_, err = m.ReadAt(p, off)
	return true, err
}

// TryWriteAt implements TryWriter.
func (m *Memory) TryWriteAt(p []byte, off int64) (done bool, err error) {
	_, err = m.WriteAt(p, off)
	return true, err
}

// Discard implements Discarder. It does not return the memory to the system.
func (m *Memory) Discard(off, n int64) error { return m.Zero(off, n) }

// Zero implements Zeroer.
func (m *Memory) Zero(off, n int64) error {
	return m.each(off, n, true, func(piece []byte) { clear(piece) })
}
