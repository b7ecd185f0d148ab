//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"errors"
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

// sends has the work requests of srPostSend in the form of package verbs.
type sends struct {
	wrs     [batch]verbs.SendWR
	ptrs    [batch]*verbs.SendWR
	binds   [batch]verbs.MWBind
	binding bool   // one of the requests binds a window
	inline  []byte // data of inline requests with several SGEs
}

// recvs has receive requests in the form of package verbs.
type recvs struct {
	wrs  [batch]verbs.RecvWR
	ptrs [batch]*verbs.RecvWR
}

var (
	sendPool = sync.Pool{New: func() any {
		s := new(sends)
		for i := range s.wrs {
			s.ptrs[i] = &s.wrs[i]
		}
		return s
	}}
	recvPool = sync.Pool{New: func() any {
		r := new(recvs)
		for i := range r.wrs {
			r.ptrs[i] = &r.wrs[i]
		}
		return r
	}}
)

// sges returns a list of C, whose SGEs have the layout of verbs'. If n is out of range or list is
// NULL, it returns a list that verbs rejects.
func sges(list *C.struct_sr_sge, n C.int) []verbs.SGE {
	if n < 0 || n > maxSGEs || n > 0 && list == nil {
		return make([]verbs.SGE, maxSGEs)
	}
	return unsafe.Slice((*verbs.SGE)(unsafe.Pointer(list)), int(n))
}

// maxSGEs is longer than any list that a device accepts.
const maxSGEs = 1 << 12

// handleAt returns the handle in a structure of libibverbs.
func handleAt(p unsafe.Pointer, offset uintptr) uint32 {
	if p == nil {
		return 0
	}
	return *(*uint32)(unsafe.Add(p, offset))
}

// pointer returns the pointer in a field of a C structure.
func pointer(addr *C.uint64_t) unsafe.Pointer { return *(*unsafe.Pointer)(unsafe.Pointer(addr)) }

// isPlain reports whether a request needs nothing of sends: it binds no window, and its inline data
// is in one piece. Most requests are plain.
func isPlain(c *C.struct_sr_send_wr) bool {
	return c.opcode != C.uint32_t(verbs.BindMW) && (c.send_flags&C.uint32_t(verbs.SendInline) == 0 || c.num_sge == 1)
}

// set converts c to request i.
func (s *sends) set(i int, c *C.struct_sr_send_wr, flags C.int) {
	w := &s.wrs[i]
	convert(w, c, flags, &s.inline)
	if w.Opcode == verbs.BindMW {
		s.binds[i] = verbs.MWBind{
			MW: windowAt(c.mw), RKey: uint32(c.bind_rkey),
			MWBindInfo: verbs.MWBindInfo{MR: regionAt(c.bind_mr), Addr: uint64(c.bind_addr), Length: uint64(c.bind_length),
				Access: bindAccess(c.bind_access)},
		}
		w.Bind, s.binding = &s.binds[i], true
	}
}

// convert sets w to c without its bind. Inline data in several pieces is appended to inline, which
// may be nil if c is plain. Flags that do not exist are refused later.
func convert(w *verbs.SendWR, c *C.struct_sr_send_wr, flags C.int, inline *[]byte) {
	*w = verbs.SendWR{WRID: uint64(c.wr_id), Opcode: enum[verbs.WROpcode](c.opcode), Flags: enum[verbs.SendFlags](c.send_flags),
		RemoteSRQN: uint32(c.remote_srqn) & 0xffffff}
	if c.send_flags&C.uint32_t(verbs.SendInline) != 0 {
		w.InlineData = gather(c, flags>>C.SR_POST_SGES, inline)
	} else {
		w.SGList = sges(c.sg_list, c.num_sge)
	}
	switch w.Opcode {
	case verbs.SendWithImm, verbs.RDMAWriteWithImm:
		w.ImmData = bits.ReverseBytes32(uint32(c.imm_data))
	case verbs.SendWithInv, verbs.LocalInv:
		w.InvalidateRKey = uint32(c.imm_data)
	case verbs.BindMW:
		return
	}
	switch {
	case flags&C.SR_POST_UD != 0:
		w.AH = ahs.Get(handleAt(pointer(&c.remote_addr), C.SR_AH_HANDLE))
		w.RemoteQPN, w.RemoteQKey = uint32(c.word1)&0xffffff, uint32(c.word1>>32)
	case w.Opcode == verbs.Flush: // libibverbs/wr.c
		w.RemoteAddr, w.RKey, w.FlushLength = uint64(c.remote_addr), uint32(c.word1), uint32(c.swap)
		w.FlushType, w.FlushLevel = verbs.FlushType(c.imm_data), verbs.FlushLevel(c.imm_data>>8)
	case w.Opcode == verbs.AtomicCmpAndSwp || w.Opcode == verbs.AtomicFetchAndAdd:
		w.RemoteAddr, w.RKey, w.CompareAdd, w.Swap = uint64(c.remote_addr), uint32(c.atomic_rkey), uint64(c.word1), uint64(c.swap)
	default:
		w.RemoteAddr, w.RKey = uint64(c.remote_addr), uint32(c.word1)
	}
}

