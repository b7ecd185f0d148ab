// Package conformance tests, through verbs, the guarantees to an application, between two nodes.
// The network loses, repeats, reorders, delays and damages packets. Time is virtual.
package conformance

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/link/wireguard"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
)

// scenario is one cell of the matrix: everything is drawn from its seed.
type scenario struct {
	seed    uint64
	net     network
	terms   terms
	caps    [2]verbs.QPCap
	shapes  [2]shape
	slow    [2]bool
	linkMTU int
	secure  bool // the network carries a tunnel
}

func newScenario(seed uint64, r *rand.Rand) *scenario {
	s := &scenario{seed: seed, linkMTU: pipe.DefaultMTU}
	s.net = drawNetwork(seed, r)
	s.terms = terms{mtu: verbs.MTU256 + verbs.MTU(r.IntN(5)), gid: uint8(r.IntN(3))}
	for i := range s.caps {
		s.caps[i] = verbs.QPCap{
			MaxSendWR: 2 + r.IntN(40), MaxRecvWR: 1 + r.IntN(40), MaxSendSGE: 1 + r.IntN(32),
			MaxRecvSGE: 1 + r.IntN(32), MaxInlineData: r.IntN(2) * r.IntN(513),
		}
		s.slow[i] = r.IntN(4) == 0
		psn := r.Uint32N(1 << 24)
		if r.IntN(2) == 0 {
			psn = 1<<24 - 1 - r.Uint32N(100)
		}
		s.terms.sides[i] = side{psn: psn, rd: uint8(1 + r.IntN(16)), rnrTimer: uint8(1 + r.IntN(14)),
			timeout: s.net.timeout, retries: 7, rnrRetries: 7}
		s.shapes[i] = shape{
			mtu: s.terms.mtu.Bytes(), ops: 1 + r.IntN(40), sendWR: s.caps[i].MaxSendWR, sendSGE: s.caps[i].MaxSendSGE,
			inline: s.caps[i].MaxInlineData, unsignaled: r.IntN(2) == 0, fences: r.IntN(2) == 0, rd: int(s.terms.sides[i].rd),
		}
		if s.terms.mtu >= verbs.MTU1024 {
			s.shapes[i].large = r.IntN(2)
		}
	}
	s.shapes[0].recvSGE, s.shapes[1].recvSGE = s.caps[1].MaxRecvSGE, s.caps[0].MaxRecvSGE
	if r.IntN(5) == 0 {
		s.shapes[1].ops = 0 // one direction only
	}
	if r.IntN(4) == 0 {
		s.terms.gid += roce.V1Index
	}
	return s
}

func (s *scenario) String() string {
	return fmt.Sprintf("%v; path MTU %v, GID %d, PSNs %#x %#x, rd %d %d, %d and %d ops, receives late %v",
		&s.net, s.terms.mtu, s.terms.gid, s.terms.sides[0].psn, s.terms.sides[1].psn, s.terms.sides[0].rd,
		s.terms.sides[1].rd, s.shapes[0].ops, s.shapes[1].ops, s.slow)
}

// tally counts events of a run of the matrix. It shows whether the run tests anything.
var tally struct{ runs, failed, retries, duplicates, outOfSeq, rnr, badICRC, ops atomic.Uint64 }

// TestMatrix runs mixed work in both directions over every kind of bad network. Data must be right,
// completions must come once and in order, and atomics must be executed once. A connection may fail
// only if the network is bad enough.
//
// A seed fixes the work, the network's choices and all random numbers. It does not fix how
// goroutines interleave.
func TestMatrix(t *testing.T) {
	stacktest.Seeds(t, seeds(160, 500), runSeed)
	t.Logf("result: %d seeds, %d requests: %d connections failed, %d retries, %d duplicate and %d out-of-sequence requests, %d RNR, %d "+
		"wrong ICRCs",
		tally.runs.Load(), tally.ops.Load(), tally.failed.Load(), tally.retries.Load(), tally.duplicates.Load(),
		tally.outOfSeq.Load(), tally.rnr.Load(), tally.badICRC.Load())
	if runs, failed := tally.runs.Load(), tally.failed.Load(); failed*100 > runs {
		t.Errorf("%d of %d connections failed: retries must be up too early", failed, runs)
	}
}

