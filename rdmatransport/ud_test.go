package rdmatransport_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// udNode is a host with UD QPs, all of one Q_Key.
type udNode struct {
	t    *testing.T
	addr map[bool]netip.Addr // by "is IPv4"
	dev  *verbs.Device
	pd   *verbs.PD
	mr   *verbs.MR
	qps  []*verbs.QP
	v1   bool // RoCE v1, for what ah makes
}

const udQKey = 0x1234

func newUDNode(t *testing.T, lan *pipe.Switch, n, qps int) *udNode {
	t.Helper()
	node := &udNode{t: t, addr: map[bool]netip.Addr{
		true: netip.AddrFrom4([4]byte{10, 0, 0, byte(n)}), false: netip.MustParseAddr(fmt.Sprintf("fd00::%d", n)),
	}}
	host, err := netstack.New(lan.Port(), netstack.Addr(node.addr[true].String()+"/24"), netstack.Addr(node.addr[false].String()+"/64"))
	node.check(err)
	node.dev, err = rdmatransport.Open(host)
	node.check(err)
	node.pd, err = node.dev.AllocPD()
	node.check(err)
	node.mr, err = node.pd.RegMR(make([]byte, 1<<16), verbs.AccessLocalWrite)
	node.check(err)
	for i := range qps {
		cq, err := node.dev.CreateCQ(256, nil)
		node.check(err)
		qp, err := node.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.UD, SendCQ: cq, RecvCQ: cq, BlockSelfMcastLB: i == 1,
			Cap: verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 1, MaxRecvSGE: 1}})
		node.check(err)
		node.check(qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QKey: udQKey},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrQKey))
		node.check(qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTR}, verbs.QPAttrState))
		node.check(qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState|verbs.QPAttrSQPSN))
		node.qps = append(node.qps, qp)
	}
	t.Cleanup(func() {
		for _, qp := range node.qps {
			node.check(qp.Destroy())
			node.check(qp.SendCQ().Destroy())
		}
		node.check(node.mr.Dereg())
		node.check(node.pd.Dealloc())
		node.check(node.dev.Close())
		node.check(host.Close())
	})
	return node
}

func (n *udNode) check(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

// ah leads to an address of the lan.
func (n *udNode) ah(to netip.Addr) *verbs.AH {
	n.t.Helper()
	gid := 1
	if !to.Is4() {
		gid = 2
	}
	if n.v1 {
		gid += roce.V1Index
	}
	ah, err := n.pd.CreateAH(&verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{
		DGID: verbs.GIDFromAddr(to), SGIDIndex: uint8(gid)}})
	n.check(err)
	return ah
}

// recv posts a receive request for each QP in the first pages of the region, the i-th in page i.
func (n *udNode) recv() {
	n.t.Helper()
	for i, qp := range n.qps {
		n.check(qp.PostRecv(&verbs.RecvWR{ID: uint64(i), SGList: []verbs.SGE{n.mr.SGE(i<<12, 1<<12)}}))
	}
}

// send sends text from QP i.
func (n *udNode) send(i int, ah *verbs.AH, qpn uint32, text string) {
	n.t.Helper()
	const at = 1 << 15
	copy(n.mr.Buf()[at:], text)
	n.check(n.qps[i].PostSend(&verbs.SendWR{ID: 1 << 10, Opcode: verbs.SendWithImm, ImmData: n.qps[i].Num(), AH: ah,
		RemoteQPN: qpn, RemoteQKey: udQKey, SGList: []verbs.SGE{n.mr.SGE(at, len(text))}}))
}

// got returns what each QP has received, after all that is under way has arrived: its text, and its completion.
func (n *udNode) got() (texts []string, wcs []verbs.WC) {
	n.t.Helper()
	synctest.Wait()
	for i, qp := range n.qps {
		var wc [4]verbs.WC
		k, err := qp.RecvCQ().Poll(wc[:])
		n.check(err)
		switch {
		case k == 0:
			texts = append(texts, "")
		case k > 1 || wc[0].Status != verbs.WCSuccess || wc[0].Flags&verbs.WCGRH == 0:
			n.t.Fatalf("completions %+v", wc[:k])
		default:
			texts = append(texts, string(n.mr.Buf()[i<<12+verbs.GRHLen:i<<12+int(wc[0].ByteLen)]))
		}
		wcs = append(wcs, wc[0])
	}
	return texts, wcs
}

func (n *udNode) want(texts ...string) []verbs.WC {
	n.t.Helper()
	got, wcs := n.got()
	if fmt.Sprint(got) != fmt.Sprint(texts) {
		n.t.Fatalf("the QPs received %q, want %q", got, texts)
	}
	return wcs
}

