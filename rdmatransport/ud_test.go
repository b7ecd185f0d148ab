package rdmatransport_test

import (
	"bytes"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// udNode is a host with UD QPs, all with one Q_Key, that have posted receive requests.
type udNode struct {
	stacktest.End
	t   *testing.T
	dev *verbs.Device
	pd  *verbs.PD
	mr  *verbs.MR
	qps []*verbs.QP
	ahs []*verbs.AH
	v1  bool // RoCE v1, for address handles from ah
}

const (
	udQKey  = 0x1234
	udDepth = 64      // receive requests of a QP
	udSlot  = 1 << 10 // bytes of each
)

func newUDNode(t *testing.T, end stacktest.End, qps int) *udNode {
	t.Helper()
	node := &udNode{End: end, t: t, dev: must(rdmatransport.Open(end.Host, nil))(t)}
	node.pd = must(node.dev.AllocPD())(t)
	node.mr = must(node.pd.RegMR(make([]byte, qps*udDepth*udSlot), verbs.AccessLocalWrite))(t)
	for i := range qps {
		cq := must(node.dev.CreateCQ(256, nil))(t)
		qp := must(node.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.UD, SendCQ: cq, RecvCQ: cq, BlockSelfMcastLB: i == 1,
			Cap: verbs.QPCap{MaxSendWR: 128, MaxRecvWR: udDepth, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 64}}))(t)
		ok(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QKey: udQKey},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey))
		ok(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTR}, verbs.QPAttrState))
		ok(t, qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState|verbs.QPAttrSQPSN))
		node.qps = append(node.qps, qp)
		for slot := range udDepth {
			node.recv(i, uint64(i*udDepth+slot))
		}
	}
	t.Cleanup(func() {
		for _, ah := range node.ahs {
			ok(t, ah.Close())
		}
		for _, qp := range node.qps {
			ok(t, qp.Close())
			ok(t, qp.SendCQ().Close())
		}
		ok(t, node.mr.Close())
		ok(t, node.pd.Close())
		ok(t, node.dev.Close())
		ok(t, node.Host.Close())
	})
	return node
}

// udNodes creates two nodes on a network of their own.
func udNodes(t *testing.T, m medium, qpsA, qpsB int) (a, b *udNode) {
	t.Helper()
	hostA, hostB := m.hosts(t)
	return newUDNode(t, hostA, qpsA), newUDNode(t, hostB, qpsB)
}

// at returns the node's IPv6 or IPv4 address.
func (n *udNode) at(six bool) netip.Addr {
	if six {
		return n.Addr6
	}
	return n.Addr
}

// ah returns an address handle for an address of the LAN.
func (n *udNode) ah(to netip.Addr) *verbs.AH {
	n.t.Helper()
	kind := verbs.GIDTypeRoCEv2
	if n.v1 {
		kind = verbs.GIDTypeRoCEv1
	}
	table, from := must(n.dev.GIDTable(1))(n.t), n.at(!to.Is4())
	at := slices.IndexFunc(table, func(e verbs.GIDEntry) bool { return e.Type == kind && e.GID.Addr() == from })
	if at < 0 {
		n.t.Fatalf("no GID of %v for %v in %v", kind, from, table)
	}
	ah := must(n.pd.CreateAH(&verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{
		DGID: verbs.GIDFromAddr(to), SGIDIndex: uint8(table[at].Index)}}))(n.t)
	n.ahs = append(n.ahs, ah)
	return ah
}

// recv posts the receive request of a slot of the region to QP i.
func (n *udNode) recv(i int, slot uint64) {
	n.t.Helper()
	ok(n.t, n.qps[i].PostRecv(&verbs.RecvWR{WRID: slot, SGList: []verbs.SGE{n.mr.SGE(int(slot)*udSlot, udSlot)}}))
}

// send sends a text from QP i.
func (n *udNode) send(i int, ah *verbs.AH, qpn uint32, text string) {
	n.t.Helper()
	ok(n.t, n.qps[i].PostSend(&verbs.SendWR{Opcode: verbs.SendWithImm, ImmData: n.qps[i].Num(), AH: ah, Flags: verbs.SendInline,
		RemoteQPN: qpn, RemoteQKey: udQKey, InlineData: []byte(text)}))
}

// datagram is a received datagram from its GRH on, with its completion.
type datagram struct {
	buf []byte
	wc  verbs.WC
}

func (d *datagram) text() string { return string(d.buf[verbs.GRHLen:]) }

