//go:build linux

package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// room is the memory that operate needs on each side, except for large messages.
const room = 100_000

// operate runs every operation from one side to the other, with messages of these sizes. It checks
// that both sides then have the same data. The PSN wraps during the run.
func operate(t *testing.T, requester, responder *side, mtu verbs.MTU, sizes ...int) {
	t.Helper()
	p := usual
	p.mtu, p.psn, p.rdAtomic = mtu, 0xfffff0, 3
	o := newOperation(t, requester, responder, p, max(room, slices.Max(sizes)))
	for _, size := range sizes {
		for _, opcode := range transfers {
			o.transfer(opcode, size)
		}
	}
	for _, opcode := range []verbs.WROpcode{verbs.Send, verbs.RDMAWrite, verbs.RDMARead} {
		o.scatter(opcode, 1, 1500, 0, 2047, 3)
		o.scatter(opcode, thirtyTwo...)
	}
	o.inline(verbs.Send)
	o.inline(verbs.RDMAWrite)
	o.atomics()
	o.outstanding()
	o.lateReceive()
}

// transfers are the operations that move a message.
var transfers = []verbs.WROpcode{verbs.Send, verbs.SendWithImm, verbs.RDMAWrite, verbs.RDMAWriteWithImm, verbs.RDMARead}

// thirtyTwo lengths, the maximum of a list on either device.
var thirtyTwo = func() (lengths []int) {
	for i := range 32 {
		lengths = append(lengths, i*97%331)
	}
	return lengths
}()

// newOperation connects two sides, with memory for messages of size bytes.
func newOperation(t *testing.T, requester, responder *side, p path, size int) *operation {
	t.Helper()
	connect(t, requester, responder, p)
	return &operation{
		t: t, requester: requester, responder: responder,
		local: requester.pd.regMR(size+8, allAccess), remote: responder.pd.regMR(size+8, allAccess),
	}
}

type operation struct {
	t                    *testing.T
	requester, responder *side
	local, remote        memory
	id                   uint64 // of the last request
	// A WRITE completes when it is sent, as over iWARP, not when it has arrived.
	posted bool
}

func (o *operation) post(wr verbs.SendWR) {
	o.t.Helper()
	o.id++
	wr.WRID, wr.Flags = o.id, wr.Flags|verbs.SendSignaled
	if wr.Opcode != verbs.Send && wr.Opcode != verbs.SendWithImm {
		wr.RKey = o.remote.RKey()
		if wr.RemoteAddr == 0 {
			wr.RemoteAddr = o.remote.Addr()
		}
	}
	if err := o.requester.qp.PostSend(&wr); err != nil {
		o.t.Fatal(err)
	}
}

func (o *operation) postRecv(sges ...verbs.SGE) {
	o.t.Helper()
	if err := o.responder.qp.PostRecv(&verbs.RecvWR{WRID: o.id + 1, SGList: sges}); err != nil {
		o.t.Fatal(err)
	}
}

// sent polls the completion of the last request.
func (o *operation) sent(what string, opcode verbs.WCOpcode) verbs.WC {
	o.t.Helper()
	return o.completed(what, "request", o.requester.qp.PollSend(1, patience), opcode)
}

// received polls the completion of the last receive.
func (o *operation) received(what string, opcode verbs.WCOpcode) verbs.WC {
	o.t.Helper()
	return o.completed(what, "receive", o.responder.qp.PollRecv(1, patience), opcode)
}

func (o *operation) completed(what, which string, wcs []verbs.WC, opcode verbs.WCOpcode) verbs.WC {
	o.t.Helper()
	if len(wcs) == 0 {
		o.t.Fatalf("%s: the %s does not complete", what, which)
	}
	if wc := wcs[0]; wc.Status != verbs.WCSuccess || wc.WRID != o.id || wc.Opcode != opcode {
		o.t.Fatalf("%s: the %s completes as %v %v of %d, want %v %v of %d",
			what, which, wc.Opcode, wc.Status, wc.WRID, opcode, verbs.WCSuccess, o.id)
	}
	return wcs[0]
}

