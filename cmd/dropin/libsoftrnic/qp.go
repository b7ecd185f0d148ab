//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/dropin/libsoftrnic/internal/handle"
	"github.com/softrnic/softrnic/verbs"
)

type qp struct {
	*verbs.QP
	object
}

type srq struct {
	*verbs.SRQ
	object
}

type xrcd struct {
	*verbs.XRCD
	ctx *userContext
}

var (
	qps   handle.Table[qp]
	srqs  handle.Table[srq]
	xrcds handle.Table[xrcd]
	ahs   handle.Table[verbs.AH]
)

//export srCreateQP
func srCreateQP(a *C.struct_sr_qp_init_attr, h, num *C.uint32_t) C.int {
	p, ok1 := pds.Optional(uint32(a.pd))
	x, ok2 := xrcds.Optional(uint32(a.xrcd))
	attr, ok := qpInitAttr(a)
	switch {
	case !ok || !ok1 || !ok2:
		return notFound
	case p == nil && x == nil:
		return invalid
	}
	var of *userContext
	if p != nil {
		of = p.ctx
	} else {
		of = x.ctx
	}
	if !sameContext(of, a) {
		return notFound
	}
	q := &qp{object: object{events: a.events}}
	attr.Context = &q.object
	var err error
	if attr.Type == verbs.XRCRecv {
		if x == nil {
			return invalid
		}
		q.ctx = x.ctx
		q.QP, err = x.CreateQP(&verbs.QPInitAttr{Context: &sharedQP{handles: []*object{&q.object}}, Type: attr.Type,
			Transport: x.ctx.transport})
	} else {
		if p == nil {
			return invalid
		}
		q.ctx, attr.Transport = p.ctx, p.ctx.transport
		q.QP, err = p.CreateQP(&attr)
	}
	if err != nil {
		return errno(err)
	}
	got, err := verbs.Attributes(q.QP)
	if err != nil {
		return errno(err)
	}
	a.cap = qpCap(got.Cap)
	*h, *num = C.uint32_t(qps.Add(q)), C.uint32_t(q.Num())
	return 0
}

// sameContext reports whether the objects of a new QP belong to a context. As in the kernel, a
// handle of another context has no object.
func sameContext(c *userContext, a *C.struct_sr_qp_init_attr) bool {
	for _, h := range [...]C.uint32_t{a.send_cq, a.recv_cq} {
		if q := cqs.Get(uint32(h)); q != nil && q.ctx != c {
			return false
		}
	}
	if s := srqs.Get(uint32(a.srq)); s != nil && s.ctx != c {
		return false
	}
	x := xrcds.Get(uint32(a.xrcd))
	return x == nil || x.ctx == c
}

// qpInitAttr returns the attributes except Context and Transport. ok is false if one of the handles
// has no object.
func qpInitAttr(a *C.struct_sr_qp_init_attr) (attr verbs.QPInitAttr, ok bool) {
	send, ok1 := cqs.Optional(uint32(a.send_cq))
	recv, ok2 := cqs.Optional(uint32(a.recv_cq))
	s, ok3 := srqs.Optional(uint32(a.srq))
	if !ok1 || !ok2 || !ok3 {
		return attr, false
	}
	attr = verbs.QPInitAttr{
		Type: enum[verbs.QPType](a._type), SQSigAll: a.sq_sig_all != 0, BlockSelfMcastLB: a.block_self_mcast_lb != 0,
		Cap: verbs.QPCap{
			MaxSendWR: int(a.cap.max_send_wr), MaxRecvWR: int(a.cap.max_recv_wr), MaxSendSGE: int(a.cap.max_send_sge),
			MaxRecvSGE: int(a.cap.max_recv_sge), MaxInlineData: int(a.cap.max_inline_data),
		},
	}
	if send != nil {
		attr.SendCQ = send.CQ
	}
	if recv != nil && attr.Type != verbs.XRCSend { // it has no receive queue
		attr.RecvCQ = recv.CQ
	}
	if s != nil {
		attr.SRQ = s.SRQ
	}
	if attr.Type == verbs.XRCSend {
		attr.Cap.MaxRecvWR, attr.Cap.MaxRecvSGE = 0, 0
	}
	return attr, true
}

//export srOpenQP
func srOpenQP(x, num C.uint32_t, events *C.struct_sr_events, h *C.uint32_t) C.int {
	return with(&xrcds, x, func(d *xrcd) error {
		v, err := d.OpenQP(uint32(num))
		if err != nil {
			return err
		}
		q := &qp{v, object{d.ctx, events}}
		if s, ok := v.Context().(*sharedQP); ok {
			s.open(&q.object)
		}
		*h = C.uint32_t(qps.Add(q))
		return nil
	})
}

