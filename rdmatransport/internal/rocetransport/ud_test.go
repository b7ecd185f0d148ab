package rocetransport_test

// Datagrams: packets of work requests, received datagrams, and silent drops.

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

var (
	udConfig = config{service: verbs.UD}
	group4   = netip.MustParseAddr("239.1.2.3")
)

// ah creates an address handle to the peer, or to another address.
func (r *rig) ah(to netip.Addr) *verbs.AH {
	r.t.Helper()
	gid := uint8(1)
	if !to.Is4() {
		gid = 2
	}
	ah, err := r.pd.CreateAH(&verbs.AHAttr{IsGlobal: true, PortNum: 1,
		GRH: verbs.GRH{DGID: verbs.GIDFromAddr(to), SGIDIndex: gid, TrafficClass: 0x22, HopLimit: 9}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() {
		if err := ah.Close(); err != nil && !errors.Is(err, verbs.ErrClosed) {
			r.t.Error(err)
		}
	})
	return ah
}

// dgram is a work request for n bytes to the peer's QP.
func (r *rig) dgram(id uint64, ah *verbs.AH, n int) *verbs.SendWR {
	return &verbs.SendWR{WRID: id, Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{r.mr.SGE(0, n)},
		AH: ah, RemoteQPN: peerQPN, RemoteQKey: 5}
}

// deth is the peer's Q_Key and QP number.
func deth(qkey uint32) option {
	return func(p *wire.Packet) { p.DETH = wire.DETH{QKey: qkey, SrcQP: peerQPN} }
}

func TestDatagramOut(t *testing.T) {
	run(t, "one packet each, completed when sent", udConfig, func(t *testing.T, r *rig) {
		ah := r.ah(r.them)
		imm := r.dgram(2, ah, 0)
		imm.Opcode, imm.ImmData, imm.RemoteQKey = verbs.SendWithImm, 77, 1<<31 // the QP's own Q_Key
		imm.Flags |= verbs.SendSolicited
		inline := r.dgram(3, ah, 5)
		inline.Flags |= verbs.SendInline
		r.post(r.dgram(1, ah, 1024), imm, inline)
		sent := r.expect("SEND Only 0 len 1024 qkey 0x5", "SEND Only with Immediate 1 len 0 qkey 0x11111111 imm 77 se",
			"SEND Only 2 len 5 qkey 0x5")
		if !bytes.Equal(sent[0].Payload, r.buf[:1024]) || !bytes.Equal(sent[2].Payload, r.buf[:5]) {
			t.Error("other bytes than posted")
		}
		r.completions(r.scq, "1 SUCCESS SEND 0", "2 SUCCESS SEND 0", "3 SUCCESS SEND 0")
	})
	run(t, "datagrams for another process, which may have other upper bits of QPNs, share no frame", udConfig,
		func(t *testing.T, r *rig) {
			ah := r.ah(r.them)
			var all []*verbs.SendWR
			for i, qpn := range []uint32{0x20001, 0x2ffff, 0x10001, 0x10002, 0x20001} {
				wr := r.dgram(uint64(i), ah, 10)
				wr.RemoteQPN = qpn
				all = append(all, wr)
			}
			r.post(all[0])
			before := r.port.cuts
			r.post(all[1:]...)
			if n := r.port.cuts - before; n != 2 {
				t.Errorf("%d datagrams began a frame of their own, want the 2 with other upper bits than the one before", n)
			}
		})
	run(t, "what cannot be posted", udConfig, func(t *testing.T, r *rig) {
		ah, gone := r.ah(r.them), r.ah(r.them)
		if err := gone.Close(); err != nil {
			t.Fatal(err)
		}
		r.c.size = 8192
		for _, c := range []struct {
			kind error
			want string
			set  func(*verbs.SendWR)
		}{
			{verbs.ErrInvalid, "AH is nil", func(w *verbs.SendWR) { w.AH = nil }},
			{verbs.ErrClosed, "the AH is closed", func(w *verbs.SendWR) { w.AH = gone }},
			{verbs.ErrInvalid, "RemoteQPN 0x1000000", func(w *verbs.SendWR) { w.RemoteQPN = 1 << 24 }},
			{verbs.ErrNotSupported, "Opcode ATOMIC_WRITE is not for UD", func(w *verbs.SendWR) { w.Opcode = verbs.AtomicWrite }},
		} {
			wr := r.dgram(1, ah, 8)
			c.set(wr)
			if err := r.qp.PostSend(wr); !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want %v with %q", err, c.kind, c.want)
			}
		}
		r.expect()
	})
	run(t, "an error that is found in order", udConfig, func(t *testing.T, r *rig) {
		ah := r.ah(r.them)
		pd := must(r.dev.AllocPD())
		foreign := must(pd.CreateAH(&verbs.AHAttr{IsGlobal: true, PortNum: 1,
			GRH: verbs.GRH{DGID: verbs.GIDFromAddr(r.them), SGIDIndex: 1}}))
		if err := pd.Close(); !errors.Is(err, verbs.ErrBusy) {
			t.Errorf("a PD with an AH: %v", err)
		}
		r.c.size = 8192
		for what, c := range map[string]struct {
			set  func(*verbs.SendWR)
			want string
		}{
			"longer than the MTU":  {func(w *verbs.SendWR) { w.SGList[0].Length = 4097 }, "2 LOC_LEN_ERR"},
			"an AH of another PD":  {func(w *verbs.SendWR) { w.AH = foreign }, "2 LOC_QP_OP_ERR"},
			"WRITE":                {func(w *verbs.SendWR) { w.Opcode = verbs.RDMAWrite }, "2 LOC_QP_OP_ERR"},
			"READ":                 {func(w *verbs.SendWR) { w.Opcode = verbs.RDMARead }, "2 LOC_QP_OP_ERR"},
			"atomic":               {func(w *verbs.SendWR) { w.Opcode = verbs.AtomicCmpAndSwp }, "2 LOC_QP_OP_ERR"},
			"Send with Invalidate": {func(w *verbs.SendWR) { w.Opcode = verbs.SendWithInv }, "2 LOC_QP_OP_ERR"},
		} {
			bad := r.dgram(2, ah, 8)
			c.set(bad)
			r.post(r.dgram(1, ah, 8), bad, r.dgram(3, ah, 8))
			if sent := r.take(); len(sent) != 1 {
				t.Errorf("%s: %d packets", what, len(sent))
			}
			r.completions(r.scq, "1 SUCCESS SEND 0", c.want, "3 WR_FLUSH_ERR")
			r.state(verbs.StateSQE)
			r.modify(verbs.StateRTS)
		}
		if err := foreign.Close(); err != nil {
			t.Error(err)
		}
		if err := pd.Close(); err != nil {
			t.Error(err)
		}
	})
	run(t, "a failed request stops only the send queue", udConfig, func(t *testing.T, r *rig) {
		ah := r.ah(r.them)
		bad := r.dgram(2, ah, 8)
		bad.SGList[0].LKey++
		r.recv(9, 0, 64)
		r.post(r.dgram(1, ah, 8), bad, r.dgram(3, ah, 8))
		r.expect("SEND Only 0 len 8 qkey 0x5")
		r.completions(r.scq, "1 SUCCESS SEND 0", "2 LOC_PROT_ERR", "3 WR_FLUSH_ERR")
		r.state(verbs.StateSQE)
		r.post(r.dgram(4, ah, 8))
		r.completions(r.scq, "4 WR_FLUSH_ERR")
		r.give(r.req(wire.UDSendOnly, 0, fill(8, 1), deth(qkey)))
		r.completions(r.rcq, "9 SUCCESS RECV 48")
		r.modify(verbs.StateRTS)
		r.post(r.dgram(5, ah, 8))
		r.completions(r.scq, "5 SUCCESS SEND 0")
		r.expect("SEND Only 2 len 8 qkey 0x5") // the failed one used a PSN
	})
}