// expect waits until QP i has received these texts, in any order. Any other text fails the test.
func (n *udNode) expect(i int, texts ...string) (all []datagram) {
	n.t.Helper()
	var got []string
	for end := time.Now().Add(20 * time.Second); len(got) < len(texts); {
		var wc [1]verbs.WC
		if must(n.qps[i].RecvCQ().Poll(wc[:]))(n.t) == 0 {
			if time.Now().After(end) {
				n.t.Fatalf("QP %d of %v has received %q, want %q", i, n.Addr, got, texts)
			}
			time.Sleep(100 * time.Microsecond)
			continue
		}
		if wc[0].Status != verbs.WCSuccess || wc[0].Flags&verbs.WCGRH == 0 {
			n.t.Fatalf("completion %+v", wc[0])
		}
		d := datagram{bytes.Clone(n.mr.Buf()[wc[0].WRID*udSlot:][:wc[0].ByteLen]), wc[0]}
		n.recv(i, wc[0].WRID)
		all, got = append(all, d), append(got, d.text())
		if !slices.Contains(texts, d.text()) {
			n.t.Fatalf("QP %d of %v has received %q, want %q", i, n.Addr, got, texts)
		}
	}
	slices.Sort(got)
	if slices.Sort(texts); !slices.Equal(got, texts) {
		n.t.Fatalf("QP %d of %v has received %q, want %q", i, n.Addr, got, texts)
	}
	return all
}

// exchangeDatagrams sends datagrams to another host, to another QP of the device and to the QP
// itself. Each is answered with an address handle from its completion.
func exchangeDatagrams(t *testing.T, m medium, six, v1 bool) {
	a, b := udNodes(t, m, 2, 1)
	a.v1, b.v1 = v1, v1
	for _, c := range []struct {
		name string
		to   *udNode
		qp   int
	}{{"another host", b, 0}, {"another QP", a, 1}, {"itself", a, 0}} {
		text := "to " + c.name
		a.send(0, a.ah(c.to.at(six)), c.to.qps[c.qp].Num(), text)
		d := c.to.expect(c.qp, text)[0]
		if d.wc.SrcQP != a.qps[0].Num() || d.wc.ImmData != d.wc.SrcQP {
			t.Errorf("%s: completion %+v", c.name, d.wc)
		}
		back := must(c.to.pd.CreateAHFromWC(1, &d.wc, d.buf))(t)
		if attr, _ := back.Query(); attr.GRH.DGID.Addr() != a.at(six) || (attr.GRH.SGIDIndex >= roce.V1Index) != v1 {
			t.Errorf("%s: the answer is sent to %v from GID %d", c.name, attr.GRH.DGID.Addr(), attr.GRH.SGIDIndex)
		}
		c.to.send(c.qp, back, d.wc.SrcQP, "thanks")
		a.expect(0, "thanks")
		ok(t, back.Close())
	}
}

// TestDatagrams sends datagrams and answers them, over IPv4.
func TestDatagrams(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) { exchangeDatagrams(t, m, false, false) })
}

// TestDatagramsIPv6 is TestDatagrams over IPv6.
func TestDatagramsIPv6(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) { exchangeDatagrams(t, m, true, false) })
}

// TestDatagramsV1 is TestDatagrams over RoCE v1, between GIDs of both families.
func TestDatagramsV1(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) {
		for _, six := range []bool{false, true} {
			exchangeDatagrams(t, m, six, true)
		}
	})
}

// TestDatagramBatch sends equal datagrams in one call. They are sent as a superframe and arrive as
// datagrams.
func TestDatagramBatch(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) {
		a, b := udNodes(t, m, 1, 1)
		const n = udDepth
		mr := must(a.pd.RegMR(make([]byte, n*512), 0))(t)
		for i := range mr.Buf() {
			mr.Buf()[i] = byte(i + i>>9)
		}
		ah, texts := a.ah(b.Addr), make([]string, n)
		var wrs []*verbs.SendWR
		for i := range n {
			texts[i] = string(mr.Buf()[i*512:][:512])
			wrs = append(wrs, &verbs.SendWR{Opcode: verbs.Send, AH: ah, RemoteQPN: b.qps[0].Num(), RemoteQKey: udQKey,
				SGList: []verbs.SGE{mr.SGE(i*512, 512)}})
		}
		wrs[n-1].Flags = verbs.SendSignaled
		ok(t, a.qps[0].PostSend(wrs...))
		for i, d := range b.expect(0, texts...) {
			if _, err := b.dev.InitAHFromWC(1, &d.wc, d.buf); err != nil {
				t.Errorf("datagram %d: %v", i, err)
			}
		}
		if wc := completion(t, a.qps[0].SendCQ()); wc.Status != verbs.WCSuccess {
			t.Error(wc.Status)
		}
		ok(t, mr.Close())
	})
}

