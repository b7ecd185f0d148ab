package verbs

import (
	"math"
	"sync/atomic"
	"unsafe"
)

// Access says who may do what to a memory region, or through a QP (ibv_access_flags, same values). Local reading is
// always allowed.
type Access uint32

const (
	AccessLocalWrite      Access = 1 << 0
	AccessRemoteWrite     Access = 1 << 1
	AccessRemoteRead      Access = 1 << 2
	AccessRemoteAtomic    Access = 1 << 3
	AccessMWBind          Access = 1 << 4
	AccessZeroBased       Access = 1 << 5
	AccessOnDemand        Access = 1 << 6
	AccessHugeTLB         Access = 1 << 7
	AccessRelaxedOrdering Access = 1 << 20

	accessOptional = Access(0x3ff00000) // a device that does not know these ignores them (IBV_ACCESS_OPTIONAL_RANGE)
	accessKnown    = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic | AccessMWBind |
		AccessZeroBased | AccessHugeTLB | accessOptional
	accessQP = AccessLocalWrite | AccessRemoteWrite | AccessRemoteRead | AccessRemoteAtomic
)

var accessNames = []string{0: "LOCAL_WRITE", "REMOTE_WRITE", "REMOTE_READ", "REMOTE_ATOMIC", "MW_BIND", "ZERO_BASED",
	"ON_DEMAND", "HUGETLB", 20: "RELAXED_ORDERING"}

// String is the ibverbs names without IBV_ACCESS_, joined by "|".
func (a Access) String() string { return flags(accessNames, uint32(a)) }

// MR is a registered memory region (ibv_mr). It keeps its memory alive.
type MR struct {
	pd         *PD
	buf        []byte
	addr       uint64
	access     Access
	lkey, rkey uint32
	dead       atomic.Bool
}

// RegMR registers buf, which must not be empty. Its address is that of its first byte, or 0 with AccessZeroBased.
// Remote write and remote atomic need local write.
func (pd *PD) RegMR(buf []byte, access Access) (*MR, error) {
	var addr uint64
	if access&AccessZeroBased == 0 {
		addr = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf))))
	}
	return pd.RegMRIOVA(buf, addr, access)
}

// RegMRIOVA registers buf under an address of the caller's choice (ibv_reg_mr_iova).
func (pd *PD) RegMRIOVA(buf []byte, addr uint64, access Access) (*MR, error) {
	const op = "register MR"
	d := pd.dev
	switch n := uint64(len(buf)); {
	case n == 0:
		return nil, Errorf(ErrInvalid, op, "length 0: a region has at least 1 byte")
	case n > d.attr.MaxMRSize:
		return nil, Errorf(ErrInvalid, op, "length %d is more than the device's MaxMRSize of %d", n, d.attr.MaxMRSize)
	case addr+n-1 < addr:
		return nil, Errorf(ErrInvalid, op, "address %#x and length %d go beyond 64 bits", addr, n)
	case access&AccessOnDemand != 0:
		return nil, Errorf(ErrNotSupported, op, "access %v: on-demand paging is not supported", access)
	case access&^accessKnown != 0:
		return nil, Errorf(ErrInvalid, op, "access %v has unknown bits", access)
	case access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0:
		return nil, Errorf(ErrInvalid, op, "access %v: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE", access)
	case access&AccessZeroBased != 0 && addr != 0:
		return nil, Errorf(ErrInvalid, op, "address %#x: a zero-based region has address 0", addr)
	}
	d.mu.Lock()
	if pd.dead {
		d.mu.Unlock()
		return nil, Errorf(ErrDestroyed, op, "the PD is gone")
	}
	if err := d.reserve(op, &d.mrs, d.attr.MaxMR, "MaxMR"); err != nil {
		d.mu.Unlock()
		return nil, err
	}
	pd.mrs++
	d.mu.Unlock()

	mr := &MR{pd: pd, buf: buf[:len(buf):len(buf)], addr: addr, access: access}
	lkey, rkey, err := d.prov.RegMR(mr)
	if err != nil {
		mr.release()
		return nil, wrap(op, err)
	}
	mr.lkey, mr.rkey = lkey, rkey
	pd.keysMu.Lock()
	pd.keys[lkey] = mr
	pd.keysMu.Unlock()
	return mr, nil
}

// Addr is the address of the region's first byte, as SGEs and RemoteAddr count it.
func (mr *MR) Addr() uint64 { return mr.addr }

// Length is in bytes.
func (mr *MR) Length() int { return len(mr.buf) }

// LKey names the region in local work requests.
func (mr *MR) LKey() uint32 { return mr.lkey }

// RKey names the region to peers.
func (mr *MR) RKey() uint32 { return mr.rkey }

// Access is what the region was registered with.
func (mr *MR) Access() Access { return mr.access }

// PD is the protection domain.
func (mr *MR) PD() *PD { return mr.pd }

// Buf is the memory itself.
func (mr *MR) Buf() []byte { return mr.buf }

// Bytes is the part of the region that an address and a length name; not ok if any byte of it is outside. Length 0
// is inside at any address from the first byte to just behind the last.
func (mr *MR) Bytes(addr, length uint64) (b []byte, ok bool) {
	off, n := addr-mr.addr, uint64(len(mr.buf))
	if off > n || length > n-off {
		return nil, false
	}
	return mr.buf[off : off+length : off+length], true
}

// SGE names n bytes at an offset. It checks nothing: an SGE outside the region, or a negative argument, makes the
// work request fail that uses it.
func (mr *MR) SGE(off, n int) SGE {
	length := uint32(math.MaxUint32) // more than any region that a message can fill
	if n >= 0 && uint64(n) < math.MaxUint32 {
		length = uint32(n)
	}
	return SGE{Addr: mr.addr + uint64(off), Length: length, LKey: mr.lkey}
}

// Dereg ends the registration. When it returns, no byte of the memory is touched any more; work requests that still
// name the region fail.
func (mr *MR) Dereg() error {
	if mr.dead.Swap(true) {
		return Errorf(ErrDestroyed, "deregister MR", "lkey %#x is deregistered already", mr.lkey)
	}
	pd := mr.pd
	pd.dev.prov.DeregMR(mr)
	pd.keysMu.Lock()
	delete(pd.keys, mr.lkey)
	pd.keysMu.Unlock()

	// Whoever found the region before this did so under its QP's lock: wait until each has left it.
	pd.qpsMu.Lock()
	for qp := range pd.qps {
		qp.mu.Lock()
		if qp.inlineMR == mr {
			qp.inlineMR = nil
		}
		qp.mu.Unlock()
	}
	pd.qpsMu.Unlock()
	mr.release()
	return nil
}

func (mr *MR) release() {
	d := mr.pd.dev
	d.mu.Lock()
	d.mrs--
	mr.pd.mrs--
	d.mu.Unlock()
}
