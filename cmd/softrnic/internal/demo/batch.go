package demo

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// operation is an operation with its completions.
type operation struct {
	opcode verbs.WROpcode
	sent   verbs.WCOpcode // at A
	// receives reports whether the message consumes a receive at B. The receive completes with
	// received.
	receives bool
	received verbs.WCOpcode
}

var operations = []operation{
	{verbs.Send, verbs.WCSend, true, verbs.WCRecv},
	{verbs.SendWithImm, verbs.WCSend, true, verbs.WCRecv},
	{verbs.RDMAWrite, verbs.WCRDMAWrite, false, 0},
	{verbs.RDMAWriteWithImm, verbs.WCRDMAWrite, true, verbs.WCRecvRDMAWithImm},
	{verbs.RDMARead, verbs.WCRDMARead, false, 0},
	{verbs.AtomicCmpAndSwp, verbs.WCCompSwap, false, 0},
	{verbs.AtomicFetchAndAdd, verbs.WCFetchAdd, false, 0},
}

func (op *operation) atomic() bool {
	return op.opcode == verbs.AtomicCmpAndSwp || op.opcode == verbs.AtomicFetchAndAdd
}

// missing reports whether a transport lacks the operation. Over iWARP, immediate data is a separate
// message (RFC 7306). It can follow a WRITE but not be part of a SEND.
func (op *operation) missing(t verbs.Transport) bool {
	return t == verbs.IWARP && op.opcode == verbs.SendWithImm
}

func (op *operation) immediate() bool {
	return op.opcode == verbs.SendWithImm || op.opcode == verbs.RDMAWriteWithImm
}

// sizes returns the message sizes of the operation.
func (op *operation) sizes(all []int) []int {
	if op.atomic() {
		return []int{8}
	}
	return all
}

// batches runs one operation with one message size. Message i of a batch uses the i-th slot of both
// buffers.
type batches struct {
	*pair
	transport verbs.Transport
	op        operation
	size      int
	rand      *rand.ChaCha8

	sends []*verbs.SendWR
	recvs []*verbs.RecvWR
	want  [][sha256.Size]byte // of each message
	wcs   []verbs.WC
}

// measure runs op twice for the given time, once for latency and once for throughput.
func (p *pair) measure(ctx context.Context, t verbs.Transport, op operation, size int, each time.Duration) (result, error) {
	result := result{Operation: op.opcode.String(), Size: size}
	if t == verbs.IWARP {
		if err := p.connectIWARP(ctx); err != nil {
			return result, err
		}
	}
	r := p.newRun(t, op, size)
	repeat := func(window int, took func(time.Duration)) error {
		for end := time.Now().Add(each); ; {
			result.Messages += window
			t, verified, err := r.batch(ctx, window)
			result.Verified += verified
			if err != nil {
				return err
			}
			took(t)
			if time.Now().After(end) {
				return nil
			}
		}
	}
	var latencies []time.Duration
	if err := repeat(1, func(t time.Duration) { latencies = append(latencies, t) }); err != nil {
		return result, err
	}
	slices.Sort(latencies)
	p50 := latencies[len(latencies)/2]
	result.P50 = float64(p50.Nanoseconds()) / 1e3

	// On a bad link a single message takes long, and a whole window would take too long.
	window := min(len(r.sends), 1+int(8*each/max(p50, 1)))
	var bits, nanoseconds float64
	err := repeat(window, func(t time.Duration) {
		bits += float64(8 * size * window)
		nanoseconds += float64(t.Nanoseconds())
	})
	if nanoseconds > 0 {
		result.Gbps = bits / nanoseconds
	}
	return result, err
}

func (p *pair) newRun(t verbs.Transport, op operation, size int) *batches {
	window := window
	if size > 0 {
		window = max(1, min(window, p.a.mr.Length()/size))
	}
	var seed [32]byte
	binary.NativeEndian.PutUint64(seed[:], rand.Uint64())
	r := &batches{pair: p, transport: t, op: op, size: size, rand: rand.NewChaCha8(seed),
		want: make([][sha256.Size]byte, window), wcs: make([]verbs.WC, window+1)}
	for i := range window {
		remote := p.b.mr.Addr() + uint64(i*size)
		if op.atomic() {
			remote = p.b.mr.Addr() // all atomics use one word
		}
		r.sends = append(r.sends, &verbs.SendWR{WRID: uint64(i), Opcode: op.opcode, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{p.a.mr.SGE(i*size, size)}, RemoteAddr: remote, RKey: p.b.mr.RKey()})
		r.recvs = append(r.recvs, &verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{p.b.mr.SGE(i*size, size)}})
	}
	return r
}

