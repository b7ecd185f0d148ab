// Package memory holds a device's memory regions and windows, and checks every access to them: key
// → region → protection domain → access right → range.
//
// Callers hold the lock of a QP while they access memory for it. verbs waits for these locks before
// it reports a region as deregistered.
package memory

import (
	"io"

	"github.com/softrnic/softrnic/rdmatransport/internal/keys"
	"github.com/softrnic/softrnic/verbs"
)

// Regions holds the memory regions of a device, and the windows of them. Lookups take no lock.
type Regions struct {
	// lkeys and rkeys are drawn independently, so that an rkey, which peers know, reveals nothing
	// about an lkey. An rkey with its top bit set is a window's. Its next 23 bits are the window's
	// number, and the last 8 change with each bind.
	lkeys, rkeys *keys.Table[verbs.MR]
	windows      *keys.Table[window]
}

// NewRegions returns an empty table. Keys are drawn from random; nil is crypto/rand.
func NewRegions(random io.Reader) *Regions {
	return &Regions{
		lkeys:   keys.New[verbs.MR](32, random, nil),
		rkeys:   keys.New[verbs.MR](31, random, nil),
		windows: keys.New[window](23, random, nil),
	}
}

// registered returns the providers' view of mr.
func registered(mr *verbs.MR) *verbs.RegisteredMR { return (*verbs.RegisteredMR)(mr) }

// Register draws the keys of mr. Neither is 0, except that a null MR has no rkey.
func (r *Regions) Register(mr *verbs.MR) (lkey, rkey uint32, err error) {
	lkey, err = r.lkeys.Insert(mr)
	if err != nil || registered(mr).Null() {
		return lkey, 0, err
	}
	rkey, err = r.rkeys.Insert(mr)
	if err != nil {
		r.lkeys.Delete(lkey)
		return 0, 0, err
	}
	return lkey, rkey, nil
}

// Deregister removes the keys of mr.
func (r *Regions) Deregister(mr *verbs.MR) {
	r.lkeys.Delete(mr.LKey())
	if r.rkeys.Get(mr.RKey()) == mr { // not if a peer invalidated it
		r.rkeys.Delete(mr.RKey())
	}
}

// Len is the number of regions.
func (r *Regions) Len() int { return r.lkeys.Len() }

// local returns the memory of an SGE of a work request under pd, or a part of it for a null MR. ok
// is false if the request may not use it. With begun, the caller has just begun an access to memory
// of the same device and message that may fault.
func (r *Regions) local(pd *verbs.PD, lkey uint32, addr, n uint64, need verbs.Access, begun bool) (Span, bool) {
	mr := r.lkeys.Get(lkey)
	if mr == nil || mr.PD() != pd || mr.Access()&need != need {
		return Span{}, false
	}
	if registered(mr).Null() {
		return bytesAs(zeros[:min(n, uint64(len(zeros)))], null), true
	}
	b, ok := mr.Bytes(addr, n)
	if begun && registered(mr).MayFault() {
		return bytesAs(b, mapped), ok
	}
	return spanOf(mr, b), ok
}

// piece returns the next bytes, at most n, of the message in *sgl, from *off on. It advances both.
// begun is as for local.
func (r *Regions) piece(
	pd *verbs.PD, sgl *[]verbs.SGE, off *uint64, n uint64, need verbs.Access, begun bool,
) (Span, verbs.WCStatus) {
	for len(*sgl) > 0 {
		e := &(*sgl)[0]
		length := uint64(e.Length)
		if *off >= length {
			*off -= length
			*sgl = (*sgl)[1:]
			continue
		}
		s, ok := r.local(pd, e.LKey, e.Addr+*off, min(length-*off, n), need, begun)
		if !ok {
			return Span{}, verbs.WCLocProtErr
		}
		*off += uint64(s.n)
		return s, verbs.WCSuccess
	}
	return Span{}, verbs.WCLocLenErr
}

// Gather fills dst with the bytes of the message in sgl, from offset off on, and adds the copy to
// the CRC-32 at sum, which may be nil. The status is WCSuccess; WCLocProtErr if pd may not read an
// SGE or its memory faults; or WCLocLenErr if the message is shorter than dst. After an error, dst
// is undefined. Only the part of an SGE that is read must be inside its region.
func (r *Regions) Gather(dst []byte, pd *verbs.PD, sgl []verbs.SGE, off uint64, sum *uint32) verbs.WCStatus {
	for len(dst) > 0 {
		s, status := r.piece(pd, &sgl, &off, uint64(len(dst)), 0, false)
		if status != verbs.WCSuccess {
			return status
		}
		if !s.Read(dst, sum) {
			return verbs.WCLocProtErr
		}
		dst = dst[s.n:]
	}
	return verbs.WCSuccess
}

