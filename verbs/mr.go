package verbs

import (
	"math"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"
)

// MR is a registered memory region (ibv_mr). It keeps its memory from being garbage collected but
// does not pin it: every region supports on-demand paging.
type MR struct {
	dev        *Device
	kind       mrKind
	file       *mapping // of kind mrFile
	backing    *backing // of kind mrBackend
	before     func()   // of Device.BeforeMappedAccess when the region was registered, or nil
	region     atomic.Pointer[region]
	lkey, rkey atomic.Uint32
	boundMWs   atomic.Int32 // memory windows bound to it, or one of the values below
	revoked    bool         // its keys are invalid: see RevokeMR; protected as Rereg is, by boundMWs
}

// region is the part of an MR that Rereg changes.
type region struct {
	pd     *PD
	buf    []byte
	addr   uint64
	access Access
}

type mrKind uint8

const (
	mrPlain   mrKind = iota
	mrMapped         // MRInitAttr.Mapped was set: an access may fault
	mrFile           // MRInitAttr.File was set: an access may fault
	mrBackend        // MRInitAttr.Backend was set: there are no bytes to access
	mrNull
)

// mapping is the mapped file of a region of kind mrFile.
type mapping struct {
	mu       sync.RWMutex // read-locked while Persist runs
	unmapped bool
	unmap    func() error
}

// close unmaps the file, after running calls of Persist have returned.
func (m *mapping) close() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unmapped = true
	return m.unmap()
}

// Values of MR.boundMWs other than a number of windows.
const (
	mrDeregistered  = -1
	mrReregistering = -2
	mrRevoking      = -3 // RevokeMR runs
)

// MRInitAttr holds the attributes that RegMREx takes (ibv_mr_init_attr). The memory is Buf, a part
// of File, or Backend.
type MRInitAttr struct {
	Buf    []byte
	Access Access
	// IOVA is the region's address, which peers and SGEs use. If it is nil, the address is that of
	// the memory's first byte, or 0 with AccessZeroBased. In the time of a simulation it is one that
	// the device chooses, so that each run has the same.
	IOVA *uint64
	// Mapped is set if Buf is not Go's memory: memory mapped by a system call, or memory that C code
	// owns. A work request that accesses a page that does not exist then fails, with WCLocProtErr on
	// this side and WCRemOpErr at a peer. An example is a page after the end of a truncated file.
	// The caller keeps the memory mapped until Close of the region returns.
	//
	// On Linux, RegMREx fails with syscall.EFAULT if the memory is not mapped or not readable, or
	// with AccessLocalWrite not writable. With AccessOnDemand it may be mapped later.
	Mapped bool
	// File, if not nil, is the file of which RegMREx maps FileLength bytes from FileOffset on, a
	// multiple of the page size. Buf is nil. Writes change the file, and need AccessLocalWrite and a
	// file that is open for writing. Accesses fail as with Mapped if the file is truncated. File may
	// be closed when RegMREx returns, and Close of the region unmaps it. Systems without mmap return
	// ErrNotSupported.
	File       *os.File
	FileOffset int64
	FileLength int
	// Backend, if not nil, has the region's memory, BackendLength bytes from offset 0 on. Buf is nil.
	// The address is IOVA, or 0 without one. The memory cannot be the source of SendInline, and a
	// FLUSH makes it visible, not persistent. Accesses are copies by way of staging memory.
	Backend       Backend
	BackendLength int
}

// RegMR registers buf (ibv_reg_mr). It is RegMREx with Buf and Access only, which most programs
// use. The region's address is as with a nil IOVA.
// AccessRemoteWrite and AccessRemoteAtomic need AccessLocalWrite. The keys of an empty region give
// access to no memory.
func (pd *PD) RegMR(buf []byte, access Access) (*MR, error) {
	if err := pd.dev.fault("reg_mr"); err != nil {
		return nil, err
	}
	return pd.register(opRegister, &MR{kind: mrPlain}, buf, pd.dev.addressOf(buf, access), access)
}

