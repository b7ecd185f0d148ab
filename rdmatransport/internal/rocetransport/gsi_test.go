package rocetransport_test

import (
	"net/netip"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/cm"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
)

// gsiPort returns an engine on a memory interface, for tests of QP 1.
func gsiPort(t *testing.T) (*rocetransport.Engine, *port) {
	q := timers.New(stack.Clock{})
	p := &port{t: t, gids: []netip.Addr{netip.MustParseAddr("fe80::1"), netip.MustParseAddr("10.0.0.1")}}
	e := rocetransport.New([]stack.NIC{p}, roce.Config{}, memory.NewRegions(nil), q, nil, nil,
		stack.Range{Mask: 1<<24 - 1}, func(uint32) bool { return false })
	t.Cleanup(func() {
		e.Close()
		q.Close()
	})
	return e, p
}

// mgmt returns a packet to QP 1 as rxe sends it.
func mgmt() wire.Packet {
	return wire.Packet{
		BTH:     wire.BTH{Opcode: wire.UDSendOnly, PKey: 0xffff, DestQP: 1, AckReq: true},
		DETH:    wire.DETH{QKey: 0x80010000, SrcQP: 1},
		Payload: make([]byte, 256),
	}
}

func TestGSITakesOnlyMADs(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*wire.Packet)
		taken  bool
	}{
		"MAD":            {func(*wire.Packet) {}, true},
		"limited member": {func(p *wire.Packet) { p.PKey = 0x7fff }, true},
		"Q_Key":          {func(p *wire.Packet) { p.DETH.QKey++ }, false},
		"source QP":      {func(p *wire.Packet) { p.DETH.SrcQP = 2 }, false},
		"P_Key":          {func(p *wire.Packet) { p.PKey = 0x1234 }, false},
		"short":          {func(p *wire.Packet) { p.Payload = p.Payload[:252] }, false},
		"padded":         {func(p *wire.Packet) { p.Payload, p.Pad = p.Payload[:255], 1 }, false},
		"long":           {func(p *wire.Packet) { p.Payload = make([]byte, 260) }, false},
		"immediate":      {func(p *wire.Packet) { p.Opcode = wire.UDSendOnlyImm }, false},
		"RC":             {func(p *wire.Packet) { p.Opcode = wire.RCSendOnly }, false},
		"QP 0":           {func(p *wire.Packet) { p.DestQP = 0 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			e, p := gsiPort(t)
			var got []cm.Datagram
			e.GSI().Receive(func(d *cm.Datagram) { got = append(got, *d) })
			pkt := mgmt()
			tc.change(&pkt)
			deliver := func() {
				src, dst := netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1")
				b := make([]byte, pkt.Size())
				header := make([]byte, headerLen(src))
				putHeader(header, src, dst, 50000, 0, len(b))
				pkt.Encode(header, b)
				p.receive(&stack.Datagram{Src: src, Dst: dst, SrcPort: 50000, TrafficClass: 8, Header: header,
					Payload: b, SegmentSize: len(b)})
			}
			deliver()
			if (len(got) == 1) != tc.taken {
				t.Fatalf("%d datagrams", len(got))
			}
			if tc.taken && (got[0].Port != 1 || got[0].Src.String() != "10.0.0.2" || got[0].Dst.String() != "10.0.0.1" ||
				got[0].TrafficClass != 8 || len(got[0].MAD) != 256) {
				t.Errorf("%+v", got[0])
			}
			if c := e.Snapshot(); c["rcvd_pkts"] != uint64(len(got)) || c["rdma_recvs"] != uint64(len(got)) {
				t.Errorf("%d packets and %d messages are counted", c["rcvd_pkts"], c["rdma_recvs"])
			}
			e.GSI().Receive(nil)
			deliver()
			if len(got) > 1 {
				t.Error("received after Receive(nil)")
			}
		})
	}
}

func TestGSISends(t *testing.T) {
	e, p := gsiPort(t)
	path, err := e.GSI().Path(1, stack.PathAttr{Src: p.gids[1], Dst: netip.MustParseAddr("10.0.0.2")})
	if err != nil {
		t.Fatal(err)
	}
	var b [mad.Size]byte
	mad.Encode(&b, 7, &mad.RTU{LocalCommID: 1})
	for range 2 {
		path.Send(&b)
	}
	path.Close()
	if len(p.sent) != 2 || p.paths != 0 {
		t.Fatalf("%d packets, %d paths open", len(p.sent), p.paths)
	}
	if c := e.Snapshot(); c["sent_pkts"] != 2 || c["rdma_sends"] != 2 {
		t.Errorf("%d packets and %d messages are counted", c["sent_pkts"], c["rdma_sends"])
	}
	for i, pkt := range p.sent {
		if pkt.Opcode != wire.UDSendOnly || pkt.DestQP != 1 || pkt.PKey != 0xffff || pkt.DETH != (wire.DETH{QKey: 0x80010000, SrcQP: 1}) ||
			[mad.Size]byte(pkt.Payload) != b {
			t.Errorf("packet %d: %+v", i, pkt)
		}
	}
	if p.sent[0].PSN+1 != p.sent[1].PSN {
		t.Errorf("PSNs %d and %d", p.sent[0].PSN, p.sent[1].PSN)
	}
}