func TestDatagramIn(t *testing.T) {
	for _, c := range []struct {
		name string
		v6   bool
	}{{"IPv4", false}, {"IPv6", true}} {
		run(t, c.name, config{service: verbs.UD, v6: c.v6}, func(t *testing.T, r *rig) {
			r.recv(1, 0, 40)
			r.recv(2, 256, 1024)
			data := fill(21, 9)
			r.give(r.req(wire.UDSendOnly, 5, nil, deth(qkey)), r.req(wire.UDSendOnlyImm, 3, data, deth(qkey), imm(1<<31)))
			wcs := poll(t, r.rcq)
			r.check(wcs, []string{"1 SUCCESS RECV 40", "2 SUCCESS RECV 61 imm 2147483648"})
			for _, wc := range wcs {
				if wc.Flags&verbs.WCGRH == 0 || wc.SrcQP != peerQPN || wc.SLID != 0 {
					t.Errorf("completion %+v", wc)
				}
			}
			if !bytes.Equal(r.buf[256+40:][:21], data) {
				t.Error("the payload does not follow the 40 bytes")
			}
			want := make([]byte, headerLen(r.us))
			putHeader(want, r.them, r.us, 50000, 0, 12+8+4+24+4)
			want = want[:len(want)-8]
			// From there, back to the sender.
			attr, err := r.dev.InitAHFromWC(1, &wcs[1], r.buf[256:])
			if err != nil || attr.GRH.DGID.Addr().Unmap() != r.them || attr.PortNum != 1 {
				t.Errorf("address vector %+v, %v", attr, err)
			}
			got := r.buf[256+40-len(want):][:len(want)]
			if !c.v6 {
				got[10], got[11] = 0, 0 // this header has no checksum
			}
			if !bytes.Equal(got, want) {
				t.Errorf("the header is % x, want % x", got, want)
			}
			r.expect()
		})
	}
	run(t, "a superframe, each with a header of its own", udConfig, func(t *testing.T, r *rig) {
		for i := range 3 {
			r.recv(uint64(i), i*128, 128)
		}
		var pkts []wire.Packet
		for i := range 3 {
			pkts = append(pkts, r.req(wire.UDSendOnly, i, fill(16, byte(i)), deth(qkey)))
		}
		r.giveFrame(pkts...)
		r.completions(r.rcq, "0 SUCCESS RECV 56", "1 SUCCESS RECV 56", "2 SUCCESS RECV 56")
		for i := range 3 {
			ip := r.buf[i*128+20:][:20]
			if id := binary.BigEndian.Uint16(ip[4:]); int(id) != i {
				t.Errorf("datagram %d has IPv4 ID %d", i, id)
			}
			attr, err := r.dev.InitAHFromWC(1, &verbs.WC{Flags: verbs.WCGRH}, r.buf[i*128:])
			if err != nil || attr.GRH.DGID.Addr() != r.them { // this checks the checksum
				t.Errorf("datagram %d: %+v, %v", i, attr, err)
			}
		}
	})
	run(t, "what is dropped", udConfig, func(t *testing.T, r *rig) {
		ok := func(n int, opts ...option) wire.Packet {
			return r.req(wire.UDSendOnly, 0, fill(n, 1), append([]option{deth(qkey)}, opts...)...)
		}
		for _, c := range []struct {
			counter string
			pkt     wire.Packet
			post    int // length of the posted receive request
		}{
			{"qkey_viol", r.req(wire.UDSendOnly, 0, nil, deth(qkey+1)), 64},
			{"bad_pkey", ok(8, func(p *wire.Packet) { p.PKey = 0x8001 }), 64},
			{"malformed_packets", r.req(wire.RCSendOnly, 0, nil), 64},
			{"malformed_packets", r.req(wire.UCSendOnly, 0, nil), 64},
			{"malformed_packets", ok(0, func(p *wire.Packet) { p.Opcode = 0x7f }), 64},
			{"unknown_qp", ok(8, func(p *wire.Packet) { p.DestQP = 0xffffff }), 64},
			{"too_long_dropped", ok(25), 64},
			{"no_recv_dropped", ok(8), 0},
		} {
			r.modify(verbs.StateReset)
			r.connect()
			before := r.counter(c.counter)
			if c.post > 0 {
				r.recv(1, 0, c.post)
			}
			r.give(c.pkt)
			r.expect()
			r.completions(r.rcq)
			if got := r.counter(c.counter) - before; got != 1 {
				t.Errorf("%v: %s counts %d", c.pkt.BTH, c.counter, got)
			}
			if c.post > 0 { // the request remains for the next datagram
				r.give(ok(24))
				r.completions(r.rcq, "1 SUCCESS RECV 64")
			}
			r.state(verbs.StateRTS)
		}
		port := must(r.dev.QueryPort(1))
		if port.QKeyViolCntr != 1 || port.BadPKeyCntr != 1 {
			t.Errorf("port counters %d, %d", port.QKeyViolCntr, port.BadPKeyCntr)
		}
	})
	run(t, "a receive request that fails", udConfig, func(t *testing.T, r *rig) {
		if err := r.qp.PostRecv(&verbs.RecvWR{WRID: 1,
			SGList: []verbs.SGE{{Addr: r.mr.Addr(), Length: 64, LKey: r.mr.LKey() + 1}}}); err != nil {
			t.Fatal(err)
		}
		r.recv(2, 0, 64)
		r.give(r.req(wire.UDSendOnly, 0, fill(8, 1), deth(qkey)))
		r.completions(r.rcq, "1 LOC_PROT_ERR", "2 WR_FLUSH_ERR")
		r.state(verbs.StateErr)
	})
}

