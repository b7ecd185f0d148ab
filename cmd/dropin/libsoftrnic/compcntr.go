//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"math"
	"sync/atomic"
	"syscall"
	"unsafe"

	"github.com/softrnic/softrnic/cmd/dropin/libsoftrnic/internal/handle"
	"github.com/softrnic/softrnic/verbs"
)

var compCntrs handle.Table[verbs.CompCntr]

//export srQueryCompCntrCaps
func srQueryCompCntrCaps(dev C.int, value *C.uint64_t, counters, ops *C.uint32_t) C.int {
	d := stacks.device(int(dev))
	if d == nil {
		return invalid
	}
	caps := d.dev.QueryCompCntrCaps()
	*value, *counters, *ops = C.uint64_t(caps.MaxValue), C.uint32_t(caps.MaxCounters), C.uint32_t(caps.Ops)
	return 0
}

//export srCreateCompCntr
func srCreateCompCntr(ctx, kind C.uint32_t, count, errs *C.uint64_t, h *C.uint32_t) C.int {
	return with(&contexts, ctx, func(c *userContext) error {
		if kind > math.MaxUint8 {
			return syscall.EOPNOTSUPP
		}
		cntr, err := c.dev.CreateCompCntr(&verbs.CompCntrInitAttr{Type: verbs.CompCntrType(kind),
			Count: (*atomic.Uint64)(unsafe.Pointer(count)), ErrCount: (*atomic.Uint64)(unsafe.Pointer(errs))})
		if err != nil {
			return err
		}
		*h = C.uint32_t(compCntrs.Add(cntr))
		return nil
	})
}

//export srDestroyCompCntr
func srDestroyCompCntr(h C.uint32_t) C.int {
	return errno(compCntrs.Remove(uint32(h), (*verbs.CompCntr).Close))
}

//export srAttachCompCntr
func srAttachCompCntr(q, cntr, ops C.uint32_t) C.int {
	return with(&qps, q, func(qp *qp) error {
		c := compCntrs.Get(uint32(cntr))
		switch {
		case c == nil:
			return syscall.ENOENT
		case ops > math.MaxUint8:
			return syscall.EOPNOTSUPP
		}
		return qp.AttachCompCntr(c, verbs.CompCntrOps(ops))
	})
}
