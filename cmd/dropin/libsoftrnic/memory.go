//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"math"
	"slices"
	"syscall"
	"unsafe"

	"github.com/softrnic/softrnic/cmd/dropin/libsoftrnic/internal/handle"
	"github.com/softrnic/softrnic/verbs"
)

type pd struct {
	*verbs.PD
	ctx *userContext
}

var (
	pds     handle.Table[pd]
	regions handle.Table[verbs.MR]
	windows handle.Table[verbs.MW]
)

//export srAllocPD
func srAllocPD(ctx C.uint32_t, h *C.uint32_t) C.int {
	return with(&contexts, ctx, func(c *userContext) error {
		p, err := c.dev.AllocPD()
		if err != nil {
			return err
		}
		*h = C.uint32_t(pds.Add(&pd{p, c}))
		return nil
	})
}

//export srDeallocPD
func srDeallocPD(h C.uint32_t) C.int {
	return errno(pds.Remove(uint32(h), func(p *pd) error { return p.Close() }))
}

// bytesAt returns memory of C as a slice. The memory may not be mapped, so it is accessed only
// through regions with MRInitAttr.Mapped.
func bytesAt(op string, addr unsafe.Pointer, length C.size_t) ([]byte, error) {
	if uint64(length) > math.MaxInt || uint64(uintptr(addr))+uint64(length) < uint64(length) {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "length %d at %#x: a region is within the address space", uint64(length),
			uintptr(addr))
	}
	if addr == nil && length > 0 {
		return nil, verbs.Errorf(syscall.EFAULT, op, "length %d at address 0", uint64(length))
	}
	return unsafe.Slice((*byte)(addr), int(length)), nil
}

//export srRegMR
func srRegMR(p C.uint32_t, addr unsafe.Pointer, length C.size_t, iova C.uint64_t, access C.uint32_t, h, lkey, rkey *C.uint32_t) C.int {
	return with(&pds, p, func(pd *pd) error {
		gpu, err := gpuAt("register MR", uint64(uintptr(addr)), uint64(length))
		if err != nil {
			return err
		}
		if gpu != nil {
			mr, err := registerBacking(pd, gpu, length, uint64(iova), access)
			if err != nil {
				return err
			}
			*h, *lkey, *rkey = C.uint32_t(regions.Add(mr)), C.uint32_t(mr.LKey()), C.uint32_t(mr.RKey())
			return nil
		}
		buf, err := bytesAt("register MR", addr, length)
		if err != nil {
			return err
		}
		a := uint64(iova)
		if verbs.Access(access)&verbs.AccessZeroBased != 0 {
			a = 0
		}
		mr, err := pd.RegMREx(&verbs.MRInitAttr{Buf: buf, IOVA: &a, Access: verbs.Access(access), Mapped: true})
		if err != nil {
			return err
		}
		*h, *lkey, *rkey = C.uint32_t(regions.Add(mr)), C.uint32_t(mr.LKey()), C.uint32_t(mr.RKey())
		return nil
	})
}

// Values of enum ibv_rereg_mr_err_code, and of enum ibv_rereg_mr_flags.
const (
	reregErrInput              = -1
	reregErrCmd                = -4
	reregFlagTranslation C.int = 1
)

//export srReregMR
func srReregMR(h C.uint32_t, flags C.int, p C.uint32_t, addr unsafe.Pointer, length C.size_t, access C.uint32_t, lkey, rkey *C.uint32_t,
	code *C.int) C.int {
	*code = reregErrInput
	mr := regions.Get(uint32(h))
	if mr == nil {
		return notFound
	}
	var to *verbs.PD
	switch pd := pds.Get(uint32(p)); {
	case pd != nil:
		to = pd.PD
	case verbs.ReregFlags(flags)&verbs.ReregPD != 0:
		return notFound
	}
	var buf []byte
	if flags&reregFlagTranslation != 0 {
		gpu, err := gpuAt("reregister MR", uint64(uintptr(addr)), uint64(length))
		if err != nil {
			return errno(err)
		}
		if _, ok := backings.Load(mr); ok || gpu != nil {
			if gpu != nil {
				gpu.release()
			}
			*code = reregErrCmd
			return C.int(syscall.EOPNOTSUPP) // a Backend's memory does not change
		}
		if buf, err = bytesAt("reregister MR", addr, length); err != nil {
			return errno(err)
		}
	}
	if err := mr.Rereg(verbs.ReregFlags(flags), to, buf, verbs.Access(access)); err != nil {
		*code = reregErrCmd
		return errno(err)
	}
	*lkey, *rkey, *code = C.uint32_t(mr.LKey()), C.uint32_t(mr.RKey()), 0
	return 0
}

//export srAllocNullMR
func srAllocNullMR(p C.uint32_t, h, lkey *C.uint32_t) C.int {
	return with(&pds, p, func(pd *pd) error {
		mr, err := pd.AllocNullMR()
		if err != nil {
			return err
		}
		*h, *lkey = C.uint32_t(regions.Add(mr)), C.uint32_t(mr.LKey())
		return nil
	})
}