// Local returns the n bytes of an SGE from offset off on, to be read as in Gather. ok is false
// after an error, or if the bytes are not contiguous.
func (r *Regions) Local(pd *verbs.PD, e *verbs.SGE, off, n uint64) (Span, bool) {
	if off+n > uint64(e.Length) {
		return Span{}, false
	}
	s, ok := r.local(pd, e.LKey, e.Addr+off, n, 0, false)
	return s, ok && uint64(s.n) == n
}

// Scatter writes src to the message in sgl, from offset off on. The status is that of Gather, and
// WCLocProtErr too if a region lacks AccessLocalWrite or has a backend. SGEs before the failed one
// are written.
func (r *Regions) Scatter(src []byte, pd *verbs.PD, sgl []verbs.SGE, off uint64) verbs.WCStatus {
	return r.scatter(src, pd, sgl, off, nil)
}

// place says for what a packet is placed in memory of a backend.
type place struct {
	h   verbs.QPHandle
	by  verbs.Placer
	psn uint32
}

// ScatterRecv writes src, data of a message, to the list of a QP's receive request, from offset off
// on. psn is the packet's (see Span.Write). The status is that of Scatter, except that regions may
// have backends.
func (r *Regions) ScatterRecv(src []byte, h verbs.QPHandle, wr *verbs.PostedRecv, off uint64, psn uint32) verbs.WCStatus {
	return r.scatter(src, h.RecvPD(), wr.SGList, off, &place{h, verbs.PlaceRecv, psn})
}

// ScatterResponse does the same for the response to a READ or an atomic.
func (r *Regions) ScatterResponse(src []byte, h verbs.QPHandle, wr *verbs.PostedSend, off uint64, psn uint32) verbs.WCStatus {
	return r.scatter(src, h.PD(), wr.SGList, off, &place{h, verbs.PlaceSend, psn})
}

func (r *Regions) scatter(src []byte, pd *verbs.PD, sgl []verbs.SGE, off uint64, at *place) verbs.WCStatus {
	for len(src) > 0 {
		s, status := r.piece(pd, &sgl, &off, uint64(len(src)), verbs.AccessLocalWrite, false)
		if status != verbs.WCSuccess {
			n := r.placeNext(src, pd, sgl, off, at)
			if n == 0 {
				return status
			}
			src, off = src[n:], off+uint64(n)
			continue
		}
		if !s.write(src[:s.n]) {
			return verbs.WCLocProtErr
		}
		src = src[s.n:]
	}
	return verbs.WCSuccess
}

// placeNext writes the first bytes of src to the first SGE, from offset off on, if a backend has
// them. It returns how many.
func (r *Regions) placeNext(src []byte, pd *verbs.PD, sgl []verbs.SGE, off uint64, at *place) int {
	if at == nil || len(sgl) == 0 || off >= uint64(sgl[0].Length) {
		return 0
	}
	e := &sgl[0]
	n := min(uint64(e.Length)-off, uint64(len(src)))
	mr := r.lkeys.Get(e.LKey)
	if mr == nil || mr.PD() != pd || mr.Access()&verbs.AccessLocalWrite == 0 {
		return 0
	}
	start, ok := registered(mr).Backed(e.Addr+off, n)
	if !ok {
		return 0
	}
	at.h.Place(mr, start, src[:n], at.by, at.psn)
	return int(n)
}

// Pieces appends to list the memory of n bytes of the message from offset off on, for a reader that
// copies it later (see Span.Bytes). The status is that of Gather, except that faults may follow.
func (r *Regions) Pieces(
	list [][]byte, n uint64, pd *verbs.PD, sgl []verbs.SGE, off uint64,
) (_ [][]byte, mayFault bool, status verbs.WCStatus) {
	for n > 0 {
		s, status := r.piece(pd, &sgl, &off, n, 0, false)
		if status != verbs.WCSuccess {
			return list, mayFault, status
		}
		list = append(list, s.bytes())
		mayFault = mayFault || s.mayFault()
		n -= uint64(s.n)
	}
	return list, mayFault, verbs.WCSuccess
}