// sharedQP is the Context of an XRC QP. Each of its handles gets the QP's asynchronous events.
type sharedQP struct {
	mu      sync.Mutex
	handles []*object
}

func (s *sharedQP) open(o *object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handles = append(s.handles, o)
}

// close removes a handle. No event is added for it afterwards.
func (s *sharedQP) close(o *object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.handles = slices.DeleteFunc(s.handles, func(h *object) bool { return h == o })
}

func (s *sharedQP) add(e *verbs.AsyncEvent) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.handles {
		o.ctx.events.add(asyncEvent{e.Type, e.PortNum, o.events})
	}
}

func ahAttr(a *C.struct_sr_ah_attr) verbs.AHAttr {
	return verbs.AHAttr{
		GRH: verbs.GRH{
			// As in the kernel, the flow label has 20 bits.
			DGID: *(*verbs.GID)(unsafe.Pointer(&a.dgid)), FlowLabel: uint32(a.flow_label) & 0xfffff,
			SGIDIndex: uint8(a.sgid_index), HopLimit: uint8(a.hop_limit), TrafficClass: uint8(a.traffic_class),
		},
		DLID: uint16(a.dlid), SL: uint8(a.sl), SrcPathBits: uint8(a.src_path_bits), StaticRate: uint8(a.static_rate),
		IsGlobal: a.is_global != 0, PortNum: uint8(a.port_num),
	}
}

func setAHAttr(a *C.struct_sr_ah_attr, v *verbs.AHAttr) {
	*a = C.struct_sr_ah_attr{
		flow_label: C.uint32_t(v.GRH.FlowLabel), sgid_index: C.uint8_t(v.GRH.SGIDIndex), hop_limit: C.uint8_t(v.GRH.HopLimit),
		traffic_class: C.uint8_t(v.GRH.TrafficClass), dlid: C.uint16_t(v.DLID), sl: C.uint8_t(v.SL),
		src_path_bits: C.uint8_t(v.SrcPathBits),
		static_rate:   C.uint8_t(v.StaticRate), port_num: C.uint8_t(v.PortNum), is_global: flag[C.uint8_t](v.IsGlobal),
	}
	*(*verbs.GID)(unsafe.Pointer(&a.dgid)) = v.GRH.DGID
}

// qpAttr is the inverse of setQPAttr, except that it leaves out Cap, and Alt unless mask has it.
func qpAttr(a *C.struct_sr_qp_attr, mask verbs.QPAttrMask) verbs.QPAttr {
	v := verbs.QPAttr{
		QPState: enum[verbs.QPState](a.qp_state), CurQPState: enum[verbs.QPState](a.cur_qp_state), PathMTU: enum[verbs.MTU](a.path_mtu),
		PathMigState: enum[verbs.MigState](a.path_mig_state), QKey: uint32(a.qkey), RQPSN: uint32(a.rq_psn) & 0xffffff,
		SQPSN:     uint32(a.sq_psn) & 0xffffff,
		DestQPNum: uint32(a.dest_qp_num), QPAccessFlags: verbs.Access(a.qp_access_flags) &^ mrOnlyAccess, AHAttr: ahAttr(&a.ah_attr),
		PKeyIndex: uint16(a.pkey_index), EnSQDAsyncNotify: a.en_sqd_async_notify != 0, MaxRDAtomic: uint8(a.max_rd_atomic),
		MaxDestRDAtomic: uint8(a.max_dest_rd_atomic), MinRNRTimer: uint8(a.min_rnr_timer), PortNum: uint8(a.port_num),
		Timeout: uint8(a.timeout), RetryCnt: uint8(a.retry_cnt), RNRRetry: uint8(a.rnr_retry), RateLimit: uint32(a.rate_limit),
	}
	if mask&verbs.QPAttrAltPath != 0 {
		v.Alt = &verbs.AltPath{AHAttr: ahAttr(&a.alt_ah_attr), PKeyIndex: uint16(a.alt_pkey_index), PortNum: uint8(a.alt_port_num),
			Timeout: uint8(a.alt_timeout)}
	}
	return v
}

//export srModifyQP
func srModifyQP(h C.uint32_t, a *C.struct_sr_qp_attr, bits C.int) C.int {
	return with(&qps, h, func(q *qp) error {
		mask := verbs.QPAttrMask(bits)
		attr := qpAttr(a, mask)
		if mask&verbs.QPAttrAV != 0 {
			if err := q.ctx.resolve(&attr.AHAttr); err != nil {
				return err
			}
		}
		return q.Modify(&attr, mask)
	})
}

// resolveTimeout limits the time that resolve waits for an answer, as in Linux.
const resolveTimeout = time.Second

