// Package keys draws numbers that attackers cannot guess, and maps them to values: QP numbers,
// lkeys and rkeys.
package keys

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/stack"
)

// Quarantine is how many deleted numbers a table does not draw again, so that a packet in flight to
// the old owner does not reach a new one. They take up to 1 MiB, and no memory before the first
// Delete. A table of fewer than 18 bits quarantines a quarter of its numbers.
const Quarantine = 1 << 16

// ErrFull is wrapped by Insert's error if half of all numbers are in use, or no free one is found.
var ErrFull = errors.New("keys: no free number")

// Table maps random numbers, none of them 0, to values. It is safe for concurrent use; Get and All
// take no lock.
type Table[T any] struct {
	slots atomic.Pointer[[]slot[T]]

	mu       sync.Mutex // serializes writers; protects the fields below, and stores to slots
	rand     io.Reader
	reserved func(uint32) bool
	mask     uint32 // of the drawn bits
	base     uint32 // the other bits
	live     int    // values in the table
	used     int    // slots with a key, including those with deleted values

	freed     map[uint32]struct{} // the quarantined numbers …
	freedRing []uint32            // … in order, from freedNext on once the ring is full
	freedNext int

	random  []byte // the unused end of buffer
	buffer  []byte
	maxLive int
	maxFree int
}

// slot never changes its key, so that a reader that has compared the key never sees another key's
// value. A slot with a deleted value is reused for the same number, or dropped when the slots are
// copied.
type slot[T any] struct {
	key   atomic.Uint32 // 0: empty; set after value
	value atomic.Pointer[T]
}

const (
	minSlots = 16
	draws    = 128 // random numbers read at once
	// tries is the number of draws in Insert. In the worst case, three quarters of the numbers are
	// in use or quarantined. All draws then fail with a probability of 10^-16, unless most numbers
	// are reserved.
	tries = 128
)

// New returns a table of numbers of the given width in bits, from 4 to 32. random is the source of
// randomness; nil is crypto/rand. reserved, if not nil, reports numbers that must not be drawn.
func New[T any](width int, random io.Reader, reserved func(uint32) bool) *Table[T] {
	return NewRange[T](0, uint32(1<<min(max(width, 4), 32)-1), random, reserved)
}

// NewRange is New for the numbers n with n &^ mask == base, where mask is of the form 2^k-1, at
// least 0xf.
func NewRange[T any](base, mask uint32, random io.Reader, reserved func(uint32) bool) *Table[T] {
	width := bits.Len32(mask)
	if random == nil {
		random = stack.Clock{}.Rand()
	}
	t := &Table[T]{
		rand:     random,
		reserved: reserved,
		mask:     mask,
		base:     base &^ mask,
		maxLive:  int(min(1<<uint64(width-1), uint64(math.MaxInt))),
		maxFree:  min(Quarantine, 1<<(width-2)),
	}
	s := make([]slot[T], minSlots)
	t.slots.Store(&s)
	return t
}

// Get returns the value that n was drawn for, or nil.
func (t *Table[T]) Get(n uint32) *T {
	if e := find(*t.slots.Load(), n); e != nil {
		return e.value.Load()
	}
	return nil
}

// find returns the slot with key n, or nil. Keys are random, so their low bits serve as a hash. At
// least a third of the slots are empty, so the loop ends.
func find[T any](s []slot[T], n uint32) *slot[T] {
	for i := int(n); ; i++ {
		e := &s[i&(len(s)-1)]
		switch e.key.Load() {
		case 0:
			return nil
		case n:
			return e
		}
	}
}

// Insert draws a number for v, which must not be nil.
func (t *Table[T]) Insert(v *T) (uint32, error) {
	if v == nil {
		return 0, errors.New("keys: Insert: v is nil")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.live >= t.maxLive {
		return 0, fmt.Errorf("%w: %d are in use, half of all %d-bit numbers", ErrFull, t.live, bits.Len32(t.mask))
	}
	for range tries {
		n, err := t.draw()
		if err != nil {
			return 0, fmt.Errorf("keys: random numbers: %w", err)
		}
		if t.taken(n) {
			continue
		}
		t.reserve()
		s := *t.slots.Load()
		if e := find(s, n); e != nil {
			e.value.Store(v) // deleted long ago
		} else {
			put(s, n, v)
			t.used++
		}
		t.live++
		return n, nil
	}
	return 0, fmt.Errorf("%w: %d draws gave only numbers in use or reserved", ErrFull, tries)
}

// Delete removes and quarantines n, and returns its value, or nil.
func (t *Table[T]) Delete(n uint32) *T {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := find(*t.slots.Load(), n)
	if e == nil {
		return nil
	}
	v := e.value.Swap(nil)
	if v == nil {
		return nil
	}
	t.live--
	t.quarantine(n)
	return v
}

// Len returns the number of values.
func (t *Table[T]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live
}

// All yields numbers and values in any order. Values inserted or deleted meanwhile may be included.
func (t *Table[T]) All() iter.Seq2[uint32, *T] {
	return func(yield func(uint32, *T) bool) {
		s := *t.slots.Load()
		for i := range s {
			if v := s[i].value.Load(); v != nil {
				if n := s[i].key.Load(); n != 0 && !yield(n, v) {
					return
				}
			}
		}
	}
}

// draw returns the next random number of the table's width.
func (t *Table[T]) draw() (uint32, error) {
	if len(t.random) == 0 {
		if t.buffer == nil {
			t.buffer = make([]byte, 4*draws)
		}
		if _, err := io.ReadFull(t.rand, t.buffer); err != nil {
			return 0, err
		}
		t.random = t.buffer
	}
	n := t.base | binary.LittleEndian.Uint32(t.random)&t.mask
	t.random = t.random[4:]
	return n, nil
}

// taken reports whether n must not be drawn now.
func (t *Table[T]) taken(n uint32) bool {
	if n == 0 || t.Get(n) != nil || (t.reserved != nil && t.reserved(n)) {
		return true
	}
	_, freed := t.freed[n]
	return freed
}

// quarantine adds n to the quarantined numbers, and removes the oldest if there are too many.
func (t *Table[T]) quarantine(n uint32) {
	if t.freed == nil {
		t.freed = make(map[uint32]struct{})
	}
	t.freed[n] = struct{}{}
	if len(t.freedRing) < t.maxFree {
		t.freedRing = append(t.freedRing, n)
		return
	}
	delete(t.freed, t.freedRing[t.freedNext])
	t.freedRing[t.freedNext] = n
	t.freedNext = (t.freedNext + 1) % t.maxFree
}

// reserve ensures that another key leaves a third of the slots empty. After a copy, at most half of
// them are used, and another sixth can be before the next copy.
func (t *Table[T]) reserve() {
	old := *t.slots.Load()
	if t.used+1 <= len(old)*2/3 {
		return
	}
	size := minSlots
	for size < 2*(t.live+1) {
		size *= 2
	}
	s := make([]slot[T], size)
	for i := range old {
		if v := old[i].value.Load(); v != nil {
			put(s, old[i].key.Load(), v)
		}
	}
	t.used = t.live
	t.slots.Store(&s)
}

// put writes to the first empty slot for n, which must not be in s.
func put[T any](s []slot[T], n uint32, v *T) {
	i := int(n)
	for s[i&(len(s)-1)].key.Load() != 0 {
		i++
	}
	e := &s[i&(len(s)-1)]
	e.value.Store(v)
	e.key.Store(n)
}
