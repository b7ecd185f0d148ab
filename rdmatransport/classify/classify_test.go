package classify_test

import (
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/classify"
	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
)

var (
	own   = netip.MustParseAddr("10.0.0.1")
	peer  = netip.MustParseAddr("10.0.0.2")
	other = netip.MustParseAddr("10.0.0.3")
	group = netip.MustParseAddr("239.1.2.3")
)

var alice = stack.Numbers{QPNs: stack.Range{Base: 0x10000, Mask: 0xffff}, CommIDs: stack.Range{Base: 0xa00000, Mask: 0xfffff}}
var bob = stack.Numbers{QPNs: stack.Range{Base: 0x20000, Mask: 0xffff}, CommIDs: stack.Range{Base: 0xb00000, Mask: 0xfffff}}

// header returns the headers of n bytes from src to dst.
func header(src, dst netip.Addr, id uint16, n int) []byte {
	h := make([]byte, 20+8)
	h[0], h[6], h[8], h[9] = 0x45, 0x40, 64, 17
	binary.BigEndian.PutUint16(h[4:], id)
	s, d := src.As4(), dst.As4()
	copy(h[12:], s[:])
	copy(h[16:], d[:])
	binary.BigEndian.PutUint16(h[20:], 50000)
	binary.BigEndian.PutUint16(h[22:], stack.RoCEPort)
	stack.PutLengths(h, n)
	return h
}

// arrival returns a packet as received from a socket.
func arrival(src, dst netip.Addr, pkt *wire.Packet) ([]byte, *stack.Datagram) {
	b := make([]byte, pkt.Size())
	pkt.Encode(header(src, dst, 0x1234, len(b)), b) // the identification is not visible
	return b, &stack.Datagram{Src: src, Dst: dst, SrcPort: 50000, Header: header(src, dst, 0, len(b)),
		Payload: b, SegmentSize: len(b), IDGuessed: true}
}

func madTo(dst netip.Addr, m mad.Message) ([]byte, *stack.Datagram) {
	var b [mad.Size]byte
	mad.Encode(&b, 77, m)
	return arrival(peer, dst, &wire.Packet{
		BTH:  wire.BTH{Opcode: wire.UDSendOnly, PKey: 0xffff, DestQP: mad.QPN},
		DETH: wire.DETH{QKey: mad.QKey, SrcQP: mad.QPN}, Payload: b[:],
	})
}

// sentMAD is a message that a classifier sends.
type sentMAD struct {
	to  stack.PathAttr
	tid uint64
	m   mad.Message
}

// recorder returns a send function for a classifier, and a function that returns the messages sent
// so far.
func recorder(t *testing.T) (hub.SendFunc, func() []sentMAD) {
	var all []sentMAD
	return func(to stack.PathAttr, n int, fill func(header, payload []byte)) {
			h, b := header(to.Src, to.Dst, 0, n), make([]byte, n)
			fill(h, b)
			var pkt wire.Packet
			if err := pkt.Parse(b); err != nil || !wire.CheckICRC(h, b) || pkt.DestQP != mad.QPN ||
				pkt.DETH.SrcQP != mad.QPN || pkt.DETH.QKey != mad.QKey {
				t.Errorf("sent %+v, %v, or its ICRC is wrong", pkt, err)
			}
			head, data, err := mad.Parse(pkt.Payload)
			if err != nil {
				t.Fatal(err)
			}
			m := map[mad.Attr]mad.Message{mad.AttrREJ: &mad.REJ{}, mad.AttrDREQ: &mad.DREQ{},
				mad.AttrDREP: &mad.DREP{}, mad.AttrSIDRREP: &mad.SIDRREP{}, mad.AttrAPR: &mad.APR{}}[head.Attr]
			mad.Decode(data, m)
			all = append(all, sentMAD{to, head.TID, m})
		}, func() []sentMAD {
			sentSoFar := all
			all = nil
			return sentSoFar
		}
}