// toGroup passes packets to a multicast group to the engine.
func (r *rig) toGroup(group netip.Addr, looped bool, pkts ...wire.Packet) {
	us := r.us
	r.us = group
	d := r.frame(pkts...)
	r.us = us
	d.Looped = looped
	r.port.receive(d)
}

func TestMulticast(t *testing.T) {
	gid := verbs.GIDFromAddr(group4)
	attach := func(t *testing.T, qp *verbs.QP) {
		t.Helper()
		if err := qp.AttachMcast(gid); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := qp.Close(); !errors.Is(err, verbs.ErrBusy) {
				t.Errorf("an attached QP was closed: %v", err)
			}
			if err := qp.DetachMcast(gid); err != nil {
				t.Error(err)
			}
			if err := qp.DetachMcast(gid); !errors.Is(err, verbs.ErrInvalid) {
				t.Errorf("detached twice: %v", err)
			}
		})
	}
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, config{service: verbs.UD, block: true})
		other := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.UD, SendCQ: r.scq, RecvCQ: must(r.dev.CreateCQ(8, nil)),
			Cap: verbs.QPCap{MaxRecvWR: 8, MaxRecvSGE: 1}}))
		t.Cleanup(func() {
			if err := other.Close(); err != nil {
				t.Error(err)
			}
			if r.port.joins[group4] != 0 {
				t.Errorf("%d joins are left", r.port.joins[group4])
			}
		})
		first := r.qp
		r.qp = other
		r.connect()
		r.qp = first
		packet := r.req(wire.UDSendOnly, 0, fill(8, 3), deth(qkey), func(p *wire.Packet) { p.DestQP = 0xffffff })
		post := func() {
			r.recv(1, 0, 64)
			if err := other.PostRecv(&verbs.RecvWR{WRID: 2, SGList: []verbs.SGE{r.mr.SGE(64, 64)}}); err != nil {
				t.Fatal(err)
			}
		}
		received := func(want ...bool) {
			t.Helper()
			for i, cq := range []*verbs.CQ{r.rcq, other.RecvCQ()} {
				wcs := poll(t, cq)
				if (len(wcs) == 1 && wcs[0].Status == verbs.WCSuccess) != want[i] || len(wcs) > 1 {
					t.Errorf("QP %d: completions %+v", i, wcs)
				}
			}
		}
		post()
		r.toGroup(group4, false, packet)
		received(false, false)
		attach(t, first)
		if err := first.AttachMcast(gid); err != nil || r.port.joins[group4] != 1 {
			t.Errorf("attached again: %v, joined %d times", err, r.port.joins[group4])
		}
		r.toGroup(group4, false, packet)
		received(true, false)
		attach(t, other)
		post()
		r.toGroup(group4, false, packet)
		received(true, true)
		r.toGroup(netip.MustParseAddr("239.1.2.4"), false, packet)
		received(false, false)
		// With the QP's own number, a group's address is wrong.
		own := r.req(wire.UDSendOnly, 0, fill(8, 3), deth(qkey))
		r.toGroup(group4, false, own)
		received(false, false)
		// A blocking QP's own packets only loop back to the other one.
		post()
		r.toGroup(group4, true, r.req(wire.UDSendOnly, 0, fill(8, 3), func(p *wire.Packet) {
			p.DestQP, p.DETH = 0xffffff, wire.DETH{QKey: qkey, SrcQP: first.Num()}
		}))
		received(false, true)
		if packets, messages := r.counter("rcvd_pkts"), r.counter("rdma_recvs"); packets != 3 || messages != 4 {
			t.Errorf("%d packets and %d messages are counted, want 3 and 4", packets, messages)
		}
	})
	run(t, "refused", udConfig, func(t *testing.T, r *rig) {
		if err := r.qp.AttachMcast(verbs.GIDFromAddr(r.them)); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("no group: %v", err)
		}
		r.modify(verbs.StateReset)
		if err := r.qp.AttachMcast(gid); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("in RESET: %v", err)
		}
	})
	run(t, "of RC", config{}, func(t *testing.T, r *rig) {
		if err := r.qp.AttachMcast(gid); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("%v", err)
		}
	})
}

