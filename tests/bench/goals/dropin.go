//go:build linux

package main

// The drop-in libraries: the cost of calls of libibverbs, and Debian's perftest compared with
// softrnic perf on the same link.

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// dropin builds the libraries and testdata/figures.c, unless flags name them.
func (l *lab) dropin(ctx context.Context) error {
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	dir := strings.TrimSpace(string(root))
	if l.libs == "" {
		libs := filepath.Join(l.dir, "dropin")
		cmd := exec.CommandContext(ctx, "go", "run", module+"/cmd/dropin/build", "-o", libs)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(out))
		}
		l.libs = libs
	}
	if l.figures == "" {
		figures := filepath.Join(l.dir, "figures")
		cmd := exec.CommandContext(ctx, "gcc", "-O2", "-o", figures, filepath.Join(dir, "tests/bench/goals/testdata/figures.c"),
			"-libverbs", "-lpthread")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", cmd, err, bytes.TrimSpace(out))
		}
		l.figures = figures
	}
	return nil
}

// startProgram starts a program on the libraries, with its own node. On sockets the node uses
// selective repeat, as softrnic perf does in onLoopback.
func (l *lab) startProgram(ctx context.Context, on side, link, addr string, stdout, stderr io.Writer, args ...string) (*exec.Cmd, error) {
	env := []string{"LD_LIBRARY_PATH=" + l.libs, "SOFTRNIC_LINK=" + link, "SOFTRNIC_ADDR=" + addr}
	if strings.HasPrefix(link, "kernel:") {
		env = append(env, "SOFTRNIC_SELECTIVE_REPEAT=1", "SOFTRNIC_SHARED=0")
	}
	return l.start(ctx, l.inside, on, stdout, stderr, "env", append(env, args...)...)
}

