package verbs

import (
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"
)

// This file has the API for providers of memory regions, posted requests and memory that may fault:
// see provider.go.

// BeginGuard and EndGuard guard a function that copies from or to memory that may fault. The
// function starts with
//
//	defer verbs.EndGuard(verbs.BeginGuard(), &ok, mem)
//
// and sets ok to true at its end. If an access to mem faults before, ok stays false. Every other
// panic continues, including a fault at another address. Memory for which RegisteredMR.BeginAccess
// has returned true must be accessed only in such a function.
func BeginGuard() (panics bool) { return debug.SetPanicOnFault(true) }

// EndGuard must be deferred itself: see BeginGuard.
func EndGuard(panics bool, ok *bool, mem ...[]byte) {
	debug.SetPanicOnFault(panics)
	if *ok {
		return
	}
	if e := recover(); e != nil && !faultIn(e, mem) {
		panic(e)
	}
}

// faultIn reports whether a panic is a fault of memory in mem. The whole page counts, because the
// kernel may report its start address.
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

// RegisteredMR is the providers' view of a memory region. A provider converts its *MR to it.
type RegisteredMR MR

// Null reports whether the region is a null MR (see AllocNullMR).
func (mr *RegisteredMR) Null() bool { return mr.kind == mrNull }

// BeginAccess reports whether an access to the region's memory may fault, because the region was
// registered with MRInitAttr.Mapped or File: see BeginGuard. A provider calls it each time that it
// has locked a QP and is about to access the memory for it. If the memory may fault, BeginAccess
// calls the function of [Device.BeforeMappedAccess].
func (mr *RegisteredMR) BeginAccess() (mayFault bool) {
	if mr.kind != mrMapped && mr.kind != mrFile {
		return false
	}
	if mr.before != nil {
		mr.before()
	}
	return true
}

// MayFault reports whether an access to the region's memory may fault. It is for a provider that
// has just called BeginAccess of another region, whose memory may fault too, for the same message.
func (mr *RegisteredMR) MayFault() bool { return mr.kind == mrMapped || mr.kind == mrFile }

// Contains reports whether the region has the n bytes at addr.
func (mr *RegisteredMR) Contains(addr, n uint64) bool {
	_, ok := (*MR)(mr).Bytes(addr, n)
	if !ok {
		_, ok = mr.Backed(addr, n)
	}
	return ok
}

// Backed returns the offset of the n bytes at addr in the region's Backend. ok is false if the
// region has no Backend, or any of the bytes is outside the region. A provider accesses such bytes
// with QPHandle.Place, Fetch and Update.
func (mr *RegisteredMR) Backed(addr, n uint64) (off int64, ok bool) {
	if mr.kind != mrBackend {
		return 0, false
	}
	at, length := addr-mr.region.Load().addr, uint64(mr.backing.length)
	return int64(at), at <= length && n <= length-at
}

// AddWindow counts one more memory window that is bound to the region. The region cannot be
// deregistered until RemoveWindow. AddWindow returns false if the region is deregistered or being
// reregistered.
func (mr *RegisteredMR) AddWindow() bool {
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

// RemoveWindow undoes AddWindow.
func (mr *RegisteredMR) RemoveWindow() { mr.boundMWs.Add(-1) }

// HasWindows reports whether memory windows are bound to the region.
func (mr *RegisteredMR) HasWindows() bool { return mr.boundMWs.Load() > 0 }

// Persist writes b, which is a part of a region of a file, to the file, and returns when it would
// survive a loss of power. The duration depends on the file's storage. The caller need not hold a
// lock: Close waits for Persist. After Close the error is ErrClosed.
func (mr *RegisteredMR) Persist(b []byte) error {
	const op = "persist"
	if mr.file == nil {
		return Errorf(ErrInvalid, op, "lkey %#x is not of a file", (*MR)(mr).LKey())
	}
	mr.file.mu.RLock()
	defer mr.file.mu.RUnlock()
	switch {
	case mr.file.unmapped:
		return Errorf(ErrClosed, op, "lkey %#x is closed", (*MR)(mr).LKey())
	case len(b) == 0:
		return nil
	}
	return wrapNonNil(op, syncMapping(b))
}

// PostedSend is the providers' view of a request in a send queue.
type PostedSend SendWR

// PostedRecv is the providers' view of a request in a receive queue.
type PostedRecv RecvWR

// Inline returns the data of a posted SendInline request, whose SGList is empty; nil if the request
// has no inline data.
func (wr *PostedSend) Inline() []byte {
	if wr.Flags&SendInline == 0 {
		return nil
	}
	return wr.InlineData
}

// Fault returns the status with which a posted request must fail when it is executed, without
// sending anything. It is WCSuccess for all other requests.
func (wr *PostedSend) Fault() WCStatus { return wr.fault }

// Length returns the message length of a posted request, in bytes.
func (wr *PostedSend) Length() uint64 { return wr.length }

// Length returns the total size of a posted request's buffers, in bytes.
func (wr *PostedRecv) Length() uint64 { return wr.length }