func TestClassify(t *testing.T) {
	const id = 0xa12345
	for _, x := range []struct {
		m    mad.Message
		want hub.Target
	}{
		{&mad.REQ{LocalCommID: 9, ServiceID: 0x1061d2f}, hub.Target{Kind: hub.TargetService, Service: 0x1061d2f}},
		{&mad.SIDRREQ{RequestID: 9, ServiceID: 0x1111d2f}, hub.Target{Kind: hub.TargetService, Service: 0x1111d2f}},
		{&mad.SIDRREP{RequestID: id}, hub.Target{Kind: hub.TargetCommID, Number: id}},
		{&mad.REP{LocalCommID: 9, RemoteCommID: id}, hub.Target{Kind: hub.TargetCommID, Number: id}},
		{&mad.RTU{LocalCommID: 9, RemoteCommID: id}, hub.Target{Kind: hub.TargetCommID, Number: id}},
		{&mad.MRA{LocalCommID: 9, RemoteCommID: id}, hub.Target{Kind: hub.TargetCommID, Number: id}},
		{&mad.REJ{RemoteCommID: id}, hub.Target{Kind: hub.TargetCommID, Number: id}},
		{&mad.REJ{LocalCommID: 9, Reason: mad.Timeout}, hub.Target{}}, // of an unknown REQ
		{&mad.DREQ{LocalCommID: 9, RemoteCommID: id}, hub.Target{Kind: hub.TargetCommID, Number: id}},
		{&mad.DREP{LocalCommID: 9, RemoteCommID: id}, hub.Target{Kind: hub.TargetCommID, Number: id}},
		{&mad.LAP{LocalCommID: 9, RemoteCommID: id}, hub.Target{Kind: hub.TargetCommID, Number: id}},
		{&mad.APR{LocalCommID: 9, RemoteCommID: id}, hub.Target{Kind: hub.TargetCommID, Number: id}},
		{&mad.RTU{LocalCommID: 9}, hub.Target{}},
	} {
		b, d := madTo(own, x.m)
		if got := classify.New().Classify(b, d); got != x.want {
			t.Errorf("%v: %+v, want %+v", x.m.Attr(), got, x.want)
		}
		if b, d := madTo(group, x.m); (classify.New().Classify(b, d) != hub.Target{}) {
			t.Errorf("%v to a group is for %+v", x.m.Attr(), classify.New().Classify(b, d))
		}
	}
	for _, x := range []struct {
		dst  netip.Addr
		qpn  uint32
		want hub.Target
	}{
		{own, 0xa30001, hub.Target{Kind: hub.TargetQPN, Number: 0xa30001}},
		{own, 0, hub.Target{}},
		{own, 0xffffff, hub.Target{}},
		{group, 0xffffff, hub.Target{Kind: hub.TargetGroup}},
	} {
		b, d := arrival(peer, x.dst, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, PKey: 0xffff, DestQP: x.qpn}})
		if got := classify.New().Classify(b, d); got != x.want {
			t.Errorf("QPN %#x at %v: %+v, want %+v", x.qpn, x.dst, got, x.want)
		}
		if got := classify.New().Classify(b[:15], d); got != (hub.Target{}) {
			t.Errorf("15 bytes: %+v", got)
		}
	}
}

// A peer that gives up before the REP does not know an ID of the receiver.
func TestRejectedBeforeReply(t *testing.T) {
	c := classify.New()
	c.Classify(madTo(own, &mad.REQ{LocalCommID: 9, ServiceID: 5}))
	b, d := madTo(own, &mad.REJ{LocalCommID: 9, Reason: mad.Timeout})
	if got, want := c.Classify(b, d), (hub.Target{Kind: hub.TargetService, Service: 5}); got != want {
		t.Errorf("REJ after a REQ: %+v, want %+v", got, want)
	}
	d.Src = other
	if got := c.Classify(b, d); got != (hub.Target{}) {
		t.Errorf("another host's: %+v", got)
	}
}

// connect gives a process one passive and one active connection.
func connect(c hub.Classifier, of stack.Numbers) {
	c.Classify(madTo(own, &mad.REQ{LocalCommID: 9, ServiceID: 5, LocalQPN: 0x77}))
	c.Classify(madTo(own, &mad.RTU{LocalCommID: 9, RemoteCommID: of.CommIDs.Base + 1}))
	c.Classify(madTo(own, &mad.REP{LocalCommID: 10, RemoteCommID: of.CommIDs.Base + 2, LocalQPN: 0x78}))
	c.Classify(madTo(own, &mad.REP{LocalCommID: 11, RemoteCommID: of.CommIDs.Base + 3, LocalEECN: 0x79}))
}