// batch sends n messages and waits until all are complete. It returns the time that took, and the
// number of messages with correct data at their destination.
func (r *batches) batch(ctx context.Context, n int) (took time.Duration, verified int, err error) {
	last := r.prepare(n)
	if r.op.receives {
		if err := r.b.on(r.transport).PostRecv(r.recvs[:n]...); err != nil {
			return 0, 0, err
		}
	}
	qp, requests := r.a.on(r.transport), n
	start := time.Now()
	if err := qp.PostSend(r.sends[:n]...); err != nil {
		return 0, 0, err
	}
	// Over iWARP a WRITE completes when TCP has accepted it. A READ of zero bytes, posted after
	// it, completes when the WRITE has arrived.
	if r.transport == verbs.IWARP && r.op.opcode == verbs.RDMAWrite {
		requests++
		if err := qp.PostSend(&verbs.SendWR{WRID: uint64(n), Opcode: verbs.RDMARead, Flags: verbs.SendSignaled,
			RemoteAddr: r.b.mr.Addr(), RKey: r.b.mr.RKey()}); err != nil {
			return 0, 0, err
		}
	}
	err = r.a.complete(ctx, r.wcs[:requests], func(i int, wc *verbs.WC) error {
		if wc.Opcode != r.op.sent && i < n {
			return fmt.Errorf("message %d completed as %v, want %v", i, wc.Opcode, r.op.sent)
		}
		return nil
	})
	took = time.Since(start)
	if err == nil && r.op.receives {
		err = r.b.complete(ctx, r.wcs[:n], r.checkReceived)
		if r.transport == verbs.IWARP {
			took = time.Since(start) // the WRITE arrives later than TCP accepts it
		}
	}
	if err != nil {
		return 0, 0, err
	}
	verified = r.verify(n)
	if r.op.atomic() && binary.NativeEndian.Uint64(r.b.mr.Buf()) != last {
		verified = 0
	}
	return took, verified, nil
}

// verify returns the number of messages with correct data at their destination.
func (r *batches) verify(n int) (verified int) {
	for i := range n {
		if sha256.Sum256(slot(r.destination(), i, r.size)) == r.want[i] {
			verified++
		}
	}
	return verified
}

// complete waits for one completion for each of wcs. They must be in posting order.
func (end *side) complete(ctx context.Context, wcs []verbs.WC, check func(i int, wc *verbs.WC) error) error {
	for have := 0; have < len(wcs); {
		n, err := end.cq.Wait(ctx, wcs[have:])
		if err != nil {
			return err
		}
		for range n {
			wc := &wcs[have]
			if wc.WRID != uint64(have) {
				return fmt.Errorf("work request %d completed, want %d", wc.WRID, have)
			}
			if err := check(have, wc); err != nil {
				return err
			}
			have++
		}
	}
	return nil
}

func (r *batches) checkReceived(i int, wc *verbs.WC) error {
	switch {
	case wc.Opcode != r.op.received || int(wc.ByteLen) != r.size:
		return fmt.Errorf("message %d received as %v of %d bytes, want %v of %d", i, wc.Opcode, wc.ByteLen, r.op.received, r.size)
	case r.op.immediate() && (wc.Flags&verbs.WCWithImm == 0 || wc.ImmData != r.sends[i].ImmData):
		return fmt.Errorf("message %d received with immediate %#x (%v), want %#x", i, wc.ImmData, wc.Flags, r.sends[i].ImmData)
	}
	return nil
}

// prepare generates random data for n messages and records the expected data. For atomics it
// returns the expected final value of the word at B.
func (r *batches) prepare(n int) (last uint64) {
	if r.op.atomic() {
		return r.prepareAtomics(n)
	}
	source := r.a.mr.Buf()
	if r.op.opcode == verbs.RDMARead {
		source = r.b.mr.Buf()
	}
	_, _ = r.rand.Read(source[:n*r.size]) // never fails
	for i := range n {
		r.want[i] = sha256.Sum256(slot(source, i, r.size))
		if r.op.immediate() {
			r.sends[i].ImmData = uint32(r.rand.Uint64())
		}
	}
	return 0
}

// prepareAtomics prepares a chain of atomics. Each must return the value that the one before it has
// stored.
func (r *batches) prepareAtomics(n int) (last uint64) {
	last = r.rand.Uint64()
	binary.NativeEndian.PutUint64(r.b.mr.Buf(), last)
	var word [8]byte
	for i, wr := range r.sends[:n] {
		binary.NativeEndian.PutUint64(word[:], last)
		r.want[i] = sha256.Sum256(word[:])
		if next := r.rand.Uint64(); r.op.opcode == verbs.AtomicFetchAndAdd {
			wr.CompareAdd = next
			last += next
		} else {
			wr.CompareAdd, wr.Swap = last, next
			last = next
		}
	}
	return last
}

// destination returns the buffer that messages are placed in.
func (r *batches) destination() []byte {
	if r.op.atomic() || r.op.opcode == verbs.RDMARead {
		return r.a.mr.Buf()
	}
	return r.b.mr.Buf()
}

func slot(buf []byte, i, size int) []byte { return buf[i*size : (i+1)*size] }
