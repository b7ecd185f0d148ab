package verbs

import (
	"math"
	"math/bits"
	"sync/atomic"
)

// CompCntr is a completion counter (ibv_comp_cntr). It counts the operations of the QPs that it is
// attached to, whether or not they also have completions in a CQ. It has two values: one for
// operations that succeed, and one for those that fail or are flushed. Reading it does not make the
// device progress: see Device.Progress.
type CompCntr struct {
	dev       *Device
	bytes     bool
	count     *atomic.Uint64
	errs      *atomic.Uint64
	own       [2]atomic.Uint64 // the values, without CompCntrInitAttr.Count and ErrCount
	users     int              // attachments; protected by dev.mu
	destroyed bool             // protected by dev.mu
}

// CompCntrType is what a completion counter counts (ibv_comp_cntr_type, same values). Operations
// that fail count as 1 in both.
type CompCntrType uint8

const (
	CompCntrWRs   CompCntrType = iota // operations
	CompCntrBytes                     // their bytes
)

func (t CompCntrType) String() string { return name([]string{"WRS", "BYTES"}, int(t), "counter type") }

// CompCntrOps are the operations that an attached counter counts (ibv_qp_attach_comp_cntr_op, same
// values). An operation may have immediate data or an rkey to invalidate. Atomics, FLUSHes and
// local requests are not counted.
type CompCntrOps uint8

const (
	CompCntrSend CompCntrOps = 1 << iota // SENDs of this QP
	CompCntrRecv                         // receive requests
	CompCntrRead                         // READs of this QP
	// READs of the peer, when their data is sent. A SoftRNIC peer may request a long READ over RoCE
	// in several pieces, and each of them counts.
	CompCntrRemoteRead
	CompCntrWrite       // WRITEs of this QP
	CompCntrRemoteWrite // WRITEs of the peer, when their data is placed
	compCntrKnown       = CompCntrRemoteWrite<<1 - 1
)

// numCompCntrOps is the number of bits of CompCntrOps.
const numCompCntrOps = 6

// String returns the ibverbs names without IBV_QP_ATTACH_COMP_CNTR_OP_, joined by "|".
func (o CompCntrOps) String() string {
	return flags([]string{"SEND", "RECV", "RDMA_READ", "REMOTE_RDMA_READ", "RDMA_WRITE", "REMOTE_RDMA_WRITE"}, uint32(o))
}

// CompCntrCaps describes the completion counters of a device (ibv_comp_cntr_caps).
type CompCntrCaps struct {
	MaxValue    uint64 // the value after which a counter continues with 0
	MaxCounters int
	Ops         CompCntrOps
}

// QueryCompCntrCaps describes the device's completion counters (ibv_query_comp_cntr_caps).
func (d *Device) QueryCompCntrCaps() CompCntrCaps {
	return CompCntrCaps{MaxValue: math.MaxUint64, MaxCounters: 1 << 16, Ops: compCntrKnown}
}

// CompCntrInitAttr has the options of CreateCompCntr (ibv_comp_cntr_init_attr).
type CompCntrInitAttr struct {
	Type CompCntrType
	// Count and ErrCount, if not nil, hold the values. They may be C memory, so that C code in front
	// of a Go program can read them. QPs add to them until Close has returned.
	Count, ErrCount *atomic.Uint64
}

// CreateCompCntr creates a completion counter (ibv_create_comp_cntr), whose values are 0. attr may
// be nil.
func (d *Device) CreateCompCntr(attr *CompCntrInitAttr) (*CompCntr, error) {
	const op = "create completion counter"
	if attr == nil {
		attr = &CompCntrInitAttr{}
	}
	if attr.Type > CompCntrBytes {
		return nil, Errorf(ErrNotSupported, op, "Type %d: at most %d", attr.Type, CompCntrBytes)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.reserve(op, &d.compCntrs, d.QueryCompCntrCaps().MaxCounters, "MaxCounters"); err != nil {
		return nil, err
	}
	c := &CompCntr{dev: d, bytes: attr.Type == CompCntrBytes, count: attr.Count, errs: attr.ErrCount}
	if c.count == nil {
		c.count = &c.own[0]
	}
	if c.errs == nil {
		c.errs = &c.own[1]
	}
	c.count.Store(0)
	c.errs.Store(0)
	return c, nil
}

// Count returns the number of operations that have succeeded, or of their bytes.
func (c *CompCntr) Count() uint64 { return c.count.Load() }

// ErrCount returns the number of operations that have failed.
func (c *CompCntr) ErrCount() uint64 { return c.errs.Load() }

// Set, SetErr, Add and AddErr change the values (ibv_set_comp_cntr, ibv_set_err_comp_cntr,
// ibv_inc_comp_cntr, ibv_inc_err_comp_cntr). What QPs count meanwhile is lost with Set and SetErr.
func (c *CompCntr) Set(n uint64)    { c.count.Store(n) }
func (c *CompCntr) SetErr(n uint64) { c.errs.Store(n) }
func (c *CompCntr) Add(n uint64)    { c.count.Add(n) }
func (c *CompCntr) AddErr(n uint64) { c.errs.Add(n) }

// Close destroys the counter (ibv_destroy_comp_cntr). The error is ErrBusy while a QP exists that
// it is attached to, and ErrClosed after the first Close.
func (c *CompCntr) Close() error {
	const op = "close completion counter"
	d := c.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case c.destroyed:
		return Errorf(ErrClosed, op, "it is closed")
	case c.users > 0:
		return Errorf(ErrBusy, op, "%d attachments to QPs are left", c.users)
	}
	c.destroyed = true
	d.compCntrs--
	return nil
}