// TestDatagrams sends one, and answers it by what came with it; to another host, to another QP of the device and to the
// QP itself.
func TestDatagrams(t *testing.T) {
	for name, c := range map[string]struct{ v4, v1 bool }{
		"IPv4": {v4: true}, "IPv6": {}, "RoCE v1, IPv4": {v4: true, v1: true}, "RoCE v1, IPv6": {v1: true},
	} {
		v4 := c.v4
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lan := new(pipe.Switch)
				a, b := newUDNode(t, lan, 1, 2), newUDNode(t, lan, 2, 1)
				a.v1, b.v1 = c.v1, c.v1
				for _, c := range []struct {
					name string
					to   *udNode
					qp   int
				}{{"another host", b, 0}, {"another QP", a, 1}, {"itself", a, 0}} {
					ah := a.ah(c.to.addr[v4])
					a.recv()
					b.recv()
					text := "to " + c.name
					a.send(0, ah, c.to.qps[c.qp].Num(), text)
					want := map[*udNode][]string{a: {"", ""}, b: {""}}
					want[c.to][c.qp] = text
					wc := map[*udNode][]verbs.WC{a: a.want(want[a]...), b: b.want(want[b]...)}[c.to][c.qp]
					if wc.SrcQP != a.qps[0].Num() || wc.ImmData != wc.SrcQP {
						t.Errorf("%s: completion %+v", c.name, wc)
					}
					back, err := c.to.pd.CreateAHFromWC(1, &wc, c.to.mr.Buf()[c.qp<<12:])
					a.check(err)
					if attr, _ := back.Query(); attr.GRH.DGID.Addr() != a.addr[v4] || (attr.GRH.SGIDIndex >= roce.V1Index) != a.v1 {
						t.Errorf("%s: the way back leads to %v from GID %d", c.name, attr.GRH.DGID.Addr(), attr.GRH.SGIDIndex)
					}
					a.recv()
					c.to.send(c.qp, back, wc.SrcQP, "thanks")
					if got, _ := a.got(); got[0] != "thanks" {
						t.Errorf("%s: the answer is %q", c.name, got[0])
					}
					a.check(ah.Destroy())
					a.check(back.Destroy())
				}
			})
		})
	}
}

// TestDatagramBatch sends equal datagrams in one call: they go as a superframe and arrive as datagrams.
func TestDatagramBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		a, b := newUDNode(t, lan, 1, 1), newUDNode(t, lan, 2, 1)
		ah := a.ah(b.addr[true])
		var wrs []*verbs.SendWR
		for i := range 60 {
			a.check(b.qps[0].PostRecv(&verbs.RecvWR{ID: uint64(i), SGList: []verbs.SGE{b.mr.SGE(i<<10, 1<<10)}}))
			buf := a.mr.Buf()[i<<10:][:512]
			for j := range buf {
				buf[j] = byte(i + j)
			}
			wrs = append(wrs, &verbs.SendWR{Opcode: verbs.Send, AH: ah, RemoteQPN: b.qps[0].Num(), RemoteQKey: udQKey,
				SGList: []verbs.SGE{a.mr.SGE(i<<10, 512)}})
		}
		a.check(a.qps[0].PostSend(wrs...))
		synctest.Wait()
		wcs := make([]verbs.WC, 64)
		n, err := b.qps[0].RecvCQ().Poll(wcs)
		if n != 60 || err != nil {
			t.Fatalf("%d arrived, %v", n, err)
		}
		for i := range n {
			if !bytes.Equal(b.mr.Buf()[i<<10+verbs.GRHLen:][:512], a.mr.Buf()[i<<10:][:512]) {
				t.Errorf("datagram %d has other bytes", i)
			}
			if _, err := b.dev.InitAHFromWC(1, &wcs[i], b.mr.Buf()[i<<10:]); err != nil {
				t.Errorf("datagram %d: %v", i, err)
			}
		}
		a.check(ah.Destroy())
	})
}

// TestMulticast: every attached QP of every host gets a copy, the sender's too unless it does not want its own.
func TestMulticast(t *testing.T) {
	for i := range 4 {
		group, v1 := []string{"239.7.8.9", "ff05::7"}[i%2], i >= 2
		t.Run(fmt.Sprintf("%s, RoCE v1 %t", group, v1), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lan := new(pipe.Switch)
				a, b := newUDNode(t, lan, 1, 2), newUDNode(t, lan, 2, 2)
				a.v1, b.v1 = v1, v1
				to := netip.MustParseAddr(group)
				ah := a.ah(to)
				a.recv()
				b.recv()
				a.send(0, ah, 0xffffff, "nobody is in")
				a.want("", "")
				b.want("", "")
				gid := verbs.GIDFromAddr(to)
				a.check(b.qps[0].AttachMcast(gid))
				a.send(0, ah, 0xffffff, "one is")
				a.want("", "")
				b.want("one is", "")
				for _, qp := range []*verbs.QP{a.qps[0], a.qps[1], b.qps[1]} {
					a.check(qp.AttachMcast(gid))
				}
				b.recv()
				back := b.ah(to)
				b.send(0, back, 0xffffff, "all are")
				a.check(back.Destroy())
				a.want("all are", "all are")
				b.want("all are", "all are")
				a.recv()
				b.recv()
				a.send(1, ah, 0xffffff, "not I") // QP 1 blocks its own
				a.want("not I", "")
				b.want("not I", "not I")
				for _, qp := range []*verbs.QP{a.qps[0], a.qps[1], b.qps[0], b.qps[1]} {
					a.check(qp.DetachMcast(gid))
				}
				a.recv()
				b.recv()
				a.send(0, ah, 0xffffff, "all are out")
				a.want("", "")
				b.want("", "")
				a.check(ah.Destroy())
			})
		})
	}
}

// TestReplyToDatagram: what stands before a datagram in its buffer says whom to reply to, on every medium.
func TestReplyToDatagram(t *testing.T) {
	overMedia(t, func(t *testing.T, m medium) {
		a, b := m.stations(t)
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
			t.Errorf("a reply goes to %v, %v; want %v", attr.GRH.DGID.Addr(), err, a.addr)
		}
		check(ah.Destroy())
	})
}

// udEnd is a UD QP in RTS, and memory.
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
	t.Cleanup(func() { e.qp.Destroy(); e.mr.Dereg(); cq.Destroy() })
	for _, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QKey: udQKey}, verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey},
		{verbs.QPAttr{QPState: verbs.StateRTR}, verbs.QPAttrState},
		{verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState | verbs.QPAttrSQPSN},
	} {
		if err := e.qp.Modify(&step.attr, step.mask); err != nil {
			t.Fatal(err)
		}
	}
	return e
}
