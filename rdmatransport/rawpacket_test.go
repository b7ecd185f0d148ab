package rdmatransport_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
)

// rawEnd is a raw packet QP with posted receives of slot bytes.
type rawEnd struct {
	t    testing.TB
	qp   *verbs.QP
	cq   *verbs.CQ
	mr   *verbs.MR
	slot int
}

const rawDepth = 16

func newRawEnd(t testing.TB, pd *verbs.PD, dev *verbs.Device, slot int, srq *verbs.SRQ) *rawEnd {
	t.Helper()
	fatal := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r := &rawEnd{t: t, slot: slot}
	ch, err := dev.CreateCompChannel()
	fatal(err)
	r.cq, err = dev.CreateCQ(4*rawDepth, &verbs.CQInitAttr{Channel: ch})
	fatal(err)
	r.mr, err = pd.RegMR(make([]byte, (rawDepth+1)*slot), verbs.AccessLocalWrite)
	fatal(err)
	r.qp, err = pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RawPacket, SendCQ: r.cq, RecvCQ: r.cq, SRQ: srq,
		Cap: verbs.QPCap{MaxSendWR: rawDepth, MaxRecvWR: rawDepth, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 256}})
	fatal(err)
	fatal(r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1}, verbs.QPAttrState|verbs.QPAttrPort))
	if srq == nil {
		for i := range rawDepth {
			fatal(r.qp.PostRecv(r.request(i)))
		}
	}
	for _, s := range []verbs.QPState{verbs.StateRTR, verbs.StateRTS} {
		fatal(r.qp.Modify(&verbs.QPAttr{QPState: s}, verbs.QPAttrState))
	}
	t.Cleanup(func() {
		if err := errors.Join(r.qp.Close(), r.mr.Close(), r.cq.Close(), ch.Close()); err != nil {
			t.Error(err)
		}
	})
	return r
}

// request returns a receive request for slot i, in two pieces.
func (r *rawEnd) request(i int) *verbs.RecvWR {
	return &verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{r.mr.SGE(i*r.slot, 20), r.mr.SGE(i*r.slot+20, r.slot-20)}}
}

func (r *rawEnd) flow(attr verbs.FlowAttr) *verbs.Flow {
	r.t.Helper()
	attr.Port = 1
	f, err := r.qp.CreateFlow(&attr)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := f.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			r.t.Error(err)
		}
	})
	return f
}

// got returns the available receive completions, and how the frames begin after their Ethernet
// headers.
func (r *rawEnd) got() (ids []byte) {
	r.t.Helper()
	var wc [1]verbs.WC
	for {
		n, err := r.cq.Poll(wc[:])
		if err != nil {
			r.t.Fatal(err)
		}
		if n == 0 {
			return ids
		}
		if wc[0].Status != verbs.WCSuccess || wc[0].Opcode != verbs.WCRecv {
			r.t.Fatalf("%+v", wc[0])
		}
		i := int(wc[0].WRID)
		ids = append(ids, r.mr.Buf()[i*r.slot:][wc[0].ByteLen-1])
		if err := r.qp.PostRecv(r.request(i)); err != nil {
			r.t.Fatal(err)
		}
	}
}

// wirePort is a port of the network through which the test sends and sees frames.
type wirePort struct {
	*pipe.Port
	seen chan []byte
}

func newWirePort(t testing.TB, lan *pipe.Switch) *wirePort {
	w := &wirePort{lan.Port(), make(chan []byte, 256)}
	w.Attach(func(frames []link.Frame) {
		for i := range frames {
			select {
			case w.seen <- bytes.Clone(frames[i].Data):
			default:
			}
		}
	})
	t.Cleanup(func() { w.Close() })
	return w
}

// put sends frames, which are received in the same order.
func (w *wirePort) put(t testing.TB, frames ...[]byte) {
	t.Helper()
	batch := make([]link.Frame, len(frames))
	for i := range frames {
		batch[i].Data = frames[i]
	}
	if n, err := w.Write(batch); err != nil || n != len(batch) {
		t.Fatal(n, err)
	}
}

