package conformance

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
)

// node is one host with a device.
type node struct {
	t    *testing.T
	host *netstack.Host
	dev  *verbs.Device
	pd   *verbs.PD
	gids []verbs.GIDEntry
}

// newNode creates a node on l.
func newNode(t *testing.T, l link.Link, device *rdmatransport.Config, addrs ...string) *node {
	t.Helper()
	n := &node{t: t}
	n.host = must(netstack.New(l, &netstack.Config{Addrs: addrs}))(t)
	t.Cleanup(func() { // if the test failed before close
		if n.dev != nil {
			_ = n.dev.Provider().Close()
		}
		if n.host != nil {
			_ = n.host.Close()
		}
	})
	n.dev = must(rdmatransport.Open(n.host, device))(t)
	n.pd = must(n.dev.AllocPD())(t)
	n.gids = must(n.dev.GIDTable(1))(t)
	return n
}

// close closes everything. Every object must have been closed.
func (n *node) close() {
	n.t.Helper()
	ok(n.t, n.pd.Close())
	ok(n.t, n.dev.Close())
	ok(n.t, n.host.Close())
	*n = node{}
}

func (n *node) reg(buf []byte, access verbs.Access) *verbs.MR {
	n.t.Helper()
	return must(n.pd.RegMR(buf, access))(n.t)
}

// counter returns one of the device's counters.
func (n *node) counter(name string) uint64 {
	n.t.Helper()
	v, found := must(n.dev.HWCounters())(n.t)[name]
	if !found {
		n.t.Fatalf("no counter %q", name)
	}
	return v
}

// endpoint is a QP with its CQ and completion channel.
type endpoint struct {
	*node
	qp *verbs.QP
	cq *verbs.CQ
	ch *verbs.CompChannel
}

var smallCap = verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 4, MaxRecvSGE: 4, MaxInlineData: 64}

// newEndpoint creates a QP of the given size, with one CQ that has room for both queues.
func (n *node) newEndpoint(c verbs.QPCap) *endpoint {
	n.t.Helper()
	e := &endpoint{node: n}
	e.ch = must(n.dev.CreateCompChannel())(n.t)
	e.cq = must(n.dev.CreateCQ(2*(c.MaxSendWR+c.MaxRecvWR), &verbs.CQInitAttr{Channel: e.ch}))(n.t)
	e.qp = must(n.pd.CreateQP(&verbs.QPInitAttr{
		Type: verbs.RC, Transport: verbs.RoCEv2, SendCQ: e.cq, RecvCQ: e.cq, Cap: c,
	}))(n.t)
	return e
}

func (e *endpoint) destroy() {
	e.t.Helper()
	ok(e.t, e.qp.Close())
	ok(e.t, e.cq.Close())
	ok(e.t, e.ch.Close())
}

// wait sleeps until there is a completion, and polls at most len(wcs).
func (e *endpoint) wait(ctx context.Context, wcs []verbs.WC) (int, error) {
	for {
		if n, err := e.cq.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		if err := e.cq.ReqNotify(false); err != nil {
			return 0, err
		}
		if n, err := e.cq.Poll(wcs); n > 0 || err != nil {
			return n, err
		}
		cq, err := e.ch.GetEvent(ctx)
		if err != nil {
			return 0, err
		}
		if err := cq.AckEvents(1); err != nil {
			return 0, err
		}
	}
}

// next returns the next completion. The test fails if none comes in a minute.
func (e *endpoint) next() verbs.WC {
	e.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var wc [1]verbs.WC
	if _, err := e.wait(ctx, wc[:]); err != nil {
		e.t.Fatalf("QP %#x: no completion: %v", e.qp.Num(), err)
	}
	return wc[0]
}

// none fails if there is a completion.
func (e *endpoint) none() {
	e.t.Helper()
	var wc [1]verbs.WC
	if n := must(e.cq.Poll(wc[:]))(e.t); n != 0 {
		e.t.Errorf("QP %#x: one completion too many: %+v", e.qp.Num(), wc[0])
	}
}

// succeed polls the next completion, which must be the given one.
func (e *endpoint) succeed(id uint64) verbs.WC {
	e.t.Helper()
	wc := e.next()
	if wc.WRID != id || wc.Status != verbs.WCSuccess {
		e.t.Fatalf("completion of WR %d with %v (vendor error %d), want WR %d with SUCCESS", wc.WRID, wc.Status,
			wc.VendorErr, id)
	}
	return wc
}

// side has the parameters of one end of a connection.
type side struct {
	psn        uint32
	rd         uint8 // READs and atomics outstanding as requester
	rnrTimer   uint8
	timeout    uint8
	retries    uint8
	rnrRetries uint8
}

// terms are the parameters that both ends of a connection share.
type terms struct {
	mtu   verbs.MTU
	gid   uint8 // RoCE v1 from roce.V1Index on
	sides [2]side
}

func defaultTerms() terms {
	s := side{psn: 0x123456, rd: 4, rnrTimer: 12, timeout: 14, retries: 7, rnrRetries: 7}
	return terms{mtu: verbs.MTU1024, gid: 1, sides: [2]side{s, s}}
}

const allAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// connect takes both QPs to RTS.
func connect(a, b *endpoint, c terms) {
	a.t.Helper()
	ends := [2]*endpoint{a, b}
	for i, e := range ends {
		e.toRTR(ends[1-i].qp.Num(), ends[1-i].gids[c.gid%roce.V1Index].GID, c, i)
	}
	for i, e := range ends {
		e.toRTS(c.sides[i])
	}
}

func (e *endpoint) toRTR(dest uint32, dgid verbs.GID, c terms, i int) {
	e.t.Helper()
	ok(e.t, e.qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QPAccessFlags: allAccess},
		verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
	ok(e.t, e.qp.Modify(&verbs.QPAttr{
		QPState: verbs.StateRTR, PathMTU: c.mtu, DestQPNum: dest, RQPSN: c.sides[1-i].psn,
		MaxDestRDAtomic: c.sides[1-i].rd, MinRNRTimer: c.sides[i].rnrTimer,
		AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: dgid, SGIDIndex: c.gid}},
	}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
		verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer))
}

func (e *endpoint) toRTS(s side) {
	e.t.Helper()
	ok(e.t, e.qp.Modify(&verbs.QPAttr{
		QPState: verbs.StateRTS, SQPSN: s.psn, Timeout: s.timeout, RetryCnt: s.retries, RNRRetry: s.rnrRetries,
		MaxRDAtomic: s.rd,
	}, verbs.QPAttrState|verbs.QPAttrSQPSN|verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|
		verbs.QPAttrMaxQPRDAtomic))
}

func (e *endpoint) toErr() {
	e.t.Helper()
	ok(e.t, e.qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState))
}

func (e *endpoint) post(wrs ...*verbs.SendWR) {
	e.t.Helper()
	ok(e.t, e.qp.PostSend(wrs...))
}

func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns v, and ends the test if there is an error.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		ok(t, err)
		return v
	}
}

// findNeighbour pings until a reply comes. Address resolution has fewer retries than a connection,
// and its frames have no checksum of their own.
func (n *node) findNeighbour(addr netip.Addr) {
	n.t.Helper()
	for range 100 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		_, err := n.host.Ping(ctx, addr)
		cancel()
		if err == nil {
			return
		}
	}
	n.t.Fatalf("no answer from %v", addr)
}
