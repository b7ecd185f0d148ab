package verbs

import (
	"math"
	"sync"
	"sync/atomic"
	"unsafe"
)

// MR is a registered memory region (ibv_mr). It keeps its memory alive. Nothing is pinned: what is not in memory when it
// is wanted is fetched then, so every region is one for on-demand paging.
type MR struct {
	dev        *Device
	kind       mrKind
	file       *mapping // of mrFile
	region     atomic.Pointer[region]
	lkey, rkey atomic.Uint32
	holds      atomic.Int32 // memory windows bound to it, or mrGone, mrChanging
}

// region is what Rereg changes.
type region struct {
	pd     *PD
	buf    []byte
	addr   uint64
	access Access
}

type mrKind uint8

const (
	mrPlain  mrKind = iota
	mrMapped        // touching it may fault
	mrFile          // of RegFile; the same
	mrNull
)

// mapping is what RegFile has mapped.
type mapping struct {
	mu    sync.RWMutex // read-locked while Persist runs
	gone  bool
	unmap func() error
}

// close takes the mapping away, once nobody makes it persistent any more.
func (m *mapping) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.gone = true
	return m.unmap()
}

const (
	mrGone     = -1
	mrChanging = -2
)

// RegMR registers buf, which must not be empty. Its address is that of its first byte, or 0 with AccessZeroBased.
// Remote write and remote atomic need local write.
func (pd *PD) RegMR(buf []byte, access Access) (*MR, error) {
	return pd.RegMRIOVA(buf, addressOf(buf, access), access)
}

// RegMRIOVA registers buf under an address of the caller's choice (ibv_reg_mr_iova).
func (pd *PD) RegMRIOVA(buf []byte, addr uint64, access Access) (*MR, error) {
	return pd.register("register MR", mrPlain, buf, addr, access)
}

// RegMapping registers memory that a system call mapped, or that C code owns. A page of it that is gone when it is
// wanted, as behind the end of a file that was truncated, is an error of the work request: WCLocProtErr here,
// WCRemOpErr at a peer that named it. The caller keeps it mapped until Dereg returns.
func (pd *PD) RegMapping(buf []byte, access Access) (*MR, error) {
	return pd.register("register mapping", mrMapped, buf, addressOf(buf, access), access)
}

// AllocNullMR makes a region (ibv_alloc_null_mr) that is only good for its lkey: data that a work request puts there is
// thrown away, and zeros are read, at any address.
func (pd *PD) AllocNullMR() (*MR, error) {
	return pd.register("allocate null MR", mrNull, nil, 0, AccessLocalWrite)
}

func addressOf(buf []byte, access Access) uint64 {
	if access&AccessZeroBased != 0 {
		return 0
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf))))
}