// TestMatrixDirect runs the same work on the direct path. Packets are needed only if a receive is
// not posted yet.
func TestMatrixDirect(t *testing.T) {
	stacktest.Seeds(t, seeds(80, 200), runSeedDirect)
	if ops, n := without.ops.Load(), without.packets.Load(); n < ops*9/10 {
		t.Errorf("%d of %d requests went without packets", n, ops)
	}
}

// without counts the messages of TestMatrixDirect, and those of them that went without packets.
var without struct{ ops, packets atomic.Uint64 }

// seeds is n, in the system run another number, and with -race an eighth of that. All of
// drawNetwork's kinds of trouble are among eight in a row.
func seeds(n, inSystem int) int {
	n = stacktest.Size(n, inSystem, inSystem)
	if raceEnabled {
		n /= 8
	}
	return n
}

// TestMatrixSecure runs the same work in an encrypted tunnel, whose packets the network treats as
// badly. Damaged and repeated packets do not leave the tunnel.
func TestMatrixSecure(t *testing.T) {
	n := stacktest.Seeds(t, seeds(48, 200), runSeedSecure)
	t.Logf("result: %d seeds in a tunnel", n)
}

func runSeed(t *testing.T, seed uint64) { runScenario(t, seed, func(*scenario) {}) }

func runSeedDirect(t *testing.T, seed uint64) {
	runScenario(t, seed, func(s *scenario) { s.net.direct = true })
}

func runSeedSecure(t *testing.T, seed uint64) {
	runScenario(t, seed, func(s *scenario) {
		s.secure = true
		s.terms.gid %= roce.V1Index // a tunnel carries IP only
	})
}

// runScenario runs the scenario of a seed, after change.
func runScenario(t *testing.T, seed uint64, change func(*scenario)) {
	r := rand.New(rand.NewPCG(seed, 0))
	s := newScenario(seed, r)
	change(s)
	defer func() {
		if t.Failed() {
			t.Log(s)
		}
	}()
	s.run(t, r)
}

func (s *scenario) run(t *testing.T, r *rand.Rand) {
	links := s.links(t)
	var ds [2]*driver
	addrs := [2][]string{{"10.0.0.1/24", "2001:db8::1/64"}, {"10.0.0.2/24", "2001:db8::2/64"}}
	for i := range ds {
		key := [32]byte{byte(i)}
		fill(r, key[1:])
		n := newNode(t, links[i], s.device(key), addrs[i]...)
		ds[i] = &driver{endpoint: n.newEndpoint(s.caps[i]), t: t, r: rand.New(rand.NewPCG(s.seed, uint64(i+1))),
			cap: s.caps[i], model: newModel(r), slow: s.slow[i]}
	}
	for i, d := range ds {
		d.peer = ds[1-i]
		p := planner{r: r, shape: s.shapes[i], mine: d.model, theirs: d.peer.model}
		d.out = p.plan()
		d.peer.in = d.out
	}
	for _, d := range ds {
		d.setUp()
	}
	if s.secure || !s.net.clean() {
		for _, d := range ds {
			d.findNeighbour(d.peer.gids[s.terms.gid%roce.V1Index].GID.Addr())
		}
	}
	connect(ds[0].endpoint, ds[1].endpoint, s.terms)

	stop, cancel := context.WithCancel(context.Background())
	var running [2]chan struct{}
	for i, d := range ds {
		running[i] = make(chan struct{})
		if len(d.out.ops) == 0 {
			d.finish()
		}
		go func() {
			defer close(running[i])
			d.run(stop)
		}()
	}
	limit := time.After(patience)
	for _, d := range ds {
		select {
		case <-d.finished:
		case <-limit:
			t.Errorf("QP %#x: %d of %d requests completed after %v of virtual time", d.qp.Num(), d.done, len(d.out.ops), patience)
		}
	}
	cancel()
	for i := range running {
		<-running[i]
	}
	s.judge(t, ds)
	for _, d := range ds {
		d.tearDown()
	}
	if !t.Failed() {
		for _, d := range ds {
			d.verify()
		}
	}
	for _, d := range ds {
		d.close()
	}
}

