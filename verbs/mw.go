package verbs

import "sync/atomic"

// MW is a memory window (ibv_mw): while it is bound, its rkey gives peers access to a part of a
// region.
type MW struct {
	pd   *PD
	typ  MWType
	rkey atomic.Uint32
	dead atomic.Bool
}

// MWType is the kind of a memory window (ibv_mw_type, same values).
type MWType uint8

const (
	// MWType1 is bound by QP.BindMW, any number of times, with an rkey that the device chooses. All
	// QPs of its PD may use it.
	MWType1 MWType = 1
	// MWType2 is bound by a BindMW work request, with an rkey whose lower 8 bits the application
	// chooses. Only the QP that bound it may use it (type 2B). It must be invalidated before it is
	// bound again.
	MWType2 MWType = 2
)

func (t MWType) String() string { return name([]string{1: "TYPE_1", "TYPE_2"}, int(t), "MW type") }

// MWBindInfo describes the memory that a window covers (ibv_mw_bind_info).
type MWBindInfo struct {
	MR     *MR // must have AccessMWBind
	Addr   uint64
	Length uint64
	// Remote access flags; with AccessZeroBased, for type 2 only, addresses count from the window's
	// first byte.
	Access Access
}

// MWBind has the arguments of a BindMW work request (ibv_send_wr.bind_mw).
type MWBind struct {
	MW   *MW
	RKey uint32 // its lower 8 bits are those of the window's new rkey; the upper 24 bits are ignored
	MWBindInfo

	prevRKey uint32 // the window's previous rkey
}

// AllocMW allocates an unbound memory window (ibv_alloc_mw).
func (pd *PD) AllocMW(t MWType) (*MW, error) {
	if err := pd.dev.fault("alloc_mw"); err != nil {
		return nil, err
	}
	const op = "allocate MW"
	d := pd.dev
	if t != MWType1 && t != MWType2 {
		return nil, Errorf(ErrInvalid, op, "%v", t)
	}
	d.mu.Lock()
	if pd.dead {
		d.mu.Unlock()
		return nil, Errorf(ErrClosed, op, "the PD is closed")
	}
	if err := d.reserve(op, &d.mws, d.attr.MaxMW, "MaxMW"); err != nil {
		d.mu.Unlock()
		return nil, err
	}
	pd.mws++
	d.mu.Unlock()
	mw := &MW{pd: pd, typ: t}
	rkey, err := d.prov.AllocMW(mw)
	if err != nil {
		mw.release()
		return nil, wrap(op, err)
	}
	mw.rkey.Store(rkey)
	return mw, nil
}

// RKey returns the window's rkey from the last posted bind. Its upper 24 bits never change.
func (mw *MW) RKey() uint32 { return mw.rkey.Load() }

// Type returns the window's type.
func (mw *MW) Type() MWType { return mw.typ }

// PD returns the protection domain.
func (mw *MW) PD() *PD { return mw.pd }

// Close deallocates the window, bound or not (ibv_dealloc_mw). When it returns, its rkey no longer
// gives access. The error is ErrClosed after the first Close.
func (mw *MW) Close() error {
	if err := mw.pd.dev.fault("dealloc_mw"); err != nil {
		return err
	}
	if mw.dead.Swap(true) {
		return Errorf(ErrClosed, "close MW", "rkey %#x is already closed", mw.RKey())
	}
	mw.pd.dev.prov.DeallocMW(mw)
	mw.pd.quiesce(nil)
	mw.release()
	return nil
}

func (mw *MW) release() {
	d := mw.pd.dev
	d.mu.Lock()
	d.mws--
	mw.pd.mws--
	d.mu.Unlock()
}

// IncRKey returns rkey with its lower 8 bits incremented, for the next bind of a window
// (ibv_inc_rkey). The device chose the upper 24 bits.
func IncRKey(rkey uint32) uint32 { return rkey&^0xff | (rkey+1)&0xff }

// checkBind checks the bind of a work request, except the state of window and region, and returns a
// copy for the queue.
func (qp *QP) checkBind(wr *SendWR) (*MWBind, error) {
	const what = "post send to"
	b := wr.Bind
	switch {
	case b == nil || b.MW == nil:
		return nil, Errorf(ErrInvalid, qp.op(what), "BIND_MW without Bind or Bind.MW")
	case b.MW.dead.Load():
		return nil, Errorf(ErrClosed, qp.op(what), "the MW is closed")
	case b.MR == nil && (b.MW.typ != MWType1 || b.Length > 0):
		return nil, Errorf(ErrInvalid, qp.op(what), "BIND_MW of %d bytes without an MR", b.Length)
	case b.MR != nil && b.MR.dev != qp.pd.dev || b.MW.pd.dev != qp.pd.dev:
		return nil, Errorf(ErrInvalid, qp.op(what), "the MR or the MW is of another device")
	case b.Access&^(accessRemote|AccessZeroBased) != 0:
		return nil, Errorf(ErrInvalid, qp.op(what), "Bind.Access %v: a window has remote access flags only", b.Access)
	case b.Access&AccessZeroBased != 0 && b.MW.typ == MWType1:
		return nil, Errorf(ErrInvalid, qp.op(what), "Bind.Access %v: only a window of type 2 can be zero-based", b.Access)
	}
	bind := *b
	bind.prevRKey = b.MW.RKey()
	bind.RKey = bind.prevRKey&^0xff | b.RKey&0xff
	return &bind, nil
}
