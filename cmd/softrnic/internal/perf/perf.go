// Package perf is `softrnic perf`: it measures bandwidth, latency and message rate, as perftest
// does.
//
// Two sides agree on a plan (plan.go) over a control connection (session.go). They create lanes,
// one per thread: of QPs (rdma.go, lane.go, qp.go), of TCP connections (tcp.go), or of connections
// being set up (connect.go). Each lane has a meter (meter.go). The result of all lanes (result.go)
// is printed and plotted in a report (report.go, plot.go).
package perf

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime/pprof"
	"slices"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/running"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/output"
)

// Command is perftest in one command: ib_send_bw, ib_write_lat and so on.
type Command struct {
	Op     string `arg:"" enum:"send,write,read,atomic,connect" help:"Operation: send, write, read, atomic (fetch and add) or connect (establish and close connections)."`
	Metric string `arg:"" enum:"bw,lat,rate" help:"What to measure: bw (bandwidth), lat (latency) or rate (messages, or connections, per second)."`
	Server string `arg:"" optional:"" help:"Address or name of the server. Without it, and without --loopback, the command is the server."`

	Loopback  bool `help:"Run both sides: two nodes on a link inside this process. With --one-device, or with --link tap:… or packet:…, these are two QPs of one node."`
	OneDevice bool `help:"With --loopback: connect the device to itself."`
	Packets   bool `xor:"way" help:"With --loopback: measure only with packets, as between machines. Default: with packets, and on the direct path."`
	Direct    bool `xor:"way" help:"With --loopback: measure only the direct path, which copies messages from memory to memory without packets. --transport selects the kind of QPs."`

	Transport []node.Transport `placeholder:"PROTOCOL" help:"Wire protocols, each measured in turn: rocev2, iwarp. Default: rocev2; with --report both."`
	TCP       bool             `name:"tcp" help:"Also measure plain TCP, for comparison: the node's own stack over the same link and, with --loopback, the kernel's over its loopback interface."`
	KernelTCP node.IPAddr      `name:"kernel-tcp" placeholder:"IP" help:"With a server: also measure the kernel's TCP, to this address of the server's machine."`
	Sockets   bool             `help:"Also measure rsockets over each --transport, with packets."`

	Size          []int              `short:"s" placeholder:"BYTES" help:"Message size; repeatable. Atomics are always 8 bytes. Default: 65536 for bw, 8 for lat and rate."`
	All           bool               `short:"a" help:"All sizes: 2 bytes to 8 MiB, doubling."`
	Depth         int                `short:"t" default:"128" help:"Outstanding messages of each QP; lat always has one. Default: 128."`
	QPs           int                `short:"q" name:"qps" default:"1" help:"Queue pairs. Default: 1."`
	Threads       int                `default:"1" help:"Goroutines on each side, each with its share of the QPs and its own CQ. Default: 1."`
	Duration      time.Duration      `short:"D" placeholder:"TIME" help:"How long to measure each size: 5 or 5s, 200ms, 1m. Default: 1s, without --iters."`
	Iters         int64              `short:"n" help:"Messages on each QP for each size, instead of a duration."`
	Warmup        time.Duration      `default:"100ms" placeholder:"TIME" help:"How long to run before each measurement. Default: 100ms."`
	Bidirectional bool               `short:"b" help:"Both sides send; the result is the sum. For bw and rate."`
	CQMod         int                `short:"Q" name:"cq-mod" placeholder:"N" help:"Signal only every Nth message. Default: 100, or 1 for messages above 8 KiB."`
	PostList      int                `short:"l" default:"1" placeholder:"N" help:"Work requests to post in one call. Default: 1."`
	Buffer        int                `placeholder:"BYTES" help:"Buffer of each QP on each side, whose parts messages use in turn. Default: 4096, and at least one message."`
	Mapped        bool               `help:"Register the buffers as memory that may be unmapped while registered, as for a C program (ibv_reg_mr)."`
	Wait          completion.Waiting `default:"adaptive" enum:"poll,event,adaptive" placeholder:"HOW" help:"How both sides wait for completions: poll (never sleep), event (sleep immediately), or adaptive (poll for 50 µs, then sleep). Default: adaptive."`
	Verify        bool               `help:"Verify the data. This takes time, and limits outstanding messages to 64 MiB."`

	Port   uint16 `short:"p" type:"port" default:"18516" help:"TCP port of the control connection. Default: 18516."`
	JSON   bool   `name:"json" help:"Print the results as JSON."`
	Pprof  string `type:"path" placeholder:"FILE" help:"Write a CPU profile, for go tool pprof."`
	Report string `type:"path" placeholder:"FILE" help:"Write an HTML page with plots of each protocol and of plain TCP: bandwidth by size (all sizes unless --size is given), and latency distribution."`

	running.Flags

	line []string // the arguments of softrnic
}

