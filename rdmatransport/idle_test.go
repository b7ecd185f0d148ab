package rdmatransport_test

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// idleQPs is a realistic number of QPs for a process. With iWARP there are fewer, because each has
// a TCP endpoint.
const (
	idleQPs     = 100_000
	idleStreams = 2_000
)

// entries is the memory of the queues of these QPs: one request with one SGE in each direction.
const entries = int(unsafe.Sizeof(verbs.SendWR{}) + unsafe.Sizeof(verbs.RecvWR{}) + 2*unsafe.Sizeof(verbs.SGE{}))

// BenchmarkIdleQPs connects RC QPs in pairs and leaves them idle. It reports the memory of each,
// and the part that is neither the requested queues nor the TCP connection.
func BenchmarkIdleQPs(b *testing.B) {
	b.Run("RoCEv2", func(b *testing.B) {
		for b.Loop() {
			before := memory()
			nodes := idlePair(b, nil)
			qps := connectedQPs(b, &nodes, idleQPs)
			each := float64(memory()-before) / idleQPs
			b.ReportMetric(each, "B/QP")
			b.ReportMetric(each-float64(entries), "B/QP-beyond-queues")
			runtime.KeepAlive(qps)
		}
	})
	b.Run("iWARP", func(b *testing.B) {
		for b.Loop() {
			each, beyond := idleStream(b)
			b.ReportMetric(float64(each), "B/QP")
			b.ReportMetric(float64(beyond), "B/QP-beyond-queues-and-TCP")
		}
	})
}

// idleStream returns the memory of an end of an iWARP connection, and the part that is neither its
// queues nor the stack's TCP.
func idleStream(tb testing.TB) (each, beyond int) {
	nodes := idlePair(tb, nil)
	before := memory()
	streams := connectedStreams(tb, &nodes, idleStreams)
	tcp := (idleMemory() - before) / idleStreams
	before = memory()
	conns := connectedConns(tb, &nodes, idleStreams)
	each = (idleMemory() - before) / idleStreams
	runtime.KeepAlive(streams)
	runtime.KeepAlive(conns)
	return each, each - entries - tcp
}

// An idle QP takes 1 KiB in addition to its queues, and a cache line that separates its writes from
// others'. With a million QPs, in the long run, each takes slightly more, because the tables of
// their numbers are emptier.
func TestIdleQPs(t *testing.T) {
	n, most := stacktest.Size(10_000, 10_000, 1_000_000), stacktest.Size(1024, 1024, 1056)+64
	each := 0
	// Another test's goroutine may run in between.
	for try := 0; try == 0 || try < 3 && each >= most; try++ {
		nodes := idlePair(t, nil)
		before := memory()
		qps := connectedQPs(t, &nodes, n)
		each = (memory()-before)/n - entries
		t.Logf("result: %d QPs: %d bytes each in addition to the queues", n, each)
		runtime.KeepAlive(qps)
	}
	if each >= most {
		t.Errorf("want less than %d", most)
	}
}

// An end of an idle iWARP connection takes about 2 KiB in addition to its queues and the stack's
// TCP. The measurement of TCP alone varies by more than a hundred bytes.
func TestIdleStreamMemory(t *testing.T) {
	most := 2048 + 256
	if raceEnabled { // the race detector takes memory too
		most *= 2
	}
	beyond := most
	for try := 0; try < 6 && beyond >= most; try++ { // another test's goroutine may run in between
		var each int
		each, beyond = idleStream(t)
		t.Logf("result: idle iWARP: %d bytes each, %d in addition to queues and TCP", each, beyond)
	}
	if beyond >= most {
		t.Errorf("want less than %d", most)
	}
}

// An idle iWARP connection has no goroutine, before or after it was used. In the long run there are
// 10,000.
func TestIdleStreams(t *testing.T) {
	const some = 60
	n := stacktest.Size(some, some, 20_040) // ends
	nodes := idlePair(t, inFrames)
	before := fewestGoroutines()
	settled := func(when string) {
		t.Helper()
		for give := time.Now().Add(20 * time.Second); runtime.NumGoroutine() > before+n/10; time.Sleep(time.Millisecond) {
			if time.Now().After(give) {
				t.Fatalf("%s: %d additional goroutines for %d ends of connections", when, runtime.NumGoroutine()-before, n)
			}
		}
	}
	conns := connectedConns(t, &nodes, n)
	settled("connected")
	for group := range slices.Chunk(conns, some) {
		give := time.Now().Add(20 * time.Second)
		// So often that each reader's goroutine stays for a while.
		for k := 0; k < 20*some || runtime.NumGoroutine() < before+some/2 && time.Now().Before(give); k++ {
			i := k % some
			c := group[i]
			noError(t, group[i^1].QP().PostRecv(&verbs.RecvWR{}))
			noError(t, c.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
			for got := 0; got < 2; {
				var wc [2]verbs.WC
				k := made(nodes[i%2].cq.Poll(wc[:]))(t) + made(nodes[1-i%2].cq.Poll(wc[1:]))(t)
				got += k
				runtime.Gosched()
			}
		}
		if runtime.NumGoroutine() < before+some/2 {
			t.Errorf("only %d additional goroutines while %d ends are in use", runtime.NumGoroutine()-before, some)
		}
	}
	settled("idle again")
	for _, c := range conns {
		noError(t, c.Close())
	}
}

// fewestGoroutines returns the number of goroutines after those of earlier tests have ended.
func fewestGoroutines() int {
	n := runtime.NumGoroutine()
	for same := 0; same < 5; same++ {
		time.Sleep(20 * time.Millisecond)
		if now := runtime.NumGoroutine(); now != n {
			n, same = now, 0
		}
	}
	return n
}

// memory returns the memory in use: heap and stacks.
func memory() int {
	runtime.GC()
	runtime.GC() // frees what pools held
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc + m.StackInuse)
}

