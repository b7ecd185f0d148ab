package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
)

// perfCmd is the perftest of the program: ib_send_bw, ib_write_lat and so on in one.
type perfCmd struct {
	Op     string `arg:"" enum:"send,write,read,atomic,connect" help:"Operation: send, write, read, atomic (fetch and add) or connect (make and end connections)."`
	Metric string `arg:"" enum:"bw,lat,rate" help:"What to measure: bw (bandwidth), lat (latency) or rate (messages, or connections, per second)."`
	Server string `arg:"" optional:"" help:"Address or name of the server. Without it, and without --loopback, be the server."`

	Loopback  bool `help:"Be both sides: two nodes on a link inside this process, or, with --one-device or --link tap:… or packet:…, two QPs of one node."`
	OneDevice bool `help:"With --loopback: connect the device to itself."`

	Transport []transport `default:"rocev2" placeholder:"PROTOCOL" help:"Wire protocols, each measured in turn: rocev2, iwarp. Default: rocev2; with --report both."`
	TCP       bool        `name:"tcp" help:"Measure plain TCP too, as a yardstick: the node's own stack over the same link and, with --loopback, the kernel's over its loopback interface."`
	KernelTCP ipAddr      `name:"kernel-tcp" placeholder:"IP" help:"With a server: measure the kernel's TCP too, to this address of the server's machine."`

	Size          []int         `short:"s" placeholder:"BYTES" help:"Message size; repeatable. Atomics are always 8 bytes. Default: 65536 for bw, 8 for lat and rate."`
	All           bool          `short:"a" help:"All sizes: 2 bytes to 8 MiB, doubling."`
	Depth         int           `short:"t" default:"128" help:"Messages that each QP has outstanding; lat has one. Default: 128."`
	QPs           int           `short:"q" name:"qps" default:"1" help:"Queue pairs. Default: 1."`
	Threads       int           `default:"1" help:"Goroutines on each side, each with its share of the QPs and a CQ of its own. Default: 1."`
	Duration      time.Duration `short:"D" help:"How long to measure each size. Default: 1s, without --iters."`
	Iters         int64         `short:"n" help:"Messages on each QP for each size, in place of a duration."`
	Warmup        time.Duration `default:"100ms" help:"How long to run before each measurement. Default: 100ms."`
	Bidirectional bool          `short:"b" help:"Both sides send; the result is the sum. For bw and rate."`
	CQMod         int           `short:"Q" name:"cq-mod" placeholder:"N" help:"Signal every Nth message only. Default: 100, above 8 KiB 1."`
	PostList      int           `short:"l" default:"1" placeholder:"N" help:"Work requests to post in one call. Default: 1."`
	Buffer        int           `placeholder:"BYTES" help:"Memory on each side, for each QP, that messages go round in. Default: 4096, and at least one message."`
	Wait          waiting       `default:"adaptive" enum:"poll,event,adaptive" placeholder:"HOW" help:"How both sides wait for completions: poll (never sleep), event (sleep at once), or adaptive (poll for 50 µs, then sleep). Default: adaptive."`
	Verify        bool          `help:"Check the data. It costs time, and limits --depth to what fits in 64 MiB."`

	Port   uint16 `short:"p" default:"18516" help:"TCP port to meet on. Default: 18516."`
	JSON   bool   `name:"json" help:"Print the results as JSON."`
	Pprof  string `type:"path" placeholder:"FILE" help:"Write a CPU profile, for go tool pprof."`
	Report string `type:"path" placeholder:"FILE" help:"Write a page with plots: bandwidth against size (all sizes if no --size is given) and latency distribution, of each protocol and of plain TCP."`

	nodeFlags
}

// Help implements kong.HelpProvider.
func (*perfCmd) Help() string {
	return `The client decides what is measured; a server takes everything but its node's flags from it. Both sides are softrnic.

  softrnic perf write bw --loopback --all                                         in this process
  softrnic perf write bw --link tap:rnic0,bridge=br0 --addr 10.0.0.1/24           a server, and its client:
  softrnic perf write bw --link tap:rnic1,bridge=br0 --addr 10.0.0.2/24 10.0.0.1
  softrnic perf send lat --loopback --report report.html
  softrnic perf connect rate --loopback --threads 4                               connections of rdma_cm per second

Bandwidth is of payload, 1 Gb/sec being 10^9 bits; the peak is that of the best 10 ms. The clock stops when all of the data
is at its destination. Latency of send and write is half a round trip, of read and atomic from posting to completion; the
receiver of a write polls its memory, as in ib_write_lat. CPU time is this process's, in user mode and in the kernel, for
each gigabyte (10^9 bytes) of payload; with --loopback that is both sides'.

--verify checks every message of send, read and atomic, and of write what is in the memory in the end.`
}

// Bounds of what may be asked for; a server holds its clients to them.
const (
	perfMaxSize   = 1 << 28
	perfMaxDepth  = 1 << 14
	perfMaxQPs    = 1 << 14
	perfMaxWRs    = 1 << 20
	perfMaxMemory = int64(min(4<<30, math.MaxInt))
)

