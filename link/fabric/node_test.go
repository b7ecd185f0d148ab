package fabric_test

import (
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/stack/static"
	"github.com/softrnic/softrnic/verbs"
)

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newFabric(t testing.TB, cfg *fabric.Config) *fabric.Fabric {
	t.Helper()
	f := must(fabric.New(cfg))(t)
	t.Cleanup(f.Close)
	return f
}

// node is a device on a host, with one region.
type node struct {
	t   testing.TB
	h   *fabric.Host
	dev *verbs.Device
	pd  *verbs.PD
	mr  *verbs.MR
	gid verbs.GID
	at  uint8 // its index

	timeout uint8 // of its QPs
	class   uint8 // of their traffic, 0 to 7
	service verbs.QPType
}

// stacks are the ways to open a node.
var stacks = []struct {
	name string
	open func(testing.TB, *fabric.Fabric, *fabric.Host, roce.Config) *node
}{{"static", onStatic}, {"netstack", onNetstack}}

// onStatic opens a device on package static, onNetstack on gVisor.
func onStatic(t testing.TB, f *fabric.Fabric, h *fabric.Host, cfg roce.Config) *node {
	t.Helper()
	s := must(static.New(h, &static.Config{Addr: h.Addr(), Neighbour: f.Neighbour}))(t)
	return newNode(t, h, s, cfg, func() { _ = s.Close() })
}

func onNetstack(t testing.TB, _ *fabric.Fabric, h *fabric.Host, cfg roce.Config) *node {
	t.Helper()
	s := must(netstack.New(h, &netstack.Config{Addrs: []string{h.Prefix()}}))(t)
	return newNode(t, h, s, cfg, func() { _ = s.Close() })
}

const regionSize = 1 << 20

func newNode(t testing.TB, h *fabric.Host, s stack.Network, cfg roce.Config, closeStack func()) *node {
	t.Helper()
	n := &node{t: t, h: h, timeout: 10, service: verbs.RC}
	n.dev = must(rdmatransport.Open(s, &rdmatransport.Config{Name: h.Name(), RoCE: cfg}))(t)
	t.Cleanup(func() {
		_ = n.dev.Provider().Close() // without waiting for peers
		closeStack()
	})
	n.pd = must(n.dev.AllocPD())(t)
	n.mr = must(n.pd.RegMR(make([]byte, regionSize), all))(t)
	for _, e := range must(n.dev.GIDTable(1))(t) {
		if e.GID.Addr() == h.Addr() && e.Type == verbs.GIDTypeRoCEv2 {
			n.gid, n.at = e.GID, uint8(e.Index)
		}
	}
	return n
}

const all = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// end is a QP with its CQ.
type end struct {
	n  *node
	qp *verbs.QP
	cq *verbs.CQ
	ch *verbs.CompChannel
}

func (n *node) newEnd() *end {
	n.t.Helper()
	e := &end{n: n, ch: must(n.dev.CreateCompChannel())(n.t)}
	e.cq = must(n.dev.CreateCQ(64, &verbs.CQInitAttr{Channel: e.ch}))(n.t)
	e.qp = must(n.pd.CreateQP(&verbs.QPInitAttr{Type: e.n.service, Transport: verbs.RoCEv2, SendCQ: e.cq, RecvCQ: e.cq,
		Cap: verbs.QPCap{MaxSendWR: 32, MaxRecvWR: 32, MaxSendSGE: 1, MaxRecvSGE: 1}}))(n.t)
	return e
}

// connect connects two new QPs.
func connect(a, b *node, mtu verbs.MTU) (x, y *end) {
	a.t.Helper()
	x, y = a.newEnd(), b.newEnd()
	x.ready(y, mtu)
	y.ready(x, mtu)
	return x, y
}

func (e *end) ready(peer *end, mtu verbs.MTU) {
	t := e.n.t
	t.Helper()
	ok(t, e.qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QPAccessFlags: all},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
	rtr, rts := verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer,
		verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|verbs.QPAttrMaxQPRDAtomic
	if e.n.service != verbs.RC {
		rtr, rts = 0, 0
	}
	ok(t, e.qp.Modify(&verbs.QPAttr{
		QPState: verbs.StateRTR, PathMTU: mtu, DestQPNum: peer.qp.Num(), RQPSN: 1, MaxDestRDAtomic: 16, MinRNRTimer: 12,
		AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: peer.n.gid, SGIDIndex: e.n.at, HopLimit: 64,
			TrafficClass: e.n.class << 5}},
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|rtr))
	ok(t, e.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS, SQPSN: 1, Timeout: e.n.timeout, RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 16},
		verbs.QPAttrState|verbs.QPAttrSQPSN|rts))
}

// stream keeps a connection busy with requests, by callbacks.
type stream struct {
	*end
	wr    verbs.SendWR
	bytes int64  // acknowledged
	left  int    // requests to post; negative: no end
	done  func() // called for each that is acknowledged, if not nil

	failed func(verbs.WCStatus) // nil: failures are errors of the test
}

// write starts a stream of WRITEs, two at a time.
func (e *end) write(to *end, size, count int) *stream {
	return e.stream(verbs.RDMAWrite, to, size, count)
}

// stream starts a stream of WRITEs or READs, two at a time.
func (e *end) stream(op verbs.WROpcode, to *end, size, count int) *stream {
	s := &stream{end: e, left: count, wr: verbs.SendWR{Opcode: op, Flags: verbs.SendSignaled,
		RemoteAddr: to.n.mr.Addr(), RKey: to.n.mr.RKey(), SGList: []verbs.SGE{e.n.mr.SGE(0, size)}}}
	e.ch.OnEvent(func(int) { s.onEvent() })
	ok(e.n.t, e.cq.ReqNotify(false))
	s.post()
	s.post()
	return s
}

func (s *stream) post() {
	if s.left != 0 {
		s.left--
		ok(s.n.t, s.qp.PostSend(&s.wr))
	}
}

func (s *stream) onEvent() {
	for {
		cq, err := s.ch.TryGetEvent()
		if err != nil {
			return
		}
		ok(s.n.t, cq.AckEvents(1))
		ok(s.n.t, cq.ReqNotify(false))
		var wcs [8]verbs.WC
		for {
			n := must(cq.Poll(wcs[:]))(s.n.t)
			if n == 0 {
				break
			}
			for i := range n {
				if wcs[i].Status == verbs.WCWRFlushErr {
					return // its device is being closed
				}
				if s.failed != nil && wcs[i].Status != verbs.WCSuccess {
					s.failed(wcs[i].Status)
					return
				}
				if err := wcs[i].Err(); err != nil {
					s.n.t.Error(err)
					return
				}
				s.bytes += int64(s.wr.SGList[0].Length)
				if s.done != nil {
					s.done()
				}
				s.post()
			}
		}
	}
}

// gbps is a rate in Gbit/s.
func gbps(bytes int64, d time.Duration) float64 { return float64(bytes) * 8 / d.Seconds() / 1e9 }
