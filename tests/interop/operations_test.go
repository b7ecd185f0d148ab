//go:build linux

package interop

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/tests/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// room is the size of each side's memory in operate, and of the largest message.
const room = 1 << 20

// operate runs every operation from one side to the other and checks that both hold the same afterwards. The PSN wraps
// on the way.
func operate(t *testing.T, requester, responder *side) {
	t.Helper()
	p := usual
	p.psn = 0xfffff0
	connect(t, requester, responder, p)
	o := operation{
		t: t, requester: requester, responder: responder,
		local: requester.pd.regMR(room+8, allAccess), remote: responder.pd.regMR(room+8, allAccess),
	}
	for _, size := range []int{16, 0, 1, 1023, 1024, 1025, 4096, 100_000, room} {
		for _, opcode := range []verbs.WROpcode{verbs.Send, verbs.SendWithImm, verbs.RDMAWrite, verbs.RDMAWriteWithImm, verbs.RDMARead} {
			o.transfer(opcode, size)
		}
	}
	for _, opcode := range []verbs.WROpcode{verbs.Send, verbs.RDMAWrite, verbs.RDMARead} {
		o.scatter(opcode)
	}
	o.atomics()
	o.lateReceive()
}

type operation struct {
	t                    *testing.T
	requester, responder *side
	local, remote        memory
	id                   uint64 // of the last request
}

func (o *operation) post(wr verbs.SendWR) {
	o.t.Helper()
	o.id++
	wr.ID, wr.Flags = o.id, verbs.SendSignaled
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
	if err := o.responder.qp.PostRecv(&verbs.RecvWR{ID: o.id + 1, SGList: sges}); err != nil {
		o.t.Fatal(err)
	}
}

// sent takes the completion of the last request.
func (o *operation) sent(what string, opcode verbs.WCOpcode) verbs.WC {
	o.t.Helper()
	return o.completed(what, "request", o.requester.qp.PollSend(1, patience), opcode)
}

// received takes the completion of the last receive.
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

// transfer moves n bytes in one piece. Those behind it must stay.
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
	if to.Digest(0, n) != want {
		o.t.Errorf("%s: the data differs", what)
	}
	if !bytes.Equal(to.Read(n, 8), behind) {
		o.t.Errorf("%s: something behind it is overwritten", what)
	}
}

// scatter moves a message that lies in pieces, of which some are empty, on either side where a list can say so.
func (o *operation) scatter(opcode verbs.WROpcode) {
	o.t.Helper()
	what := fmt.Sprintf("%v in pieces", opcode)
	pieces := func(m memory, lengths ...int) (list []verbs.SGE, offsets []int) {
		for i, n := range lengths {
			off := 20_000 - 5000*i + i // backwards
			list, offsets = append(list, m.SGE(off, n)), append(offsets, off)
		}
		return list, offsets
	}
	read := func(m memory, list []verbs.SGE, offsets []int) (all []byte) {
		for i, sge := range list {
			all = append(all, m.Read(offsets[i], int(sge.Length))...)
		}
		return all
	}
	o.local.Fill(0, 30_000, 2*o.id)
	o.remote.Fill(0, 30_000, 2*o.id+1)
	local, localOffsets := pieces(o.local, 1, 1500, 0, 2047, 3)
	remote, remoteOffsets := []verbs.SGE{o.remote.SGE(0, 3551)}, []int{0}
	done := verbs.WCRDMAWrite
	switch opcode {
	case verbs.Send:
		done = verbs.WCSend
		remote, remoteOffsets = pieces(o.remote, 700, 1024, 1827)
		o.postRecv(remote...)
	case verbs.RDMARead:
		done = verbs.WCRDMARead
	}
	before := read(o.local, local, localOffsets)
	if opcode == verbs.RDMARead {
		before = read(o.remote, remote, remoteOffsets)
	}
	o.post(verbs.SendWR{Opcode: opcode, SGList: local})
	o.sent(what, done)
	if opcode == verbs.Send {
		o.received(what, verbs.WCRecv)
	}
	if !bytes.Equal(read(o.local, local, localOffsets), before) || !bytes.Equal(read(o.remote, remote, remoteOffsets), before) {
		o.t.Errorf("%s: the data differs", what)
	}
}

// atomics: the values are in the machines' own byte order, which is little-endian wherever this runs.
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
		{"CMP_AND_SWP that finds its value", verbs.SendWR{Opcode: verbs.AtomicCmpAndSwp, CompareAdd: 0x1122334455667788, Swap: 42}, verbs.WCCompSwap, 0x1122334455667788, 42},
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

// lateReceive sends what nothing is posted for, and posts it then.
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

// TestKernelOperations sees that operate asks for nothing that rxe does not do.
func TestKernelOperations(t *testing.T) {
	peers := peer.Boot(t, peer.Config{ID: 2}, peer.Config{ID: 3})
	operate(t,
		newSide(t, openKernel(t, peers[0]), peers[0].Addr4()),
		newSide(t, openKernel(t, peers[1]), peers[1].Addr4()))
}

func TestOperations(t *testing.T) {
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	linux := openKernel(t, p)
	for _, medium := range []struct {
		name string
		open func(*testing.T, *peer.Netns) link.Link
	}{{"tap", openTAP}, {"packet", openPacket}} {
		t.Run(medium.name, func(t *testing.T) {
			here := openSoftRNIC(t, captured(t, medium.open(t, p.Netns)))
			for _, addrs := range []struct {
				family      string
				here, there netip.Addr
			}{{"IPv4", softrnicAddr4, p.Addr4()}, {"IPv6", softrnicAddr6, p.Addr6()}} {
				t.Run(addrs.family+"/requester", func(t *testing.T) {
					operate(t, newSide(t, here, addrs.here), newSide(t, linux, addrs.there))
				})
				t.Run(addrs.family+"/responder", func(t *testing.T) {
					operate(t, newSide(t, linux, addrs.there), newSide(t, here, addrs.here))
				})
			}
		})
	}
}