// frame returns an Ethernet frame whose last byte is id.
func frame(dst, src []byte, etherType uint16, id byte, rest ...byte) []byte {
	b := binary.BigEndian.AppendUint16(append(bytes.Clone(dst), src...), etherType)
	return append(append(b, rest...), id)
}

// udp4 returns an IPv4 packet with UDP ports and id as its data, without checksums.
func udp4(src, dst [4]byte, srcPort, dstPort uint16, id byte) []byte {
	b := []byte{0x45, 0x20, 0, 29, 0, 0, 0x40, 0, 9, 17, 0, 0}
	b = append(append(b, src[:]...), dst[:]...)
	b = binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(b, srcPort), dstPort)
	return append(b, 0, 9, 0, 0)
}

var (
	groupMAC = []byte{1, 0x80, 0xc2, 0, 0, 0x0e}
	allMACs  = []byte{255, 255, 255, 255, 255, 255}
)

const testType = 0x88b5 // for local experiments (IEEE 802)

func ethType(v uint16) verbs.FlowSpec {
	return &verbs.FlowSpecEth{Val: verbs.FlowEthFilter{EtherType: v}, Mask: verbs.FlowEthFilter{EtherType: 0xffff}}
}

// TestRawSend checks that frames are sent unmodified, gathered or inline, and padded to Ethernet's
// minimum. Invalid lengths are errors. A tag does not count towards the MTU. The frames do not
// count as RoCE packets of the port.
func TestRawSend(t *testing.T) {
	lan := must(pipe.New(&pipe.Config{MTU: 1500}))(t)
	s := newStation(t, lan, "10.0.0.1/24")
	w := newWirePort(t, lan)
	r := newRawEnd(t, s.pd, s.dev, 2048, nil)
	src := s.host.NICs()[0].MAC()
	send := func(etherType uint16, n int, inline bool) verbs.WCStatus {
		t.Helper()
		f := frame(w.MAC(), src, etherType, 0, bytes.Repeat([]byte{0x5a}, 1600)...)
		copy(r.mr.Buf()[rawDepth*2048:], f)
		wr := &verbs.SendWR{WRID: uint64(n), Opcode: verbs.Send, Flags: verbs.SendSignaled}
		for at, end := rawDepth*2048, rawDepth*2048+n; at < end; at += 600 {
			wr.SGList = append(wr.SGList, r.mr.SGE(at, min(600, end-at)))
		}
		if inline {
			wr.Flags |= verbs.SendInline
		}
		ok(t, r.qp.PostSend(wr))
		wc := poll(t, r.cq)
		if wc.WRID != uint64(n) {
			t.Fatalf("got %+v", wc)
		}
		return wc.Status
	}
	const vlanType = 0x8100
	for _, n := range []int{14, 59, 60, 200, 1514, 1518} {
		etherType := uint16(testType)
		if n > 1514 {
			etherType = vlanType
		}
		for _, inline := range []bool{false, true} {
			if inline && n > 256 {
				continue
			}
			if got := send(etherType, n, inline); got != verbs.WCSuccess {
				t.Fatalf("%d bytes: %v", n, got)
			}
			got := <-w.seen
			for got[12] != byte(etherType>>8) {
				got = <-w.seen
			}
			want := make([]byte, max(n, 60))
			copy(want, r.mr.Buf()[rawDepth*2048:][:n])
			if !bytes.Equal(got, want) {
				t.Errorf("%d bytes: sent %x", n, got)
			}
		}
	}
	for _, n := range []int{0, 13, 1515, 1519, 1523} {
		etherType := uint16(testType)
		if n > 1518 {
			etherType = vlanType
		}
		if got := send(etherType, n, false); got != verbs.WCLocLenErr {
			t.Errorf("%d bytes: %v", n, got)
		}
		if got := r.qp.State(); got != verbs.StateSQE {
			t.Fatalf("%d bytes: the QP is in %v", n, got)
		}
		ok(t, r.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState))
	}
	ok(t, r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{{Addr: 1, Length: 60, LKey: 1}}}))
	if wc := poll(t, r.cq); wc.Status != verbs.WCLocProtErr {
		t.Errorf("unknown lkey: %v", wc.Status)
	}
	for range len(w.seen) {
		f := <-w.seen
		// Otherwise it is of the host itself.
		if e := binary.BigEndian.Uint16(f[12:]); e == testType || e == vlanType {
			t.Errorf("a failed request sent %x", f)
		}
	}
	if err := r.qp.PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite}); !errors.Is(err, verbs.ErrNotSupported) {
		t.Errorf("WRITE: %v", err)
	}
	counters := must(s.dev.PortCounters(1))(t)
	for _, name := range []string{"port_xmit_packets", "port_xmit_data", "unicast_xmit_packets", "port_xmit_discards"} {
		if n := counters[name]; n != 0 {
			t.Errorf("%s is %d", name, n)
		}
	}
}