// srAdviseMR checks whether a list lies in registered memory of a PD, which can be written if write
// is set. Memory is never pinned, so there is nothing to prefetch. Errors are those of
// ibv_advise_mr(3): ENOENT for an unknown key, EPERM for one of another PD or without the right,
// and EFAULT for a range that the region does not have.
//
//export srAdviseMR
func srAdviseMR(p C.uint32_t, write C.int, list *C.struct_sr_sge, n C.uint32_t) C.int {
	pd := pds.Get(uint32(p))
	switch {
	case pd == nil:
		return notFound
	case list == nil || n > math.MaxInt32:
		return invalid
	}
	all := regions.All()
	for _, s := range unsafe.Slice((*verbs.SGE)(unsafe.Pointer(list)), n) {
		i := slices.IndexFunc(all, func(mr *verbs.MR) bool { return mr.LKey() == s.LKey })
		if i < 0 {
			return C.int(syscall.ENOENT)
		}
		mr := all[i]
		provided := (*verbs.RegisteredMR)(mr)
		null := provided.Null()
		if mr.PD() != pd.PD || write != 0 && !null && mr.Access()&verbs.AccessLocalWrite == 0 {
			return C.int(syscall.EPERM)
		}
		if !null && !provided.Contains(s.Addr, uint64(s.Length)) {
			return C.int(syscall.EFAULT)
		}
	}
	return 0
}

//export srDeregMR
func srDeregMR(h C.uint32_t) C.int { return errno(regions.Remove(uint32(h), closeRegion)) }

//export srAllocMW
func srAllocMW(p C.uint32_t, t C.int, h, rkey *C.uint32_t) C.int {
	return with(&pds, p, func(pd *pd) error {
		mw, err := pd.AllocMW(enum[verbs.MWType](C.uint32_t(t)))
		if err != nil {
			return err
		}
		*h, *rkey = C.uint32_t(windows.Add(mw)), C.uint32_t(mw.RKey())
		return nil
	})
}

//export srDeallocMW
func srDeallocMW(h C.uint32_t) C.int { return errno(windows.Remove(uint32(h), (*verbs.MW).Close)) }

// mrOnlyAccess are access flags that do not apply to a QP or a memory window. Kernel drivers ignore
// them there, because some programs pass the flags of their region.
const mrOnlyAccess = verbs.AccessOnDemand | verbs.AccessHugeTLB | verbs.AccessMWBind | verbs.AccessRelaxedOrdering

// bindAccess returns the access flags of a memory window.
func bindAccess(a C.uint32_t) verbs.Access {
	return verbs.Access(a) &^ (mrOnlyAccess | verbs.AccessLocalWrite)
}

// regionAt returns the region of a structure of libibverbs, or nil. As in drivers of hardware, the
// key identifies the region. The handle only makes the lookup faster.
func regionAt(mr unsafe.Pointer) *verbs.MR {
	if mr == nil {
		return nil
	}
	lkey := handleAt(mr, C.SR_MR_LKEY)
	return regions.Find(handleAt(mr, C.SR_MR_HANDLE), func(m *verbs.MR) bool { return m.LKey() == lkey })
}

// windowAt returns the window of a structure of libibverbs, or nil. All keys of a window have the
// same upper 24 bits.
func windowAt(mw unsafe.Pointer) *verbs.MW {
	if mw == nil {
		return nil
	}
	index := handleAt(mw, C.SR_MW_RKEY) >> 8
	return windows.Find(handleAt(mw, C.SR_MW_HANDLE), func(w *verbs.MW) bool { return w.RKey()>>8 == index })
}

// setBoundKeys writes the keys of the windows that the first n requests of a list bind to
// libibverbs' structures.
func setBoundKeys(c *C.struct_sr_send_wr, n int) {
	for ; n > 0; c, n = c.next, n-1 {
		if enum[verbs.WROpcode](c.opcode) != verbs.BindMW {
			continue
		}
		if mw := windowAt(c.mw); mw != nil {
			*(*uint32)(unsafe.Add(c.mw, C.SR_MW_RKEY)) = mw.RKey()
		}
	}
}

//export srBindMW
func srBindMW(q C.uint32_t, w unsafe.Pointer, id C.uint64_t, flags C.uint32_t, m unsafe.Pointer, addr, length C.uint64_t,
	access C.uint32_t, rkey *C.uint32_t) C.int {
	qp, mw := qps.Get(uint32(q)), windowAt(w)
	if qp == nil || mw == nil {
		return notFound
	}
	info := verbs.MWBindInfo{MR: regionAt(m), Addr: uint64(addr), Length: uint64(length), Access: bindAccess(access)}
	if err := qp.BindMW(mw, uint64(id), verbs.SendFlags(flags), info); err != nil {
		return errno(err)
	}
	*rkey = C.uint32_t(mw.RKey())
	return 0
}