// FuzzDatagrams gives any sequence of datagrams to a QP with some receive requests. Nothing changes
// outside of the region, and each request completes at most once.
func FuzzDatagrams(f *testing.F) {
	random(f, 50, 200)
	f.Fuzz(func(t *testing.T, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			s := script(data)
			r := newRig(t, config{service: verbs.UD, size: 1024, maxWR: 8, v6: s.n(2) == 1})
			posted, done := 0, 0
			for s.more() {
				if s.n(3) == 0 {
					off := s.n(200)
					if r.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{r.mr.SGE(off, s.n(200)), r.mr.SGE(off*3, s.n(200))}}) == nil {
						posted++
					}
					continue
				}
				p := r.req(choose(&s, wire.UDSendOnly, wire.UDSendOnlyImm, wire.UCSendOnly, wire.RCSendFirst, wire.Opcode(s.byte())),
					s.n(256), nil)
				if p.Opcode.Info().HasPayload() {
					p.Payload = fill(s.n(256), 1)
					p.Pad = wire.PadLen(len(p.Payload))
				}
				deth(choose(&s, uint32(qkey), 0))(&p)
				d := r.frame(p)
				if s.n(8) == 0 {
					d.Payload = d.Payload[:s.n(len(d.Payload)+1)]
				}
				r.port.receive(d)
				done += len(poll(t, r.rcq))
			}
			if done > posted {
				t.Errorf("%d of %d requests completed", done, posted)
			}
		})
	})
}

