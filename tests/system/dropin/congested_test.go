//go:build linux && amd64

package dropin

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// congested is a network of two switches with two hosts each. The cable between the switches is the
// bottleneck, in which packets are marked.
const congested = `
[topology]
kind = "dumbbell"
hosts = 2
uplink_rate = "200M"
[switch]
buffer = "8MB"
ecn = { min = "20kB", max = "200kB", p = 0.5 }
`

// TestPerftestCongested: two pairs of perftest's programs share the slow cable of softrnic switch
// --fabric. Together they have no more than its rate. The switch marks packets, of which the
// receivers tell the senders. In a small buffer packets are lost, and the data arrives all the
// same.
func TestPerftestCongested(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ib_write_bw", "perftest")
	narrow := strings.NewReplacer("8MB", "40kB", "ecn", "#").Replace(congested)
	for _, c := range []struct {
		name, file, flags, program string
		bytes                      uint64
		marked                     bool
	}{
		{"marks", congested, "--congestion", "ib_write_bw -n 200", 2 * 200 << 16, true},
		{"marks, sends", congested, "--congestion", "ib_send_bw -n 200", 2 * 200 << 16, true},
		{"losses", narrow, "--selective-repeat", "ib_write_bw -n 50", 2 * 50 << 16, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := shared(t)
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
			defer cancel()
			lab, lan := filepath.Join(dir, "lab.toml"), filepath.Join(dir, "lan")
			if err := os.WriteFile(lab, []byte(c.file), 0o644); err != nil {
				t.Fatal(err)
			}
			freePort++
			metrics := fmt.Sprintf("127.0.0.1:%d", freePort)
			sw := runner(ctx, t, dir, "")
			sw.Args = []string{sw.Path, "switch", "--fabric", lab, "stream:" + lan + ",listen", "--metrics", metrics}
			swSaid, swEnded := proc.Start(t, sw)
			if err := swSaid.WaitFor("listening", swEnded); err != nil {
				t.Fatalf("%v\n%s", err, swSaid.String())
			}
			var said [4]proc.Output
			var all [4]*exec.Cmd
			var ended [4]chan error
			var ports [2]int
			var began time.Time
			// The servers take the first two places, on one side of the cable, and the clients the others.
			for i := range all {
				pair := i % 2
				args := append(strings.Fields(c.program), "-F", "-d", "softrnic0", "-x", "1", "--report_gbits")
				if i < 2 {
					freePort++
					ports[pair] = freePort
				}
				args = append(args, "-p", strconv.Itoa(ports[pair]))
				if i >= 2 {
					args = append(args, "127.0.0.1")
					began = cmp.Or(began, time.Now())
				}
				p := runner(ctx, t, dir, fmt.Sprintf("--link stream:%s --addr 10.9.0.%d/24 %s", lan, 1+i, c.flags), args...)
				p.Env = append(p.Env, "SOFTRNIC_COUNTERS="+filepath.Join(dir, fmt.Sprint("counters", i)))
				p.Stdout, p.Stderr = &said[i], &said[i]
				all[i], ended[i] = p, make(chan error, 1)
				if err := p.Start(); err != nil {
					t.Fatal(err)
				}
				go func() { ended[i] <- p.Wait() }()
				if i < 2 {
					if err := listens(ports[pair], ended[i]); err != nil {
						t.Fatalf("%v\n%s", err, said[i].String())
					}
				}
			}
			for i := range all {
				if err := <-ended[i]; err != nil {
					t.Fatalf("%v: %v\n%s\n%s", all[i].Args, err, said[i].String(), swSaid.String())
				}
			}
			took := time.Since(began)
			counted := map[string]uint64{}
			for i := range all {
				if i >= 2 {
					if gbps := average(t, said[i].String()); gbps > 0.21 || gbps == 0 { // by the processor's clock
						t.Errorf("%v Gbit/s over a cable of 0.2\n%s", gbps, said[i].String())
					}
				}
				m, err := programs.Counted(filepath.Join(dir, fmt.Sprint("counters", i)))
				if err != nil {
					t.Fatal(err)
				}
				for name, n := range m {
					counted[name] += n
				}
			}
			network := scrape(t, metrics)
			cable := func(name string) uint64 {
				return network["softrnic_switch_network_"+name+`_total{node="right",peer="left"}`]
			}
			bytes, marks, drops := cable("bytes"), cable("marked_packets"), cable("dropped_packets")
			if least := time.Duration(bytes) * 8 * time.Second / 200e6; bytes < c.bytes || took < least {
				t.Errorf("%d bytes of at least %d passed in %v, for which the cable needs %v", bytes, c.bytes, took, least)
			}
			if marked := marks > 0 && counted["rp_cnp_handled"] > 0 && drops == 0; marked != c.marked {
				t.Errorf("%d packets are marked, and %d dropped: %v", marks, drops, counted)
			}
			if lost := drops > 0 && counted["selective_repeats"] > 0 && marks == 0; lost == c.marked {
				t.Errorf("%d packets are marked, and %d dropped: %v", marks, drops, counted)
			}
			_ = sw.Process.Signal(syscall.SIGINT)
			if err := <-swEnded; err != nil {
				t.Errorf("the switch: %v\n%s", err, swSaid.String())
			}
		})
	}
}

// average returns the average that perftest prints, in Gbit/s.
func average(t *testing.T, said string) float64 {
	t.Helper()
	for line := range strings.Lines(said) {
		if f := strings.Fields(line); len(f) == 5 && f[0] == "65536" {
			v, err := strconv.ParseFloat(f[3], 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("there is no average:\n%s", said)
	return 0
}

// scrape returns the metrics of a server that are whole numbers.
func scrape(t *testing.T, address string) map[string]uint64 {
	t.Helper()
	resp, err := http.Get("http://" + address + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	values := map[string]uint64{}
	for lines := bufio.NewScanner(resp.Body); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if v, err := strconv.ParseFloat(value, 64); err == nil {
			values[name] = uint64(v)
		}
	}
	return values
}