// maxInline limits the inline data of a request, in bytes. The limit of verbs is lower.
const maxInline = 1 << 16

// gather returns the data of an inline request. The front has already read the memory, so it is
// mapped. If the request has too many SGEs, or no list of them, the front has not read the memory,
// and gather does not read it either.
func gather(c *C.struct_sr_send_wr, limit C.int, inline *[]byte) []byte {
	if c.num_sge < 0 || c.num_sge > limit || c.num_sge > 0 && c.sg_list == nil {
		return make([]byte, maxInline) // too long for any QP
	}
	list := sges(c.sg_list, c.num_sge)
	if len(list) == 1 {
		return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&list[0].Addr))), min(int(list[0].Length), maxInline))
	}
	at := len(*inline)
	for _, e := range list {
		if e.Length > maxInline || len(*inline)-at > maxInline {
			return make([]byte, maxInline) // too long for any QP
		}
		*inline = append(*inline, unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&e.Addr))), int(e.Length))...)
	}
	return (*inline)[at:len(*inline):len(*inline)]
}

// posted returns the number of requests posted before err.
func posted(n int, err error) int {
	if err == nil {
		return n
	}
	return postedBefore(err)
}

//go:noinline // inlined, its variable would be allocated even without an error
func postedBefore(err error) int {
	var refused *verbs.PostError
	if errors.As(err, &refused) {
		return refused.Index
	}
	return 0
}

//export srPostSend
func srPostSend(h C.uint32_t, c *C.struct_sr_send_wr, flags C.int, done *C.int, room C.int, wcs *C.struct_sr_wc, got *C.int) C.int {
	*done = 0
	q := qps.Get(uint32(h))
	if q == nil {
		return notFound
	}
	var err error
	switch {
	case flags&C.SR_POST_ALL != 0:
		s := sendPool.Get().(*sends)
		err = s.postAll(q, c, flags)
		sendPool.Put(s)
	case c != nil && c.next == nil && isPlain(c):
		var w verbs.SendWR // on the stack: no pool is asked
		convert(&w, c, flags, nil)
		if room > 0 && verbs.InjectorOf(q.Device()) == nil { // it counts calls of Poll
			return q.postAndTake(&w, int(room), done, wcs, got)
		}
		if err = q.PostSend(&w); err == nil {
			*done = 1
		}
	default:
		s := sendPool.Get().(*sends)
		err = s.postList(q, c, flags, done)
		sendPool.Put(s)
	}
	if err != nil {
		return errno(err)
	}
	if room > 0 {
		*got = C.int(completions(q.SendCQ(), int(room), wcs))
	}
	return 0
}

// postAndTake posts a request, and moves available completions to C's structures.
func (q *qp) postAndTake(w *verbs.SendWR, room int, done *C.int, wcs *C.struct_sr_wc, got *C.int) C.int {
	var wc [1]verbs.WC
	n, err := q.PostSendAndPoll(w, wc[:])
	if err != nil {
		return errno(err)
	}
	*done = 1
	if n == 0 {
		return 0
	}
	setWC(wcs, &wc[0])
	if room > 1 {
		n += completions(q.SendCQ(), room-1, &unsafe.Slice(wcs, 2)[1])
	}
	*got = C.int(n)
	return 0
}