// TestRawReceiveErrors checks that a frame without a receive request is lost and counted. A frame
// that is too long for its request moves the QP to ERR.
func TestRawReceiveErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		s := newStation(t, lan, "10.0.0.1/24")
		w := newWirePort(t, lan)
		mac := s.host.NICs()[0].MAC()
		r := newRawEnd(t, s.pd, s.dev, 128, nil)
		r.flow(verbs.FlowAttr{Specs: []verbs.FlowSpec{ethType(testType)}})
		fit := frame(mac, w.MAC(), testType, 1, make([]byte, 128-15)...)
		lost := func(want uint64) {
			t.Helper()
			synctest.Wait()
			if n := must(s.dev.HWCounters())(t)["out_of_buffer"]; n != want {
				t.Fatalf("out_of_buffer is %d, want %d", n, want)
			}
		}
		for range rawDepth + 3 {
			w.put(t, fit)
		}
		for range rawDepth {
			if wc := poll(t, r.cq); wc.Status != verbs.WCSuccess || wc.ByteLen != 128 {
				t.Fatalf("%+v", wc)
			}
		}
		lost(3)
		ok(t, r.qp.PostRecv(r.request(0), r.request(1)))
		w.put(t, append(fit, 0), fit)
		if wc := poll(t, r.cq); wc.WRID != 0 || wc.Status != verbs.WCLocLenErr {
			t.Errorf("too long: %+v", wc)
		}
		if wc := poll(t, r.cq); wc.WRID != 1 || wc.Status != verbs.WCWRFlushErr {
			t.Errorf("after it: %+v", wc)
		}
		if got := r.qp.State(); got != verbs.StateErr {
			t.Errorf("the QP is in %v", got)
		}
		lost(4)
		if got := must(s.dev.HWCounters())(t); got["raw_rcvd_frames"] != rawDepth || got["raw_too_long"] != 1 {
			t.Errorf("counters %v", got)
		}
	})
}