// Check returns the status that Gather, or with AccessLocalWrite Scatter, would return for n bytes
// of a message from offset off on. It is WCLocProtErr if the memory may fault, or is a backend's.
func (r *Regions) Check(n uint64, pd *verbs.PD, sgl []verbs.SGE, off uint64, need verbs.Access) verbs.WCStatus {
	return r.check(n, pd, sgl, off, need, false)
}

// check is Check; with mayFault, memory that may fault is allowed.
func (r *Regions) check(n uint64, pd *verbs.PD, sgl []verbs.SGE, off uint64, need verbs.Access, mayFault bool) verbs.WCStatus {
	for n > 0 {
		s, status := r.piece(pd, &sgl, &off, n, need, false)
		if status == verbs.WCSuccess && s.mayFault() && !mayFault {
			status = verbs.WCLocProtErr
		}
		if status != verbs.WCSuccess {
			return status
		}
		n -= uint64(s.n)
	}
	return verbs.WCSuccess
}

// Denial is the reason to deny a peer access to memory, in the order of the checks.
type Denial uint8

const (
	Allowed Denial = iota
	UnknownKey
	// The region belongs to a protection domain other than the QP's, or the window to another QP.
	OtherPD
	NoRight // the region or the window lacks an access right
	OutOfRange
)

// Remote is RemoteIn with the QP's own protection domain.
func (r *Regions) Remote(qp verbs.QPHandle, rkey uint32, addr, n uint64, need verbs.Access) (Span, Denial) {
	return r.RemoteIn(qp.PD(), qp, rkey, addr, n, need)
}

// RemoteIn returns the n bytes at addr for a peer's request to a QP. rkey must be the key of a
// region of pd, or of a bound window, with all access rights in need and the whole range. Zero
// bytes are always allowed, without a check of the key (IBTA C9-88, RFC 5040 §5.1).
func (r *Regions) RemoteIn(pd *verbs.PD, qp verbs.QPHandle, rkey uint32, addr, n uint64, need verbs.Access) (Span, Denial) {
	if n == 0 {
		return Span{}, Allowed
	}
	if rkey&windowKey != 0 {
		return r.throughWindow(pd, qp, rkey, addr, n, need)
	}
	mr := r.rkeys.Get(rkey)
	switch {
	case mr == nil:
		return Span{}, UnknownKey
	case mr.PD() != pd:
		return Span{}, OtherPD
	case mr.Access()&need != need:
		return Span{}, NoRight
	}
	b, ok := mr.Bytes(addr, n)
	if !ok {
		return inBackendOf(mr, addr, n)
	}
	return spanOf(mr, b), Allowed
}

// File returns the region of a file that an rkey names, and the bytes of a span granted for that
// rkey, to be made persistent. It returns nil if the region is gone or the span is empty.
func (r *Regions) File(rkey uint32, s Span) (mr *verbs.MR, b []byte) {
	if s.n == 0 || s.InBackend() {
		return nil, nil
	}
	return r.rkeys.Get(rkey), s.bytes()
}

// Whole is RemoteIn for the whole region of rkey. The rkey of a window never has the rights that
// Whole is called with.
func (r *Regions) Whole(pd *verbs.PD, qp verbs.QPHandle, rkey uint32, need verbs.Access) (Span, Denial) {
	if rkey&windowKey != 0 {
		return Span{}, NoRight
	}
	mr := r.rkeys.Get(rkey)
	if mr == nil {
		return Span{}, UnknownKey
	}
	return r.RemoteIn(pd, qp, rkey, mr.Addr(), uint64(mr.Length()), need)
}

// Invalidate ends remote access through rkey, at the request of a QP's peer. The rkey must be that
// of a window, or of a region without bound windows. An access under another QP's lock may still be
// in progress.
func (r *Regions) Invalidate(qp verbs.QPHandle, rkey uint32) Denial {
	if rkey&windowKey != 0 {
		return r.InvalidateWindow(qp, rkey)
	}
	mr := r.rkeys.Get(rkey)
	switch {
	case mr == nil:
		return UnknownKey
	case mr.PD() != qp.PD():
		return OtherPD
	case registered(mr).HasWindows():
		return NoRight
	}
	r.rkeys.Delete(rkey)
	return Allowed
}
