package conformance

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"

	"github.com/softrnic/softrnic/verbs"
)

// area is one of the memory areas of a node.
type area uint8

const (
	source   area = iota // never written: data for SENDs, WRITEs and the peer's READs
	target               // the peer WRITEs and READs it
	counters             // the peer's atomics; words of 8 bytes
	sink                 // results of READs and atomics
	inbox                // received SENDs
	areas
)

var areaNames = [areas]string{"source", "target", "counters", "sink", "inbox"}

var areaAccess = [areas]verbs.Access{
	source:   verbs.AccessRemoteRead,
	target:   verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead,
	counters: verbs.AccessLocalWrite | verbs.AccessRemoteAtomic,
	sink:     verbs.AccessLocalWrite,
	inbox:    verbs.AccessLocalWrite,
}

// piece is a part of an area.
type piece struct {
	area   area
	off, n int
}

// op is a send work request and all its expected effects.
type op struct {
	code   verbs.WROpcode
	flags  verbs.SendFlags
	imm    uint32
	local  []piece // of the requester
	remote piece   // of the responder
	add    uint64  // atomics: to add, or to compare with
	swap   uint64
	length int

	recv int // the receive request that it consumes, or -1

	localEffects, remoteEffects []effect
}

// effect is the expected content of memory.
type effect struct {
	area area
	off  int
	data []byte
}

// recvOp is one receive request.
type recvOp struct {
	local  []piece
	room   int
	opcode verbs.WCOpcode
	length int
	imm    uint32
	hasImm bool
}

// flow is the work of one direction: the requester's operations, and the responder's receives for
// them.
type flow struct {
	ops   []op
	recvs []recvOp
}

// shape limits the planned work.
type shape struct {
	mtu        int
	ops        int
	sendWR     int
	sendSGE    int
	recvSGE    int
	inline     int // max_inline_data
	rd         int // if 0, no READs and atomics are planned
	unsignaled bool
	fences     bool
	large      int // number of messages of up to 300 KB
}

// memory is the contents of a node's areas.
type memory [areas][]byte

const (
	sourceSize  = 384 << 10
	targetSize  = 384 << 10
	counterSize = 64
)

// model is a node's memory before the work and after the planned work. Sink and inbox grow with the
// plan. The gaps in them hold random bytes that must not change.
type model struct{ start, now memory }

func newModel(r *rand.Rand) *model {
	var m model
	for a, n := range [areas]int{source: sourceSize, target: targetSize, counters: counterSize} {
		m.start[a] = make([]byte, n)
		fill(r, m.start[a])
	}
	m.now = m.start.clone()
	return &m
}

