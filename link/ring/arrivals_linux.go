package ring

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arrivals is memory by which code of this process that is not Go's sees whether there are frames to take, and calls Poll only
// then. See [Group.Arrivals].
type arrivals struct {
	mu     sync.Mutex
	memory []byte // nil: nobody has asked
	slots  [ArrivalSlots]*Pair
}

// ArrivalSlots is of how many rings Arrivals shows the indices.
const ArrivalSlots = 8

// Arrivals returns memory that shows the indices of the rings that Poll takes frames from, so that they can be compared without a
// call. It begins with two words of 4 bytes: which of ArrivalSlots pages show a ring, a bit each, and the size of a page. The pages
// follow behind one of these words. There are frames to take where the word at the beginning of a page is not that at offset 128, the
// consumer's. While there is a ring that has no page, the first word is 0, and nothing is known.
//
// The memory is there until the process ends, whatever becomes of the rings. The producer writes to it: what it says is a hint,
// and Poll is to be called now and then without one.
func (g *Group) Arrivals() ([]byte, error) {
	a := &g.arrivals
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.memory == nil {
		m, err := unix.Mmap(-1, 0, (1+ArrivalSlots)*pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
		if err != nil {
			return nil, err
		}
		a.memory = m
		a.word(1).Store(uint32(pageSize))
		a.set(*g.pairs.Load())
	}
	return a.memory, nil
}

var pageSize = unix.Getpagesize()

func (a *arrivals) word(i int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&a.memory[4*i]))
}

func (a *arrivals) page(slot int) unsafe.Pointer { return unsafe.Pointer(&a.memory[(1+slot)*pageSize]) }

// change says which pairs there are.
func (a *arrivals) change(all []*Pair) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.memory != nil {
		a.set(all)
	}
}

// set is change with mu held.
func (a *arrivals) set(all []*Pair) {
	a.word(0).Store(0)
	for i, p := range a.slots {
		if p != nil && !slices.Contains(all, p) {
			a.hide(i)
		}
	}
	shown := uint32(0)
	for _, p := range all {
		i := slices.Index(a.slots[:], p)
		if i < 0 {
			if i = slices.Index(a.slots[:], nil); i < 0 || !a.show(i, p) {
				return
			}
		}
		shown |= 1 << i
	}
	a.word(0).Store(shown)
}

// show maps the page of a ring's indices once more. The pair's own mapping goes when that ends, and this one when nobody looks.
func (a *arrivals) show(slot int, p *Pair) bool {
	_, err := unix.MremapPtr(unsafe.Pointer(unsafe.SliceData(p.inMemory)), 0, a.page(slot), uintptr(pageSize), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
	if err != nil {
		return false
	}
	a.slots[slot] = p
	return true
}

// hide puts zeros in place of a ring's indices: who looks at this moment finds the one or the other.
func (a *arrivals) hide(slot int) {
	_, err := unix.MmapPtr(-1, 0, a.page(slot), uintptr(pageSize), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED)
	if err == nil { // else the page is in use as it is: the memory is the kernel's, and stays
		a.slots[slot] = nil
	}
}