// BenchmarkDatagram posts, sends and polls datagrams, 16 at a time, and receives one.
func BenchmarkDatagram(b *testing.B) {
	for _, n := range []int{64, 4096} {
		b.Run(fmt.Sprintf("send %d", n), func(b *testing.B) {
			r := benchRig(b, config{service: verbs.UD, mtu: verbs.MTU4096})
			ah := r.ah(r.them)
			var wrs []*verbs.SendWR
			for i := range 16 {
				wrs = append(wrs, r.dgram(uint64(i), ah, n))
			}
			wcs := make([]verbs.WC, 16)
			b.SetBytes(int64(16 * n))
			b.ReportAllocs()
			for b.Loop() {
				if err := r.qp.PostSend(wrs...); err != nil {
					b.Fatal(err)
				}
				if drain(b, r.scq, wcs) != 16 {
					b.Fatal("not complete")
				}
			}
		})
		b.Run(fmt.Sprintf("receive %d", n), func(b *testing.B) {
			r := benchRig(b, config{service: verbs.UD, mtu: verbs.MTU4096})
			p := r.packet(r.req(wire.UDSendOnly, 0, fill(n, 1), deth(qkey)))
			recv := &verbs.RecvWR{SGList: []verbs.SGE{r.mr.SGE(0, 40+n)}}
			wcs := make([]verbs.WC, 16)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if err := r.qp.PostRecv(recv); err != nil {
					b.Fatal(err)
				}
				p.give(1)
				if drain(b, r.rcq, wcs) != 1 {
					b.Fatal("not received")
				}
			}
		})
	}
}