func TestDied(t *testing.T) {
	c := classify.New()
	send, sentSoFar := recorder(t)
	c.Leased(bob)
	c.Leased(alice)
	connect(c, alice)
	connect(c, bob)
	// Without a REQ.
	c.Classify(madTo(own, &mad.RTU{LocalCommID: 50, RemoteCommID: alice.CommIDs.Base + 4}))
	// Without a process.
	c.Classify(madTo(own, &mad.REP{LocalCommID: 51, RemoteCommID: 0xc00000}))
	c.Classify(madTo(own, &mad.REP{LocalCommID: 52, RemoteCommID: alice.CommIDs.Base + 5}))
	// Ended.
	c.Classify(madTo(own, &mad.DREQ{LocalCommID: 52, RemoteCommID: alice.CommIDs.Base + 5}))
	now := int64(time.Hour)
	if again := c.SendDue(now, send); again != 0 || len(sentSoFar()) > 0 {
		t.Errorf("messages for a living process, again after %d", again)
	}
	c.Died(alice)
	tids := map[uint32]uint64{}
	for try := range 16 {
		again := c.SendDue(now, send)
		got := sentSoFar()
		if len(got) != 3 {
			t.Fatalf("try %d: %d messages, want the DREQs of 3 connections", try, len(got))
		}
		for i, s := range got {
			if s.to.Src != own || s.to.Dst != peer || s.to.HopLimit != 64 || s.to.SrcPort < 49152 {
				t.Errorf("sent on %+v", s.to)
			}
			m, ok := s.m.(*mad.DREQ)
			n := uint32(i)
			if !ok || m.LocalCommID != alice.CommIDs.Base+1+n || m.RemoteCommID != 9+n || m.RemoteQPN != 0x77+n {
				t.Errorf("try %d: sent %+v", try, s.m)
			}
			if old, known := tids[n]; known && old != s.tid {
				t.Errorf("a repeated DREQ has transaction ID %#x, the first had %#x", s.tid, old)
			}
			tids[n] = s.tid
		}
		if again != int64(4096*time.Millisecond) {
			t.Errorf("again after %v", time.Duration(again))
		}
		if c.SendDue(now+again-1, send); len(sentSoFar()) > 0 {
			t.Error("repeated too soon")
		}
		now += again
	}
	if again := c.SendDue(now, send); again != 0 || len(sentSoFar()) > 0 {
		t.Errorf("sent 17 times, or again after %v", time.Duration(again))
	}
}

func TestDiedIsAnswered(t *testing.T) {
	c := classify.New()
	send, sentSoFar := recorder(t)
	c.Leased(alice)
	connect(c, alice)
	c.Died(alice)
	c.SendDue(1, send)
	sentSoFar()
	b, d := madTo(own, &mad.DREP{LocalCommID: 9, RemoteCommID: alice.CommIDs.Base + 1})
	bad := *d
	bad.Src = other // of another host, so that its ICRC is wrong
	c.Classify(b, &bad)
	c.Classify(madTo(own, &mad.DREP{LocalCommID: 99, RemoteCommID: alice.CommIDs.Base + 1}))
	if c.SendDue(5e9, send); len(sentSoFar()) != 3 {
		t.Error("a DREP of another host counts")
	}
	c.Classify(b, d)
	// At the same time.
	c.Classify(madTo(own, &mad.DREQ{LocalCommID: 10, RemoteCommID: alice.CommIDs.Base + 2}))
	c.Classify(madTo(own, &mad.REJ{LocalCommID: 11, RemoteCommID: alice.CommIDs.Base + 3}))
	if again := c.SendDue(10e9, send); again != 0 || len(sentSoFar()) > 0 {
		t.Errorf("sends although nothing is due, again after %d", again)
	}
}

// The RTU is in flight when the process dies.
func TestRTUForDeadProcess(t *testing.T) {
	c := classify.New()
	send, sentSoFar := recorder(t)
	c.Leased(alice)
	c.Classify(madTo(own, &mad.REQ{LocalCommID: 9, ServiceID: 5, LocalQPN: 0x77}))
	c.Died(alice)
	c.SendDue(1, send)
	b, d := madTo(own, &mad.RTU{LocalCommID: 9, RemoteCommID: alice.CommIDs.Base + 1})
	c.Classify(b, d)
	c.Refuse(b, d, send)
	if len(sentSoFar()) > 0 {
		t.Error("an RTU is answered at once")
	}
	if c.SendDue(2, send); len(sentSoFar()) != 1 {
		t.Error("no DREQ after an RTU for a dead process")
	}
}

