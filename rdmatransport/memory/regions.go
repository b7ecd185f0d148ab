// Package memory is the table of a device's memory regions, and the checks that stand before every access to them:
// key → region → protection domain → access right → range.
//
// Callers hold the lock of the QP that they access memory for until they are done with it: verbs waits for these
// locks before it says that a region is deregistered.
package memory

import (
	"io"

	"github.com/softrnic/softrnic/rdmatransport/keys"
	"github.com/softrnic/softrnic/verbs"
)

// Regions is the registered memory regions of a device. Lookups take no lock.
type Regions struct {
	// lkeys and rkeys are drawn apart, so that an rkey, which peers are told, says nothing about an lkey.
	lkeys, rkeys *keys.Table[verbs.MR]
}

// NewRegions makes an empty table whose keys come from random; nil means crypto/rand.
func NewRegions(random io.Reader) *Regions {
	return &Regions{
		lkeys: keys.New[verbs.MR](32, random, nil),
		rkeys: keys.New[verbs.MR](32, random, nil),
	}
}

// Register draws the keys of mr. Neither is 0.
func (r *Regions) Register(mr *verbs.MR) (lkey, rkey uint32, err error) {
	lkey, err = r.lkeys.Insert(mr)
	if err != nil {
		return 0, 0, err
	}
	rkey, err = r.rkeys.Insert(mr)
	if err != nil {
		r.lkeys.Delete(lkey)
		return 0, 0, err
	}
	return lkey, rkey, nil
}

// Deregister forgets the keys of mr, which has been told them.
func (r *Regions) Deregister(mr *verbs.MR) {
	r.lkeys.Delete(mr.LKey())
	if r.rkeys.Get(mr.RKey()) == mr { // not if a peer invalidated it
		r.rkeys.Delete(mr.RKey())
	}
}

// Len is the number of regions.
func (r *Regions) Len() int { return r.lkeys.Len() }

// local is the memory that an SGE of a work request under pd names, or nil where the request may not use it.
func (r *Regions) local(pd *verbs.PD, lkey uint32, addr, n uint64, need verbs.Access) []byte {
	mr := r.lkeys.Get(lkey)
	if mr == nil || mr.PD() != pd || mr.Access()&need != need {
		return nil
	}
	b, _ := mr.Bytes(addr, n)
	return b
}

// piece is the next at most n bytes of the message that *sgl names from *off on; it moves both past them.
func (r *Regions) piece(pd *verbs.PD, sgl *[]verbs.SGE, off *uint64, n uint64, need verbs.Access) ([]byte, verbs.WCStatus) {
	for len(*sgl) > 0 {
		e := &(*sgl)[0]
		length := uint64(e.Length)
		if *off >= length {
			*off -= length
			*sgl = (*sgl)[1:]
			continue
		}
		b := r.local(pd, e.LKey, e.Addr+*off, min(length-*off, n), need)
		if b == nil {
			return nil, verbs.WCLocProtErr
		}
		*off += uint64(len(b))
		return b, verbs.WCSuccess
	}
	return nil, verbs.WCLocLenErr
}

// Gather fills dst with the bytes of the message that sgl names, from offset off on. The status is WCSuccess,
// WCLocProtErr where an SGE is not pd's to read, or WCLocLenErr where the message ends before dst does; dst is then
// undefined. Only the part of an SGE that is read must be inside its region.
func (r *Regions) Gather(dst []byte, pd *verbs.PD, sgl []verbs.SGE, off uint64) verbs.WCStatus {
	for len(dst) > 0 {
		b, status := r.piece(pd, &sgl, &off, uint64(len(dst)), 0)
		if status != verbs.WCSuccess {
			return status
		}
		dst = dst[copy(dst, b):]
	}
	return verbs.WCSuccess
}

// Scatter puts src into the message that sgl names, from offset off on. The status is as Gather's, and WCLocProtErr
// too where a region lacks AccessLocalWrite; SGEs before the one at fault have been written.
func (r *Regions) Scatter(src []byte, pd *verbs.PD, sgl []verbs.SGE, off uint64) verbs.WCStatus {
	for len(src) > 0 {
		b, status := r.piece(pd, &sgl, &off, uint64(len(src)), verbs.AccessLocalWrite)
		if status != verbs.WCSuccess {
			return status
		}
		src = src[copy(b, src):]
	}
	return verbs.WCSuccess
}

// Pieces appends to list the memory of the n bytes of the message from offset off on, for a reader that copies it
// later, under the same hold of the QP's lock. The status is as Gather's.
func (r *Regions) Pieces(list [][]byte, n uint64, pd *verbs.PD, sgl []verbs.SGE, off uint64) ([][]byte, verbs.WCStatus) {
	for n > 0 {
		b, status := r.piece(pd, &sgl, &off, n, 0)
		if status != verbs.WCSuccess {
			return list, status
		}
		list = append(list, b)
		n -= uint64(len(b))
	}
	return list, verbs.WCSuccess
}

// Denial is why a peer may not use the memory that it names; in the order in which it is looked for.
type Denial uint8

const (
	Allowed Denial = iota
	UnknownKey
	OtherPD // the region belongs to another protection domain than the QP
	NoRight // the region lacks a right
	OutOfRange
)

// Remote is the n bytes at addr that a peer's request to a QP of pd names, if rkey is the key of a region of pd that
// has all of the rights in need and all of the range. Zero bytes are always there: no key is looked at (IBTA C9-88,
// RFC 5040 §5.1).
func (r *Regions) Remote(pd *verbs.PD, rkey uint32, addr, n uint64, need verbs.Access) ([]byte, Denial) {
	if n == 0 {
		return nil, Allowed
	}
	mr := r.rkeys.Get(rkey)
	switch {
	case mr == nil:
		return nil, UnknownKey
	case mr.PD() != pd:
		return nil, OtherPD
	case mr.Access()&need != need:
		return nil, NoRight
	}
	b, ok := mr.Bytes(addr, n)
	if !ok {
		return nil, OutOfRange
	}
	return b, Allowed
}

// Invalidate ends remote access through rkey, as a peer asked a QP of pd. An access that began under another QP's lock
// may still be running.
func (r *Regions) Invalidate(pd *verbs.PD, rkey uint32) Denial {
	mr := r.rkeys.Get(rkey)
	switch {
	case mr == nil:
		return UnknownKey
	case mr.PD() != pd:
		return OtherPD
	}
	r.rkeys.Delete(rkey)
	return Allowed
}
