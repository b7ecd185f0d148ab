//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"sync"
	"sync/atomic"
	"syscall"
)

// table holds the objects of one kind by the handles that C has. A handle is an index, from 1 on. A
// lookup takes no lock. Of the free handles, the one that was released first is reused first, so
// that a thread with a stale handle finds no object.
type table[T any] struct {
	slots   atomic.Pointer[[]atomic.Pointer[T]]
	missing syscall.Errno // the error for a handle without an object; 0: ENOENT

	mu   sync.Mutex
	free []uint32
}

// add returns a handle for an object.
func (t *table[T]) add(p *T) uint32 {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.free) == 0 {
		t.grow()
	}
	h := t.free[0]
	t.free = t.free[1:]
	(*t.slots.Load())[h].Store(p)
	return h
}

// grow doubles the number of slots. mu is held, so that no slot changes meanwhile.
func (t *table[T]) grow() {
	var old []atomic.Pointer[T]
	if p := t.slots.Load(); p != nil {
		old = *p
	}
	slots := make([]atomic.Pointer[T], max(16, 2*len(old)))
	for i := range old {
		slots[i].Store(old[i].Load())
	}
	for h := max(1, len(old)); h < len(slots); h++ {
		t.free = append(t.free, uint32(h))
	}
	t.slots.Store(&slots)
}

// get returns the object of a handle, or nil.
func (t *table[T]) get(h uint32) *T {
	slots := t.slots.Load()
	if slots == nil || h >= uint32(len(*slots)) {
		return nil
	}
	return (*slots)[h].Load()
}

// remove calls destroy with the object of a handle and, if that succeeds, releases the handle.
func (t *table[T]) remove(h uint32, destroy func(*T) error) error {
	p := t.get(h)
	if p == nil {
		return syscall.ENOENT
	}
	if err := destroy(p); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	slot := &(*t.slots.Load())[h]
	if slot.CompareAndSwap(p, nil) {
		t.free = append(t.free, h)
	}
	return nil
}

// all returns the objects of the table.
func (t *table[T]) all() (objects []*T) {
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