// Help implements kong.HelpProvider.
func (*Command) Help() string {
	return `The client selects the measurement; the server takes all flags except its node's from the client. Both sides are softrnic.

  softrnic perf write bw --loopback --all                                         in this process, with packets and direct
  softrnic perf write bw --loopback --all --packets                               with packets only
  softrnic perf write bw --link tap:rnic0,bridge=br0 --addr 10.0.0.1/24           a server, and its client:
  softrnic perf write bw --link tap:rnic1,bridge=br0 --addr 10.0.0.2/24 10.0.0.1
  softrnic perf send lat --loopback --report report.html
  softrnic perf connect rate --loopback --threads 4                               connections of rdma_cm per second

Bandwidth is of payload; 1 Gb/sec is 10^9 bits per second. The peak is the best 10 ms of each thread and direction. A
measurement ends when all data is at its destination. The latency of send and write is half a round trip; that of read and
atomic is from posting to completion. The receiver of a write polls its memory, as in ib_write_lat. CPU time is that of this
process (with --loopback, of both sides), in user mode and in the kernel, per gigabyte (10^9 bytes) of payload.

Nodes of one process use the direct path: messages are copied from memory to memory, without a wire protocol. --loopback
measures this as "in process, direct". It also measures the wire protocols, with all messages in packets; --packets
measures only these. #packets counts the packets in both directions. The few packets of the direct path set up the
measurement.

--verify checks every message of send, read and atomic. For write, it checks the memory at the end.`
}

// Run measures or serves one client.
func (c *Command) Run(ctx context.Context, e *cli.Env) (err error) {
	if c.Medium() == "pipe" && e.LAN == nil && !c.Loopback {
		return cli.Usagef("perf needs a peer, and a pipe is within one process: use --loopback, or --link kernel, shm, " +
			"stream:PATH, tap:NAME or packet:INTERFACE")
	}
	if c.Medium() == "kernel" && c.Loopback {
		return cli.Usagef("--loopback --link kernel: run two, a server with --link kernel:lo --addr 127.0.0.1, and its client with " +
			"--link kernel:lo --addr 127.0.0.2 127.0.0.1")
	}
	report, err := newReport(c, e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, report.finish(c, e, err)) }()
	if c.Pprof != "" {
		stop, failed := startProfile(c.Pprof)
		if failed != nil {
			return failed
		}
		defer func() { err = errors.Join(err, stop()) }()
	}
	if c.Loopback {
		return c.loopback(ctx, e, report)
	}
	return c.RunNode(ctx, e, func(ctx context.Context, n *node.Node) error {
		if c.Server == "" {
			return c.serve(ctx, e, n, report)
		}
		return c.client(ctx, e, n, report)
	})
}

// startProfile profiles the CPU until stop is called.
func startProfile(file string) (stop func() error, err error) {
	f, err := os.Create(file)
	if err != nil {
		return nil, fmt.Errorf("--pprof: %w", err)
	}
	w := cli.NewChecked(f)
	if err := pprof.StartCPUProfile(w); err != nil {
		return nil, errors.Join(fmt.Errorf("--pprof: %w", err), f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		if err := errors.Join(w.Err(), f.Close()); err != nil {
			return fmt.Errorf("--pprof: %w", err)
		}
		return nil
	}, nil
}

// serve waits for one client and makes its measurements.
func (c *Command) serve(ctx context.Context, e *cli.Env, n *node.Node, report *report) error {
	c.HintWithoutAddr(n)
	l, err := n.ListenStream(netip.AddrPortFrom(netip.Addr{}, c.Port))
	if err != nil {
		return fmt.Errorf("--port %d: %w", c.Port, err)
	}
	n.Log.Debug("listening", "addr", l.Addr())
	if !c.JSON {
		fmt.Fprintf(e.Text(), "Waiting for a client on port %d.\n", c.Port)
	}
	report.on(n)
	return serve(ctx, n, l, report.add)
}

// client measures between a node and a remote server.
func (c *Command) client(ctx context.Context, e *cli.Env, n *node.Node, report *report) (err error) {
	server, err := n.Resolve(ctx, c.Server)
	if err != nil {
		return err
	}
	peer, err := dial(ctx, n, server, c.Port)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, peer.Close()) }()
	return c.measure(ctx, e, report, func(*plan) (*session, error) { return peer, nil })
}

// session is a client's connection to its server.
type session struct {
	node   *node.Node
	server netip.Addr
	ctl    *control
	stop   func() bool
}

