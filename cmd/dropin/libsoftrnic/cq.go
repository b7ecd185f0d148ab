//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/softrnic/softrnic/cmd/dropin/libsoftrnic/internal/handle"
	"github.com/softrnic/softrnic/verbs"
)

// channel is a completion channel with an eventfd that counts its events. C takes and acknowledges
// an event in one call, because the fronts count the program's acknowledgements.
type channel struct {
	*verbs.CompChannel
	ctx *userContext
	fd  eventfd
}

type cq struct {
	*verbs.CQ
	object
	channel *channel // or nil
}

var (
	channels handle.Table[channel]
	cqs      handle.Table[cq]
)

//export srCreateChannel
func srCreateChannel(ctx C.uint32_t, events, h *C.uint32_t, fdOut *C.int) C.int {
	return with(&contexts, ctx, func(c *userContext) error {
		v, err := c.dev.CreateCompChannel()
		if err != nil {
			return err
		}
		fd, err := newEventfd()
		if err != nil {
			_ = v.Close()
			return err
		}
		v.OnEvent(func(n int) {
			atomic.AddUint32((*uint32)(events), uint32(n))
			fd.add(n)
		})
		*h, *fdOut = C.uint32_t(channels.Add(&channel{v, c, fd})), C.int(fd)
		return nil
	})
}

//export srDestroyChannel
func srDestroyChannel(h C.uint32_t) C.int {
	return errno(channels.Remove(uint32(h), func(ch *channel) error {
		if err := ch.Close(); err != nil {
			return err
		}
		ch.OnEvent(nil)
		return ch.fd.close()
	}))
}

//export srGetCQEvent
func srGetCQEvent(h C.uint32_t, of **C.struct_sr_events) C.int {
	ch := channels.Get(uint32(h))
	if ch == nil {
		return notFound
	}
	q, err := ch.TryGetEvent()
	if err != nil {
		return errnoQuietly(err)
	}
	*of = q.Context().(*object).events
	atomic.AddUint32((*uint32)(&(*of).comp), 1) // before AckEvents, because Close waits for it
	_ = q.AckEvents(1)
	return 0
}

//export srCreateCQ
func srCreateCQ(ctx C.uint32_t, cqe C.int, chh C.uint32_t, timestamps C.int, events *C.struct_sr_events, ready, h *C.uint32_t,
	room *C.int) C.int {
	return with(&contexts, ctx, func(c *userContext) error {
		q := &cq{object: object{c, events}}
		// The front makes the device progress, so Poll need not.
		attr := verbs.CQInitAttr{Context: &q.object, Timestamps: timestamps != 0, Wait: verbs.WaitEvent,
			Ready: (*atomic.Uint32)(unsafe.Pointer(ready))}
		if chh != 0 {
			if q.channel = channels.Get(uint32(chh)); q.channel == nil {
				return syscall.ENOENT
			}
			attr.Channel = q.channel.CompChannel
		}
		var err error
		if q.CQ, err = c.dev.CreateCQ(int(cqe), &attr); err != nil {
			return err
		}
		*h, *room = C.uint32_t(cqs.Add(q)), C.int(q.Cap())
		return nil
	})
}

//export srResizeCQ
func srResizeCQ(h C.uint32_t, cqe C.int, room *C.int) C.int {
	return with(&cqs, h, func(q *cq) error {
		if err := q.Resize(int(cqe)); err != nil {
			return err
		}
		*room = C.int(q.Cap())
		return nil
	})
}

//export srModifyCQ
func srModifyCQ(h C.uint32_t, count, period C.int) C.int {
	return with(&cqs, h, func(q *cq) error {
		return q.Modify(verbs.CQModeration{Count: int(count), Period: time.Duration(period) * time.Microsecond})
	})
}

//export srReqNotifyCQ
func srReqNotifyCQ(h C.uint32_t, solicitedOnly, sleeps C.int) C.int {
	return with(&cqs, h, func(q *cq) error {
		err := q.ReqNotify(solicitedOnly != 0)
		if err == nil && sleeps != 0 {
			q.Device().EndProgress()
		}
		return err
	})
}

//export srDestroyCQ
func srDestroyCQ(h C.uint32_t) C.int {
	return errno(cqs.Remove(uint32(h), func(q *cq) error {
		if err := q.Close(); err != nil {
			return err
		}
		q.discardEvents()
		return nil
	}))
}

// batch is the largest number of completions or work requests that are copied at once.
const batch = 16

// wcPool has buffers for completions that moveWCs copies to C's structures.
var wcPool = sync.Pool{New: func() any { return new([batch]verbs.WC) }}