// RegMREx registers memory with all options (ibv_reg_mr_ex, ibv_reg_mr_iova).
func (pd *PD) RegMREx(attr *MRInitAttr) (*MR, error) {
	if err := pd.dev.fault("reg_mr"); err != nil {
		return nil, err
	}
	switch {
	case attr == nil:
		return nil, Errorf(ErrInvalid, opRegister, "no attributes")
	case attr.File != nil && (attr.Buf != nil || attr.Mapped):
		return nil, Errorf(ErrInvalid, opRegister, "File cannot be combined with Buf or Mapped")
	case attr.Backend != nil && (attr.Buf != nil || attr.Mapped || attr.File != nil):
		return nil, Errorf(ErrInvalid, opRegister, "Backend cannot be combined with Buf, Mapped or File")
	case attr.Backend != nil:
		return pd.regBackend(attr)
	case attr.File != nil:
		return pd.regFile(attr)
	case attr.FileOffset != 0 || attr.FileLength != 0:
		return nil, Errorf(ErrInvalid, opRegister, "FileOffset or FileLength is set, but File is nil")
	}
	kind := mrPlain
	if attr.Mapped {
		kind = mrMapped
	}
	return pd.register(opRegister, &MR{kind: kind}, attr.Buf, attr.address(pd.dev, attr.Buf), attr.Access)
}

const opRegister = "register MR"

// address returns the address of a region of the memory buf.
func (attr *MRInitAttr) address(d *Device, buf []byte) uint64 {
	if attr.IOVA != nil {
		return *attr.IOVA
	}
	return d.addressOf(buf, attr.Access)
}

// AllocNullMR allocates a null MR (ibv_alloc_null_mr), which has an lkey and no rkey. A write to
// any address is discarded; a read returns zeros. As with mlx5, the PD can be closed before it.
func (pd *PD) AllocNullMR() (*MR, error) {
	if err := pd.dev.fault("alloc_null_mr"); err != nil {
		return nil, err
	}
	return pd.register("allocate null MR", &MR{kind: mrNull}, nil, 0, AccessLocalWrite)
}

func (d *Device) addressOf(buf []byte, access Access) uint64 {
	switch size := (uint64(len(buf)) + addressStep) &^ (addressStep - 1); {
	case access&AccessZeroBased != 0:
		return 0
	case d.clock.Virtual():
		return d.addresses.Add(size) - size + addressStep
	}
	return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf))))
}

// register completes a region that has its kind, and registers it.
func (pd *PD) register(op string, mr *MR, buf []byte, addr uint64, access Access) (*MR, error) {
	d := pd.dev
	mr.dev = d
	r := &region{pd, buf[:len(buf):len(buf)], addr, access}
	if err := mr.check(op, r); err != nil {
		return nil, err
	}
	if err := mr.checkMapped(op, r); err != nil {
		return nil, err
	}
	d.mu.Lock()
	if pd.dead {
		d.mu.Unlock()
		return nil, Errorf(ErrClosed, op, "the PD is closed")
	}
	if err := d.reserve(op, &d.mrs, d.attr.MaxMR, "MaxMR"); err != nil {
		d.mu.Unlock()
		return nil, err
	}
	pd.mrs += mr.inPD()
	mr.before = d.beforeMapped
	d.mu.Unlock()

	mr.region.Store(r)
	if mr.backing != nil {
		pd.useBackends()
	}
	if err := mr.assignKeys(op); err != nil {
		mr.release()
		return nil, err
	}
	return mr, nil
}

// addressStep is the unit of addresses in the time of a simulation.
const addressStep = 1 << 16

