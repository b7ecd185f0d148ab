package fabric

import (
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	network "github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/verbs"
)

// run is a run of a configuration.
type run struct {
	cfg    *config
	net    *network.Config
	f      *network.Fabric
	nodes  []*node
	ports  []*network.Port
	verify bool
	depth  int // messages of a lane that are not completed
	mu     sync.Mutex
	err    error
	errAt  time.Duration

	flows    []*flow    // in the order of their start
	upcoming []upcoming // those that start at times known from the beginning, and are not opened
	planned  int        // flows of all workloads
	ended    atomic.Int64
	pairs    map[pair]*connection
	opened   int // QPs
	holds    *holds
	graph    *graph
	digest   string // at the end of the last flow

	series series
	wall   time.Duration
}

// flow is data that goes from one host to another.
type flow struct {
	id       int
	load     int // index of its workload
	from, to int
	bytes    int64
	read     bool

	start, end time.Duration
	acked      int64
	recent     int64 // of acked, since the last sample
	parts      int   // not completed
	arrivals   int   // immediates that have not arrived
	arrived    func()
	done       func()
	conn       *connection // of this flow only, or nil
	status     verbs.WCStatus
	corrupt    bool
}

// finished says whether all is acknowledged.
func (f *flow) finished() bool { return f.end > 0 && f.status == verbs.WCSuccess }

// pair names a connection that several flows use.
type pair struct {
	load, from, to int
	read           bool
}

// outstanding is the least number of bytes that a lane has posted: twice the default window.
const outstanding = 1 << 20

// manyHosts have enough to do in each window that two workers take less time than one. With 54
// they took 0.77 of it, with a third more processor time (TestTwoWorkers of tests/fabric), and with
// 32 more time, on a busy machine.
const manyHosts = 64

