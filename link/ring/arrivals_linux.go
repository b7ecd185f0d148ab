package ring

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// arrivals is memory in which C code of this process sees whether frames have arrived. The C code
// calls Poll only then. See [Group.Arrivals].
type arrivals struct {
	mu     sync.Mutex
	memory []byte // nil until Arrivals is called
	slots  [ArrivalSlots]*Pair
}

// ArrivalSlots is the number of rings that Arrivals can show.
const ArrivalSlots = 8

// Arrivals returns memory that shows the indices of the rings that Poll receives from. C code
// compares them without a call into Go.
//
// The memory begins with two words of 4 bytes: a bit mask of the pages that show a ring, and the
// page size. ArrivalSlots pages follow, the first one page after the start. The word at the start
// of a ring's page is the producer's index, and the word at offset 128 is the consumer's. The ring
// has frames to take if they differ. The mask is 0 while any ring has no page; the memory then
// shows nothing.
//
// The memory stays mapped until the process ends. The producer can write to it, so the indices are
// only a hint: Poll must be called now and then even if they are equal.
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

// update is called with the pairs of the group when they change.
func (a *arrivals) update(all []*Pair) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.memory != nil {
		a.set(all)
	}
}

// set does the work of update. mu is held.
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

// show maps the page of a ring's indices a second time. When the pair closes, it unmaps its own
// mapping, and hide replaces this one.
func (a *arrivals) show(slot int, p *Pair) bool {
	from := unsafe.Pointer(unsafe.SliceData(p.inMemory))
	_, err := unix.MremapPtr(from, 0, a.page(slot), uintptr(pageSize), unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED)
	if err != nil {
		return false
	}
	a.slots[slot] = p
	return true
}

// hide replaces the page of a ring's indices by zeros. A concurrent reader sees either the old page
// or the new one.
func (a *arrivals) hide(slot int) {
	_, err := unix.MmapPtr(-1, 0, a.page(slot), uintptr(pageSize), unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED)
	if err == nil { // else the old mapping stays: the kernel keeps its memory
		a.slots[slot] = nil
	}
}