// check checks the new attributes of the region.
func (mr *MR) check(op string, r *region) error {
	n, access := uint64(mr.lengthOf(r)), r.access
	switch limit := mr.dev.attr.MaxMRSize; {
	case n > limit:
		return Errorf(ErrInvalid, op, "length %d is more than the device's MaxMRSize of %d", n, limit)
	case n > 0 && r.addr+n-1 < r.addr:
		return Errorf(ErrInvalid, op, "address %#x and length %d exceed 64 bits", r.addr, n)
	case access&^accessKnown != 0:
		return Errorf(ErrInvalid, op, "access %v has unknown bits", access)
	case access&(AccessRemoteWrite|AccessRemoteAtomic) != 0 && access&AccessLocalWrite == 0:
		return Errorf(ErrInvalid, op, "access %v: REMOTE_WRITE and REMOTE_ATOMIC need LOCAL_WRITE", access)
	case access&AccessFlushPersistent != 0 && mr.kind != mrFile:
		return Errorf(ErrInvalid, op, "access %v: only a region of a file can have FLUSH_PERSISTENT", access)
	case access&AccessZeroBased != 0 && r.addr != 0:
		return Errorf(ErrInvalid, op, "address %#x: a zero-based region has address 0", r.addr)
	}
	return nil
}

// checkMapped checks that the memory of a region of kind mrMapped is mapped.
func (mr *MR) checkMapped(op string, r *region) error {
	write := r.access&AccessLocalWrite != 0
	if mr.kind != mrMapped || r.access&AccessOnDemand != 0 || mapped(r.buf, write) {
		return nil
	}
	return Errorf(syscall.EFAULT, op, "%d bytes at %p, access %v: some are not mapped, or do not allow this access", len(r.buf),
		unsafe.SliceData(r.buf), r.access)
}