// links returns the links of the nodes, with the network's impairments.
func (s *scenario) links(t *testing.T) (links [2]link.Link) {
	mtu := s.linkMTU
	if s.secure {
		mtu += 100 // at least as much as a tunnel's packets are longer than those in it
	}
	lan := must(pipe.New(&pipe.Config{MTU: mtu}))(t)
	keys := [2]wireguard.SecretKey{wireguard.NewPrivateKey(), wireguard.NewPrivateKey()}
	for i := range links {
		if !s.secure {
			links[i] = s.net.impair(t, lan.Port(), i)
			continue
		}
		under := must(lan.PortWithMAC(keys[i].Public().MAC()))(t)
		links[i] = stacktest.Kept(must(wireguard.Open(&wireguard.Config{PrivateKey: keys[i], MTU: s.linkMTU,
			Under: s.net.impair(t, under, i), Peers: []wireguard.PeerConfig{{PublicKey: keys[1-i].Public()}}}))(t))
	}
	return links
}

// device returns the options of a node's device. In every third scenario one or both devices use
// go-back-N and do not mark their packets.
func (s *scenario) device(key [32]byte) *rdmatransport.Config {
	goBackN := s.seed%3 == 0 && (s.seed/3%3 == 2 || s.seed/3%3 == uint64(key[0]))
	return &rdmatransport.Config{Rand: rand.NewChaCha8(key), RoCE: roce.Config{SelectiveRepeat: !goBackN}}
}

// patience is the maximum virtual time of a connection. Retries on a bad network take minutes.
const patience = time.Hour

// judge checks how the connection ended, and adds to the tally.
func (s *scenario) judge(t *testing.T, ds [2]*driver) {
	tally.runs.Add(1)
	failed := false
	for _, d := range ds {
		tally.ops.Add(uint64(d.done))
		tally.retries.Add(d.counter("completer_retry_err"))
		tally.duplicates.Add(d.counter("duplicate_request"))
		tally.outOfSeq.Add(d.counter("out_of_seq_request"))
		tally.rnr.Add(d.counter("rcvd_rnr_err"))
		tally.badICRC.Add(d.counter("icrc_errors"))
		if n := d.counter("icrc_errors"); s.secure && n > 0 {
			t.Errorf("%d damaged packets have left the tunnel", n)
		}
		if d.status == verbs.WCSuccess {
			continue
		}
		failed = true
		if d.status != verbs.WCRetryExcErr {
			t.Errorf("QP %#x failed with %v", d.qp.Num(), d.status)
		}
		if d.counter("retry_exceeded_err") == 0 || d.counter("completer_retry_err") < 7 {
			t.Errorf("QP %#x failed with %v after %d retries, 7 are due", d.qp.Num(), d.status, d.counter("completer_retry_err"))
		}
	}
	if failed {
		tally.failed.Add(1)
		if !s.net.harsh() {
			t.Errorf("the connection failed over a network that cannot have used its retries up")
		}
	}
	if s.net.direct {
		without.ops.Add(uint64(ds[0].done + ds[1].done))
		without.packets.Add(ds[0].counter("direct_msgs") + ds[1].counter("direct_msgs"))
	}
	if !s.net.clean() || ds[0].counter("rcvd_rnr_err")+ds[1].counter("rcvd_rnr_err") > 0 {
		return
	}
	for _, d := range ds {
		for _, name := range []string{"completer_retry_err", "out_of_seq_request", "duplicate_request", "icrc_errors"} {
			if n := d.counter(name); n != 0 {
				t.Errorf("%s is %d though nothing was lost; port %+v", name, n, d.host.Interfaces()[0].Counters())
			}
		}
	}
}
