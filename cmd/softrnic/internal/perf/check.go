package perf

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/alecthomas/kong"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/output"
)

// Limits of a measurement, which a server enforces.
const (
	maxSize   = 1 << 28
	maxDepth  = 1 << 14
	maxQPs    = 1 << 14
	maxWRs    = 1 << 20
	maxMemory = int64(min(4<<30, math.MaxInt))
)

// Validate implements kong's check after parsing.
func (c *Command) Validate(kctx *kong.Context) error {
	c.line = kctx.Args
	given := func(flag string) bool {
		return slices.ContainsFunc(kctx.Path, func(p *kong.Path) bool { return p.Flag != nil && p.Flag.Name == flag })
	}
	for _, f := range []struct {
		flag           string
		v, least, most int
	}{{"depth", c.Depth, 1, maxDepth}, {"qps", c.QPs, 1, maxQPs}, {"threads", c.Threads, 1, 1024},
		{"cq-mod", c.CQMod, 1, maxDepth}, {"post-list", c.PostList, 1, maxDepth}, {"buffer", c.Buffer, plainBuffer, maxSize}} {
		if given(f.flag) && (f.v < f.least || f.v > f.most) {
			return fmt.Errorf("--%s %d: must be %d to %d", f.flag, f.v, f.least, f.most)
		}
	}
	for _, n := range c.Size {
		if n < 1 || n > maxSize {
			return fmt.Errorf("--size %d: must be 1 to %d", n, maxSize)
		}
	}
	switch {
	case given("iters") && (c.Iters < 1 || c.Iters > 1<<40):
		return fmt.Errorf("--iters %d: must be 1 to %d", c.Iters, int64(1)<<40)
	case given("duration") && (c.Duration <= 0 || c.Duration > maxTime):
		return fmt.Errorf("--duration %v: must be more than 0, and up to %v", c.Duration, maxTime)
	case c.Warmup < 0 || c.Warmup > maxTime:
		return fmt.Errorf("--warmup %v: must be 0 to %v", c.Warmup, maxTime)
	case c.Iters > 0 && c.Duration > 0:
		return errors.New("--iters and --duration: use one of the two")
	case c.All && len(c.Size) > 0:
		return errors.New("--all and --size: use one of the two")
	case c.KernelTCP.IsValid() && c.Server == "":
		return errors.New("--kernel-tcp is for the client: add the server's address")
	case c.Loopback && c.Server != "":
		return fmt.Errorf("server %q with --loopback: use one of the two", c.Server)
	case c.Report != "" && c.Server == "" && !c.Loopback:
		return errors.New("--report is for the client: add the server's address, or --loopback")
	}
	if err := c.checkWays(); err != nil {
		return err
	}
	if c.Op == opConnect {
		return c.checkConnect(given)
	}
	return c.checkPlans(given)
}

// checkConnect returns the part of Validate for the operation connect.
func (c *Command) checkConnect(given func(flag string) bool) error {
	if c.Metric != metricRate {
		return fmt.Errorf("connect %s: connect has only rate, which also times each connection", c.Metric)
	}
	for _, flag := range []string{"size", "all", "depth", "qps", "bidirectional", "cq-mod", "post-list", "buffer", "wait", "verify",
		"tcp", "kernel-tcp", "report"} {
		if given(flag) {
			return fmt.Errorf("connect sends nothing, on one connection at a time for each of --threads: leave out --%s", flag)
		}
	}
	return nil
}

// checkPlans returns the part of Validate that refuses flags that the measurements would ignore.
func (c *Command) checkPlans(given func(flag string) bool) error {
	if c.Op == opAtomic && (c.All || slices.ContainsFunc(c.Size, func(n int) bool { return n != 8 })) {
		return errors.New("atomics are of 8 bytes: leave out --size and --all")
	}
	plans := c.plans()
	for i := range plans {
		p := &plans[i]
		if p.Metric != plans[0].Metric {
			break // the latencies of a report always use one message
		}
		for _, f := range []struct {
			flag       string
			asked, got int
		}{{"depth", c.Depth, p.Depth}, {"qps", c.QPs, p.QPs}, {"threads", c.Threads, p.Threads}, {"cq-mod", c.CQMod, p.CQMod},
			{"post-list", c.PostList, p.PostList}} {
			switch {
			case !given(f.flag) || f.asked == f.got:
			case p.Metric == metricLat:
				return fmt.Errorf("--%s %d: lat is of one message at a time on one QP: leave it out", f.flag, f.asked)
			case f.flag == "threads":
				return fmt.Errorf("--threads %d: each needs its own QPs, and there are %d: use --qps %d or more", f.asked, c.QPs, f.asked)
			case f.flag == "depth":
				return fmt.Errorf("--depth %d: must be at most %d with --verify, since there is room for so many messages of %s", f.asked,
					f.got,
					output.Size(p.Size))
			default:
				return fmt.Errorf("--%s %d: must be at most the %d messages outstanding (--depth)", f.flag, f.asked,
					p.Depth)
			}
		}
		if p.Metric == metricLat && c.Bidirectional {
			return errors.New("--bidirectional: lat is of one message at a time on one QP: leave it out")
		}
	}
	return nil
}
