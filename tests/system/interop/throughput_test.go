//go:build linux

package interop

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
)

// throughputFile is where the picture of tests/bench/goals finds the figures.
const throughputFile = "../../bench/goals/testdata/kernel.json"

// TestThroughput measures WRITEs between two processes of one Linux machine, by message size and by
// the number of QPs: rxe, siw, SoftRNIC over the kernel's sockets and shared memory, and TCP. Each
// figure is the median of three rounds, in which all are measured in turn. With SOFTRNIC_REPORT=1
// it writes the figures.
func TestThroughput(t *testing.T) {
	gate.Long(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Minute)
	defer cancel()
	program, err := os.ReadFile(softrnicProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Put(ctx, "/tmp/softrnic", program); err != nil {
		t.Fatal(err)
	}
	p.Run(t, "chmod 755 /tmp/softrnic; modprobe siw; rdma link add siw0 type siw netdev eth0")
	// rxe0 has RoCE's UDP port in its namespace.
	p.Run(t, "/bin/ip netns add t && /bin/ip -n t link set lo up")
	defer p.Run(t, "rdma link del siw0; /bin/ip netns del t")
	// between runs a server, and a client until it prints something: the server may not be up at once.
	between := func(server, client string) string {
		return fmt.Sprintf("%s >/dev/null & server=$!; for try in 1 2 3 4 5; do sleep 1; got=$(%s); [ -z \"$got\" ] || break; done; echo $got; "+
			"[ -n \"$got\" ] || kill $server; wait", server, client)
	}
	// Of perftest's line with a size, column 4 has Gbit/s and column 5 millions of messages a second.
	perftest := func(flags string, size, column int) string {
		run := fmt.Sprintf("ib_write_bw %s -s %d -D 2 -F --report_gbits", flags, size)
		return between(run, fmt.Sprintf("%s %v | awk '$1 == %d {print $%d}'", run, p.Addr4(), size, column))
	}
	ours := func(flags, server, client, field string) string {
		run := "/bin/ip netns exec t /tmp/softrnic perf write " + flags + " "
		return between(run+server, fmt.Sprintf("%s --duration 2s --json %s | grep -m1 %s | tr -dc 0-9.", run, client, field))
	}
	const (
		socketsServer, socketsClient = "--link kernel:lo --addr 127.0.0.1", "--link kernel:lo --addr 127.0.0.2 127.0.0.1"
		shmServer, shmClient         = "--link shm:t --addr 10.9.0.1/24", "--link shm:t --addr 10.9.0.2/24 10.9.0.1"
	)
	bandwidth := func(flags, server, client string) func(size int) string {
		return func(size int) string {
			return ours(fmt.Sprintf("bw --size %d %s", size, flags), server, client, "gbit_per_second")
		}
	}
	rate := func(server, client string) func(qps int) string {
		return func(qps int) string {
			return ours(fmt.Sprintf("rate --size 8 --depth 16 --qps %d", qps), server, client, "million_messages_per_second")
		}
	}
	ways := []measured{
		{"rxe", func(size int) string { return perftest("-d rxe0", size, 4) }},
		{"siw", func(size int) string { return perftest("-d siw0 -R", size, 4) }},
		{"SoftRNIC, RoCEv2, sockets", bandwidth("", socketsServer, socketsClient)},
		{"SoftRNIC, RoCEv2, shared memory", bandwidth("", shmServer, shmClient)},
		{"SoftRNIC, iWARP, sockets", bandwidth("--transport iwarp", socketsServer, socketsClient)},
		{"TCP", func(size int) string {
			return between("iperf3 -s -1", fmt.Sprintf("iperf3 -c 127.0.0.1 -t 2 -l %d -f k | awk '/receiver/ {print $7/1e6}'", size))
		}},
	}
	rates := []measured{
		{"rxe", func(qps int) string {
			return perftest(fmt.Sprintf("-d rxe0 -q %d -t 16", qps), 8, 5)
		}},
		{"SoftRNIC, RoCEv2, sockets", rate(socketsServer, socketsClient)},
		{"SoftRNIC, RoCEv2, shared memory", rate(shmServer, shmClient)},
	}
	report := throughput{BySize: make([]curve, len(ways)), ByQPs: make([]curve, len(rates))}
	for i, w := range ways {
		report.BySize[i].Name = w.name
	}
	for i, w := range rates {
		report.ByQPs[i].Name = w.name
	}
	// perftest reports nothing of 1 MiB here: its first 128 messages take longer than it waits.
	for _, size := range []int{64, 1 << 10, 8 << 10, 64 << 10} {
		measureIn(t, p, ways, report.BySize, size)
	}
	for _, qps := range []int{1, 32, 1024} {
		measureIn(t, p, rates, report.ByQPs, qps)
	}
	for _, c := range report.BySize {
		t.Logf("result: %s: %.3f Gbit/s of 8 KiB, %.3f of 64 KiB", c.Name, c.Y[2], c.Y[3])
	}
	for _, c := range report.ByQPs {
		t.Logf("result: %s: %.3f million WRITEs of 8 bytes a second with 1 QP, %.3f with 1024", c.Name, c.Y[0], c.Y[2])
	}
	if os.Getenv("SOFTRNIC_REPORT") != "1" {
		return
	}
	text, err := json.MarshalIndent(report, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.FromSlash(throughputFile), append(text, '\n'), 0o666); err != nil {
		t.Fatal(err)
	}
}

// throughput is what tests/bench/goals reads: Gbit/s by size, and millions a second by QPs.
type throughput struct{ BySize, ByQPs []curve }

type curve struct {
	Name string
	X    []int
	Y    []float64
}

// measured is a way to send. Its command prints a figure for a size or a number of QPs.
type measured struct {
	name    string
	command func(x int) string
}

// measureIn adds the medians of three rounds at x to the curves.
func measureIn(t *testing.T, p *peer.Peer, ways []measured, curves []curve, x int) {
	t.Helper()
	samples := make([][]float64, len(ways))
	for range 3 {
		for i, w := range ways {
			out := p.Run(t, w.command(x))
			v, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
			if err != nil {
				t.Fatalf("%s, %d: %q", w.name, x, out)
			}
			samples[i] = append(samples[i], v)
		}
	}
	for i := range curves {
		slices.Sort(samples[i])
		curves[i].X, curves[i].Y = append(curves[i].X, x), append(curves[i].Y, samples[i][1])
	}
}
