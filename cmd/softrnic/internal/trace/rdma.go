package trace

import (
	"errors"
	"fmt"
	"slices"

	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
)

// maxReads is the most READs and atomics of one direction that are kept until they are answered.
const maxReads = 1 << 10

// rdma is the state of the DDP segments and RDMAP messages of one direction.
type rdma struct {
	queues     [rdmap.Queues]ddp.Queue
	reads      []readRequest // of this side, without an answer
	tagged     bool          // within a tagged message
	op         rdmap.Opcode
	stag       uint32
	to         uint64
	messages   uint32
	terminated int  // the packet with the Terminate
	midway     bool // it is followed from its midst
	known      [rdmap.Queues]bool
}

// readRequest is a READ or an atomic.
type readRequest struct {
	number int
	time   int64
	atomic bool
	id     uint32 // atomic: of the request
	stag   uint32
	to     uint64
	size   uint32
	got    uint32
}

// direction receives the ULPDUs of one direction.
type direction struct {
	a    *analysis
	s    *stream
	side int
	n    int // of the segment's FPDUs
}

// fpdus analyses the next bytes of FPDUs.
func (a *analysis) fpdus(s *stream, side int, b []byte) {
	h := &s.half[side]
	d := direction{a: a, s: s, side: side}
	if err := h.receiver.Feed(b, &d); err != nil {
		a.report(wrong, nil, a.ev.number, "%v; what is after it is not followed", err)
		h.phase = unfollowed
		h.receiver.Release()
	}
	const most = 3
	if d.n > most && a.detail {
		a.ev.operation += fmt.Sprintf(" and %d more", d.n-most)
	} else if d.n == 0 && a.detail && a.ev.operation == "" {
		a.ev.operation = "part of an FPDU"
	}
}

// say adds a message to the packet's line.
func (d *direction) say(format string, args ...any) {
	if d.n++; d.a.detail && d.n <= 3 {
		d.a.ev.operation = join(d.a.ev.operation, fmt.Sprintf(format, args...))
	}
}

// ULPDU analyses one DDP segment (RFC 5041 §4) and its RDMAP message (RFC 5040 §4).
func (d *direction) ULPDU(b []byte) error {
	r := &d.s.half[d.side].rdma
	if r.terminated != 0 {
		d.a.report(wrong, nil, d.a.ev.number, "an FPDU after the Terminate of packet %d", r.terminated)
	}
	if len(b) == 0 {
		return errors.New("an empty ULPDU, which has no DDP header")
	}
	if ddp.IsTagged(b) {
		return d.taggedSegment(b)
	}
	return d.untaggedSegment(b)
}

func (d *direction) taggedSegment(b []byte) error {
	r := &d.s.half[d.side].rdma
	h, payload, err := ddp.ParseTagged(b)
	if err != nil {
		return err
	}
	op, err := rdmap.ParseControl(h.RsvdULP)
	if err == nil {
		err = op.CheckTagged()
	}
	if err == nil {
		err = ddp.CheckTO(h.TO, len(payload))
	}
	if err != nil {
		return err
	}
	// The segments of a tagged message are consecutive among the tagged segments of a direction
	// (RFC 5041 §5.2).
	if r.tagged && r.op == op && (h.STag != r.stag || h.TO != r.to) {
		d.a.report(wrong, nil, d.a.ev.number, "a segment of %v at STag %#x, offset %#x: the message goes on at STag %#x, offset %#x", op,
			h.STag, h.TO, r.stag, r.to)
	}
	r.tagged, r.op, r.stag, r.to = !h.Last, op, h.STag, h.TO+uint64(len(payload))
	d.a.ev.class = request
	last := ""
	if h.Last {
		last = ", last"
		r.messages++
		d.s.half[d.side].stats.Messages++
	}
	d.say("%v %d bytes at STag %#x + %#x%s", op, len(payload), h.STag, h.TO, last)
	if op == rdmap.ReadResponse {
		d.readResponse(&h, len(payload))
	}
	return nil
}

// readResponse checks a segment against the oldest READ of the other side. Responses are in the
// order of the requests, with the sink of the request (RFC 5040 §4.4, §5.2).
func (d *direction) readResponse(h *ddp.Tagged, n int) {
	a := d.a
	a.ev.class = response
	other := &d.s.half[1-d.side].rdma
	found, guessed := d.choose(func(q *readRequest) bool {
		return !q.atomic && q.stag == h.STag && h.TO-q.to < uint64(max(q.size, 1))
	})
	if !found {
		return
	}
	if len(other.reads) == 0 || other.reads[0].atomic {
		if d.s.half[1-d.side].phase == framed {
			a.report(wrong, nil, a.ev.number, "an RDMA Read Response to no request")
		}
		return
	}
	q := &other.reads[0]
	if guessed && q.size > 0 { // the segments before may not be in the capture
		q.got = uint32(h.TO - q.to)
	}
	a.ev.answers, a.ev.since = q.number, a.ev.time-q.time
	if q.size > 0 && (h.STag != q.stag || h.TO != q.to+uint64(q.got)) {
		a.report(wrong, nil, a.ev.number, "the response to the READ of packet %d goes on at STag %#x, offset %#x, where %#x, %#x is next",
			q.number, h.STag, h.TO, q.stag, q.to+uint64(q.got))
	}
	q.got += uint32(n)
	if h.Last || q.got >= q.size {
		if !guessed && (!h.Last || q.got != q.size) {
			a.report(wrong, nil, a.ev.number, "%d bytes answer the READ of packet %d, which asks for %d", q.got, q.number, q.size)
		}
		d.s.half[1-d.side].stats.roundTrip(a.ev.time - q.time)
		other.reads = append(other.reads[:0], other.reads[1:]...)
	}
}

