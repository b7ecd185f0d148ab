package fabric

import (
	"cmp"
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

	single   []*flow    // with a connection each, in the order in which these were opened
	kept     []*flow    // of connections that several flows use, by their number; nil until they begin
	flows    []*flow    // at the end: all that have begun, in the order of their start
	upcoming []upcoming // those that start at times known from the beginning, and are not opened
	planned  int        // flows of all workloads
	ended    atomic.Int64
	opened   int           // QPs
	apart    time.Duration // see Host.Alone: one host's news for all others take so long at least
	holds    *holds
	graph    *graph
	digest   string // at the end of the last flow

	series series
	wall   time.Duration
}

// flow is data that goes from one host to another. Its requester has it, except that arrivals and
// arrived are the receiver's once the flow has begun.
type flow struct {
	number   int // the same whatever hosts run at the same time; that of kept flows is maxFlows or more
	id       int // its index in run.flows
	load     int // index of its workload
	from, to int
	bytes    int64
	read     bool

	begun      bool
	place      time.Duration // among other flows: its start, or if that is known before, when it was opened
	start, end time.Duration
	acked      int64
	recent     int64 // of acked, since the last sample
	parts      int   // not completed
	arrivals   int   // immediates that have not arrived
	arrived    func()
	done       func()
	conn       *connection // of a single flow
	status     verbs.WCStatus
	corrupt    bool
}

// finished says whether all is acknowledged.
func (f *flow) finished() bool { return f.end > 0 && f.status == verbs.WCSuccess }

// outstanding is the least number of bytes that a lane has posted: twice the default window.
const outstanding = 1 << 20

// manyHosts have enough to do that two workers take less time than one: 0.7 of it with 64 hosts,
// and 0.84 with 54, in runs of half a second, with half more processor time (TestTwoWorkers of
// tests/fabric).
const manyHosts = 64

// newRun makes the network and the nodes. The caller closes it. Without a number of workers it uses
// all processors for many hosts.
func newRun(cfg *config, verify bool, interval time.Duration, workers int) (*run, error) {
	r := &run{cfg: cfg, verify: verify, series: series{interval: interval}, holds: newHolds()}
	var err error
	if r.net, err = cfg.fabric(); err != nil {
		return nil, err
	}
	if workers == 0 && len(r.net.Topology.Hosts) >= manyHosts {
		workers = min(runtime.GOMAXPROCS(0), network.MaxWorkers)
	}
	if workers > 1 {
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
	if r.apart = r.graph.shortest(); r.apart > lingering {
		r.apart = 0
	}
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
func (r *run) check(err error) { r.checkAt(r.f.Now, err) }

// checkAt is check at the time of a host, which differs while others run.
func (r *run) checkAt(clock func() time.Duration, err error) {
	if err == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := clock()
	err = fmt.Errorf("at %v: %w", now, err)
	if r.err == nil || now < r.errAt || now == r.errAt && err.Error() < r.err.Error() {
		r.err, r.errAt = err, now
	}
}

// at calls a function at a virtual time. It may use all hosts.
func (r *run) at(t time.Duration, host int, do func()) { r.nodes[host].h.Alone(t-r.f.Now(), do) }

// random returns the random numbers of a workload, or of a part of it.
func (r *run) random(load, part int) *rand.Rand {
	return rand.New(rand.NewPCG(uint64(r.cfg.Seed), uint64(load)<<32|uint64(part)))
}

// open opens a connection for a single flow, when no host runs. Without one the run fails.
func (r *run) open(f *flow) *connection {
	f.number = len(r.single)
	r.single = append(r.single, f)
	c, err := r.connect(f, 0, f.bytes)
	if err != nil {
		r.check(err)
		return nil
	}
	f.conn = c
	c.add(f)
	return c
}

// keep opens a connection for flows like f, of which so many may be on their way at a time. When
// the receiver has a flow, it calls arrived if receives is not 0. Only the requester and the
// receiver use the connection.
func (r *run) keep(f *flow, receives int) *connection {
	c, err := r.connect(f, receives, 1<<62)
	r.check(err)
	return c
}

// send starts a flow with a number on a connection that is kept. The requester calls it.
func (r *run) send(c *connection, f *flow, number int) {
	f.number = number
	r.kept[number-maxFlows] = f
	now := c.from.h.Now()
	f.begin(now, now)
	if c.add(f) {
		c.post()
	}
}

// begin notes the start of a flow.
func (f *flow) begin(start, place time.Duration) { f.begun, f.start, f.place = true, start, place }

// order lists the flows in the order of their start when all is over. Those that start at the same
// time have the order of their numbers.
func (r *run) order() {
	r.flows = slices.DeleteFunc(slices.Concat(r.single, r.kept), func(f *flow) bool { return f == nil || !f.begun })
	slices.SortStableFunc(r.flows, func(a, b *flow) int { return cmp.Compare(a.place, b.place) })
	for i, f := range r.flows {
		f.id = i
	}
	rates := r.series.rates
	for i := range rates {
		rates[i].id = int32(r.numbered(int(rates[i].id)).id)
	}
	slices.SortFunc(rates, func(a, b sample) int { return cmp.Or(cmp.Compare(a.bin, b.bin), cmp.Compare(a.id, b.id)) })
}

// numbered returns the flow with a number.
func (r *run) numbered(n int) *flow {
	if n < maxFlows {
		return r.single[n]
	}
	return r.kept[n-maxFlows]
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
	r.order()
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