func TestLeasedAgain(t *testing.T) {
	c := classify.New()
	send, sentSoFar := recorder(t)
	c.Leased(alice)
	connect(c, alice)
	c.Died(alice)
	c.SendDue(1, send)
	sentSoFar()
	c.Leased(alice)
	if again := c.SendDue(5e9, send); again != 0 || len(sentSoFar()) > 0 {
		t.Error("sends for numbers that are leased")
	}
	c.Died(alice)
	if c.SendDue(6e9, send); len(sentSoFar()) > 0 {
		t.Error("knows the connections of an earlier process")
	}
}

func TestDamagedMADIgnored(t *testing.T) {
	c := classify.New()
	send, sentSoFar := recorder(t)
	c.Leased(alice)
	b, d := madTo(own, &mad.REP{LocalCommID: 10, RemoteCommID: alice.CommIDs.Base + 2, LocalQPN: 0x78})
	b[20+24+200] ^= 0x55
	d.Header = header(peer, own, 0x1234, len(b)) // visible
	d.IDGuessed = false
	if got := c.Classify(b, d); got.Kind != hub.TargetCommID {
		t.Errorf("%+v: want its process to count it", got)
	}
	c.Refuse(b, d, send)
	if len(sentSoFar()) > 0 {
		t.Error("answers a damaged MAD")
	}
	c.Died(alice)
	if c.SendDue(1, send); len(sentSoFar()) > 0 {
		t.Error("records a damaged MAD")
	}
}

func TestRefuse(t *testing.T) {
	const mine, his = 0xa00001, 9
	for _, x := range []struct{ m, want mad.Message }{
		{&mad.REQ{LocalCommID: his, ServiceID: 5}, &mad.REJ{RemoteCommID: his, About: mad.AnsweredREQ, Reason: mad.InvalidServiceID}},
		{&mad.SIDRREQ{RequestID: his, ServiceID: 5}, &mad.SIDRREP{RequestID: his, ServiceID: 5, Status: mad.SIDRUnsupported}},
		{&mad.REP{LocalCommID: his, RemoteCommID: mine},
			&mad.REJ{LocalCommID: mine, RemoteCommID: his, About: mad.AnsweredREP, Reason: mad.InvalidCommID}},
		{&mad.DREQ{LocalCommID: his, RemoteCommID: mine}, &mad.DREP{LocalCommID: mine, RemoteCommID: his}},
		{&mad.LAP{LocalCommID: his, RemoteCommID: mine}, &mad.APR{LocalCommID: mine, RemoteCommID: his, Status: mad.APRInvalidCommID}},
		{&mad.RTU{LocalCommID: his, RemoteCommID: mine}, nil},
		{&mad.MRA{LocalCommID: his, RemoteCommID: mine}, nil},
		{&mad.REJ{LocalCommID: his, RemoteCommID: mine}, nil},
		{&mad.DREP{LocalCommID: his, RemoteCommID: mine}, nil},
		{&mad.SIDRREP{RequestID: mine}, nil},
		{&mad.APR{LocalCommID: his, RemoteCommID: mine}, nil},
	} {
		send, sentSoFar := recorder(t)
		b, d := madTo(own, x.m)
		d.TrafficClass, d.TCI = 0x68, 3<<13
		c := classify.New()
		c.Refuse(b, d, send)
		got := sentSoFar()
		if x.want == nil {
			if len(got) > 0 {
				t.Errorf("%v is answered with %+v", x.m.Attr(), got[0].m)
			}
			continue
		}
		var want, have [mad.Size]byte
		mad.Encode(&want, 77, x.want)
		if len(got) != 1 || got[0].to.Src != own || got[0].to.Dst != peer || got[0].to.TrafficClass != 0x68 || got[0].to.Priority != 3 {
			t.Errorf("%v is answered with %+v", x.m.Attr(), got)
			continue
		}
		mad.Encode(&have, got[0].tid, got[0].m)
		if have != want {
			t.Errorf("%v is answered with %+v, want %+v", x.m.Attr(), got[0].m, x.want)
		}
	}
}