// transfer moves n bytes in one piece. The bytes after them must not change.
func (o *operation) transfer(opcode verbs.WROpcode, n int) {
	o.t.Helper()
	what := fmt.Sprintf("%v of %d bytes", opcode, n)
	from, to, done := o.local, o.remote, verbs.WCSend
	switch opcode {
	case verbs.RDMARead:
		from, to, done = o.remote, o.local, verbs.WCRDMARead
	case verbs.RDMAWrite, verbs.RDMAWriteWithImm:
		done = verbs.WCRDMAWrite
	}
	from.Fill(0, n, 2*o.id)
	to.Fill(0, n+8, 2*o.id+1)
	behind := to.Read(n, 8)
	want := from.Digest(0, n)

	const imm = 0x89abcdef
	receives := opcode != verbs.RDMAWrite && opcode != verbs.RDMARead
	if receives {
		o.postRecv(o.remote.SGE(0, n+8))
	}
	o.post(verbs.SendWR{Opcode: opcode, SGList: []verbs.SGE{o.local.SGE(0, n)}, ImmData: imm})
	o.sent(what, done)
	if receives {
		wantOpcode, withImm := verbs.WCRecv, opcode != verbs.Send
		if opcode == verbs.RDMAWriteWithImm {
			wantOpcode = verbs.WCRecvRDMAWithImm
		}
		wc := o.received(what, wantOpcode)
		if wc.ByteLen != uint32(n) || wc.Flags&verbs.WCWithImm != 0 != withImm || withImm && wc.ImmData != imm {
			o.t.Errorf("%s: received %d bytes, flags %v, immediate %#x", what, wc.ByteLen, wc.Flags, wc.ImmData)
		}
	}
	o.arrived(opcode)
	if to.Digest(0, n) != want {
		o.t.Errorf("%s: the data differs", what)
	}
	if !bytes.Equal(to.Read(n, 8), behind) {
		o.t.Errorf("%s: something after it is overwritten", what)
	}
}

// arrived waits until a WRITE has arrived. A SEND after it shows that.
func (o *operation) arrived(opcode verbs.WROpcode) {
	o.t.Helper()
	if !o.posted || opcode != verbs.RDMAWrite {
		return
	}
	const what = "SEND after a WRITE"
	o.postRecv()
	o.post(verbs.SendWR{Opcode: verbs.Send})
	o.sent(what, verbs.WCSend)
	o.received(what, verbs.WCRecv)
}

// scatter moves a message in pieces of these lengths at the requester. If the operation consumes a
// receive, the responder has pieces of the same lengths in reverse order.
func (o *operation) scatter(opcode verbs.WROpcode, lengths ...int) {
	o.t.Helper()
	what := fmt.Sprintf("%v in %d pieces", opcode, len(lengths))
	const end = 50_000
	pieces := func(m memory, lengths []int) (list []verbs.SGE, read func() []byte) {
		var offsets []int
		off := end
		for i, n := range lengths {
			off -= n + i // backwards
			list, offsets = append(list, m.SGE(off, n)), append(offsets, off)
		}
		return list, func() (all []byte) {
			for i, n := range lengths {
				all = append(all, m.Read(offsets[i], n)...)
			}
			return all
		}
	}
	o.local.Fill(0, end, 2*o.id)
	o.remote.Fill(0, end, 2*o.id+1)
	sum := 0
	for _, n := range lengths {
		sum += n
	}
	local, readLocal := pieces(o.local, lengths)
	readRemote, done := func() []byte { return o.remote.Read(0, sum) }, verbs.WCRDMAWrite
	switch opcode {
	case verbs.Send:
		done = verbs.WCSend
		reversed := slices.Clone(lengths)
		slices.Reverse(reversed)
		var remote []verbs.SGE
		remote, readRemote = pieces(o.remote, reversed)
		o.postRecv(remote...)
	case verbs.RDMARead:
		done = verbs.WCRDMARead
	}
	before := readLocal()
	if opcode == verbs.RDMARead {
		before = readRemote()
	}
	o.post(verbs.SendWR{Opcode: opcode, SGList: local})
	o.sent(what, done)
	if opcode == verbs.Send {
		o.received(what, verbs.WCRecv)
	}
	if !bytes.Equal(readLocal(), before) || !bytes.Equal(readRemote(), before) {
		o.t.Errorf("%s: the data differs", what)
	}
}