// idleMemory returns the memory in use after short-lived goroutines have ended.
func idleMemory() int {
	for n := runtime.NumGoroutine() + 1; n > runtime.NumGoroutine(); time.Sleep(100 * time.Millisecond) {
		n = runtime.NumGoroutine()
	}
	return memory()
}

// idleNode is a device whose QPs share a CQ.
type idleNode struct {
	host *netstack.Host
	dev  *verbs.Device
	pd   *verbs.PD
	cq   *verbs.CQ
	gid  verbs.GID
}

// idlePair creates two devices on one network. wrap, if not nil, wraps their links.
func idlePair(tb testing.TB, wrap func(link.Link) link.Link) (nodes [2]idleNode) {
	lan := new(pipe.Switch)
	for i := range nodes {
		n := &nodes[i]
		var port link.Link = lan.Port()
		if wrap != nil {
			port = wrap(port)
		}
		n.host = made(netstack.New(port, &netstack.Config{Addrs: []string{fmt.Sprintf("10.0.0.%d/24", i+1)},
			TCP: netstack.TCPConfig{Memory: 8 << 30}}))(tb)
		n.open(tb, n.host)
	}
	return nodes
}

// open opens the device on a host.
func (n *idleNode) open(tb testing.TB, h stacktest.Host) {
	tb.Cleanup(func() { _ = h.Close() })
	n.dev = made(rdmatransport.Open(h, nil))(tb)
	n.pd = made(n.dev.AllocPD())(tb)
	n.cq = made(n.dev.CreateCQ(4, nil))(tb)
	n.gid = made(n.dev.QueryGID(1, 1))(tb).GID
}

// made returns a function that returns v, or ends the test if there was an error.
func made[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		noError(tb, err)
		return v
	}
}

func noError(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// idleCap has one request with one SGE in each direction.
var idleCap = verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}

// connectedQPs creates RoCEv2 QPs on two devices, connected in pairs.
func connectedQPs(tb testing.TB, nodes *[2]idleNode, n int) (qps []*verbs.QP) {
	const psn = 0x123456
	for len(qps) < n {
		var pair [2]*verbs.QP
		for i, s := range nodes {
			pair[i] = made(s.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: s.cq, RecvCQ: s.cq, Cap: idleCap}))(tb)
		}
		for i, qp := range pair {
			noError(tb, qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1},
				verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
			noError(tb, qp.Modify(&verbs.QPAttr{
				QPState: verbs.StateRTR, PathMTU: verbs.MTU1024, DestQPNum: pair[1-i].Num(), RQPSN: psn, MinRNRTimer: 12,
				AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: nodes[1-i].gid, SGIDIndex: 1}},
			}, verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|verbs.QPAttrRQPSN|
				verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer))
			noError(tb, qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS, SQPSN: psn, Timeout: 14, RetryCnt: 7, RNRRetry: 7},
				verbs.QPAttrState|verbs.QPAttrSQPSN|verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|verbs.QPAttrRNRRetry|
					verbs.QPAttrMaxQPRDAtomic))
		}
		qps = append(qps, pair[:]...)
	}
	return qps
}

// connectedConns creates connected iWARP QPs, in pairs.
func connectedConns(b testing.TB, nodes *[2]idleNode, n int) (conns []*rdmacm.Conn) {
	config := func(n *idleNode) *rdmacm.Config {
		return &rdmacm.Config{Transport: verbs.IWARP, PD: n.pd, SendCQ: n.cq, RecvCQ: n.cq, Cap: idleCap}
	}
	l := made(rdmacm.Listen(nodes[1].dev, ":7471", config(&nodes[1])))(b)
	defer l.Close()
	for len(conns) < n {
		accepted := make(chan *rdmacm.Conn, 1)
		go func() {
			c, _ := l.Accept(b.Context())
			accepted <- c
		}()
		conns = append(conns, made(rdmacm.Dial(b.Context(), nodes[0].dev, "10.0.0.2:7471", config(&nodes[0])))(b))
		conns = append(conns, <-accepted)
	}
	return conns
}

// connectedStreams creates ends of TCP connections. A few bytes have been sent in each direction,
// like MPA's request and reply.
func connectedStreams(tb testing.TB, nodes *[2]idleNode, n int) (ends []net.Conn) {
	l := made(nodes[1].host.ListenStream(netip.MustParseAddrPort("10.0.0.2:9")))(tb)
	defer l.Close()
	frame := make([]byte, mpa.HeaderLen)
	for len(ends) < n {
		ends = append(ends, made(nodes[0].host.DialStream(tb.Context(), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.2:9")))(tb))
		ends = append(ends, made(l.Accept())(tb))
		from, to := ends[len(ends)-2], ends[len(ends)-1]
		for range 2 {
			made(from.Write(frame))(tb)
			made(io.ReadFull(to, frame))(tb)
			from, to = to, from
		}
	}
	return ends
}