// A packet is valid only with its own identification, and unchanged.
func TestVerify(t *testing.T) {
	c := classify.New()
	b, d := arrival(peer, own, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, DestQP: 0x10001}, Payload: []byte("data")})
	if c.Verify(b, d) {
		t.Error("any identification is valid")
	}
	d.Header = header(peer, own, 0x1234, len(b))
	if !c.Verify(b, d) {
		t.Error("a sent packet is invalid")
	}
	if c.Verify(b[:5], d) || c.Verify(nil, d) {
		t.Error("a part is valid")
	}
	b[12] ^= 1
	if c.Verify(b, d) {
		t.Error("a damaged packet is valid")
	}
	flush, d := arrival(peer, own, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCFlush, DestQP: 0x10001}})
	d.Header = header(peer, own, 0x1234, len(flush))
	wire.PutICRC(d.Header, flush)
	if c.Verify(flush, d) {
		t.Error("a FLUSH is valid before its process has seen it")
	}
}

// A living process may have no hub for a moment. Nothing else answers for it.
func TestNoRefusalForLiveProcess(t *testing.T) {
	c := classify.New()
	send, sentSoFar := recorder(t)
	c.Leased(alice)
	for _, m := range []mad.Message{
		&mad.DREQ{LocalCommID: 9, RemoteCommID: alice.CommIDs.Base + 1}, &mad.REP{LocalCommID: 9, RemoteCommID: alice.CommIDs.Base + 1},
	} {
		b, d := madTo(own, m)
		if c.Refuse(b, d, send); len(sentSoFar()) > 0 {
			t.Errorf("%v for a living process is answered", m.Attr())
		}
	}
	c.Died(alice)
	b, d := madTo(own, &mad.DREQ{LocalCommID: 9, RemoteCommID: alice.CommIDs.Base + 1})
	if c.Refuse(b, d, send); len(sentSoFar()) != 1 {
		t.Error("a DREQ for a process that died is not answered")
	}
}

func TestPermits(t *testing.T) {
	c := classify.New()
	datagram := func(qpn uint32) *wire.Packet {
		return &wire.Packet{BTH: wire.BTH{Opcode: wire.UDSendOnly, PKey: 0xffff, DestQP: 0x999}, DETH: wire.DETH{SrcQP: qpn}}
	}
	permits := func(b []byte, _ *stack.Datagram) bool { return c.Permits(b, alice) }
	for what, x := range map[string]struct{ got, want bool }{
		"its own datagram":     {permits(arrival(own, own, datagram(alice.QPNs.Base+5))), true},
		"another's datagram":   {permits(arrival(own, own, datagram(bob.QPNs.Base+5))), false},
		"its own MAD":          {permits(madTo(own, &mad.DREQ{LocalCommID: alice.CommIDs.Base + 1, RemoteCommID: bob.CommIDs.Base})), true},
		"another's MAD":        {permits(madTo(own, &mad.DREQ{LocalCommID: bob.CommIDs.Base + 1, RemoteCommID: bob.CommIDs.Base})), false},
		"another's request ID": {permits(madTo(own, &mad.SIDRREQ{RequestID: bob.CommIDs.Base + 1})), false},
		"a REJ without an ID":  {permits(madTo(own, &mad.REJ{RemoteCommID: bob.CommIDs.Base})), true},
		"a connection":         {permits(arrival(own, own, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, DestQP: 0x999}})), true},
		"a MAD from a QP": {permits(arrival(own, own, &wire.Packet{
			BTH:  wire.BTH{Opcode: wire.UDSendOnly, PKey: 0xffff, DestQP: mad.QPN},
			DETH: wire.DETH{QKey: mad.QKey, SrcQP: alice.QPNs.Base + 1},
		})), false},
		"nothing": {c.Permits(nil, alice), false},
	} {
		if x.got != x.want {
			t.Errorf("%s: %t, want %t", what, x.got, x.want)
		}
	}
}

// The number of stored requests is bounded: the oldest is dropped.
func TestManyRequests(t *testing.T) {
	const most = 1 << 14
	c := classify.New()
	send, sentSoFar := recorder(t)
	c.Leased(alice)
	for i := range uint32(most + 1) {
		c.Classify(madTo(own, &mad.REQ{LocalCommID: 1 + i, LocalQPN: 2 + i}))
	}
	for _, i := range []uint32{0, 1, most} {
		c.Classify(madTo(own, &mad.RTU{LocalCommID: 1 + i, RemoteCommID: alice.CommIDs.Base + i}))
	}
	c.Died(alice)
	c.SendDue(1, send)
	var qpns []uint32
	for _, s := range sentSoFar() {
		qpns = append(qpns, s.m.(*mad.DREQ).RemoteQPN)
	}
	if !slices.Equal(qpns, []uint32{3, 2 + most}) {
		t.Errorf("knows the connections of peer's QPNs %v", qpns)
	}
}