// resolve waits until the next hop to a peer is known, as the kernel does in ibv_modify_qp and
// ibv_create_ah (ib_resolve_eth_dmac). The error wraps ETIMEDOUT if it does not answer. Wrong
// attributes are no error: who uses them next reports them.
func (c *userContext) resolve(to *verbs.AHAttr) error {
	table, err := c.dev.Provider().GIDTable(to.PortNum)
	i := slices.IndexFunc(table, func(e verbs.GIDEntry) bool { return e.Index == int(to.GRH.SGIDIndex) })
	if err != nil || i < 0 || !to.IsGlobal || !table[i].GID.Addr().IsValid() {
		return nil
	}
	from := table[i]
	peer := to.GRH.DGID.Addr()
	nic := c.node.Host.NICs()[0]
	if _, _, err := nic.Source(peer); errors.Is(err, syscall.EINVAL) || from.Type == verbs.GIDTypeRoCEv1 && peer.IsLinkLocalUnicast() {
		return nil // a link-local GID of RoCE v1 has the MAC address
	}
	ctx, cancel := context.WithTimeoutCause(context.Background(), resolveTimeout, syscall.ETIMEDOUT)
	defer cancel()
	return nic.Resolve(ctx, from.GID.Addr(), peer)
}

//export srQueryQP
func srQueryQP(h C.uint32_t, a *C.struct_sr_qp_attr) C.int {
	return with(&qps, h, func(q *qp) error {
		v, _, err := q.Query()
		if err != nil {
			return err
		}
		setQPAttr(a, &v)
		return nil
	})
}

func qpCap(c verbs.QPCap) C.struct_sr_qp_cap {
	return C.struct_sr_qp_cap{
		max_send_wr: C.uint32_t(c.MaxSendWR), max_recv_wr: C.uint32_t(c.MaxRecvWR), max_send_sge: C.uint32_t(c.MaxSendSGE),
		max_recv_sge: C.uint32_t(c.MaxRecvSGE), max_inline_data: C.uint32_t(c.MaxInlineData),
	}
}

func setQPAttr(a *C.struct_sr_qp_attr, v *verbs.QPAttr) {
	*a = C.struct_sr_qp_attr{
		qp_state: C.uint32_t(v.QPState), cur_qp_state: C.uint32_t(v.CurQPState), path_mtu: C.uint32_t(v.PathMTU),
		path_mig_state: C.uint32_t(v.PathMigState),
		qkey:           C.uint32_t(v.QKey), rq_psn: C.uint32_t(v.RQPSN), sq_psn: C.uint32_t(v.SQPSN), dest_qp_num: C.uint32_t(v.DestQPNum),
		qp_access_flags: C.uint32_t(v.QPAccessFlags),
		cap:             qpCap(v.Cap),
		pkey_index:      C.uint16_t(v.PKeyIndex), max_rd_atomic: C.uint8_t(v.MaxRDAtomic), max_dest_rd_atomic: C.uint8_t(v.MaxDestRDAtomic),
		min_rnr_timer: C.uint8_t(v.MinRNRTimer), port_num: C.uint8_t(v.PortNum), timeout: C.uint8_t(v.Timeout),
		retry_cnt: C.uint8_t(v.RetryCnt),
		rnr_retry: C.uint8_t(v.RNRRetry), rate_limit: C.uint32_t(v.RateLimit), sq_draining: flag[C.uint8_t](v.SQDraining),
		en_sqd_async_notify: flag[C.uint8_t](v.EnSQDAsyncNotify),
	}
	setAHAttr(&a.ah_attr, &v.AHAttr)
	if alt := v.Alt; alt != nil {
		setAHAttr(&a.alt_ah_attr, &alt.AHAttr)
		a.alt_pkey_index, a.alt_port_num, a.alt_timeout = C.uint16_t(alt.PKeyIndex), C.uint8_t(alt.PortNum), C.uint8_t(alt.Timeout)
	}
}

//export srDestroyQP
func srDestroyQP(h C.uint32_t) C.int {
	return errno(qps.Remove(uint32(h), func(q *qp) error {
		if err := q.Close(); err != nil {
			return err
		}
		if s, ok := q.Context().(*sharedQP); ok {
			s.close(&q.object)
		}
		q.discardEvents()
		return nil
	}))
}

//export srAttachMcast
func srAttachMcast(h C.uint32_t, gid *C.uint8_t) C.int {
	return with(&qps, h, func(q *qp) error { return q.AttachMcast(*(*verbs.GID)(unsafe.Pointer(gid))) })
}

//export srDetachMcast
func srDetachMcast(h C.uint32_t, gid *C.uint8_t) C.int {
	return with(&qps, h, func(q *qp) error { return q.DetachMcast(*(*verbs.GID)(unsafe.Pointer(gid))) })
}

