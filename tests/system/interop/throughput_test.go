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

// TestThroughput measures WRITEs by message size between two processes of one Linux machine: rxe,
// siw, SoftRNIC over the kernel's sockets and shared memory, and TCP. Each figure is the median of
// three rounds, in which all are measured in turn. With SOFTRNIC_REPORT=1 it writes the figures.
func TestThroughput(t *testing.T) {
	gate.Long(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Minute)
	defer cancel()
	program, err := os.ReadFile(buildSoftRNIC(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Put(ctx, "/tmp/softrnic", program); err != nil {
		t.Fatal(err)
	}
	p.Run(t, "chmod 755 /tmp/softrnic; /bin/ip link set lo up")
	perftest := func(args string) func(size int) string {
		return func(size int) string {
			run := fmt.Sprintf("ib_write_bw %s -s %d -D 2 -F --report_gbits", args, size)
			return fmt.Sprintf("%s >/dev/null & sleep 1; %s %v | awk '$1 == %d {print $4}'; wait", run, run, p.Addr4(), size)
		}
	}
	ours := func(server, client string) func(size int) string {
		return func(size int) string {
			run := fmt.Sprintf("/tmp/softrnic perf write bw --size %d", size)
			return fmt.Sprintf("%s %s >/dev/null & sleep 1; %s --duration 2s --json %s | grep gbit_per_second | tr -dc 0-9.; wait",
				run, server, run, client)
		}
	}
	ways := []struct {
		name    string
		command func(size int) string // prints Gbit/s
	}{
		{"rxe", perftest("-d rxe0")},
		{"siw", perftest("-d siw0 -R")},
		{"SoftRNIC, RoCEv2, sockets", ours("--link kernel:lo --addr 127.0.0.1", "--link kernel:lo --addr 127.0.0.2 127.0.0.1")},
		{"SoftRNIC, RoCEv2, shared memory", ours("--link shm:t --addr 10.9.0.1/24", "--link shm:t --addr 10.9.0.2/24 10.9.0.1")},
		{"SoftRNIC, iWARP, sockets", ours("--link kernel:lo --addr 127.0.0.1",
			"--transport iwarp --link kernel:lo --addr 127.0.0.2 127.0.0.1")},
		{"TCP", func(size int) string {
			return fmt.Sprintf("iperf3 -s -1 >/dev/null & sleep 1; iperf3 -c 127.0.0.1 -t 2 -l %d -f k | awk '/receiver/ {print $7/1e6}'; wait",
				size)
		}},
	}
	type curve struct {
		Name  string
		Sizes []int
		Gbps  []float64
	}
	curves := make([]curve, len(ways))
	for i, w := range ways {
		curves[i].Name = w.name
	}
	for _, size := range []int{64, 256, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20} {
		samples := make([][]float64, len(ways))
		for range 3 {
			for i, w := range ways {
				out := p.Run(t, w.command(size))
				v, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
				if err != nil {
					t.Fatalf("%s, %d bytes: %q", w.name, size, out)
				}
				samples[i] = append(samples[i], v)
			}
		}
		for i := range curves {
			slices.Sort(samples[i])
			curves[i].Sizes, curves[i].Gbps = append(curves[i].Sizes, size), append(curves[i].Gbps, samples[i][1])
		}
	}
	for _, c := range curves {
		t.Logf("result: %s: %.3f Gbit/s of 64 KiB, %.3f of 1 MiB", c.Name, c.Gbps[5], c.Gbps[7])
	}
	if os.Getenv("SOFTRNIC_REPORT") != "1" {
		return
	}
	text, err := json.MarshalIndent(curves, "", "\t")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.FromSlash(throughputFile), append(text, '\n'), 0o666); err != nil {
		t.Fatal(err)
	}
}