// The DREQs of a dead process are sent in parts, and once.
func TestManyConnections(t *testing.T) {
	const most = 1 << 16
	c := classify.New()
	c.Leased(alice)
	b, d := madTo(own, &mad.REP{})
	d.NoICRC = true // saves the time to compute it
	for i := range uint32(most + 100) {
		binary.BigEndian.PutUint32(b[20+24:], 1+i)
		binary.BigEndian.PutUint32(b[20+24+4:], alice.CommIDs.Base+i)
		c.Classify(b, d)
	}
	c.Died(alice)
	count, largest := 0, 0
	for now := int64(1); ; {
		n := 0
		again := c.SendDue(now, func(stack.PathAttr, int, func(header, payload []byte)) { n++ })
		largest, count = max(largest, n), count+n
		if again > int64(time.Second) {
			break
		}
		now += again
	}
	if count != most || largest > 64 {
		t.Errorf("%d DREQs, up to %d at once; want %d, up to 64", count, largest, most)
	}
}

func FuzzClassify(f *testing.F) {
	for _, m := range []mad.Message{
		&mad.REQ{LocalCommID: 9, ServiceID: 5, LocalQPN: 7}, &mad.REP{LocalCommID: 9, RemoteCommID: 0xa00001},
		&mad.RTU{LocalCommID: 9, RemoteCommID: 0xa00002},
		&mad.REJ{LocalCommID: 9}, &mad.MRA{}, &mad.DREQ{LocalCommID: 9, RemoteCommID: 0xa00001},
		&mad.DREP{}, &mad.SIDRREQ{}, &mad.SIDRREP{}, &mad.LAP{}, &mad.APR{},
	} {
		b, _ := madTo(own, m)
		f.Add(b, uint8(1))
	}
	b, _ := arrival(peer, own, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, DestQP: 0x10001}, Payload: []byte("data")})
	f.Add(b, uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, how uint8) {
		c := classify.New()
		c.Leased(alice)
		d := &stack.Datagram{
			Src: peer, Dst: own, Payload: b, SegmentSize: len(b), Header: header(peer, own, 0, len(b)),
			NoICRC: how&1 != 0, IDGuessed: how&2 != 0,
		}
		if how&4 != 0 {
			d.Dst = group
		}
		if how&8 != 0 {
			d.Header = d.Header[:int(how>>4)]
		}
		sent := 0
		send := func(to stack.PathAttr, n int, fill func(header, payload []byte)) {
			if sent++; to.Dst != peer || to.Src != own || n != 12+8+mad.Size+4 {
				t.Errorf("sends %d bytes on %+v", n, to)
			}
			fill(nil, make([]byte, n))
		}
		for range 2 {
			to := c.Classify(b, d)
			c.Permits(b, alice)
			if to.Kind == hub.TargetCommID || to.Kind == hub.TargetService {
				c.Refuse(b, d, send)
			}
			if to.Kind == hub.TargetCommID && to.Number == 0 || to.Kind == hub.TargetQPN && (to.Number < 2 || to.Number >= 1<<24-1) {
				t.Errorf("for %+v", to)
			}
		}
		if sent > 2 {
			t.Errorf("%d answers to two datagrams", sent)
		}
		c.Died(alice)
		c.SendDue(1, send)
		if sent > 3 {
			t.Errorf("%d datagrams after two", sent)
		}
	})
}

var sink hub.Target

func BenchmarkClassify(b *testing.B) {
	c := classify.New()
	p, d := arrival(peer, own, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, DestQP: 0x10001}, Payload: make([]byte, 4096)})
	b.ReportAllocs()
	for b.Loop() {
		sink = c.Classify(p, d)
	}
	if n := testing.AllocsPerRun(100, func() { sink = c.Classify(p, d) }); n != 0 || sink.Number != 0x10001 {
		b.Errorf("%v allocations, %+v", n, sink)
	}
}