func (pd *PD) register(op string, kind mrKind, buf []byte, addr uint64, access Access) (*MR, error) {
	d := pd.dev
	mr := &MR{dev: d, kind: kind}
	r := &region{pd, buf[:len(buf):len(buf)], addr, access}
	if err := mr.check(op, r); err != nil {
		return nil, err
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

	mr.region.Store(r)
	if err := mr.publish(op); err != nil {
		mr.release()
		return nil, err
	}
	return mr, nil
}

// check checks what a region is to be.
func (mr *MR) check(op string, r *region) error {
	n, access := uint64(len(r.buf)), r.access
	switch limit := mr.dev.attr.MaxMRSize; {
	case n == 0 && mr.kind != mrNull:
		return Errorf(ErrInvalid, op, "length 0: a region has at least 1 byte")
	case n > limit:
		return Errorf(ErrInvalid, op, "length %d is more than the device's MaxMRSize of %d", n, limit)
	case n > 0 && r.addr+n-1 < r.addr:
		return Errorf(ErrInvalid, op, "address %#x and length %d go beyond 64 bits", r.addr, n)
	case access&^accessKnown != 0:
		return Errorf(ErrInvalid, op, "access %v has unknown bits", access)
	case access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0:
		return Errorf(ErrInvalid, op, "access %v: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE", access)
	case access&AccessFlushPersistent != 0 && mr.kind != mrFile:
		return Errorf(ErrInvalid, op, "access %v: only what RegFile registers can have FLUSH_PERSISTENT", access)
	case access&AccessZeroBased != 0 && r.addr != 0:
		return Errorf(ErrInvalid, op, "address %#x: a zero-based region has address 0", r.addr)
	}
	return nil
}

// publish draws keys and makes the region reachable by them.
func (mr *MR) publish(op string) error {
	lkey, rkey, err := mr.dev.prov.RegMR(mr)
	if err != nil {
		return wrap(op, err)
	}
	mr.lkey.Store(lkey)
	mr.rkey.Store(rkey)
	pd := mr.PD()
	pd.keysMu.Lock()
	pd.keys[lkey] = mr
	pd.keysMu.Unlock()
	return nil
}

// withdraw undoes publish. When it returns, no byte of the memory is touched any more.
func (mr *MR) withdraw() {
	pd := mr.PD()
	mr.dev.prov.DeregMR(mr)
	pd.keysMu.Lock()
	delete(pd.keys, mr.LKey())
	pd.keysMu.Unlock()
	pd.leave(mr)
}

// leave waits for whoever found a region, or a window onto it, under its QP's lock before the key was withdrawn. mr may
// be nil.
func (pd *PD) leave(mr *MR) {
	pd.leaveQPs(mr)
	pd.dev.mu.Lock()
	var homes []*PD // whose QPs reach regions of any PD that has an SRQ in the domain
	for x := range pd.dev.xrcds {
		homes = append(homes, x.home)
	}
	pd.dev.mu.Unlock()
	for _, home := range homes {
		home.leaveQPs(nil)
	}
}

func (pd *PD) leaveQPs(mr *MR) {
	pd.qpsMu.Lock()
	defer pd.qpsMu.Unlock()
	for qp := range pd.qps {
		qp.mu.Lock()
		if mr != nil && qp.inlineMR == mr {
			qp.inlineMR = nil
		}
		qp.unlock()
	}
}

// Addr is the address of the region's first byte, as SGEs and RemoteAddr count it.
func (mr *MR) Addr() uint64 { return mr.region.Load().addr }

// Length is in bytes; 0 for a null MR, which has no end.
func (mr *MR) Length() int { return len(mr.region.Load().buf) }

// LKey names the region in local work requests.
func (mr *MR) LKey() uint32 { return mr.lkey.Load() }

// RKey names the region to peers; 0 for a null MR.
func (mr *MR) RKey() uint32 { return mr.rkey.Load() }

// Access is what the region was registered with.
func (mr *MR) Access() Access { return mr.region.Load().access }

// PD is the protection domain.
func (mr *MR) PD() *PD { return mr.region.Load().pd }

// Buf is the memory itself.
func (mr *MR) Buf() []byte { return mr.region.Load().buf }

// Null tells that AllocNullMR made the region.
func (mr *MR) Null() bool { return mr.kind == mrNull }

// MayFault tells that the memory may only be touched within Guard: RegMapping or RegFile made the region.
func (mr *MR) MayFault() bool { return mr.kind == mrMapped || mr.kind == mrFile }

// Bytes is the part of the region that an address and a length name; not ok if any byte of it is outside. Length 0
// is inside at any address from the first byte to just behind the last.
func (mr *MR) Bytes(addr, length uint64) (b []byte, ok bool) {
	r := mr.region.Load()
	off, n := addr-r.addr, uint64(len(r.buf))
	if off > n || length > n-off {
		return nil, false
	}
	return r.buf[off : off+length : off+length], true
}

// SGE names n bytes at an offset. It checks nothing: an SGE outside the region, or a negative argument, makes the
// work request fail that uses it.
func (mr *MR) SGE(off, n int) SGE {
	length := uint32(math.MaxUint32) // more than any region that a message can fill
	if n >= 0 && uint64(n) < math.MaxUint32 {
		length = uint32(n)
	}
	return SGE{Addr: mr.Addr() + uint64(off), Length: length, LKey: mr.LKey()}
}

// Dereg ends the registration. When it returns, no byte of the memory is touched any more; work requests that still
// name the region fail. ErrBusy while memory windows are bound to it.
func (mr *MR) Dereg() error {
	if err := mr.seize("deregister MR", mrGone); err != nil {
		return err
	}
	mr.withdraw()
	mr.release()
	if mr.file != nil {
		return mr.file.close()
	}
	return nil
}

// seize makes sure that no window is bound to the region, and none will be.
func (mr *MR) seize(op string, to int32) error {
	if mr.holds.CompareAndSwap(0, to) {
		return nil
	}
	switch n := mr.holds.Load(); n {
	case mrGone:
		return Errorf(ErrDestroyed, op, "lkey %#x is deregistered already", mr.LKey())
	case mrChanging:
		return Errorf(ErrBusy, op, "lkey %#x is being changed", mr.LKey())
	default:
		return Errorf(ErrBusy, op, "%d memory windows are bound to lkey %#x", n, mr.LKey())
	}
}

// Hold counts one more memory window that is bound to the region, for the provider; false if the region is gone.
func (mr *MR) Hold() bool {
	for {
		n := mr.holds.Load()
		if n < 0 {
			return false
		}
		if mr.holds.CompareAndSwap(n, n+1) {
			return true
		}
	}
}

// Held tells whether memory windows are bound to the region.
func (mr *MR) Held() bool { return mr.holds.Load() > 0 }

// Unhold undoes Hold.
func (mr *MR) Unhold() { mr.holds.Add(-1) }

func (mr *MR) release() {
	d := mr.dev
	d.mu.Lock()
	d.mrs--
	mr.PD().mrs--
	d.mu.Unlock()
}