func fill(r *rand.Rand, b []byte) {
	for ; len(b) >= 8; b = b[8:] {
		binary.LittleEndian.PutUint64(b, r.Uint64())
	}
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func (m *memory) clone() (c memory) {
	for i, b := range m {
		c[i] = append([]byte(nil), b...)
	}
	return c
}

func (m *memory) apply(effects []effect) {
	for _, e := range effects {
		copy(m[e.area][e.off:], e.data)
	}
}

// planner plans one flow. It runs every operation on the model as it plans it.
type planner struct {
	r          *rand.Rand
	shape      shape
	mine       *model // the requester's
	theirs     *model // the responder's
	flow       flow
	large      int
	targetRead bool // a READ of target may be incomplete: a WRITE there must wait for it
}

func (p *planner) plan() *flow {
	p.large = p.shape.large
	for range p.shape.ops {
		p.add()
	}
	// Unsignalled requests must not fill the queue, and the completion of the last must be known.
	since := 0
	for i := range p.flow.ops {
		o := &p.flow.ops[i]
		if since++; since >= p.shape.sendWR/2 || i == len(p.flow.ops)-1 {
			o.flags |= verbs.SendSignaled
		}
		if o.flags&verbs.SendSignaled != 0 {
			since = 0
		}
	}
	return &p.flow
}

func (p *planner) add() {
	codes := []verbs.WROpcode{verbs.Send, verbs.SendWithImm, verbs.RDMAWrite, verbs.RDMAWriteWithImm}
	if p.shape.rd > 0 {
		codes = append(codes, verbs.RDMARead, verbs.RDMARead, verbs.AtomicCmpAndSwp, verbs.AtomicFetchAndAdd)
	}
	o := op{code: codes[p.r.IntN(len(codes))], imm: p.r.Uint32(), recv: -1, flags: verbs.SendSignaled}
	if p.shape.unsignaled && p.r.IntN(2) == 0 {
		o.flags = 0
	}
	if p.shape.fences && p.r.IntN(5) == 0 {
		o.flags |= verbs.SendFence
	}
	if p.r.IntN(4) == 0 {
		o.flags |= verbs.SendSolicited
	}
	switch o.code {
	case verbs.Send, verbs.SendWithImm, verbs.RDMAWrite, verbs.RDMAWriteWithImm:
		p.data(&o)
	case verbs.RDMARead:
		p.read(&o)
	default:
		p.atomic(&o)
	}
	p.mine.now.apply(o.localEffects)
	p.theirs.now.apply(o.remoteEffects)
	p.flow.ops = append(p.flow.ops, o)
}

// size draws a message length.
func (p *planner) size() int {
	mtu := p.shape.mtu
	switch k := p.r.IntN(100); {
	case k < 5:
		return 0
	case k < 35:
		return 1 + p.r.IntN(64)
	case k < 60: // around full packets
		return max(0, (1+p.r.IntN(4))*mtu+p.r.IntN(5)-2)
	case k < 95:
		return p.r.IntN(8 * mtu)
	}
	if p.large > 0 {
		p.large--
		return p.r.IntN(300_000)
	}
	return p.r.IntN(2 * mtu)
}

// data plans a SEND or WRITE, with or without immediate data.
func (p *planner) data(o *op) {
	o.length = p.size()
	if p.shape.inline > 0 && p.r.IntN(4) == 0 {
		o.flags |= verbs.SendInline
		o.length = p.r.IntN(p.shape.inline + 1)
	}
	o.local = p.pieces(source, o.length, p.shape.sendSGE)
	var msg []byte
	for _, l := range o.local {
		msg = append(msg, p.mine.now[l.area][l.off:l.off+l.n]...)
	}
	switch o.code {
	case verbs.RDMAWrite, verbs.RDMAWriteWithImm:
		if p.targetRead && o.length > 0 {
			// A repeated READ would see this WRITE.
			o.flags |= verbs.SendFence
			p.targetRead = false
		}
		o.remote = piece{target, p.r.IntN(targetSize - o.length + 1), o.length}
		o.remoteEffects = append(o.remoteEffects, effect{target, o.remote.off, msg})
		if o.code == verbs.RDMAWriteWithImm {
			p.receive(o, recvOp{opcode: verbs.WCRecvRDMAWithImm, imm: o.imm, hasImm: true, length: o.length}, nil)
		}
	case verbs.Send:
		p.receive(o, recvOp{opcode: verbs.WCRecv, length: o.length}, msg)
	case verbs.SendWithImm:
		p.receive(o, recvOp{opcode: verbs.WCRecv, imm: o.imm, hasImm: true, length: o.length}, msg)
	}
}

// receive plans the receive request that o consumes, with room for msg and perhaps more.
func (p *planner) receive(o *op, rv recvOp, msg []byte) {
	rv.room = len(msg)
	if p.r.IntN(2) == 0 {
		rv.room += p.r.IntN(100)
	}
	rv.local = p.grow(p.theirs, inbox, rv.room, p.shape.recvSGE)
	for _, l := range rv.local {
		n := min(len(msg), l.n)
		o.remoteEffects = append(o.remoteEffects, effect{inbox, l.off, msg[:n]})
		msg = msg[n:]
	}
	o.recv = len(p.flow.recvs)
	p.flow.recvs = append(p.flow.recvs, rv)
}

func (p *planner) read(o *op) {
	o.length = p.size()
	o.remote = piece{source, p.r.IntN(sourceSize - o.length + 1), o.length}
	if p.r.IntN(2) == 0 {
		o.remote = piece{target, p.r.IntN(targetSize - o.length + 1), o.length}
		p.targetRead = true
	}
	got := append([]byte(nil), p.theirs.now[o.remote.area][o.remote.off:o.remote.off+o.length]...)
	o.local = p.grow(p.mine, sink, o.length, p.shape.sendSGE)
	for _, l := range o.local {
		o.localEffects = append(o.localEffects, effect{sink, l.off, got[:l.n]})
		got = got[l.n:]
	}
}

func (p *planner) atomic(o *op) {
	o.length = 8
	o.remote = piece{counters, 8 * p.r.IntN(counterSize/8), 8}
	word := p.theirs.now[counters][o.remote.off:]
	orig := binary.NativeEndian.Uint64(word)
	o.add, o.swap = p.r.Uint64(), p.r.Uint64()
	result := orig + o.add
	if o.code == verbs.AtomicCmpAndSwp {
		if p.r.IntN(3) > 0 {
			o.add = orig
		}
		if result = orig; o.add == orig {
			result = o.swap
		}
	}
	o.local = p.grow(p.mine, sink, 8, 1)
	o.localEffects = []effect{{sink, o.local[0].off, binary.NativeEndian.AppendUint64(nil, orig)}}
	o.remoteEffects = []effect{{counters, o.remote.off, binary.NativeEndian.AppendUint64(nil, result)}}
}

// cut divides n bytes into at most sges lengths, some of them 0.
func (p *planner) cut(n, sges int) []int {
	k := 1
	if sges > 1 && p.r.IntN(3) > 0 {
		k = 1 + p.r.IntN(sges)
	}
	if n == 0 && p.r.IntN(2) == 0 {
		return nil
	}
	lengths := make([]int, k)
	for i := range k - 1 {
		lengths[i] = p.r.IntN(1 + 2*n/k)
		if p.r.IntN(8) == 0 {
			lengths[i] = 0
		}
		lengths[i] = min(lengths[i], n)
		n -= lengths[i]
	}
	lengths[k-1] = n
	return lengths
}

// pieces returns a list of n bytes from random places of an area.
func (p *planner) pieces(a area, n, sges int) []piece {
	var list []piece
	for _, l := range p.cut(n, sges) {
		list = append(list, piece{a, p.r.IntN(len(p.mine.now[a]) - l + 1), l})
	}
	return list
}

// grow returns a list of n new bytes at the end of an area, in random order and with gaps.
func (p *planner) grow(m *model, a area, n, sges int) []piece {
	lengths := p.cut(n, sges)
	list := make([]piece, len(lengths))
	for _, i := range p.r.Perm(len(lengths)) {
		gap := make([]byte, p.r.IntN(10)+lengths[i])
		fill(p.r, gap)
		m.start[a] = append(m.start[a], gap...)
		m.now[a] = append(m.now[a], gap...)
		list[i] = piece{a, len(m.now[a]) - lengths[i], lengths[i]}
	}
	return list
}

func (o *op) String() string {
	return fmt.Sprintf("%v of %d bytes (%v) at %s+%d, %d SGEs", o.code, o.length, o.flags, areaNames[o.remote.area],
		o.remote.off, len(o.local))
}