// TestRawFlows checks which of several flows gets a frame.
func TestRawFlows(t *testing.T) {
	lan := new(pipe.Switch)
	s := newStation(t, lan, "10.0.0.1/24")
	w := newWirePort(t, lan)
	mac := []byte(s.host.NICs()[0].MAC())
	port := func(n uint16) verbs.FlowSpec {
		return &verbs.FlowSpecUDP{Val: verbs.FlowTCPUDPFilter{DstPort: n}, Mask: verbs.FlowTCPUDPFilter{DstPort: 0xffff}}
	}
	from := func(b byte) verbs.FlowSpec {
		return &verbs.FlowSpecIPv4{Val: verbs.FlowIPv4Filter{SrcIP: [4]byte{10, 0, 0, b}},
			Mask: verbs.FlowIPv4Filter{SrcIP: [4]byte{255, 255, 255, 255}}}
	}
	vlan5 := &verbs.FlowSpecEth{Val: verbs.FlowEthFilter{EtherType: testType, VLANTag: 5},
		Mask: verbs.FlowEthFilter{EtherType: 0xffff, VLANTag: 0x0fff}}
	ext := &verbs.FlowSpecIPv4Ext{Val: verbs.FlowIPv4ExtFilter{TOS: 0x20, TTL: 9, Proto: 17, Flags: 2},
		Mask: verbs.FlowIPv4ExtFilter{TOS: 0xfc, TTL: 255, Proto: 255, Flags: 7}}
	flows := []verbs.FlowAttr{
		0:  {Priority: 5, Specs: []verbs.FlowSpec{port(7)}},
		1:  {Priority: 4, Specs: []verbs.FlowSpec{from(7), port(7)}},
		2:  {Priority: 5, Specs: []verbs.FlowSpec{port(7)}}, // the same as 0
		3:  {Priority: 1, Flags: verbs.FlowDontTrap, Specs: []verbs.FlowSpec{port(7)}},
		4:  {Priority: 6, Specs: []verbs.FlowSpec{port(7)}}, // never reached
		5:  {Specs: []verbs.FlowSpec{port(8), &verbs.FlowSpecActionTag{TagID: 0xabc}}},
		6:  {Specs: []verbs.FlowSpec{port(9), &verbs.FlowSpecActionDrop{}}},
		7:  {Specs: []verbs.FlowSpec{vlan5}},
		8:  {Priority: 9, Specs: []verbs.FlowSpec{ethType(testType)}},
		9:  {Specs: []verbs.FlowSpec{ext, port(10)}},
		10: {Type: verbs.FlowAllDefault},
		11: {Type: verbs.FlowMCDefault},
		12: {Type: verbs.FlowSniffer},
	}
	var ends []*rawEnd
	for _, attr := range flows {
		r := newRawEnd(t, s.pd, s.dev, 2048, nil)
		r.flow(attr)
		ends = append(ends, r)
	}
	all := newRawEnd(t, s.pd, s.dev, 2048, nil) // gets the mark that ends the test
	all.flow(verbs.FlowAttr{Specs: []verbs.FlowSpec{ethType(testType + 1)}})
	own, far := [4]byte{10, 0, 0, 1}, [4]byte{10, 0, 0, 7}
	ip := func(src, dst [4]byte, dstPort uint16, id byte) []byte {
		return frame(mac, w.MAC(), 0x0800, id, udp4(src, dst, 5, dstPort, id)...)
	}
	tagged := func(tag uint16, id byte) []byte {
		return frame(mac, w.MAC(), 0x8100, id, byte(tag>>8), byte(tag), testType>>8, testType&255, 1)
	}
	fragment := ip(far, own, 7, 6)
	fragment[20], fragment[21] = 0, 1
	w.put(t,
		ip([4]byte{10, 0, 0, 8}, own, 7, 1), ip(far, own, 7, 2), ip(far, own, 8, 3), ip(far, own, 9, 4),
		fragment,
		tagged(0x2005, 10), tagged(6, 11), frame(mac, w.MAC(), testType, 12),
		ip(far, own, 10, 13),
		frame(groupMAC, w.MAC(), 0x88cc, 20), frame(allMACs, w.MAC(), 0x88cc, 21),
		frame([]byte{1, 0, 0x5e, 1, 2, 3}, w.MAC(), 0x0800, 23, udp4(far, [4]byte{239, 1, 2, 3}, 1, 1, 23)...),
		frame([]byte{1, 0, 0x5e, 0, 0, 1}, w.MAC(), 0x0800, 24, udp4(far, [4]byte{224, 0, 0, 1}, 1, 1, 24)...),
		frame(mac, w.MAC(), testType+1, 99))
	if wc := poll(t, all.cq); wc.Status != verbs.WCSuccess {
		t.Fatal(wc)
	}
	if wc := poll(t, ends[5].cq); wc.FlowTag != 0xabc {
		t.Errorf("flow 5: %+v", wc)
	}
	want := map[int][]byte{
		0: {1}, 1: {2}, 2: {1}, 3: {1, 2}, 7: {10}, 8: {11, 12}, 9: {13}, 10: {20, 23}, 11: {20, 23},
		12: {1, 2, 3, 4, 6, 10, 11, 12, 13, 20, 21, 23, 24, 99},
	}
	for i, r := range ends {
		if got := r.got(); !slices.Equal(got, want[i]) {
			t.Errorf("flow %d got frames %d, want %d", i, got, want[i])
		}
	}
	if got := must(s.dev.HWCounters())(t)["raw_dropped_by_flow"]; got != 1 {
		t.Errorf("a flow dropped %d frames", got)
	}
}

