package target

import (
	"io"
	"sync"

	"github.com/softrnic/softrnic/verbs"
)

// Backend has the content of a namespace. Several goroutines call its methods. A backend may also
// implement the other interfaces of this file.
type Backend interface {
	io.ReaderAt
	io.WriterAt
	// Size is the size in bytes. Its change is announced to hosts within a second. It returns at
	// once.
	Size() int64
}

// Syncer is a Backend whose writes become durable with Sync, for Flush and ForceUnitAccess.
type Syncer interface {
	Sync() error
}

// Discarder is a Backend that can free the memory of a range. The range reads as zeros afterwards.
type Discarder interface {
	Discard(off, n int64) error
}

// Zeroer is a Backend that can write zeros faster than WriteAt. It keeps the memory allocated.
type Zeroer interface {
	Zero(off, n int64) error
}

// TryReader is a Backend some of whose reads do not block. TryReadAt reads all of p, and returns
// true with the outcome. If it would block it returns false, and ReadAt is called on another
// goroutine.
type TryReader interface {
	TryReadAt(p []byte, off int64) (done bool, err error)
}

// TryWriter is the counterpart of TryReader.
type TryWriter interface {
	TryWriteAt(p []byte, off int64) (done bool, err error)
}

// Memory is a Backend in memory.
type Memory struct {
	mu      sync.RWMutex // protects data itself; the content is protected by stripes
	data    []byte
	stripes [64]sync.RWMutex
}

const stripeSize = 64 << 10

var (
	_ Backend   = (*Memory)(nil)
	_ Discarder = (*Memory)(nil)
	_ Zeroer    = (*Memory)(nil)
	_ TryReader = (*Memory)(nil)
	_ TryWriter = (*Memory)(nil)
)

// NewMemory returns a Backend of a size in bytes. It has zeros.
func NewMemory(size int) *Memory { return &Memory{data: make([]byte, size)} }

// Size implements Backend.
func (m *Memory) Size() int64 {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return int64(len(m.data))
}

// Resize changes the size. What is cut off is lost, and what is added has zeros.
func (m *Memory) Resize(size int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	data := make([]byte, size)
	copy(data, m.data)
	m.data = data
}

// each calls f for the pieces of a range, each within one stripe, and locks that.
func (m *Memory) each(off, n int64, write bool, f func(piece []byte)) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if size := int64(len(m.data)); off < 0 || n < 0 || off > size || n > size-off {
		return verbs.Errorf(verbs.ErrInvalid, "access memory", "%d bytes at %d: the size is %d", n, off, size)
	}
	for n > 0 {
		k := min(n, stripeSize-off%stripeSize)
		piece, stripe := m.data[off:off+k], &m.stripes[off/stripeSize%int64(len(m.stripes))]
		if write {
			stripe.Lock()
			f(piece)
			stripe.Unlock()
		} else {
			stripe.RLock()
			f(piece)
			stripe.RUnlock()
		}
		off, n = off+k, n-k
	}
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