//export srPollCQ
func srPollCQ(h C.uint32_t, n C.int, wcs *C.struct_sr_wc, exs *C.struct_sr_wc_ex, got *C.int, other C.uint32_t, others *C.struct_sr_wc,
	gotOthers *C.int) C.int {
	q := cqs.Get(uint32(h))
	if q == nil || n < 0 {
		return invalid
	}
	k, err := q.pollInto(int(n), wcs, exs)
	if k == 0 && err == nil && q.ctx.dev.Progress() {
		k, err = q.pollInto(int(n), wcs, exs)
		if o := cqs.Get(uint32(other)); o != nil {
			*gotOthers = C.int(completions(o.CQ, int(n), others))
		}
	}
	if err != nil {
		return errno(err)
	}
	*got = C.int(k)
	return 0
}

// pollInto moves completions to C's structures.
func (q *cq) pollInto(n int, to *C.struct_sr_wc, exs *C.struct_sr_wc_ex) (int, error) {
	if exs != nil {
		return q.pollStamped(unsafe.Slice(to, n), unsafe.Slice(exs, n))
	}
	return moveWCs(q.CQ, n, to)
}

// few is the number of completions that have room on the stack.
const few = 2

// moveWCs moves up to n completions, batch at most, to C's structures. Often there are few. An
// Injector counts calls of Poll, so that there is only one then.
func moveWCs(q *verbs.CQ, n int, to *C.struct_sr_wc) (int, error) {
	if n > few && verbs.InjectorOf(q.Device()) != nil {
		return moveManyWCs(q, unsafe.Slice(to, min(n, batch)))
	}
	var buf [few]verbs.WC
	k, err := q.Poll(buf[:min(n, few)])
	for i := range k {
		setWC(&unsafe.Slice(to, n)[i], &buf[i])
	}
	if k == few && k < n {
		more, _ := moveManyWCs(q, unsafe.Slice(to, min(n, batch))[k:]) // the next poll returns an error
		k += more
	}
	return k, err
}

// moveManyWCs is moveWCs for more than few.
func moveManyWCs(q *verbs.CQ, to []C.struct_sr_wc) (int, error) {
	buf := wcPool.Get().(*[batch]verbs.WC)
	defer wcPool.Put(buf)
	k, err := q.Poll(buf[:len(to)])
	for i := range k {
		setWC(&to[i], &buf[i])
	}
	return k, err
}

// pollStamped is pollInto for a CQ whose completions have fields that struct ibv_wc lacks.
func (q *cq) pollStamped(to []C.struct_sr_wc, exs []C.struct_sr_wc_ex) (k int, err error) {
	p := q.StartPoll()
	for k < len(to) && p.Next() {
		w := p.WC()
		setWC(&to[k], w)
		exs[k] = C.struct_sr_wc_ex{completion_ts: C.uint64_t(p.CompletionTS()), flow_tag: C.uint32_t(w.FlowTag), cvlan: C.uint16_t(w.CVLAN)}
		if t := p.CompletionWallclock(); !t.IsZero() {
			exs[k].wallclock_ns = C.uint64_t(t.UnixNano())
		}
		k++
	}
	if k == 0 {
		err = p.End()
	}
	return k, err
}

// r2RoCE is the bit of a service level that marks a RoCE datagram with a UDP header.
const r2RoCE = 1 << 3

// serviceLevel returns the service level of a completion. For a RoCEv2 datagram it is the packet's
// type, as Mellanox's devices report it: r2RoCE, and the [verbs.NetworkHdrType] in the bits below.
// UCX needs it to find the network header in the first 40 bytes. The priority of the frame is in
// ibv_wc_read_cvlan.
func serviceLevel(w *verbs.WC) uint8 {
	if w.NetworkHdrType == verbs.NetworkHdrNone {
		return w.SL
	}
	return r2RoCE | uint8(w.NetworkHdrType)
}

func setWC(to *C.struct_sr_wc, w *verbs.WC) {
	imm := bits.ReverseBytes32(w.ImmData)
	if w.Flags&verbs.WCWithInv != 0 {
		imm = w.InvalidatedRKey
	}
	*to = C.struct_sr_wc{
		wr_id: C.uint64_t(w.WRID), status: C.uint32_t(w.Status), opcode: C.uint32_t(w.Opcode), vendor_err: C.uint32_t(w.VendorErr),
		byte_len: C.uint32_t(w.ByteLen), imm_data: C.uint32_t(imm), qp_num: C.uint32_t(w.QPNum), src_qp: C.uint32_t(w.SrcQP),
		wc_flags: C.uint32_t(w.Flags), pkey_index: C.uint16_t(w.PKeyIndex), slid: C.uint16_t(w.SLID), sl: C.uint8_t(serviceLevel(w)),
		dlid_path_bits: C.uint8_t(w.DLIDPathBits),
	}
}
