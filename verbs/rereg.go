package verbs

// ReregFlags choose what Rereg changes (ibv_rereg_mr_flags, same values).
type ReregFlags uint32

const (
	ReregTranslation ReregFlags = 1 << 0 // the memory
	ReregPD          ReregFlags = 1 << 1
	ReregAccess      ReregFlags = 1 << 2
)

// String is the constants' names, joined by "|".
func (f ReregFlags) String() string {
	return flags([]string{"ReregTranslation", "ReregPD", "ReregAccess"}, uint32(f))
}

// Rereg changes what flags choose of a region, and its keys (ibv_rereg_mr). The old keys are unknown, and no byte of what
// they named is touched, before the new ones are known. An argument that is refused leaves the region as it was; should
// the device have no keys left, it is deregistered. ErrBusy while memory windows are bound to it.
func (mr *MR) Rereg(flags ReregFlags, pd *PD, buf []byte, access Access) error {
	const op = "reregister MR"
	if flags == 0 || flags&^(ReregTranslation|ReregPD|ReregAccess) != 0 {
		return Errorf(ErrInvalid, op, "flags %v choose nothing, or have unknown bits", flags)
	}
	if mr.kind == mrNull || mr.kind == mrFile && flags&ReregTranslation != 0 {
		return Errorf(ErrInvalid, op, "a null MR, and the memory of RegFile, stay what they are")
	}
	if flags&ReregPD != 0 && (pd == nil || pd.dev != mr.dev) {
		return Errorf(ErrInvalid, op, "the PD is nil or of another device")
	}
	if err := mr.seize(op, mrChanging); err != nil {
		return err
	}
	old := *mr.region.Load()
	r := old
	if flags&ReregTranslation != 0 {
		r.buf = buf[:len(buf):len(buf)]
	}
	if flags&ReregAccess != 0 {
		r.access = access
	}
	if flags&ReregTranslation != 0 || (r.access^old.access)&AccessZeroBased != 0 {
		r.addr = addressOf(r.buf, r.access)
	}
	if flags&ReregPD != 0 {
		r.pd = pd
	}
	err := mr.check(op, &r)
	if err == nil {
		err = mr.move(op, old.pd, r.pd)
	}
	if err != nil {
		mr.holds.Store(0)
		return err
	}
	mr.withdraw()
	mr.region.Store(&r)
	if err := mr.publish(op); err != nil {
		mr.holds.Store(mrGone)
		mr.release()
		return err
	}
	mr.holds.Store(0)
	return nil
}

// move counts the region in another PD.
func (mr *MR) move(op string, from, to *PD) error {
	mr.dev.mu.Lock()
	defer mr.dev.mu.Unlock()
	if to.dead {
		return Errorf(ErrDestroyed, op, "the PD is gone")
	}
	from.mrs--
	to.mrs++
	return nil
}
