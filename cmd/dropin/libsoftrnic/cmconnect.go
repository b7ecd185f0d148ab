//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"net/netip"
	"syscall"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

//export srCMUseQP
func srCMUseQP(h, q C.uint32_t) C.int {
	s := cmIDs.Get(uint32(h))
	v, ok := qps.Optional(uint32(q))
	if s == nil || !ok {
		return invalid
	}
	if v == nil {
		return errno(s.UseQP(nil))
	}
	if err := s.unreuse(); err != nil {
		return errno(err)
	}
	return errno(s.UseQP(v.QP))
}

// useQP gives the ID the QP for cm_connect or cm_accept. If v is nil, it is the QP with number num.
func (s *cmID) useQP(v *qp, num uint32) error {
	if v == nil && s.QP() == nil && s.Transport() == verbs.IWARP {
		for _, other := range qps.All() {
			if other.Num() == num && other.Transport() == verbs.IWARP {
				v = other
			}
		}
	}
	if v == nil || s.QP() == v.QP {
		return nil
	}
	if s.QP() != nil {
		if err := s.UseQP(nil); err != nil {
			return err
		}
	}
	return s.UseQP(v.QP)
}

// connParam copies parameters. As in the kernel, a retry count that does not fit in 3 bits becomes
// 7.
func connParam(p *C.struct_sr_cm_param) *rdmacm.ConnParam {
	if p == nil {
		return rdmacm.DefaultConnParam()
	}
	v := &rdmacm.ConnParam{
		ResponderResources: uint8(p.responder_resources), InitiatorDepth: uint8(p.initiator_depth), FlowControl: p.flow_control != 0,
		RetryCount: min(uint8(p.retry_count), 7), RNRRetryCount: min(uint8(p.rnr_retry_count), 7), SRQ: p.srq != 0,
		QPNum: uint32(p.qp_num) & 0xffffff,
	}
	if p.private_data != nil {
		v.PrivateData = C.GoBytes(p.private_data, C.int(p.private_data_len))
	}
	return v
}

//export srCMConnect
func srCMConnect(h, q C.uint32_t, p *C.struct_sr_cm_param) C.int {
	return connectOrAccept(h, q, p, "rdma_connect", (*rdmacm.ID).Connect)
}

//export srCMAccept
func srCMAccept(h, q C.uint32_t, p *C.struct_sr_cm_param) C.int {
	return connectOrAccept(h, q, p, "rdma_accept", (*rdmacm.ID).Accept)
}

func connectOrAccept(h, q C.uint32_t, p *C.struct_sr_cm_param, name string, f func(*rdmacm.ID, *rdmacm.ConnParam) error) C.int {
	s := cmIDs.Get(uint32(h))
	v, ok := qps.Optional(uint32(q))
	if s == nil || !ok {
		return invalid
	}
	if err := s.fault(name); err != nil {
		return errno(err)
	}
	param := connParam(p)
	if err := s.useQP(v, param.QPNum); err != nil {
		return errno(err)
	}
	return errno(f(s.ID, param))
}

//export srCMEstablish
func srCMEstablish(h C.uint32_t) C.int { return called(h, "rdma_establish", (*cmID).Establish) }

//export srCMDisconnect
func srCMDisconnect(h C.uint32_t) C.int { return called(h, "rdma_disconnect", (*cmID).Disconnect) }

//export srCMNotify
func srCMNotify(h C.uint32_t) C.int { return called(h, "rdma_notify", (*cmID).Notify) }

//export srCMReject
func srCMReject(h C.uint32_t, data unsafe.Pointer, n C.int) C.int {
	return called(h, "rdma_reject", func(s *cmID) error {
		if n < 0 {
			return syscall.EINVAL
		}
		return s.Reject(C.GoBytes(data, n))
	})
}

//export srCMWriteEvent
func srCMWriteEvent(h, t C.uint32_t, status C.int, arg C.uint64_t) C.int {
	return with(&cmIDs, h, func(s *cmID) error {
		if err := s.unreuse(); err != nil { // a retained listener is not in the program's channel
			return err
		}
		return s.WriteEvent(enum[rdmacm.EventType](t), int(status), uint64(arg))
	})
}

//export srCMInitQPAttr
func srCMInitQPAttr(h C.uint32_t, a *C.struct_sr_qp_attr, mask *C.int) C.int {
	return called(h, "rdma_init_qp_attr", func(s *cmID) error {
		v, m, err := s.QPAttr(enum[verbs.QPState](a.qp_state))
		if err != nil {
			return err
		}
		setQPAttr(a, &v)
		*mask = C.int(m &^ verbs.QPAttrLLPStream) // C does not know this flag: see useQP
		return nil
	})
}

//export srCMGetEvent
func srCMGetEvent(h C.uint32_t, newCookie C.uint64_t, out *C.struct_sr_cm_event) C.int {
	ch := cmChannels.Get(uint32(h))
	if ch == nil {
		return invalid
	}
	ch.taking.Lock()
	defer ch.taking.Unlock()
	e, err := ch.TryGetEvent()
	if err != nil {
		return errnoQuietly(err)
	}
	*out = C.struct_sr_cm_event{_type: C.uint32_t(e.Type), status: C.int(e.Status), arg: C.uint64_t(e.Arg)}
	var s *cmID
	if e.ListenID == nil {
		s = e.ID.Context().(*cmID)
		out.id = C.uint64_t(s.cookie)
	} else {
		s = e.ListenID.Context().(*cmID)
		child := &cmID{ID: e.ID, cookie: uint64(newCookie), transports: s.transports}
		e.ID.SetContext(child)
		out.id, out.listen_id, out.handle = newCookie, C.uint64_t(s.cookie), C.uint32_t(cmIDs.Add(child))
	}
	setEventParam(out, e)
	s.reported.Add(1) // before Ack, because Close waits for Ack and then returns the number
	_ = e.Ack()
	stacks.log.Load().Debug("rdma_cm event", "event", e.Type, "status", e.Status, "local", e.ID.LocalAddr(), "peer", e.ID.PeerAddr())
	return 0
}

// setEventParam sets the parameters of an event: those of the peer and of a multicast group.
func setEventParam(out *C.struct_sr_cm_event, e *rdmacm.Event) {
	p := &e.Param
	out.conn = C.struct_sr_cm_param{
		responder_resources: C.uint8_t(p.ResponderResources), initiator_depth: C.uint8_t(p.InitiatorDepth),
		retry_count: C.uint8_t(p.RetryCount), rnr_retry_count: C.uint8_t(p.RNRRetryCount), qp_num: C.uint32_t(p.QPNum),
		flow_control: flag[C.uint8_t](p.FlowControl), srq: flag[C.uint8_t](p.SRQ),
	}
	out.ud.qp_num, out.ud.qkey = C.uint32_t(e.UD.QPNum), C.uint32_t(e.UD.QKey)
	setAHAttr(&out.ud.ah_attr, &e.UD.AHAttr)
	data := p.PrivateData
	if len(data) == 0 {
		data = e.UD.PrivateData
	}
	out.data_len = C.uint8_t(copy(unsafe.Slice((*byte)(unsafe.Pointer(&out.data)), len(out.data)), data))
	if e.Group.IsValid() {
		setSockaddr(&out.group, netip.AddrPortFrom(e.Group, 0))
	}
}