// inline posts inline data, and changes the memory immediately afterwards.
func (o *operation) inline(opcode verbs.WROpcode) {
	o.t.Helper()
	what := fmt.Sprintf("inline %v", opcode)
	const n = 500
	o.local.Fill(0, n, 2*o.id)
	want := o.local.Read(0, n)
	list := []verbs.SGE{o.local.SGE(0, 200), o.local.SGE(200, n-200)}
	done := verbs.WCRDMAWrite
	if opcode == verbs.Send {
		done = verbs.WCSend
		o.postRecv(o.remote.SGE(0, n))
	}
	o.post(verbs.SendWR{Opcode: opcode, Flags: verbs.SendInline, SGList: list})
	o.local.Write(0, make([]byte, n))
	o.sent(what, done)
	if opcode == verbs.Send {
		o.received(what, verbs.WCRecv)
	}
	if !bytes.Equal(o.remote.Read(0, n), want) {
		o.t.Errorf("%s: the data differs", what)
	}
}

// outstanding posts many more READs and atomics at once than may be outstanding.
func (o *operation) outstanding() {
	o.t.Helper()
	const n, each, counter = 20, 3000, 80_000
	o.remote.Fill(0, n*each, 2*o.id)
	o.remote.Write(counter, make([]byte, 8))
	first := o.id + 1
	for i := range n {
		o.post(verbs.SendWR{Opcode: verbs.RDMARead, SGList: []verbs.SGE{o.local.SGE(i*each, each)}, RemoteAddr: o.remote.Addr() +
			uint64(i*each)})
		o.post(verbs.SendWR{Opcode: verbs.AtomicFetchAndAdd, CompareAdd: 1, SGList: []verbs.SGE{o.local.SGE(counter+8*i, 8)},
			RemoteAddr: o.remote.Addr() + counter})
	}
	o.id = first - 1
	for range n {
		o.id++
		o.sent("READ among many", verbs.WCRDMARead)
		o.id++
		o.sent("FETCH_AND_ADD among many", verbs.WCFetchAdd)
	}
	if o.local.Digest(0, n*each) != o.remote.Digest(0, n*each) {
		o.t.Error("READs among many: the data differs")
	}
	for i := range n {
		if got := binary.LittleEndian.Uint64(o.local.Read(counter+8*i, 8)); got != uint64(i) {
			o.t.Errorf("FETCH_AND_ADD %d among many returns %d", i, got)
		}
	}
}

// atomics checks all atomics. Their values are in the machines' byte order, which is little-endian
// on all test machines.
func (o *operation) atomics() {
	o.t.Helper()
	for _, a := range []struct {
		what          string
		wr            verbs.SendWR
		done          verbs.WCOpcode
		before, after uint64
	}{
		{"FETCH_AND_ADD", verbs.SendWR{Opcode: verbs.AtomicFetchAndAdd, CompareAdd: 3}, verbs.WCFetchAdd, 1 << 63, 1<<63 + 3},
		{"FETCH_AND_ADD that wraps", verbs.SendWR{Opcode: verbs.AtomicFetchAndAdd, CompareAdd: 3}, verbs.WCFetchAdd, ^uint64(0), 2},
		{"CMP_AND_SWP that finds its value", verbs.SendWR{Opcode: verbs.AtomicCmpAndSwp, CompareAdd: 0x1122334455667788, Swap: 42},
			verbs.WCCompSwap, 0x1122334455667788, 42},
		{"CMP_AND_SWP that does not", verbs.SendWR{Opcode: verbs.AtomicCmpAndSwp, CompareAdd: 1, Swap: 42}, verbs.WCCompSwap, 7, 7},
	} {
		o.remote.Write(64, binary.LittleEndian.AppendUint64(nil, a.before))
		a.wr.RemoteAddr, a.wr.SGList = o.remote.Addr()+64, []verbs.SGE{o.local.SGE(128, 8)}
		o.post(a.wr)
		o.sent(a.what, a.done)
		if got := binary.LittleEndian.Uint64(o.local.Read(128, 8)); got != a.before {
			o.t.Errorf("%s: returns %#x, want %#x", a.what, got, a.before)
		}
		if got := binary.LittleEndian.Uint64(o.remote.Read(64, 8)); got != a.after {
			o.t.Errorf("%s: leaves %#x, want %#x", a.what, got, a.after)
		}
	}
}