// Validate implements kong's check after parsing.
func (c *perfCmd) Validate() error {
	for _, f := range []struct {
		flag           string
		v, least, most int
	}{{"depth", c.Depth, 1, perfMaxDepth}, {"qps", c.QPs, 1, perfMaxQPs}, {"threads", c.Threads, 1, 1024},
		{"cq-mod", c.CQMod, 0, perfMaxDepth}, {"post-list", c.PostList, 1, perfMaxDepth}, {"buffer", c.Buffer, 0, perfMaxSize}} {
		if f.v < f.least || f.v > f.most {
			return fmt.Errorf("--%s %d: give %d to %d", f.flag, f.v, f.least, f.most)
		}
	}
	for _, n := range c.Size {
		if n < 1 || n > perfMaxSize {
			return fmt.Errorf("--size %d: give 1 to %d", n, perfMaxSize)
		}
	}
	switch {
	case c.Iters < 0 || c.Iters > 1<<40:
		return fmt.Errorf("--iters %d: give 1 to %d", c.Iters, int64(1)<<40)
	case c.Duration < 0 || c.Duration > perfMaxTime:
		return fmt.Errorf("--duration %v: give up to %v", c.Duration, perfMaxTime)
	case c.Warmup < 0 || c.Warmup > perfMaxTime:
		return fmt.Errorf("--warmup %v: give 0 to %v", c.Warmup, perfMaxTime)
	case c.Iters > 0 && c.Duration > 0:
		return errors.New("--iters and --duration: give one of the two")
	case c.All && len(c.Size) > 0:
		return errors.New("--all and --size: give one of the two")
	case c.Op == perfConnect && (c.Metric != perfRate || c.Report != "" || c.Bidirectional || c.All || c.TCP || len(c.Size) > 0):
		return errors.New("connect has rate only, which times each connection too, and neither sizes nor TCP, a report nor both ways")
	case c.KernelTCP.IsValid() && c.Server == "":
		return errors.New("--kernel-tcp is the client's: give the server's address")
	case c.Metric == perfLat && c.Report == "" && (c.QPs > 1 || c.Bidirectional):
		return errors.New("lat is of one message on one QP: leave out --qps and --bidirectional")
	case c.Loopback && c.Server != "":
		return fmt.Errorf("server %q with --loopback: give one of the two", c.Server)
	case c.Report != "" && c.Server == "" && !c.Loopback:
		return errors.New("--report is the client's: give the server's address, or --loopback")
	case c.OneDevice && !c.Loopback:
		return errors.New("--one-device is for --loopback: give that too")
	}
	return nil
}

// Run measures, or serves one client.
func (c *perfCmd) Run(ctx context.Context, e *env) (err error) {
	if c.Link.medium == "pipe" && e.lan == nil && !c.Loopback {
		return usagef("perf needs a peer, and no other program can be on a pipe: give --loopback, or --link tap:NAME or packet:INTERFACE")
	}
	if c.Pprof != "" {
		stop, err := startProfile(c.Pprof)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	if c.Loopback {
		return c.loopback(ctx, e)
	}
	n, err := c.open(e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	if c.Server == "" {
		return c.serve(ctx, e, n)
	}
	server, err := n.resolve(ctx, c.Server)
	if err != nil {
		return err
	}
	return c.measure(ctx, e, n, server)
}

// startProfile profiles the CPU until stop.
func startProfile(file string) (stop func() error, err error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, fmt.Errorf("--pprof: %w", err)
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(fmt.Errorf("--pprof: %w", err), f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// loopback is both sides.
func (c *perfCmd) loopback(ctx context.Context, e *env) (err error) {
	lan := pipe.New()
	if c.MTU != 0 {
		lan = pipe.New(pipe.WithMTU(c.MTU))
	}
	on := &env{stdout: e.stdout, stderr: e.stderr, lan: lan}
	clientFlags := c.nodeFlags
	if len(c.Addr) == 0 {
		clientFlags.Addr = []cidr{{netip.MustParsePrefix("10.0.0.1/24")}}
	}
	client, err := clientFlags.open(on)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, client.Close()) }()
	server, at := client, clientFlags.Addr[0]
	if c.Link.medium == "pipe" && !c.OneDevice {
		at.Prefix = netip.PrefixFrom(at.Addr().Next(), at.Bits())
		serverFlags := nodeFlags{Link: c.Link, Addr: []cidr{at}, Congestion: c.Congestion, GoBackN: c.GoBackN,
			Counters: c.Counters, linkFlags: linkFlags{MTU: c.MTU, Log: c.Log}}
		if server, err = serverFlags.open(on); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, server.Close()) }()
	}
	l, err := server.host.ListenStream(netip.AddrPortFrom(at.Addr(), c.Port))
	if err != nil {
		return err
	}
	served := make(chan error, 1)
	go func() { served <- servePerf(ctx, server, l, nil) }()
	err = c.measure(ctx, e, client, at.Addr())
	if err != nil {
		_ = l.Close()
	}
	if serverErr := <-served; err == nil {
		err = serverErr
	}
	return err
}

