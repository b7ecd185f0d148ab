// Package keys draws numbers that a stranger cannot guess, and finds what they stand for: QP
// numbers, lkeys and rkeys.
package keys

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
)

// Quarantine is how many deleted numbers a table does not draw again for the time being, so that a
// packet on its way to the old owner does not reach a new one. They take up to 1 MiB, and nothing
// before the first Delete. A table of fewer than 18 bits quarantines a quarter of its numbers.
const Quarantine = 1 << 16

// ErrFull is wrapped by Insert's error when half of all numbers are taken, or none that is free is
// found.
var ErrFull = errors.New("keys: no free number")

// Table maps random numbers, none of them 0, to values. Any number of goroutines may use it at a
// time; Get and All take no lock.
type Table[T any] struct {
	slots atomic.Pointer[[]slot[T]]

	mu       sync.Mutex // of writers: everything below, and stores to slots
	rand     io.Reader
	reserved func(uint32) bool
	mask     uint32 // of the numbers' bits that are drawn
	base     uint32 // the others
	live     int    // values in the table
	used     int    // slots with a key, though their values may be deleted

	freed     map[uint32]struct{} // the quarantined numbers …
	freedRing []uint32            // … in the order they came, from freedNext on once the ring is full
	freedNext int

	random  []byte // the end of buffer, which is not used yet
	buffer  []byte
	maxLive int
	maxFree int
}

// slot keeps its key for ever, so that a reader that has compared the key never sees the value of
// another. A slot whose value is deleted is used again for the same number, or left out when the
// slots are copied the next time.
type slot[T any] struct {
	key   atomic.Uint32 // 0: empty; set after value
	value atomic.Pointer[T]
}

const (
	minSlots = 16
	draws    = 128 // random numbers read at once
	// tries is how many draws Insert makes. Three quarters of the numbers taken or quarantined is
	// the worst case, so all of them fail with a probability of 10^-16, unless most numbers are
	// reserved.
	tries = 128
)

// New makes a table of numbers of the given width in bits, taken to be 4 if less and 32 if more.
// random is where they come from, nil meaning crypto/rand; reserved, if not nil, says which numbers
// are never drawn.
func New[T any](width int, random io.Reader, reserved func(uint32) bool) *Table[T] {
	return NewRange[T](0, uint32(1<<min(max(width, 4), 32)-1), random, reserved)
}

// NewRange makes a table of the numbers n with n &^ mask == base, where mask is of the form 2^k-1,
// at least 0xf. It is otherwise as New.
func NewRange[T any](base, mask uint32, random io.Reader, reserved func(uint32) bool) *Table[T] {
	width := bits.Len32(mask)
	if random == nil {
		random = rand.Reader
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

// find returns the slot with key n, or nil. Keys are random, so their low bits are as good as any
// hash. At least a third of the slots have none, so the loop ends.
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

// Delete removes n, which is quarantined then, and returns what it stood for, or nil.
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

// Len is the number of values.
func (t *Table[T]) Len() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.live
}

// All yields numbers and values in no order. Values that are inserted or deleted meanwhile may or
// may not be among them.
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

// draw takes the next random number of the table's width.
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

// reserve makes sure that one more key leaves a third of the slots empty. After it copies, at most
// half of them are used, and a sixth can be before it copies again.
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

// put writes to the first empty slot for n, which s does not have yet.
func put[T any](s []slot[T], n uint32, v *T) {
	i := int(n)
	for s[i&(len(s)-1)].key.Load() != 0 {
		i++
	}
	e := &s[i&(len(s)-1)]
	e.value.Store(v)
	e.key.Store(n)
}
