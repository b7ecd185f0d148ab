package verbs

// ReregFlags select the properties that Rereg changes (ibv_rereg_mr_flags, same values).
type ReregFlags uint32

const (
	ReregTranslation ReregFlags = 1 << 0 // the memory
	ReregPD          ReregFlags = 1 << 1
	ReregAccess      ReregFlags = 1 << 2
)

// String returns the constants' names, joined by "|".
func (f ReregFlags) String() string {
	return flags([]string{"ReregTranslation", "ReregPD", "ReregAccess"}, uint32(f))
}

// Rereg changes the memory, PD or access flags of a region, as selected by flags (ibv_rereg_mr).
// When it returns, accesses that only the old region allowed have ended.
//
// A change of the memory, or of AccessZeroBased, changes the keys too. Before the new keys become
// valid, the old ones become invalid, and accesses to the old memory end. Other changes keep the
// keys, as the kernel's drivers do.
//
// Rereg checks new memory or access flags as RegMREx does, including whether memory is mapped. If
// an argument is invalid, the region does not change. If the device has no keys left, the region is
// deregistered. Rereg fails with ErrBusy while memory windows are bound to the region.
func (mr *MR) Rereg(flags ReregFlags, pd *PD, buf []byte, access Access) error {
	if err := mr.dev.fault("rereg_mr"); err != nil {
		return err
	}
	const op = "reregister MR"
	if flags == 0 || flags&^(ReregTranslation|ReregPD|ReregAccess) != 0 {
		return Errorf(ErrInvalid, op, "flags %v are 0 or have unknown bits", flags)
	}
	if mr.kind == mrNull || (mr.kind == mrFile || mr.kind == mrBackend) && flags&ReregTranslation != 0 {
		return Errorf(ErrInvalid, op, "neither a null MR nor the memory of a file or Backend can be changed")
	}
	if flags&ReregPD != 0 && (pd == nil || pd.dev != mr.dev) {
		return Errorf(ErrInvalid, op, "the PD is nil or of another device")
	}
	if err := mr.excludeWindows(op, mrReregistering); err != nil {
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
	moves := flags&ReregTranslation != 0 || (r.access^old.access)&AccessZeroBased != 0
	if moves {
		r.addr = mr.dev.addressOf(r.buf, r.access)
	}
	if flags&ReregPD != 0 {
		r.pd = pd
	}
	err := mr.check(op, &r)
	if err == nil && flags&(ReregTranslation|ReregAccess) != 0 {
		err = mr.checkMapped(op, &r)
	}
	if err == nil {
		if mr.backing != nil {
			r.pd.useBackends()
		}
		err = mr.move(op, old.pd, r.pd)
	}
	if err != nil {
		mr.boundMWs.Store(0)
		return err
	}
	if !moves {
		mr.replace(&r)
		mr.boundMWs.Store(0)
		return nil
	}
	if !mr.revoked {
		mr.revokeKeys()
	}
	mr.revoked = false
	mr.region.Store(&r)
	if err := mr.assignKeys(op); err != nil {
		mr.boundMWs.Store(mrDeregistered)
		mr.release()
		return err
	}
	mr.boundMWs.Store(0)
	return nil
}

// replace changes the PD and the access flags, which do not change the keys.
func (mr *MR) replace(r *region) {
	old, lkey := mr.PD(), mr.LKey()
	old.keysMu.Lock()
	delete(old.keys, lkey)
	old.keysMu.Unlock()
	mr.region.Store(r)
	if !mr.revoked {
		r.pd.keysMu.Lock()
		r.pd.keys[lkey] = mr
		r.pd.keysMu.Unlock()
	}
	old.quiesce(mr)
}

// move moves the count of the region from one PD to another.
func (mr *MR) move(op string, from, to *PD) error {
	mr.dev.mu.Lock()
	defer mr.dev.mu.Unlock()
	if to.dead {
		return Errorf(ErrClosed, op, "the PD is closed")
	}
	from.mrs--
	to.mrs++
	return nil
}