func dial(ctx context.Context, n *node.Node, server netip.Addr, port uint16) (*session, error) {
	conn, err := n.Host.DialStream(ctx, netip.AddrPort{}, netip.AddrPortFrom(server, port))
	if err != nil {
		return nil, err
	}
	ctl := newControl(conn)
	return &session{node: n, server: server, ctl: ctl, stop: ctl.interrupt(ctx)}, nil
}

// Close ends the session with the server.
func (p *session) Close() error {
	p.stop()
	return p.ctl.Close()
}

// measure makes all measurements of the command line as the client. peerFor returns the server for
// one of them.
func (c *Command) measure(ctx context.Context, e *cli.Env, report *report, peerFor func(*plan) (*session, error)) error {
	plans := c.plans()
	progress := e.Stderr
	if !c.JSON {
		progress = io.Discard // the table shows the progress
	}
	bar := output.NewProgress(progress, len(plans))
	defer func() { _ = bar.Exit() }()
	for i := range plans {
		p := &plans[i]
		peer, err := peerFor(p)
		if err != nil {
			return err
		}
		bar.Describe(p.String())
		r, err := runClient(ctx, peer.node, peer.server, peer.ctl, p, c.Loopback)
		if err != nil {
			return fmt.Errorf("%v: %w", p, err)
		}
		report.on(peer.node)
		report.add(r)
		_ = bar.Add(1)
	}
	return nil
}

// plans returns the measurements in order.
func (c *Command) plans() (all []plan) {
	metrics := []string{c.Metric}
	if c.Report != "" && c.Metric == metricLat {
		metrics = []string{metricBW, metricLat}
	} else if c.Report != "" {
		metrics = []string{c.Metric, metricLat}
	}
	type way struct {
		over   string
		direct bool
	}
	var ways []way
	packets, direct := c.ways()
	for _, over := range c.overs() {
		if packets {
			ways = append(ways, way{over, false})
		}
	}
	if direct {
		ways = append(ways, way{c.overs()[0], true})
	}
	if c.TCP || c.Report != "" {
		ways = append(ways, way{overTCP, false})
	}
	if c.KernelTCP.IsValid() || c.Loopback && (c.TCP || c.Report != "") {
		ways = append(ways, way{overKernel, false})
	}
	if c.Sockets {
		for _, over := range c.overs() {
			ways = append(ways, way{map[string]string{OverRoCE: overSockets, OverIWARP: overIWARPSockets}[over], false})
		}
	}
	for _, metric := range metrics {
		for _, w := range ways {
			if c.Op == opAtomic && metric != metricLat && isStream(w.over) {
				continue // there is nothing to compare with
			}
			for _, size := range c.sizes(metric) {
				p := c.plan(metric, w.over, size)
				p.Direct = w.direct
				all = append(all, p)
			}
		}
	}
	return all
}

// overs returns the wire protocols of the command line.
func (c *Command) overs() (all []string) {
	for _, t := range c.Transport {
		if name := t.String(); !slices.Contains(all, name) {
			all = append(all, name)
		}
	}
	switch {
	case len(all) > 0:
		return all
	case c.Report != "":
		return []string{OverRoCE, OverIWARP}
	}
	return []string{OverRoCE}
}

// sizes returns the message sizes of a metric.
func (c *Command) sizes(metric string) []int {
	switch {
	case c.Op == opAtomic:
		return []int{8}
	case c.Op == opConnect:
		return []int{0}
	case c.All, c.Report != "" && len(c.Size) == 0 && metric != metricLat:
		var all []int
		for n := 2; n <= 8<<20; n *= 2 {
			all = append(all, n)
		}
		return all
	case c.Report != "" && metric == metricLat && c.Metric != metricLat:
		return []int{8}
	case len(c.Size) > 0:
		return c.Size
	case metric == metricBW:
		return []int{64 << 10}
	}
	return []int{8}
}

func (c *Command) plan(metric, over string, size int) plan {
	p := plan{Op: c.Op, Metric: metric, Over: over, Size: size, Depth: c.Depth, QPs: c.QPs, Threads: min(c.Threads, c.QPs),
		CQMod: c.CQMod, PostList: c.PostList, Bidirectional: c.Bidirectional, Verify: c.Verify,
		Buffer: max(c.Buffer, plainBuffer), Mapped: c.Mapped, Wait: c.Wait,
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
	if c.Op == opConnect {
		p.Depth, p.QPs, p.Threads, p.Verify = 1, c.Threads, c.Threads, false
	}
	if metric == metricLat {
		p.Depth, p.QPs, p.Threads, p.Bidirectional = 1, 1, 1, false
	}
	if p.Verify {
		p.Depth = max(1, min(p.Depth, verifyBuffer/(2*p.stride()*p.QPs)))
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