// multicast checks that every attached QP of every host gets a copy. The sender gets one too,
// unless it blocks its own.
func multicast(t *testing.T, m medium, group string, v1 bool) {
	a, b := udNodes(t, m, 2, 2)
	a.v1, b.v1 = v1, v1
	to := netip.MustParseAddr(group)
	// say sends to the group and then to each QP. The second message shows if a QP has got an
	// unwanted copy.
	say := func(from *udNode, qp int, text string, toA0, toA1, toB0, toB1 bool) {
		t.Helper()
		from.send(qp, from.ah(to), 0xffffff, text)
		for i, gets := range []bool{toA0, toA1, toB0, toB1} {
			n := []*udNode{a, b}[i/2]
			from.send(qp, from.ah(n.at(!to.Is4())), n.qps[i%2].Num(), "after "+text)
			if gets {
				n.expect(i%2, text, "after "+text)
			} else {
				n.expect(i%2, "after "+text)
			}
		}
	}
	gid := verbs.GIDFromAddr(to)
	say(a, 0, "no members", false, false, false, false)
	ok(t, b.qps[0].AttachMcast(gid))
	say(a, 0, "one is", false, false, true, false)
	for _, qp := range []*verbs.QP{a.qps[0], a.qps[1], b.qps[1]} {
		ok(t, qp.AttachMcast(gid))
	}
	say(b, 0, "all are", true, true, true, true)
	say(a, 1, "not I", true, false, true, true) // QP 1 blocks its own
	for _, qp := range []*verbs.QP{a.qps[0], a.qps[1], b.qps[0], b.qps[1]} {
		ok(t, qp.DetachMcast(gid))
	}
	say(a, 0, "all have left", false, false, false, false)
	say(a, 0, "late copies", false, false, false, false) // detects late copies
}

// TestMulticast sends to groups of IPv4.
func TestMulticast(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) { multicast(t, m, "239.7.8.9", false) })
}

// TestMulticastIPv6 sends to groups of IPv6.
func TestMulticastIPv6(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) { multicast(t, m, "ff05::7", false) })
}

// TestMulticastV1 sends over RoCE v1 to groups of both families.
func TestMulticastV1(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) {
		multicast(t, m, "239.7.8.9", true)
		multicast(t, m, "ff05::7", true)
	})
}

// TestReplyToDatagram checks that the GRH in a datagram's buffer gives the address for the reply,
// on every medium.
func TestReplyToDatagram(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) {
		a, b := m.stations(t, nil)
		from, to := udEnd(t, a), udEnd(t, b)
		check := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		check(to.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{to.mr.SGE(0, 256)}}))
		route := must(a.dev.Provider().(rdmacm.Provider).Route(verbs.RoCEv2, a.addr, b.addr))(t)
		ah := must(a.pd.CreateAH(&verbs.AHAttr{
			GRH:      verbs.GRH{DGID: verbs.GIDFromAddr(b.addr), SGIDIndex: uint8(route.GIDIndex), HopLimit: 64},
			IsGlobal: true, PortNum: 1,
		}))(t)
		check(from.qp.PostSend(&verbs.SendWR{
			Opcode: verbs.Send, AH: ah, RemoteQPN: to.qp.Num(), RemoteQKey: udQKey, SGList: []verbs.SGE{from.mr.SGE(0, 8)},
		}))
		var wc [1]verbs.WC
		for n := 0; n == 0; {
			var err error
			n, err = to.qp.RecvCQ().Poll(wc[:])
			check(err)
			time.Sleep(time.Millisecond)
		}
		settle(t, to.qp)
		attr, err := b.dev.InitAHFromWC(1, &wc[0], to.mr.Buf()[:verbs.GRHLen])
		if err != nil || attr.GRH.DGID != verbs.GIDFromAddr(a.addr) {
			t.Errorf("a reply is sent to %v, %v; want %v", attr.GRH.DGID.Addr(), err, a.addr)
		}
		check(ah.Close())
	})
}

// udEnd creates a UD QP in RTS, and memory.
func udEnd(t *testing.T, s *station) (e struct {
	qp *verbs.QP
	mr *verbs.MR
}) {
	t.Helper()
	cq := must(s.dev.CreateCQ(8, nil))(t)
	e.mr = must(s.pd.RegMR(make([]byte, 256), verbs.AccessLocalWrite))(t)
	e.qp = must(s.pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.UD, SendCQ: cq, RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1},
	}))(t)
	t.Cleanup(func() { e.qp.Close(); e.mr.Close(); cq.Close() })
	for _, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QKey: udQKey},
			verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey},
		{verbs.QPAttr{QPState: verbs.StateRTR}, verbs.QPAttrState},
		{verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState | verbs.QPAttrSQPSN},
	} {
		if err := e.qp.Modify(&step.attr, step.mask); err != nil {
			t.Fatal(err)
		}
	}
	return e
}