// TestRawSuperframes checks that flows and sniffers get the complete packets into which a
// superframe is cut on the wire.
func TestRawSuperframes(t *testing.T) {
	lan := new(pipe.Switch)
	s := newStation(t, lan, "10.0.0.1/24")
	w := newWirePort(t, lan)
	mac := []byte(s.host.NICs()[0].MAC())
	port := func(n uint16) verbs.FlowSpec {
		return &verbs.FlowSpecUDP{Val: verbs.FlowTCPUDPFilter{DstPort: n}, Mask: verbs.FlowTCPUDPFilter{DstPort: 0xffff}}
	}
	var ends []*rawEnd
	for _, attr := range []verbs.FlowAttr{
		{Specs: []verbs.FlowSpec{port(6)}},
		{Flags: verbs.FlowDontTrap, Specs: []verbs.FlowSpec{port(7)}}, // takes no frames
		{Type: verbs.FlowSniffer},
	} {
		r := newRawEnd(t, s.pd, s.dev, 2048, nil)
		r.flow(attr)
		ends = append(ends, r)
	}
	data := bytes.Repeat([]byte{1, 2, 3, 4, 5}, 500)
	for _, dstPort := range []uint16{6, 7} {
		f := link.Frame{Data: append(frame(mac, w.MAC(), 0x0800, 0,
			udp4([4]byte{10, 0, 0, 7}, [4]byte{10, 0, 0, 1}, 5, dstPort, 0)...)[:42], data...),
			Segmentation: link.UDP, SegmentSize: 1000, HeaderLen: 42, NeedsChecksum: true, ChecksumStart: 34, ChecksumOffset: 6}
		if _, err := w.Write([]link.Frame{f}); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range ends {
		for i, want := range []int{1000, 1000, 500} {
			wc := poll(t, r.cq)
			if wc.Status != verbs.WCSuccess || int(wc.ByteLen) != 42+want {
				t.Fatalf("packet %d: %+v", i, wc)
			}
			b := r.mr.Buf()[int(wc.WRID)*r.slot:][:wc.ByteLen]
			if got := b[42:]; !bytes.Equal(got, data[1000*i:][:want]) {
				t.Errorf("packet %d has other data", i)
			}
			if n := binary.BigEndian.Uint16(b[38:]); int(n) != 8+want || b[40] == 0 && b[41] == 0 {
				t.Errorf("packet %d has UDP length %d and checksum %x", i, n, b[40:42])
			}
		}
	}
}

// TestRawSnifferSeesRoCE runs between two nodes of a pipe, whose messages are not packets without a
// sniffer.
func TestRawSnifferSeesRoCE(t *testing.T) {
	lan := new(pipe.Switch)
	a, b := newStation(t, lan, "10.0.0.1/24"), newStation(t, lan, "10.0.0.2/24")
	onA, onB := dial(a, b, verbs.RoCEv2, nil)
	mr := a.reg(make([]byte, 64), everyAccess)
	to := b.reg(make([]byte, 64), everyAccess)
	write := func() {
		ok(t, onA.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr.SGE(0, 64)},
			RemoteAddr: to.Addr(), RKey: to.RKey()}))
		if wc := poll(t, onA.QP().SendCQ()); wc.Status != verbs.WCSuccess {
			t.Fatal(wc)
		}
	}
	_ = onB
	write()
	direct := must(a.dev.HWCounters())(t)["direct_msgs"]
	if direct == 0 {
		t.Error("the first WRITE was sent in packets")
	}
	r := newRawEnd(t, b.pd, b.dev, 2048, nil)
	f := r.flow(verbs.FlowAttr{Type: verbs.FlowSniffer})
	write()
	var ports [2]int
	for ports[0] == 0 || ports[1] == 0 { // in both directions
		wc := poll(t, r.cq)
		p := r.mr.Buf()[int(wc.WRID)*r.slot:][:wc.ByteLen]
		if len(p) > 42 && binary.BigEndian.Uint16(p[36:]) == 4791 {
			ports[p[29]-1]++ // distinguished by the source address
		}
	}
	ok(t, f.Close())
	write()
	if got := must(a.dev.HWCounters())(t)["direct_msgs"]; got != direct+1 {
		t.Errorf("%d messages without packets, want %d", got, direct+1)
	}
}