// serve waits for one client and does what it asks for.
func (c *perfCmd) serve(ctx context.Context, e *env, n *node) error {
	l, err := n.host.ListenStream(netip.AddrPortFrom(netip.Addr{}, c.Port))
	if err != nil {
		return err
	}
	n.log.Debug("listening", "addr", l.Addr())
	report := newPerfReport(n, c, e)
	if !c.JSON {
		fmt.Fprintf(e.stdout, "Waiting for a client on port %d.\n", c.Port)
	}
	if err := servePerf(ctx, n, l, report.add); err != nil {
		return err
	}
	return report.finish(c, e)
}

// measure is the client: all that the command line asks for.
func (c *perfCmd) measure(ctx context.Context, e *env, n *node, server netip.Addr) (err error) {
	conn, err := n.host.DialStream(ctx, netip.AddrPort{}, netip.AddrPortFrom(server, c.Port))
	if err != nil {
		return err
	}
	ctl := newPerfControl(conn)
	defer func() { err = errors.Join(err, ctl.Close()) }()
	defer ctl.interrupt(ctx)()

	plans := c.plans()
	report := newPerfReport(n, c, e)
	progress := e.stderr
	if !c.JSON {
		progress = io.Discard // the table grows by itself
	}
	bar := newProgress(progress, len(plans))
	defer func() { _ = bar.Exit() }()
	for i := range plans {
		p := &plans[i]
		bar.Describe(fmt.Sprintf("%s %s, %s, %s", p.Op, p.Metric, p.Over, formatSize(p.Size)))
		r, err := runPerfClient(ctx, n, server, ctl, p, c.Loopback)
		if err != nil {
			return fmt.Errorf("%s %s over %s, %s: %w", p.Op, p.Metric, p.Over, formatSize(p.Size), err)
		}
		report.add(r)
		_ = bar.Add(1)
	}
	return report.finish(c, e)
}

// plans are the measurements to make, in order.
func (c *perfCmd) plans() (all []perfPlan) {
	metrics, over := []string{c.Metric}, []string{}
	if c.Report != "" && c.Metric == perfLat {
		metrics = []string{perfBW, perfLat}
	} else if c.Report != "" {
		metrics = []string{c.Metric, perfLat}
	}
	for _, t := range c.Transport {
		if name := t.String(); !slices.Contains(over, name) {
			over = append(over, name)
		}
	}
	if c.Report != "" {
		over = []string{overRoCE, overIWARP}
	}
	if c.TCP || c.Report != "" {
		over = append(over, overTCP)
	}
	if c.KernelTCP.IsValid() || c.Loopback && (c.TCP || c.Report != "") {
		over = append(over, overKernel)
	}
	for _, metric := range metrics {
		for _, o := range over {
			if c.Op == perfAtomic && metric != perfLat && (o == overTCP || o == overKernel) {
				continue // nothing to compare with
			}
			for _, size := range c.sizes(metric) {
				all = append(all, c.plan(metric, o, size))
			}
		}
	}
	return all
}

// sizes are the message sizes of a metric.
func (c *perfCmd) sizes(metric string) []int {
	switch {
	case c.Op == perfAtomic:
		return []int{8}
	case c.Op == perfConnect:
		return []int{0}
	case c.All, c.Report != "" && len(c.Size) == 0 && metric != perfLat:
		var all []int
		for n := 2; n <= 8<<20; n *= 2 {
			all = append(all, n)
		}
		return all
	case c.Report != "" && metric == perfLat && c.Metric != perfLat:
		return []int{8}
	case len(c.Size) > 0:
		return c.Size
	case metric == perfBW:
		return []int{64 << 10}
	}
	return []int{8}
}

func (c *perfCmd) plan(metric, over string, size int) perfPlan {
	p := perfPlan{Op: c.Op, Metric: metric, Over: over, Size: size, Depth: c.Depth, QPs: c.QPs, Threads: min(c.Threads, c.QPs),
		CQMod: c.CQMod, PostList: c.PostList, Bidirectional: c.Bidirectional, Verify: c.Verify,
		Buffer: max(c.Buffer, perfPlainBuffer), Wait: c.Wait,
		Iters: c.Iters, Duration: c.Duration, Warmup: c.Warmup}
	if c.Iters == 0 && c.Duration == 0 {
		p.Duration = time.Second
	}
	if over == overKernel {
		p.Kernel = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		if c.KernelTCP.IsValid() {
			p.Kernel = c.KernelTCP.Addr
		}
	}
	if c.Op == perfConnect {
		p.Depth, p.QPs, p.Threads, p.Verify = 1, c.Threads, c.Threads, false
	}
	if metric == perfLat {
		p.Depth, p.QPs, p.Threads, p.Bidirectional = 1, 1, 1, false
	}
	if p.Verify {
		p.Depth = max(1, min(p.Depth, perfVerifyBuffer/(2*p.stride()*p.QPs)))
	}
	if p.CQMod == 0 {
		p.CQMod = 1
		if size <= 8<<10 {
			p.CQMod = 100
		}
	}
	p.CQMod, p.PostList = min(p.CQMod, p.Depth), min(p.PostList, p.Depth)
	return p
}