//export srCreateSRQ
func srCreateSRQ(a *C.struct_sr_srq_init_attr, h, num *C.uint32_t) C.int {
	p := pds.Get(uint32(a.pd))
	x, ok1 := xrcds.Optional(uint32(a.xrcd))
	c, ok2 := cqs.Optional(uint32(a.cq))
	if p == nil || !ok1 || !ok2 {
		return notFound
	}
	if x != nil && x.ctx != p.ctx || c != nil && c.ctx != p.ctx { // as in the kernel, not found
		return notFound
	}
	s := &srq{object: object{p.ctx, a.events}}
	attr := verbs.SRQInitAttr{Context: &s.object, Attr: verbs.SRQAttr{MaxWR: int(a.attr.max_wr), MaxSGE: int(a.attr.max_sge)}}
	if x != nil {
		attr.XRCD = x.XRCD
	}
	if c != nil {
		attr.CQ = c.CQ
	}
	var err error
	if s.SRQ, err = p.CreateSRQ(&attr); err != nil {
		return errno(err)
	}
	*h, *num = C.uint32_t(srqs.Add(s)), C.uint32_t(s.Num())
	return 0
}

//export srModifySRQ
func srModifySRQ(h C.uint32_t, a *C.struct_sr_srq_attr, mask C.int) C.int {
	return with(&srqs, h, func(s *srq) error {
		return s.Modify(&verbs.SRQAttr{MaxWR: int(a.max_wr), Limit: int(a.srq_limit)}, verbs.SRQAttrMask(mask))
	})
}

//export srQuerySRQ
func srQuerySRQ(h C.uint32_t, a *C.struct_sr_srq_attr) C.int {
	return with(&srqs, h, func(s *srq) error {
		v, err := s.Query()
		if err != nil {
			return err
		}
		*a = C.struct_sr_srq_attr{max_wr: C.uint32_t(v.MaxWR), max_sge: C.uint32_t(v.MaxSGE), srq_limit: C.uint32_t(v.Limit)}
		return nil
	})
}

//export srDestroySRQ
func srDestroySRQ(h C.uint32_t) C.int {
	return errno(srqs.Remove(uint32(h), func(s *srq) error {
		if err := s.Close(); err != nil {
			return err
		}
		s.discardEvents()
		return nil
	}))
}

//export srOpenXRCD
func srOpenXRCD(ctx C.uint32_t, fd, oflags C.int, h *C.uint32_t) C.int {
	return with(&contexts, ctx, func(c *userContext) error {
		var f *os.File
		if fd != -1 { // as in Linux, only -1 means no file
			own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
			if err != nil {
				return err
			}
			f = os.NewFile(uintptr(own), "XRC domain")
			defer f.Close()
		}
		x, err := c.dev.OpenXRCD(f, int(oflags))
		if err != nil {
			return err
		}
		*h = C.uint32_t(xrcds.Add(&xrcd{x, c}))
		return nil
	})
}

//export srCloseXRCD
func srCloseXRCD(h C.uint32_t) C.int {
	return errno(xrcds.Remove(uint32(h), func(x *xrcd) error { return x.Close() }))
}

//export srCreateAH
func srCreateAH(p C.uint32_t, a *C.struct_sr_ah_attr, h *C.uint32_t) C.int {
	return with(&pds, p, func(pd *pd) error {
		attr := ahAttr(a)
		if err := pd.ctx.resolve(&attr); err != nil {
			return err
		}
		v, err := pd.CreateAH(&attr)
		if err != nil {
			return err
		}
		*h = C.uint32_t(ahs.Add(v))
		return nil
	})
}

//export srDestroyAH
func srDestroyAH(h C.uint32_t) C.int { return errno(ahs.Remove(uint32(h), (*verbs.AH).Close)) }

//export srInitAH
func srInitAH(dev, port C.int, wc *C.struct_sr_wc, grh unsafe.Pointer, a *C.struct_sr_ah_attr) C.int {
	d := stacks.device(int(dev))
	if d == nil || port < 0 || port > 255 {
		return invalid
	}
	w := verbs.WC{Flags: verbs.WCFlags(wc.wc_flags), SrcQP: uint32(wc.src_qp), SLID: uint16(wc.slid), SL: uint8(wc.sl),
		DLIDPathBits: uint8(wc.dlid_path_bits)}
	if w.SL&r2RoCE != 0 {
		w.SL = 0 // the field is the packet's type: see serviceLevel
	}
	v, err := d.dev.InitAHFromWC(uint8(port), &w, unsafe.Slice((*byte)(grh), verbs.GRHLen))
	if err != nil {
		return errno(err)
	}
	setAHAttr(a, &v)
	return 0
}
