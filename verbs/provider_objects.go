package verbs

import (
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"unsafe"
)

// This file has the methods of application types, and the functions, that only a provider calls: see provider.go.

// Guard calls f, which copies from or to memory that may fault, and returns false if a fault of an address in mem ended it. Every
// other panic of f goes on, also a fault of another address. Memory of a region for which MR.MayFault is true is touched only
// within Guard. For providers only.
func Guard(f func(), mem ...[]byte) (ok bool) {
	defer EndGuard(BeginGuard(), &ok, mem...)
	f()
	return true
}

// BeginGuard and EndGuard are Guard for a function that is called for each packet, which begins with
//
//	defer verbs.EndGuard(verbs.BeginGuard(), &ok, mem)
//
// and returns true at its end. If memory of mem faults before, it returns false. For providers only.
func BeginGuard() (panics bool) {
	if before := beforeGuard.Load(); before != nil {
		(*before)()
	}
	return debug.SetPanicOnFault(true)
}

// EndGuard must be deferred itself: see BeginGuard. For providers only.
func EndGuard(panics bool, ok *bool, mem ...[]byte) {
	debug.SetPanicOnFault(panics)
	if *ok {
		return
	}
	if e := recover(); e != nil && !faultIn(e, mem) {
		panic(e)
	}
}

// faultIn reports whether a panic is a fault of memory in mem. The whole page counts, as the kernel may name its beginning.
func faultIn(panicked any, mem [][]byte) bool {
	fault, ok := panicked.(interface {
		runtime.Error
		Addr() uintptr // see debug.SetPanicOnFault
	})
	if !ok {
		return false
	}
	page := uintptr(os.Getpagesize())
	at := fault.Addr() &^ (page - 1)
	for _, b := range mem {
		first := uintptr(unsafe.Pointer(unsafe.SliceData(b)))
		if n := uintptr(len(b)); n > 0 && at >= first&^(page-1) && at <= first+n-1 {
			return true
		}
	}
	return false
}

// Null reports whether the region is a null MR, made by AllocNullMR. For providers only.
func (mr *MR) Null() bool { return mr.kind == mrNull }

// MayFault reports whether touching the region's memory may fault, because RegMapping or RegFile made the region:
// see Guard. For providers only.
func (mr *MR) MayFault() bool { return mr.kind == mrMapped || mr.kind == mrFile }

// AddWindow counts one more memory window that is bound to the region, which cannot be deregistered until RemoveWindow.
// It returns false if the region is deregistered or being reregistered. For providers only.
func (mr *MR) AddWindow() bool {
	for {
		n := mr.boundMWs.Load()
		if n < 0 {
			return false
		}
		if mr.boundMWs.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// RemoveWindow undoes AddWindow. For providers only.
func (mr *MR) RemoveWindow() { mr.boundMWs.Add(-1) }

// HasWindows reports whether memory windows are bound to the region. For providers only.
func (mr *MR) HasWindows() bool { return mr.boundMWs.Load() > 0 }

// Persist writes b, which is a part of a region of RegFile, to the file, and returns when it would survive a loss of
// power. That takes as long as the file's storage needs. The caller need hold no lock: Dereg waits for Persist. After Dereg
// the error is ErrDestroyed. For providers only.
func (mr *MR) Persist(b []byte) error {
	const op = "persist"
	if mr.file == nil {
		return Errorf(ErrInvalid, op, "lkey %#x is not of RegFile", mr.LKey())
	}
	mr.file.mu.RLock()
	defer mr.file.mu.RUnlock()
	switch {
	case mr.file.unmapped:
		return Errorf(ErrDestroyed, op, "lkey %#x is deregistered", mr.LKey())
	case len(b) == 0:
		return nil
	}
	return wrapNonNil(op, syncMapping(b))
}

// Provider returns the provider's half of the address handle. For providers only.
func (ah *AH) Provider() ProviderAH { return ah.prov }

// Inline returns the data of a posted SendInline request, whose SGList is empty; nil if the request has no inline data.
// For providers only.
func (wr *SendWR) Inline() []byte {
	if wr.Flags&SendInline == 0 {
		return nil
	}
	return wr.InlineData
}

// Fault returns the status with which a posted request fails when its turn comes, whatever is in memory, and nothing of it is sent;
// WCSuccess of all others. For providers only.
func (wr *SendWR) Fault() WCStatus { return wr.fault }

// Length returns the message length of a posted request, in bytes. For providers only.
func (wr *SendWR) Length() uint64 { return wr.length }

// Length returns the total size of a posted request's buffers, in bytes. For providers only.
func (wr *RecvWR) Length() uint64 { return wr.length }

// Count counts one more frame, of n bytes. For providers only.
func (c *Counters) Count(n int) {
	c.packets.Add(1)
	c.bytes.Add(uint64(n))
}

// SameSpecs reports whether two flows match the same frames, that is, whether the header specs before their actions are
// equal. For providers only.
func SameSpecs(a, b []FlowSpec) bool {
	headers := func(s []FlowSpec) []FlowSpec {
		if i := slices.IndexFunc(s, func(s FlowSpec) bool { return s.layer() == layerAction }); i >= 0 {
			return s[:i]
		}
		return s
	}
	return slices.EqualFunc(headers(a), headers(b), sameSpec)
}

func sameSpec(a, b FlowSpec) bool {
	switch a := a.(type) {
	case *FlowSpecEth:
		return same(a, b)
	case *FlowSpecIPv4:
		return same(a, b)
	case *FlowSpecIPv4Ext:
		return same(a, b)
	case *FlowSpecIPv6:
		return same(a, b)
	case *FlowSpecTCP:
		return same(a, b)
	case *FlowSpecUDP:
		return same(a, b)
	}
	return false
}

func same[T comparable](a *T, b FlowSpec) bool {
	p, ok := any(b).(*T)
	return ok && *a == *p
}
