// Package handle keeps the objects that C knows by a number.
package handle

import (
	"cmp"
	"sync"
	"sync/atomic"
	"syscall"
)

// base is what all handles of the process are above.
var base uint32

// Above makes all handles of the process greater than n, so that no object gets a handle that an
// earlier engine may have given out. It is called before the first Add.
func Above(n uint32) { base = n }

// Table holds the objects of one kind by their handles. A handle is the sum of base and an index,
// from 1 on. A lookup takes no lock. Of the free handles, the one that was released first is reused
// first, so that a thread with a stale handle finds no object.
type Table[T any] struct {
	Missing syscall.Errno // the error for a handle without an object; 0: ENOENT

	slots atomic.Pointer[[]atomic.Pointer[T]]

	mu   sync.Mutex
	free []uint32
}

// Add returns a handle for an object.
func (t *Table[T]) Add(p *T) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.free) == 0 {
		t.grow()
	}
	i := t.free[0]
	t.free = t.free[1:]
	(*t.slots.Load())[i].Store(p)
	return base + i
}

// grow doubles the number of slots. mu is held, so that no slot changes meanwhile.
func (t *Table[T]) grow() {
	var old []atomic.Pointer[T]
	if p := t.slots.Load(); p != nil {
		old = *p
	}
	slots := make([]atomic.Pointer[T], max(16, 2*len(old)))
	for i := range old {
		slots[i].Store(old[i].Load())
	}
	for i := max(1, len(old)); i < len(slots); i++ {
		t.free = append(t.free, uint32(i))
	}
	t.slots.Store(&slots)
}

// Get returns the object of a handle, or nil.
func (t *Table[T]) Get(h uint32) *T {
	slots, i := t.slots.Load(), h-base // not in the table if h is below base
	if slots == nil || i >= uint32(len(*slots)) {
		return nil
	}
	return (*slots)[i].Load()
}

// Optional returns the object of a handle that may be 0. ok is false if another handle has no
// object.
func (t *Table[T]) Optional(h uint32) (p *T, ok bool) {
	p = t.Get(h)
	return p, p != nil || h == 0
}

// Use returns the error of f with the object of a handle, or Missing.
func (t *Table[T]) Use(h uint32, f func(*T) error) error {
	if p := t.Get(h); p != nil {
		return f(p)
	}
	return cmp.Or(t.Missing, syscall.ENOENT)
}

// Remove is Use, and releases the handle if f succeeds.
func (t *Table[T]) Remove(h uint32, f func(*T) error) error {
	return t.Use(h, func(p *T) error {
		if err := f(p); err != nil {
			return err
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		if i := h - base; (*t.slots.Load())[i].CompareAndSwap(p, nil) {
			t.free = append(t.free, i)
		}
		return nil
	})
}

// All returns the objects of the table.
func (t *Table[T]) All() (objects []*T) {
	slots := t.slots.Load()
	if slots == nil {
		return nil
	}
	for i := range *slots {
		if p := (*slots)[i].Load(); p != nil {
			objects = append(objects, p)
		}
	}
	return objects
}

// Find returns the object of a handle if has reports that it is the one. Otherwise it returns the
// first object for which has returns true, or nil.
func (t *Table[T]) Find(h uint32, has func(*T) bool) *T {
	if p := t.Get(h); p != nil && has(p) {
		return p
	}
	for _, p := range t.All() {
		if has(p) {
			return p
		}
	}
	return nil
}