// choose finds the request that an answer is to. It is the oldest one, unless a part of one of the
// directions is not in the capture: then it is the oldest that fits, or none, and guessed.
func (d *direction) choose(fits func(*readRequest) bool) (found, guessed bool) {
	r, other := &d.s.half[d.side].rdma, &d.s.half[1-d.side].rdma
	if !r.midway && !other.midway {
		return true, false
	}
	i := slices.IndexFunc(other.reads, func(q readRequest) bool { return fits(&q) })
	if i < 0 {
		return false, true
	}
	other.reads = append(other.reads[:0], other.reads[i:]...)
	return true, true
}

func (d *direction) untaggedSegment(b []byte) error {
	a, r := d.a, &d.s.half[d.side].rdma
	h, payload, err := ddp.ParseUntagged(b)
	if err != nil {
		return err
	}
	op, err := rdmap.ParseControl(h.RsvdULP)
	if err == nil {
		err = op.CheckUntagged(h.QN)
	}
	if err != nil {
		return err
	}
	if r.midway && !r.known[h.QN] {
		r.queues[h.QN].Join(h.MSN, h.MO)
	}
	r.known[h.QN] = true
	if _, err := r.queues[h.QN].Accept(&h, len(payload)); err != nil {
		return fmt.Errorf("%w: queue %d, MSN %d, offset %d; the next is MSN %d", err, h.QN, h.MSN, h.MO, r.queues[h.QN].MSN())
	}
	if h.Last {
		r.messages++
		d.s.half[d.side].stats.Messages++
	}
	a.ev.class = request
	a.ev.message = h.MSN
	switch op {
	case rdmap.ReadRequest:
		m, err := rdmap.ParseReadRequest(payload)
		if err != nil {
			return err
		}
		d.await(readRequest{stag: m.SinkSTag, to: m.SinkTO, size: m.Size})
		d.say("%v of %d bytes at STag %#x + %#x, MSN %d", op, m.Size, m.SourceSTag, m.SourceTO, h.MSN)
	case rdmap.AtomicRequest:
		m, err := rdmap.ParseAtomicRequest(payload)
		if err != nil {
			return err
		}
		d.await(readRequest{atomic: true, id: m.ID})
		d.say("%v at STag %#x + %#x, MSN %d", op, m.STag, m.TO, h.MSN)
	case rdmap.AtomicResponse:
		m, err := rdmap.ParseAtomicResponse(payload)
		if err != nil {
			return err
		}
		a.ev.class = response
		d.atomicResponse(m.ID)
		d.say("%v, MSN %d", op, h.MSN)
	case rdmap.Terminate:
		m, err := rdmap.ParseTerminate(payload)
		if err != nil && len(payload) < rdmap.TerminateLen {
			return err
		}
		a.ev.class = negative
		r.terminated = a.ev.number
		d.say("Terminate: %v", m.Cause)
	default:
		last := ""
		if h.Last {
			last = ", last"
		}
		d.say("%v %d bytes, MSN %d%s", op, len(payload), h.MSN, last)
		d.sent(&h, payload)
	}
	return nil
}

// await keeps a request until its answer.
func (d *direction) await(q readRequest) {
	r := &d.s.half[d.side].rdma
	q.number, q.time = d.a.ev.number, d.a.ev.time
	if len(r.reads) >= maxReads {
		r.reads = append(r.reads[:0], r.reads[1:]...)
	}
	r.reads = append(r.reads, q)
}

func (d *direction) atomicResponse(id uint32) {
	a, other := d.a, &d.s.half[1-d.side].rdma
	if found, _ := d.choose(func(q *readRequest) bool { return q.atomic && q.id == id }); !found {
		return
	}
	if len(other.reads) == 0 || !other.reads[0].atomic || other.reads[0].id != id {
		if d.s.half[1-d.side].phase == framed {
			a.report(wrong, nil, a.ev.number, "an Atomic Response to request %#x, which is not the next one to be answered", id)
		}
		return
	}
	q := other.reads[0]
	a.ev.answers, a.ev.since = q.number, a.ev.time-q.time
	d.s.half[1-d.side].stats.roundTrip(a.ev.time - q.time)
	other.reads = append(other.reads[:0], other.reads[1:]...)
}

// sent takes a segment of a Send in order.
func (d *direction) sent(h *ddp.Untagged, payload []byte) {
	u := d.s.upper
	if !d.a.detail || u == nil {
		return
	}
	if m := d.a.collect(&d.s.half[d.side].prefix, u, payload, h.MO == 0, h.Last); m.b != nil {
		m.from, m.again = d.side, false // TCP delivers the bytes once
		d.a.above(u, &m)
	}
}