// newRun makes the network and the nodes. The caller closes it. Without a number of workers it uses
// all processors for many hosts.
func newRun(cfg *config, verify bool, interval time.Duration, workers int) (*run, error) {
	r := &run{cfg: cfg, verify: verify, pairs: map[pair]*connection{}, series: series{interval: interval}, holds: newHolds()}
	var err error
	if r.net, err = cfg.fabric(); err != nil {
		return nil, err
	}
	if workers == 0 && len(r.net.Topology.Hosts) >= manyHosts {
		workers = min(runtime.GOMAXPROCS(0), network.MaxWorkers)
	}
	if workers > 1 && cfg.independent() {
		r.net.Workers = workers
	}
	device, err := cfg.device()
	if err != nil {
		return nil, err
	}
	if r.f, err = network.New(r.net); err != nil {
		return nil, err
	}
	if r.f.Lookahead() > lingering { // connections could not be closed in time
		r.net.Workers = 0
		if r.f, err = network.New(r.net); err != nil {
			return nil, err
		}
	}
	r.ports = r.f.Ports()
	r.graph = newGraph(r.ports[len(r.f.Hosts()):])
	r.depth = int(max(4, min(64, max(outstanding, 2*cfg.RDMA.Window)/cfg.RDMA.Message)))
	pattern := make([]byte, cfg.RDMA.Message+spread)
	rand.NewChaCha8([32]byte{}).Read(pattern) // it does not fail
	sinks := make([][]byte, max(1, r.net.Workers))
	r.series.moved = make([][]*flow, len(sinks))
	for i := range sinks {
		sinks[i] = make([]byte, cfg.RDMA.Message+spread)
	}
	for _, h := range r.f.Hosts() {
		n, err := newNode(r.f, h, device, pattern, sinks[h.Worker()])
		if err != nil {
			r.close()
			return nil, err
		}
		r.nodes = append(r.nodes, n)
	}
	if err := r.plan(); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

// independent says whether flows begin at times that are known before, so that the hosts can run at
// the same time. In other workloads the end of a flow starts another one, at another host, in no
// time.
func (c *config) independent() bool {
	return !slices.ContainsFunc(c.Workloads, func(w workload) bool {
		switch w.Kind {
		case "poisson", "trace":
			return false
		case "incast", "permutation", "all-to-all":
			return w.Rounds > 1
		}
		return true
	})
}

func (r *run) close() {
	for _, n := range r.nodes {
		n.close()
	}
	r.f.Close()
}

// plan schedules workloads and failures.
func (r *run) plan() error {
	if len(r.cfg.Workloads) == 0 || len(r.cfg.Workloads) > maxList || len(r.cfg.Failures) > maxList {
		return fmt.Errorf("there are %d workloads and %d failures: there must be 1 to %d workloads, and up to %d failures",
			len(r.cfg.Workloads), len(r.cfg.Failures), maxList, maxList)
	}
	for i := range r.cfg.Workloads {
		if err := r.schedule(i); err != nil {
			return fmt.Errorf("workload[%d].%w", i, err)
		}
		if r.planned > maxFlows {
			return fmt.Errorf("workload[%d] brings the flows to %d: there must be at most %d", i, r.planned, maxFlows)
		}
	}
	r.sortUpcoming()
	for i := range r.cfg.Failures {
		if err := r.fail(&r.cfg.Failures[i]); err != nil {
			return fmt.Errorf("failure[%d].%w", i, err)
		}
	}
	return nil
}

// check keeps the first error that must not happen, by virtual time. Of those of one time it keeps
// the first by its text, as they come in any order.
func (r *run) check(err error) {
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.f.Now()
	err = fmt.Errorf("at %v: %w", now, err)
	if r.err == nil || now == r.errAt && err.Error() < r.err.Error() {
		r.err, r.errAt = err, now
	}
}

// at calls a function at a virtual time. It may use all hosts.
func (r *run) at(t time.Duration, host int, do func()) { r.nodes[host].h.Alone(t-r.f.Now(), do) }

// random returns the random numbers of a workload, or of a part of it.
func (r *run) random(load, part int) *rand.Rand {
	return rand.New(rand.NewPCG(uint64(r.cfg.Seed), uint64(load)<<32|uint64(part)))
}

// begin starts a flow, as open does, at once.
func (r *run) begin(f *flow, keep bool, receives int) {
	if c := r.open(f, r.f.Now(), keep, receives); c != nil {
		c.post()
	}
}

// open opens a flow, which is to start at a time: then post is called. With receives, its
// connection remains for the next flow of the pair, and arrived is called when the receiver has
// all: it gets as many immediates at a time at most. Without a connection the flow has failed.
func (r *run) open(f *flow, start time.Duration, keep bool, receives int) *connection {
	f.id, f.start = len(r.flows), start
	r.flows = append(r.flows, f)
	from, to := r.nodes[f.from], r.nodes[f.to]
	if f.read {
		from, to = to, from
	}
	key := pair{f.load, f.from, f.to, f.read}
	c := r.pairs[key]
	if c == nil || !keep {
		var err error
		most := f.bytes
		if keep {
			most = 1 << 62
		}
		if c, err = r.connect(from, to, f.read, receives, most); err != nil {
			r.check(fmt.Errorf("workload[%d]: %w", f.load, err))
			return nil
		}
		if keep {
			r.pairs[key] = c
		} else {
			f.conn = c
		}
	}
	for i, bytes := range r.shares(f.bytes) {
		l := c.lanes[i]
		switch {
		case bytes == 0:
			continue
		case l.dead != 0:
			r.failed(f, l.dead)
			return nil
		}
		f.parts++
		if receives > 0 {
			f.arrivals++
			r.check(l.y.PostRecv(&verbs.RecvWR{}))
		}
		l.parts = append(l.parts, &part{f, bytes})
	}
	return c
}

// shares divides the bytes of a flow among QPs.
func (r *run) shares(bytes int64) []int64 {
	n := int64(r.cfg.RDMA.QPs)
	all := make([]int64, n)
	for i := range all {
		all[i] = (bytes + n - 1 - int64(i)) / n
	}
	return all
}

// progressed is called when bytes of a flow are acknowledged; last is set if a lane has no more.
func (r *run) progressed(f *flow, bytes int, last bool) {
	f.acked += int64(bytes)
	if f.recent == 0 {
		moved := &r.series.moved[r.requester(f).Worker()]
		*moved = append(*moved, f)
	}
	f.recent += int64(bytes)
	if last {
		if f.parts--; f.parts == 0 && f.end == 0 {
			r.end(f)
		}
	}
}

// requester returns the host that has a flow's completions.
func (r *run) requester(f *flow) *network.Host {
	if f.read {
		return r.nodes[f.to].h
	}
	return r.nodes[f.from].h
}

func (r *run) failed(f *flow, status verbs.WCStatus) {
	if f.end == 0 {
		f.status = status
		r.end(f)
	}
}

func (r *run) end(f *flow) {
	h := r.requester(f)
	f.end = h.Now()
	if n := r.ended.Add(1); n == int64(r.planned) || r.f.Lookahead() > 0 { // the last in real time need not be the last
		h.Mark()
	}
	if f.conn != nil {
		f.conn.closeLater()
		f.conn = nil
	}
	if f.done != nil && f.status == verbs.WCSuccess {
		f.done()
	}
}

// mostAtOnce is the virtual time after which the command looks whether it is interrupted.
const mostAtOnce = 50 * time.Microsecond

// advance lets time pass until all flows have ended, or the configuration's end. Its error is that
// of the context if the run was interrupted. It can be evaluated then.
func (r *run) advance(ctx context.Context, progress func()) error {
	began := time.Now()
	until := time.Duration(r.cfg.Until)
	for r.left() && r.f.Now() < until && r.err == nil && ctx.Err() == nil {
		now, interval := r.f.Now(), r.series.interval
		at, ok := r.f.Next()
		if !ok {
			at = until
		}
		if idle := min(at, until) - 1 - now; idle >= interval { // nothing to sample
			r.f.Run(idle - (now+idle)%interval)
			continue
		}
		end := min(now-now%interval+interval, until)
		for now < end && ctx.Err() == nil {
			r.f.Run(min(mostAtOnce, end-now))
			now = r.f.Now()
		}
		r.sample()
		progress()
	}
	if r.digest = r.f.Marked(); r.digest == "" || r.left() {
		r.digest = r.f.Digest()
	}
	r.wall = time.Since(began)
	if r.err == nil && r.left() && r.f.Now() < until {
		return ctx.Err()
	}
	return r.err
}

// left says whether there are flows that have not ended.
func (r *run) left() bool { return r.ended.Load() < int64(r.planned) }

// now is the end of the run: that of its last flow, or until.
func (r *run) now() (last time.Duration) {
	if r.left() {
		return r.f.Now()
	}
	for _, f := range r.flows {
		last = max(last, f.end)
	}
	return last
}
