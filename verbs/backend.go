package verbs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"sync"
)

// Backend is memory that the processor does not access directly, such as that of a GPU, or a store
// elsewhere. RegMREx makes a region of it (MRInitAttr.Backend). An *os.File is a Backend too.
//
// ReadAt and WriteAt copy between the memory at an offset and p, which is staging memory. They
// return when the copy is complete. Calls for different QPs run concurrently, and no lock of a
// device is held meanwhile. An error, or fewer bytes than len(p), fails the work request: with
// WCLocProtErr on this side, and at a peer with WCRemOpErr. After Close of the region has returned,
// no copy or atomic runs or starts; a Stager may still get memory back. Close and RESET of a QP
// wait for its copies too, so that these functions must not call them, nor change or close a
// region.
//
// A backend may implement these further interfaces. They are found by a type assertion when the
// region is registered:
//
//   - [Updater]: remote atomics that are atomic with other users of the memory
//   - [Stager]: staging memory from which the backend copies fastest
type Backend interface {
	io.ReaderAt
	io.WriterAt
}

// Updater is a [Backend] with atomics of its own.
type Updater interface {
	// UpdateAt replaces the 8 bytes at off, in host byte order, by f of them, and returns their
	// previous value. off is a multiple of 8, and f may run more than once.
	UpdateAt(off int64, f func(uint64) uint64) (orig uint64, err error)
}

// Stager is a [Backend] that allocates its staging memory, for example pinned memory.
type Stager interface {
	// AllocStaging returns n bytes; nil if there are none, and ordinary memory is used then.
	AllocStaging(n int) []byte
	// FreeStaging takes back what AllocStaging has returned.
	FreeStaging(b []byte)
}

// backing is the backend of a region of kind mrBackend.
type backing struct {
	mu      sync.RWMutex // read-locked while the backend copies
	closed  bool
	backend Backend
	updater Updater // backend, or nil
	stager  Stager  // backend, or nil
	length  int
	words   sync.Mutex // makes atomics without an Updater atomic with each other
	word    *[8]byte   // of such an atomic; an object of its own, as cgo checks the whole object for pointers
}

// errRegionClosed is the error of copies after the region was closed.
var errRegionClosed = errors.New("the region is closed")

// regBackend is RegMREx for a region with a backend.
func (pd *PD) regBackend(attr *MRInitAttr) (*MR, error) {
	if attr.BackendLength <= 0 {
		return nil, Errorf(ErrInvalid, opRegister, "BackendLength %d is not positive", attr.BackendLength)
	}
	b := &backing{backend: attr.Backend, length: attr.BackendLength, word: new([8]byte)}
	b.updater, _ = attr.Backend.(Updater)
	b.stager, _ = attr.Backend.(Stager)
	return pd.register(opRegister, &MR{kind: mrBackend, backing: b}, nil, attr.address(pd.dev, nil), attr.Access)
}

// useBackends is called before the PD gets a region with a Backend.
func (pd *PD) useBackends() {
	pd.qpsMu.Lock()
	defer pd.qpsMu.Unlock()
	if pd.backed {
		return
	}
	pd.backed = true
	for qp := range pd.qps {
		qp.lock()
		qp.observed |= backed
		qp.mu.Unlock()
	}
}

// close waits for running copies, and prevents further ones.
func (b *backing) close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
}

// use calls f while the region cannot be closed.
func (b *backing) use(f func() (n int, err error), want int) error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if b.closed {
		return errRegionClosed
	}
	n, err := f()
	switch {
	case n == want && (err == nil || err == io.EOF): // io.ReaderAt allows io.EOF with all bytes
		return nil
	case err == nil:
		return fmt.Errorf("%w: %d of %d bytes", io.ErrUnexpectedEOF, n, want)
	}
	return err
}

func (b *backing) read(p []byte, off int64) error {
	return b.use(func() (int, error) { return b.backend.ReadAt(p, off) }, len(p))
}

func (b *backing) write(p []byte, off int64) error {
	return b.use(func() (int, error) { return b.backend.WriteAt(p, off) }, len(p))
}

// update executes an atomic on the 8 bytes at off.
func (b *backing) update(off int64, f func(uint64) uint64) (orig uint64, err error) {
	if b.updater != nil {
		err = b.use(func() (n int, err error) {
			orig, err = b.updater.UpdateAt(off, f)
			if err == nil {
				n = 8
			}
			return n, err
		}, 8)
		return orig, err
	}
	b.words.Lock()
	defer b.words.Unlock()
	if err := b.read(b.word[:], off); err != nil {
		return 0, err
	}
	orig = binary.NativeEndian.Uint64(b.word[:])
	if next := f(orig); next != orig {
		binary.NativeEndian.PutUint64(b.word[:], next)
		err = b.write(b.word[:], off)
	}
	return orig, err
}

// stagingChunk is the size of the staging memory of incoming data, in bytes. Long messages take
// several chunks, so that the backend copies one while the next arrives.
const stagingChunk = 128 << 10

// stagingPools has staging memory for its next use, by size: 64<<i bytes. A peer that writes
// single bytes all over a region gets few bytes for each.
var stagingPools [maxPooledShift - minPooledShift + 1]sync.Pool

const (
	minPooledShift = 6  // 64 bytes
	maxPooledShift = 24 // maxStaged; longer messages are staged alone
)

// alloc returns n bytes of staging memory. n is at least 1, and the capacity may be larger.
func (b *backing) alloc(n int) staging {
	if b.stager != nil {
		if p := b.stager.AllocStaging(n); len(p) >= n {
			return staging{b: p[:n], stager: b.stager}
		}
	}
	shift := max(minPooledShift, bits.Len(uint(n-1)))
	if shift > maxPooledShift {
		return staging{b: make([]byte, n)}
	}
	pool := &stagingPools[shift-minPooledShift]
	p, ok := pool.Get().(*pooled)
	if !ok {
		p = &pooled{make([]byte, 1<<shift), pool}
	}
	return staging{b: p.b[:n], pooled: p}
}

// staging is memory that a backend copies from or to.
type staging struct {
	b      []byte
	stager Stager  // its owner, or nil
	pooled *pooled // or what it is a part of, or nil
}

// pooled is memory of a pool.
type pooled struct {
	b    []byte
	pool *sync.Pool
}

// free releases the memory.
func (s *staging) free() {
	switch {
	case s.stager != nil:
		s.stager.FreeStaging(s.b)
	case s.pooled != nil:
		s.pooled.pool.Put(s.pooled)
	}
	*s = staging{}
}