// completions moves available completions to C's structures. An error of the CQ is returned by the
// next poll.
func completions(q *verbs.CQ, room int, to *C.struct_sr_wc) int {
	k, err := moveWCs(q, room, to)
	if err != nil {
		k = 0
	}
	return k
}

// postList posts a list up to the first refused request.
func (s *sends) postList(q *qp, c *C.struct_sr_send_wr, flags C.int, done *C.int) error {
	for c != nil {
		n, first := 0, c
		s.inline = s.inline[:0]
		for ; c != nil && n < batch; c, n = c.next, n+1 {
			s.set(n, c, flags)
		}
		err := q.PostSend(s.ptrs[:n]...)
		k := posted(n, err)
		*done += C.int(k)
		if s.binding {
			setBoundKeys(first, k)
			s.binding = false
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// postAll posts all requests of a list or none.
func (s *sends) postAll(q *qp, c *C.struct_sr_send_wr, flags C.int) error {
	first, n := c, 0
	s.inline = s.inline[:0]
	err := q.PostSendAll(func() *verbs.SendWR {
		if c == nil {
			return nil
		}
		s.set(0, c, flags)
		c, n = c.next, n+1
		return &s.wrs[0]
	})
	if s.binding && err == nil {
		setBoundKeys(first, n)
	}
	s.binding = false
	return err
}

// recvOf returns a receive request.
func recvOf(c *C.struct_sr_recv_wr) verbs.RecvWR {
	return verbs.RecvWR{WRID: uint64(c.wr_id), SGList: sges(c.sg_list, c.num_sge)}
}

// isOne reports whether a list has one request, which is then on the stack while it is posted.
func isOne(c *C.struct_sr_recv_wr) bool { return c != nil && c.next == nil }

// postedOne sets done after the post of one request, and returns the errno of its error.
func postedOne(err error, done *C.int) C.int {
	if err != nil {
		return errno(err)
	}
	*done = 1
	return 0
}

// postRecvs posts a list of receive requests with post.
func postRecvs(c *C.struct_sr_recv_wr, post func(...*verbs.RecvWR) error, done *C.int) C.int {
	r := recvPool.Get().(*recvs)
	defer recvPool.Put(r)
	for c != nil {
		n := 0
		for ; c != nil && n < batch; c, n = c.next, n+1 {
			r.wrs[n] = recvOf(c)
		}
		err := post(r.ptrs[:n]...)
		*done += C.int(posted(n, err))
		if err != nil {
			return errno(err)
		}
	}
	return 0
}

//export srPostRecv
func srPostRecv(h C.uint32_t, c *C.struct_sr_recv_wr, done *C.int) C.int {
	*done = 0
	q := qps.Get(uint32(h))
	if q == nil {
		return notFound
	}
	switch {
	case c == nil: // for what is in the QP's ring
		return errno(q.PostRecv())
	case isOne(c):
		w := recvOf(c)
		return postedOne(q.PostRecv(&w), done)
	}
	return postRecvs(c, q.PostRecv, done)
}

//export srUseRecvRing
func srUseRecvRing(h C.uint32_t, r *C.struct_sr_recv_ring) C.int {
	return with(&qps, h, func(q *qp) error {
		attr, err := verbs.Attributes(q.QP)
		if err != nil {
			return err
		}
		counter := func(p *C.uint32_t) *atomic.Uint32 { return (*atomic.Uint32)(unsafe.Pointer(p)) }
		return q.UseRecvRing(&verbs.RecvRing{
			Posted: counter(&r.posted), Completed: counter(&r.completed), Closed: counter(&r.closed),
			WRs:  unsafe.Slice((*verbs.RingRecvWR)(unsafe.Pointer(r.wrs)), int(r.size)),
			SGEs: unsafe.Slice((*verbs.SGE)(unsafe.Pointer(r.sges)), int(r.size)*attr.Cap.MaxRecvSGE),
		})
	})
}

//export srPostSRQRecv
func srPostSRQRecv(h C.uint32_t, c *C.struct_sr_recv_wr, done *C.int) C.int {
	*done = 0
	s := srqs.Get(uint32(h))
	if s == nil {
		return notFound
	}
	if isOne(c) {
		w := recvOf(c)
		return postedOne(s.PostRecv(&w), done)
	}
	return postRecvs(c, s.PostRecv, done)
}