// lateReceive sends a message before its receive is posted.
func (o *operation) lateReceive() {
	o.t.Helper()
	const what = "SEND before its receive"
	o.post(verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{o.local.SGE(0, 5000)}})
	if wcs := o.requester.qp.PollSend(1, 100*time.Millisecond); len(wcs) > 0 {
		o.t.Fatalf("%s completes as %v with no receive posted", what, wcs[0].Status)
	}
	o.id--
	o.postRecv(o.remote.SGE(0, 5000))
	o.id++
	o.sent(what, verbs.WCSend)
	o.received(what, verbs.WCRecv)
	if o.local.Digest(0, 5000) != o.remote.Digest(0, 5000) {
		o.t.Errorf("%s: the data differs", what)
	}
}

// sizes of messages over a path MTU of 1024.
var sizes = []int{16, 0, 1, 1023, 1024, 1025, 4096, 100_000, 1 << 20}

// TestKernelOperations runs operate between two kernels. This shows that rxe supports all of it.
func TestKernelOperations(t *testing.T) {
	gate.Long(t)
	peers := peer.Boot(t, peer.Config{ID: 2}, peer.Config{ID: 3})
	operate(t,
		newSide(t, openKernel(t, peers[0]), peers[0].Addr4()),
		newSide(t, openKernel(t, peers[1]), peers[1].Addr4()), verbs.MTU1024, sizes...)
}

func TestOperations(t *testing.T) {
	gate.System(t)
	for _, c := range []struct {
		name  string
		open  func(*testing.T, *peer.Netns) link.Link
		mtu   int // of the links
		path  verbs.MTU
		sizes []int
	}{
		{"tap", openTAP, 1500, verbs.MTU1024, sizes},
		{"packet", openPacket, 1500, verbs.MTU1024, sizes},
		{"tap/MTU_4096", openTAP, 4200, verbs.MTU4096, []int{4095, 4096, 4097, 100_000}},
		{"packet/MTU_4096", openPacket, 4200, verbs.MTU4096, []int{4095, 4096, 4097, 100_000}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := peer.Boot(t, peer.Config{ID: 2, MTU: c.mtu})[0]
			linux, here := openKernel(t, p), openSoftRNIC(t, captured(t, c.open(t, p.Netns)), nil)
			for _, family := range families(t) {
				from, to := softrnicAddr4, p.Addr4()
				if family == "IPv6" {
					from, to = softrnicAddr6, p.Addr6()
				}
				t.Run(family+"/requester", func(t *testing.T) {
					operate(t, newSide(t, here, from), newSide(t, linux, to), c.path, c.sizes...)
				})
				t.Run(family+"/responder", func(t *testing.T) {
					operate(t, newSide(t, linux, to), newSide(t, here, from), c.path, c.sizes...)
				})
			}
		})
	}
}

// TestLargestMessages moves 8 MiB at a time, rxe's maximum, and checks that few packets are sent
// twice.
func TestLargestMessages(t *testing.T) {
	gate.Long(t)
	const size = 8 << 20
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	linux, here := openKernel(t, p), openSoftRNIC(t, openTAP(t, p.Netns), nil).(softrnic)
	run := func(t *testing.T, requester, responder *side, sends []verbs.WROpcode) {
		o := newOperation(t, requester, responder, usual, size)
		for _, opcode := range transfers {
			before := hwCounters(t, here.dev)["sent_pkts"]
			o.transfer(opcode, size)
			most := uint64(size / 1024 / 8) // acknowledgements and READ requests
			switch {
			case !slices.Contains(sends, opcode):
			case opcode == verbs.RDMARead:
				// READ responses are not acknowledged, and an emulated peer handles them slower
				// than they arrive. It requests the rest again: up to 3.7 packets per needed one
				// were seen, usually less than two.
				most = size / 1024 * 4
			default:
				most = size / 1024 * 3 / 2
			}
			if sent := hwCounters(t, here.dev)["sent_pkts"] - before; sent > most {
				t.Errorf("%v of %d bytes: SoftRNIC sent %d packets, want no more than %d", opcode, size, sent, most)
			}
		}
	}
	t.Run("requester", func(t *testing.T) {
		run(t, newSide(t, here, softrnicAddr4), newSide(t, linux, p.Addr4()), transfers[:4])
	})
	t.Run("responder", func(t *testing.T) {
		run(t, newSide(t, linux, p.Addr4()), newSide(t, here, softrnicAddr4), transfers[4:])
	})
}