// figure returns the number that testdata/figures.c prints.
func (l *lab) figure(ctx context.Context, args ...string) (float64, error) {
	if err := l.dropin(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	var stdout, stderr bytes.Buffer
	cmd, err := l.startProgram(ctx, both, "shm:figures", "10.9.0.1/24", &stdout, &stderr, append([]string{l.figures}, args...)...)
	if err != nil {
		return 0, err
	}
	if err := cmd.Wait(); err != nil {
		return 0, fmt.Errorf("figures %v: %w: %s", args, err, bytes.TrimSpace(stderr.Bytes()))
	}
	return strconv.ParseFloat(strings.TrimSpace(stdout.String()), 64)
}

// costs measures one figure of testdata/figures.c.
func costs(what string, goal float64, unit string, args ...string) *experiment {
	return single(&row{What: "libibverbs, " + what, Goal: goal, AtMost: true, Unit: unit, only: true},
		func(ctx context.Context, l *lab) (float64, error) { return l.figure(ctx, args...) })
}

// dropinLink is a link between two processes. perftest's client reaches its server by TCP on the
// loopback interface.
type dropinLink struct {
	name  string
	link  string
	addrs [2]string
	perf  func(args ...string) measurement
	// The goal of the latency, of softrnic perf's. Over sockets the system calls hide most of what
	// the libraries add.
	latency float64
}

var dropinLinks = []dropinLink{
	{"shared memory", "shm:goals", [2]string{"10.9.0.1/24", "10.9.0.2/24"},
		func(args ...string) measurement { return between([2]string{"shm:perf", "shm:perf"}, nil, args...) }, 1.15},
	{"the kernel's sockets", "kernel:lo", [2]string{ownAddrs[0] + "/8", ownAddrs[1] + "/8"},
		func(args ...string) measurement { return onLoopback(ownAddrs, nil, args...) }, 1.25},
}

// perftest runs a tool of perftest and returns a column of the last line of numbers that its client
// prints. The sides say on which processors client and server run.
func perftest(sides [2]side, on dropinLink, column int, args ...string) sample {
	return func(ctx context.Context, l *lab) (float64, error) { return l.perftest(ctx, sides, on, column, args...) }
}

func (l *lab) perftest(ctx context.Context, sides [2]side, on dropinLink, column int, args ...string) (float64, error) {
	if err := l.dropin(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, programTimeout)
	defer cancel()
	args = append(args, "-d", "softrnic0", "-x", "1", "-F")
	var out [2]bytes.Buffer
	s, err := l.startProgram(ctx, sides[server], on.link, on.addrs[server], &out[0], &out[0], args...)
	if err != nil {
		return 0, err
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	time.Sleep(300 * time.Millisecond) // until it listens; perftest's client does not retry
	c, err := l.startProgram(ctx, sides[client], on.link, on.addrs[client], &out[1], &out[1], append(args, "127.0.0.1")...)
	if err == nil {
		err = c.Wait()
	}
	if err != nil {
		_ = s.Process.Kill()
	}
	if e := <-ended; err == nil {
		err = e
	}
	if err != nil {
		return 0, fmt.Errorf("%v: %w: %s%s", args, err, &out[0], &out[1])
	}
	lines := numbers.FindAllString(out[1].String(), -1)
	if len(lines) == 0 {
		return 0, fmt.Errorf("%v printed no numbers: %s", args, &out[1])
	}
	fields := strings.Fields(lines[len(lines)-1])
	if column >= len(fields) {
		return 0, fmt.Errorf("%v printed %q, which has no column %d", args, fields, column)
	}
	return strconv.ParseFloat(fields[column], 64)
}

// numbers matches a line of perftest's table.
var numbers = regexp.MustCompile(`(?m)^[ \t]*\d+[ \t]+\d+[ \t\d.]*$`)

// Columns of perftest's tables.
const (
	averageGbps  = 3
	millions     = 4 // messages a second
	typicalMicro = 4
)

func perftestBandwidth(on dropinLink) *experiment {
	return single(&row{What: "ib_write_bw 64 KiB, " + on.name, Goal: 0.8, Unit: "Gbit/s", Against: "softrnic perf"},
		func(ctx context.Context, l *lab) (float64, error) {
			seconds := strconv.Itoa(max(1, int(l.duration.Seconds())))
			return l.perftest(ctx, [2]side{client, server}, on, averageGbps, "ib_write_bw", "-s", "65536", "-D", seconds, "--report_gbits")
		}, gbps(on.perf("write", "bw", "--size", strconv.Itoa(small))))
}

// perftestRate compares messages a second of one QP. Both programs post one request at a time, have
// up to 128 outstanding, and signal one in 100.
func perftestRate(on dropinLink) *experiment {
	return single(&row{What: "ib_write_bw 8 bytes, one QP, " + on.name, Goal: 0.8, Unit: "10⁶/s", Against: "softrnic perf"},
		func(ctx context.Context, l *lab) (float64, error) {
			seconds := strconv.Itoa(max(1, int(l.duration.Seconds())))
			return l.perftest(ctx, [2]side{client, server}, on, millions, "ib_write_bw", "-s", "8", "-D", seconds)
		}, mpps(on.perf("write", "rate", "--size", "8")))
}

func perftestLatency(on dropinLink) *experiment {
	return single(&row{What: "ib_send_lat 8 bytes, " + on.name + ", half round trip", Goal: on.latency, AtMost: true, Unit: "µs",
		Against: "softrnic perf, polling"},
		perftest([2]side{client, server}, on, typicalMicro, "ib_send_lat", "-s", "8", "-n", "10000"), halfTrip(on.perf(latencyArgs...)))
}

// eventLatency uses all processors: with one, ib_send_lat does not poll for events before it
// sleeps.
func eventLatency() *experiment {
	on := dropinLinks[0]
	return single(&row{What: "ib_send_lat 8 bytes with events, " + on.name + ", half round trip", Goal: 15, AtMost: true,
		Unit: "µs", only: true},
		perftest([2]side{both, both}, on, typicalMicro, "ib_send_lat", "-e", "-s", "8", "-n", "5000"))
}

// dropinExperiments returns all experiments of this file.
func dropinExperiments() []*experiment {
	all := []*experiment{
		costs("a call into the engine that does nothing", 53, "ns", "call"),
		costs("poll of an empty CQ", 8, "ns", "poll"),
		costs("WRITE of 8 bytes in process, post and poll", 200, "ns", "write"),
		costs("longest sleep in a poll, four threads", 2, "ms", "stall", "1"),
		eventLatency(),
		perftestRate(dropinLinks[0]),
	}
	for _, on := range dropinLinks {
		all = append(all, perftestBandwidth(on), perftestLatency(on))
	}
	return append(all, ofStart("ibv_devices", func(*lab) []string { return []string{"ibv_devices"} }),
		ofStart("a first QP", func(l *lab) []string { return []string{l.figures, "qp"} }))
}
