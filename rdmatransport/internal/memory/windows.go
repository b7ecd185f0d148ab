package memory

import (
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs"
)

// windowKey is set in the rkeys of windows.
const windowKey = 1 << 31

// window is a memory window.
type window struct {
	mw    *verbs.MW
	bound atomic.Pointer[binding] // nil if not bound

	mu   sync.Mutex // held during bind and unbind
	gone bool
}

// binding is the current binding of a window.
type binding struct {
	rkey   uint32
	qp     verbs.QPHandle // type 2: the only QP that may use it
	mr     *verbs.MR
	addr   uint64 // in the region's address space
	length uint64
	access verbs.Access
}

// AllocWindow draws the rkey of a window.
func (r *Regions) AllocWindow(mw *verbs.MW) (rkey uint32, err error) {
	n, err := r.windows.Insert(&window{mw: mw})
	if err != nil {
		return 0, err
	}
	return windowKey | n<<8, nil
}

// DeallocWindow unbinds and removes a window.
func (r *Regions) DeallocWindow(mw *verbs.MW) {
	w := r.windows.Delete(mw.RKey() &^ windowKey >> 8)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = true
	w.unbind()
}

// window finds a window by any of its rkeys.
func (r *Regions) window(rkey uint32) *window { return r.windows.Get(rkey &^ windowKey >> 8) }

func (w *window) unbind() {
	if b := w.bound.Swap(nil); b != nil {
		registered(b.mr).RemoveWindow()
	}
}

// Bind binds a window for a QP, whose lock is held. The status is WCSuccess, or WCMWBindErr without
// any change (IBTA Vol 1 §10.6.7.2). Binding 0 bytes unbinds a window of type 1.
func (r *Regions) Bind(qp verbs.QPHandle, b *verbs.MWBind) verbs.WCStatus {
	w := r.window(b.RKey)
	if w == nil || w.mw != b.MW || b.RKey&windowKey == 0 || w.mw.PD() != qp.PD() {
		return verbs.WCMWBindErr
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	type2 := w.mw.Type() == verbs.MWType2
	switch {
	case w.gone, type2 && (w.bound.Load() != nil || b.Length == 0):
		return verbs.WCMWBindErr
	case b.Length == 0:
		w.unbind()
		return verbs.WCSuccess
	}
	mr, need := b.MR, verbs.AccessMWBind
	if b.Access&(verbs.AccessRemoteWrite|verbs.AccessRemoteAtomic) != 0 {
		need |= verbs.AccessLocalWrite
	}
	if !registered(mr).AddWindow() {
		return verbs.WCMWBindErr
	}
	if !registered(mr).Contains(b.Addr, b.Length) || mr.PD() != qp.PD() || mr.Access()&need != need {
		registered(mr).RemoveWindow()
		return verbs.WCMWBindErr
	}
	next := &binding{rkey: b.RKey, mr: mr, addr: b.Addr, length: b.Length, access: b.Access}
	if type2 {
		next.qp = qp
	}
	if old := w.bound.Swap(next); old != nil {
		registered(old.mr).RemoveWindow()
	}
	return verbs.WCSuccess
}

// InvalidateWindow ends remote access through a window of type 2, for a work request of the QP that
// has bound it, or for that QP's peer.
func (r *Regions) InvalidateWindow(qp verbs.QPHandle, rkey uint32) Denial {
	w := r.window(rkey)
	if w == nil || rkey&windowKey == 0 {
		return UnknownKey
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	b := w.bound.Load()
	switch {
	case b == nil || b.rkey != rkey:
		return UnknownKey
	case w.mw.Type() != verbs.MWType2:
		return NoRight // only a bind unbinds it
	case b.qp != qp:
		return OtherPD
	}
	w.unbind()
	return Allowed
}

// throughWindow is Remote for a window's rkey.
func (r *Regions) throughWindow(pd *verbs.PD, qp verbs.QPHandle, rkey uint32, addr, n uint64, need verbs.Access) (Span, Denial) {
	w := r.window(rkey)
	if w == nil {
		return Span{}, UnknownKey
	}
	b := w.bound.Load()
	switch {
	case b == nil || b.rkey != rkey:
		return Span{}, UnknownKey
	case w.mw.PD() != pd, b.qp != verbs.QPHandle{} && b.qp != qp:
		return Span{}, OtherPD
	case b.access&need != need:
		return Span{}, NoRight
	}
	off := addr
	if b.access&verbs.AccessZeroBased == 0 {
		off -= b.addr
	}
	if off > b.length || n > b.length-off {
		return Span{}, OutOfRange
	}
	bytes, ok := b.mr.Bytes(b.addr+off, n)
	if !ok {
		return inBackendOf(b.mr, b.addr+off, n)
	}
	return spanOf(b.mr, bytes), Allowed
}