// assignKeys assigns keys to the region and makes it accessible by them.
func (mr *MR) assignKeys(op string) error {
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

// revokeKeys undoes assignKeys. When it returns, the memory is no longer accessed.
func (mr *MR) revokeKeys() {
	pd := mr.PD()
	mr.dev.prov.DeregMR(mr)
	pd.keysMu.Lock()
	delete(pd.keys, mr.LKey())
	pd.keysMu.Unlock()
	pd.quiesce(mr)
}

// quiesce waits until no QP uses a region or memory window that it looked up before the key was
// revoked. QPs use the result of a lookup only while they are locked. mr may be nil.
func (pd *PD) quiesce(mr *MR) {
	pd.quiesceQPs(mr)
	pd.dev.mu.Lock()
	var xrcPDs []*PD // their QPs access the regions of every PD that has an SRQ in the XRC domain
	for x := range pd.dev.xrcds {
		xrcPDs = append(xrcPDs, x.pd)
	}
	pd.dev.mu.Unlock()
	for _, pd := range xrcPDs {
		pd.quiesceQPs(mr)
	}
}

// quiesceQPs takes and releases the lock of each QP that uses the PD's regions, and waits until
// what was looked up is copied, if a backend copies it. mr, if not nil, is removed from the QPs'
// caches.
func (pd *PD) quiesceQPs(mr *MR) {
	for _, qp := range pd.passQPs(mr) {
		qp.lock()
		qp.awaitCopies(mr)
		qp.unlock()
	}
}

// passQPs takes and releases the locks for quiesceQPs. It returns the QPs with copies.
func (pd *PD) passQPs(mr *MR) (copying []*QP) {
	pd.qpsMu.Lock()
	defer pd.qpsMu.Unlock()
	for _, qps := range [...]map[*QP]struct{}{pd.qps, pd.foreignQPs} {
		for qp := range qps {
			qp.lock()
			if mr != nil && qp.inlineMR == mr {
				qp.inlineMR = nil
			}
			if x := qp.extra; x != nil && (x.placing != nil || x.staging != nil) {
				copying = append(copying, qp)
			}
			qp.unlock()
		}
	}
	return copying
}

// Addr returns the address of the region's first byte, for SGE.Addr and RemoteAddr.
func (mr *MR) Addr() uint64 { return mr.region.Load().addr }

// Length returns the region's length in bytes; 0 for a null MR, which has no bounds.
func (mr *MR) Length() int { return mr.lengthOf(mr.region.Load()) }

func (mr *MR) lengthOf(r *region) int {
	if mr.kind == mrBackend {
		return mr.backing.length
	}
	return len(r.buf)
}

// LKey returns the key that local work requests use for the region.
func (mr *MR) LKey() uint32 { return mr.lkey.Load() }

// RKey returns the key that peers use for the region; 0 for a null MR.
func (mr *MR) RKey() uint32 { return mr.rkey.Load() }

// Access returns the access flags that the region was registered with.
func (mr *MR) Access() Access { return mr.region.Load().access }

// PD returns the protection domain.
func (mr *MR) PD() *PD { return mr.region.Load().pd }

// Buf returns the region's memory; nil if it has a Backend.
func (mr *MR) Buf() []byte { return mr.region.Load().buf }

// Bytes returns the part of the region that starts at an address. ok is false if any byte of it is
// outside the region, or the region has a Backend. Length 0 is valid at any address from the first
// byte up to and including the end.
func (mr *MR) Bytes(addr, length uint64) (b []byte, ok bool) {
	r := mr.region.Load()
	off, n := addr-r.addr, uint64(len(r.buf))
	if off > n || length > n-off {
		return nil, false
	}
	return r.buf[off : off+length : off+length], true
}

// SGE returns an SGE of n bytes at an offset in the region. It does not check its arguments: a work
// request with an SGE outside the region, or from a negative argument, fails.
func (mr *MR) SGE(off, n int) SGE {
	length := uint32(math.MaxUint32) // longer than any message
	if n >= 0 && uint64(n) < math.MaxUint32 {
		length = uint32(n)
	}
	return SGE{Addr: mr.Addr() + uint64(off), Length: length, LKey: mr.LKey()}
}

// Close deregisters the region (ibv_dereg_mr). When it returns, the memory is no longer accessed,
// and work requests that still use the region fail. The error is ErrBusy while memory windows are
// bound to the region or Rereg runs, ErrClosed after the first Close, or that of unmapping a file.
func (mr *MR) Close() error {
	if err := mr.dev.fault("dereg_mr"); err != nil {
		return err
	}
	if err := mr.excludeWindows("close MR", mrDeregistered); err != nil {
		return err
	}
	if !mr.revoked {
		mr.revokeKeys()
	}
	mr.release()
	switch {
	case mr.file != nil:
		return mr.file.close()
	case mr.backing != nil:
		mr.backing.close()
	}
	return nil
}

// excludeWindows sets boundMWs to state, which is mrDeregistered, mrReregistering or mrRevoking, so
// that no window can be bound. It fails if windows are already bound.
func (mr *MR) excludeWindows(op string, state int32) error {
	for !mr.boundMWs.CompareAndSwap(0, state) {
		switch n := mr.boundMWs.Load(); n {
		case 0:
		case mrRevoking:
			mr.dev.injection.Load().awaitRevoked(mr)
		default:
			return mr.inUse(op, n)
		}
	}
	return nil
}

// inUse is the error of excludeWindows for a value of boundMWs.
func (mr *MR) inUse(op string, n int32) error {
	switch n {
	case mrDeregistered:
		return Errorf(ErrClosed, op, "lkey %#x is already closed", mr.LKey())
	case mrReregistering:
		return Errorf(ErrBusy, op, "lkey %#x is being reregistered", mr.LKey())
	default:
		return Errorf(ErrBusy, op, "%d memory windows are bound to lkey %#x", n, mr.LKey())
	}
}

// release undoes the counting of register.
func (mr *MR) release() {
	d := mr.dev
	d.mu.Lock()
	d.mrs--
	mr.PD().mrs -= mr.inPD()
	d.mu.Unlock()
}

// inPD returns 1 if the region keeps its PD from being closed, otherwise 0.
func (mr *MR) inPD() int {
	if mr.kind == mrNull {
		return 0
	}
	return 1
}