// TestRawSRQ checks that a raw packet QP takes its requests from an SRQ.
func TestRawSRQ(t *testing.T) {
	lan := new(pipe.Switch)
	s := newStation(t, lan, "10.0.0.1/24")
	w := newWirePort(t, lan)
	srq := must(s.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 4, MaxSGE: 2}}))(t)
	t.Cleanup(func() { ok(t, srq.Close()) })
	r := newRawEnd(t, s.pd, s.dev, 256, srq)
	r.flow(verbs.FlowAttr{Specs: []verbs.FlowSpec{ethType(testType)}})
	ok(t, srq.PostRecv(r.request(3)))
	w.put(t, frame(s.host.NICs()[0].MAC(), w.MAC(), testType, 42))
	if wc := poll(t, r.cq); wc.Status != verbs.WCSuccess || wc.WRID != 3 || r.mr.Buf()[3*256+14] != 42 {
		t.Errorf("%+v", wc)
	}
}

// BenchmarkRaw sends a frame from one QP to another over a pipe. 0 allocs/op.
func BenchmarkRaw(b *testing.B) {
	lan := new(pipe.Switch)
	var ends [2]*rawEnd
	var macs [2][]byte
	for i, addr := range []string{"10.0.0.1/24", "10.0.0.2/24"} {
		host, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}})
		if err != nil {
			b.Fatal(err)
		}
		dev, err := rdmatransport.Open(host, nil)
		if err != nil {
			b.Fatal(err)
		}
		pd, err := dev.AllocPD()
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() {
			if err := errors.Join(pd.Close(), dev.Close(), host.Close()); err != nil {
				b.Error(err)
			}
		})
		ends[i] = newRawEnd(b, pd, dev, 2048, nil)
		macs[i] = host.NICs()[0].MAC()
	}
	ends[1].flow(verbs.FlowAttr{Specs: []verbs.FlowSpec{ethType(testType)}})
	mr := ends[0].mr
	copy(mr.Buf(), frame(macs[1], macs[0], testType, 0))
	wr := &verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{mr.SGE(0, 64)}}
	requests := make([]*verbs.RecvWR, rawDepth)
	for i := range requests {
		requests[i] = ends[1].request(i)
	}
	var wc [1]verbs.WC
	b.ReportAllocs()
	for b.Loop() {
		if err := ends[0].qp.PostSend(wr); err != nil {
			b.Fatal(err)
		}
		for {
			n, err := ends[1].cq.Poll(wc[:])
			if err != nil {
				b.Fatal(err)
			}
			if n == 1 {
				break
			}
		}
		if err := ends[1].qp.PostRecv(requests[wc[0].WRID]); err != nil {
			b.Fatal(err)
		}
	}
}