// AttachCompCntr makes the counter count operations of the QP, which is in RESET or INIT
// (ibv_qp_attach_comp_cntr). It counts them until the QP is closed. It may be attached to several
// QPs. For each operation a QP has at most one counter: otherwise the error is ErrBusy.
func (qp *QP) AttachCompCntr(c *CompCntr, ops CompCntrOps) error {
	op := qp.op("attach completion counter to")
	switch {
	case c == nil || ops == 0:
		return Errorf(ErrInvalid, op, "no counter or no operation")
	case ops&^compCntrKnown != 0:
		return Errorf(ErrNotSupported, op, "operations %v have unknown bits", ops)
	case c.dev != qp.Device():
		return Errorf(ErrInvalid, op, "the counter is of another device")
	}
	d := c.dev
	d.mu.Lock()
	if c.destroyed {
		d.mu.Unlock()
		return Errorf(ErrClosed, op, "the counter is closed")
	}
	c.users++ // now it is not closed
	d.mu.Unlock()
	err := qp.attach(op, c, ops)
	if err != nil {
		d.mu.Lock()
		c.users--
		d.mu.Unlock()
	}
	return err
}

func (qp *QP) attach(op string, c *CompCntr, ops CompCntrOps) error {
	qp.lock()
	defer qp.mu.Unlock()
	if err := qp.alive("attach completion counter to"); err != nil {
		return err
	}
	if qp.state != StateReset && qp.state != StateInit {
		return Errorf(ErrInvalid, op, "it is in %v, not in RESET or INIT", qp.state)
	}
	if qp.extra == nil {
		qp.extra = new(qpExtra)
	}
	x := qp.extra
	if taken := x.countedOps & ops; taken != 0 {
		return Errorf(ErrBusy, op, "it has a counter of %v", taken)
	}
	x.countedOps |= ops
	x.attached = append(x.attached, c)
	for i := range numCompCntrOps {
		if ops&(1<<i) != 0 {
			x.compCntrs[i] = c
		}
	}
	qp.observed |= counted
	return nil
}

// detachCompCntrs ends the attachments of a closed QP. dev.mu is held.
func (qp *QP) detachCompCntrs() {
	if qp.observed&counted == 0 {
		return
	}
	for _, c := range qp.extra.attached {
		c.users--
	}
}

// countOps counts n operations of one kind and their bytes. QP.observed has counted.
func (qp *QP) countOps(op CompCntrOps, status WCStatus, n, bytes uint64) {
	switch c := qp.extra.compCntrs[bits.TrailingZeros8(uint8(op))]; {
	case c == nil:
	case status != WCSuccess:
		c.errs.Add(1)
	case c.bytes:
		c.count.Add(bytes)
	default:
		c.count.Add(n)
	}
}

// countMoved counts for the responder, see QPHandle.CountMoved.
func (qp *QP) countMoved(wr *PostedSend, n uint64, last bool) {
	var ops uint64
	if last {
		ops = 1
	}
	switch wr.Opcode.completion() {
	case WCRDMARead:
		qp.countOps(CompCntrRemoteRead, WCSuccess, ops, n)
	case WCRDMAWrite:
		if last {
			qp.countOps(CompCntrRemoteWrite, WCSuccess, ops, wr.Length())
		}
	}
}

// countCompletion counts a request that completes. length is that of a send request.
func (qp *QP) countCompletion(wc *WC, length uint64) {
	switch wc.Opcode {
	case WCSend:
		qp.countOps(CompCntrSend, wc.Status, 1, length)
	case WCRDMAWrite:
		qp.countOps(CompCntrWrite, wc.Status, 1, length)
	case WCRDMARead:
		qp.countOps(CompCntrRead, wc.Status, 1, length)
	case WCRecv, WCRecvRDMAWithImm:
		qp.countOps(CompCntrRecv, wc.Status, 1, uint64(wc.ByteLen))
	}
}
