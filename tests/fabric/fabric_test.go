// Package fabric repeats published experiments with softrnic fabric run, and writes reports with
// the publications' numbers beside ours.
package fabric

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// experiment runs the command.
type experiment struct {
	t       *testing.T
	program string
	dir     string
}

func newExperiment(t *testing.T) *experiment {
	gate.Long(t)
	dir := t.TempDir()
	x := &experiment{t, filepath.Join(dir, "softrnic"), dir}
	if out, err := exec.Command("go", "build", "-o", x.program, "../../cmd/softrnic").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return x
}

// result is the part of softrnic fabric run --json that the reports have.
type result struct {
	Flows     struct{ Planned, Done, Failed, Unfinished int }
	Packets   struct{ Sent, Dropped, Trimmed, Marked, Pauses uint64 }
	FCT       struct{ Mean, P50, P99, Max float64 } `json:"fct_us"`
	Workloads []struct {
		Took float64 `json:"took_us"`
	}
	Counters map[string]uint64
	Digest   string
}

func (x *experiment) run(args ...string) (r result) {
	x.t.Helper()
	begun := time.Now()
	cmd := exec.Command(x.program, append([]string{"fabric", "run", "--json"}, args...)...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &r)
	}
	if err != nil {
		x.t.Fatalf("%v: %v: %s", args, err, out)
	}
	x.t.Logf("%v: %+v in %v", args, r, time.Since(begun).Round(time.Millisecond))
	return r
}

// table reads a CSV file of the command, without its first line.
func (x *experiment) table(name string) [][]string {
	x.t.Helper()
	f, err := os.Open(name)
	if err != nil {
		x.t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil || len(rows) < 2 {
		x.t.Fatalf("%s: %d rows, %v", name, len(rows), err)
	}
	return rows[1:]
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// paperDCQCN has the parameters of DCQCN's paper.
const paperDCQCN = `rdma.dcqcn={rpg_ai_rate="40M",rpg_hai_rate="400M",rpg_min_rate="40M",rpg_time_reset="55us",rpg_byte_reset="10MB",` +
	`rpg_threshold=5}`

// percentile99 returns the value that 99 % of the sorted values do not exceed.
func percentile99(sorted []float64) float64 { return sorted[(99*len(sorted)+99)/100-1] }

// write writes a report with SOFTRNIC_REPORT=1.
func write(t *testing.T, name, text string) {
	t.Log("\n" + text)
	if os.Getenv("SOFTRNIC_REPORT") == "1" {
		if err := os.WriteFile(filepath.Join("reports", name), []byte("Written by "+t.Name()+".\n\n"+text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

// rates has the payload rate of each flow in Gbit/s, in intervals of a millisecond.
func (x *experiment) rates(name string, flows int, until time.Duration) [][]float64 {
	all := make([][]float64, int(until/time.Millisecond))
	for i := range all {
		all[i] = make([]float64, flows)
	}
	for _, row := range x.table(name) {
		bin := int(number(x.t, row[0])/1000 - 0.5)
		all[bin][int(number(x.t, row[1]))] = number(x.t, row[5])
	}
	return all
}

// shares are statistics of rates.
type shares struct{ sum, least, most, jain, difference float64 }

// sharesOf takes the mean rates of the bins, and the mean difference between the first two flows in
// a bin.
func sharesOf(bins [][]float64) (s shares) {
	n := len(bins[0])
	mean := make([]float64, n)
	for _, b := range bins {
		for i, v := range b {
			mean[i] += v / float64(len(bins))
		}
		if n > 1 {
			s.difference += math.Abs(b[0]-b[1]) / float64(len(bins))
		}
	}
	squares := 0.0
	for _, v := range mean {
		s.sum += v
		squares += v * v
	}
	s.least, s.most, s.jain = slices.Min(mean), slices.Max(mean), s.sum*s.sum/float64(n)/squares
	return s
}

// TestDCQCN repeats experiments of the DCQCN paper.
func TestDCQCN(t *testing.T) {
	x := newExperiment(t)
	rates, queues := filepath.Join(x.dir, "rates.csv"), filepath.Join(x.dir, "queues.csv")
	run := func(workload string, until time.Duration, set ...string) (result, [][]float64) {
		args := []string{"testdata/dcqcn.toml", "--workload", workload, "--until", until.String(), "--interval=1ms", "--rates", rates}
		for _, s := range set {
			args = append(args, "--set", s)
		}
		r := x.run(args...)
		return r, x.rates(rates, r.Flows.Planned, until)
	}
	text := `# DCQCN

Zhu et al., Congestion Control for Large-Scale RDMA Deployments, SIGCOMM 2015. Senders with endless WRITEs to one receiver over one
switch, 40 Gbit/s, 1 µs, path MTU 1024, RED from 5 to 200 kB with 1 %, the paper's parameters ([dcqcn.toml](../testdata/dcqcn.toml)). Rates are
those of payload: 40 Gbit/s are at most 37.0 of it. The statistics are of the second half of the time. The queue is sampled each 10 µs.

| senders | time | all, Gbit/s | least and most of a flow | Jain's index | queue: median, 90 %, most, kB | dropped | pauses | paper |
|---|---|---|---|---|---|---|---|---|
`
	for _, c := range []struct {
		senders int
		until   time.Duration
		paper   string
	}{
		{2, 200 * time.Millisecond, "flows converge to their fair share; numbers not at hand"},
		{8, 100 * time.Millisecond, "numbers not at hand"},
		{20, 100 * time.Millisecond, "numbers not at hand"},
	} {
		r, bins := run(fmt.Sprintf("incast:senders=%d,size=10GB", c.senders), c.until)
		s := sharesOf(bins[len(bins)/2:])
		q := x.run("testdata/dcqcn.toml", "--workload", fmt.Sprintf("incast:senders=%d,size=10GB", c.senders), "--until", (c.until / 2).String(),
			"--queues", queues)
		var lengths []float64
		for _, row := range x.table(queues) {
			if row[1] == "switch" && row[2] == "host0" && number(t, row[0]) > float64(c.until.Microseconds())/4 {
				lengths = append(lengths, number(t, row[3])/1000)
			}
		}
		slices.Sort(lengths)
		n := len(lengths)
		text += fmt.Sprintf("| %d | %v | %.2f | %.2f to %.2f | %.4f | %.0f, %.0f, %.0f | %d | %d | %s |\n", c.senders, c.until,
			s.sum, s.least, s.most, s.jain,
			lengths[n/2], lengths[n*9/10], lengths[n-1], r.Packets.Dropped, r.Packets.Pauses, c.paper)
		if s.sum < 34 || s.jain < 0.9 || r.Packets.Dropped > 0 || r.Flows.Failed > 0 || q.Flows.Failed > 0 {
			t.Errorf("%d senders: %+v, %+v", c.senders, s, r)
		}
	}

	text += `
Two flows to the end, the second from 10 ms on, 100 ms, as in the paper's figure 13. Rates and their difference in a millisecond are
averages of the second half.

- Equal: nothing else. A new flow has the line's rate, and so has the first one. The first marks halve both at the same time.
- Unequal: a third flow of 5 MB begins after 1 ms. The first one is still recovering when the second begins with the line's rate.

| | increases | marks | start | first, Gbit/s | second | difference | paper |
|---|---|---|---|---|---|---|---|
`
	other := filepath.Join(x.dir, "unequal.csv")
	flows := "start,source,destination,bytes\n0,1,0,10000000000\n0.010,2,0,10000000000\n0.001,3,0,5000000\n"
	if err := os.WriteFile(other, []byte(flows), 0o666); err != nil {
		t.Fatal(err)
	}
	unequal := map[string]float64{}
	for _, c := range []struct {
		name, increases, marks, paper string
		set                           []string
	}{
		{"a", "1.5 ms, 150 kB (QCN's)", "all above 40 kB", "the flows do not converge",
			[]string{"rdma.dcqcn.rpg_time_reset=1.5ms", "rdma.dcqcn.rpg_byte_reset=150kB", "switch.ecn.min=40kB",
				"switch.ecn.max=40kB", "switch.ecn.p=1"}},
		{"b", "55 µs, 10 MB", "all above 40 kB", "they converge",
			[]string{"switch.ecn.min=40kB", "switch.ecn.max=40kB", "switch.ecn.p=1"}},
		{"c", "1.5 ms, 150 kB", "RED 5 to 200 kB", "better than a",
			[]string{"rdma.dcqcn.rpg_time_reset=1.5ms", "rdma.dcqcn.rpg_byte_reset=150kB"}},
		{"d", "55 µs, 10 MB", "RED 5 to 200 kB", "they converge", nil},
	} {
		for _, start := range []struct{ name, workload string }{
			{"equal", "incast:senders=2,size=10GB,stagger=10ms"}, {"unequal", "trace:file=" + other},
		} {
			const until = 100 * time.Millisecond
			r, bins := run(start.workload, until, c.set...)
			bins = bins[len(bins)/2:]
			first, second := 0.0, 0.0
			for i, b := range bins {
				one, two := b[0], b[len(b)-1]
				first, second = first+one/float64(len(bins)), second+two/float64(len(bins))
				bins[i] = []float64{one, two}
			}
			s := sharesOf(bins)
			if start.name == "unequal" {
				unequal[c.name] = s.difference
			}
			text += fmt.Sprintf("| %s | %s | %s | %s | %.2f | %.2f | %.2f | %s |\n", c.name, c.increases, c.marks, start.name,
				first, second, s.difference, c.paper)
			if r.Packets.Dropped > 0 || r.Flows.Failed > 0 {
				t.Errorf("%s: %+v", c.name, r)
			}
		}
	}
	text += `
With QCN's parameters a flow increases its rate after each 150 kB, so a fast one does so more often than a slow one. Marks of all packets
above a threshold reach both flows: from an unequal start, both devices handled 24 CNPs in 10 ms, at 12 and at 24 Gbit/s. So rates that
differ drift apart, and one flow starves. Equal rates are an equilibrium too, if an unstable one. Nothing disturbs it in a simulation
with exact pacing: both flows are marked, slowed and sped up together. In a network of machines something always does. Hence the
unequal start is the experiment, and the equal one shows what it needs.

SoftRNIC keeps the target rate where two CNPs come without an increase between them. The paper's equations set it to the current rate at
each CNP. With that, tried once, the first flow of (a) starves within 30 ms instead of 70, and the link is not full.

The paper's curves are remembered in words only: its numbers were not at hand.
`
	write(t, "dcqcn.md", text)
	if best := max(unequal["b"], unequal["d"]); unequal["a"] < 3*best || unequal["c"] > unequal["a"] {
		t.Errorf("differences of the four sets: %v: QCN's parameters are to be the worst", unequal)
	}
}

// TestECMP repeats Meta's experience with ECMP: the time by QPs between two hosts.
func TestECMP(t *testing.T) {
	x := newExperiment(t)
	const seeds = 2
	var rings []string // each of a host of each leaf
	for i := range 8 {
		ring := make([]string, 8)
		for leaf := range ring {
			ring[leaf] = strconv.Itoa(leaf*8 + i)
		}
		rings = append(rings, "all-reduce-ring:size=2MB,hosts=["+strings.Join(ring, ",")+"]")
	}
	permutation := []string{"permutation:size=4MB,shift=8"}
	text := `# ECMP and the number of QPs

Gangidi et al., RDMA over Ethernet for Distributed AI Training at Meta Scale, SIGCOMM 2024, and Meta's summary of it (A RoCE network for
distributed AI training at scale, 2024): with the destination QP in the hash and messages over several QPs (E-ECMP), an all-reduce
performed up to 40 % better than with ECMP and one QP. Numbers by QPs were not at hand.

64 hosts, 8 leaves, 8 spines, 100 Gbit/s, PFC, no DCQCN ([ecmp.toml](../testdata/ecmp.toml)). Times are in ms, from the start to the last
completion, on average of two seeds. By flow, the hash has addresses and ports, of which each QP of SoftRNIC has its own.

| | ways by | 1 QP | 4 QPs | 16 QPs | 16 to 1 |
|---|---|---|---|---|---|
`
	run := func(workloads []string, ecmp string, qps int, sets ...string) (took, median, single, back float64) {
		for seed := range seeds {
			args := []string{"testdata/ecmp.toml", "--seed", strconv.Itoa(seed + 1)}
			for _, set := range append(sets, "switch.ecmp="+ecmp, "rdma.qps="+strconv.Itoa(qps)) {
				args = append(args, "--set", set)
			}
			for _, w := range workloads {
				args = append(args, "--workload", w)
			}
			r := x.run(args...)
			if r.Flows.Done != r.Flows.Planned || r.Packets.Dropped > 0 {
				t.Errorf("%s, %s, %d QPs: %+v", workloads[0], ecmp, qps, r)
			}
			last := 0.0
			for _, w := range r.Workloads {
				last = max(last, w.Took)
			}
			took += last / 1000 / seeds
			median += r.FCT.P50 / 1000 / seeds
			single += float64(r.Counters["selective_repeats"]) / seeds
			back += float64(r.Counters["completer_retry_err"]) / seeds
		}
		return took, median, single, back
	}
	for _, c := range []struct {
		name      string
		workloads []string
		ecmp      string
	}{
		{"each host sends 4 MB to the next leaf", permutation, "flow"},
		{"the same", permutation, "qp"},
		{"8 rings at a time, each of a host of each leaf: all-reduce of 2 MB", rings, "flow"},
		{"the same", rings, "qp"},
	} {
		var times []float64
		for _, qps := range []int{1, 4, 16} {
			took, _, _, _ := run(c.workloads, c.ecmp, qps)
			times = append(times, took)
		}
		text += fmt.Sprintf("| %s | %s | %.2f | %.2f | %.2f | %+.0f %% |\n", c.name, c.ecmp,
			times[0], times[1], times[2], 100*(times[2]/times[0]-1))
		if times[2] > 0.8*times[0] {
			t.Errorf("%s, %s: %.2f ms with 1, 4 and 16 QPs: more are to take less time", c.name, c.ecmp, times)
		}
	}
	text += fmt.Sprintf(`
A random way for each packet uses all ways equally, but does not help here. Packets overtake each other, and an RC receiver takes the late
ones for lost: it reports each gap at once, as the InfiniBand specification asks. With go-back-N the sender then repeats all that is under
way, and the receiver drops what comes early. With selective repeat the receiver keeps it, and the sender repeats what was late only.
The permutation has %d packets; averages of two seeds, with one QP:

| repeat | timeout, ms | time, ms | median of the flows, ms | single packets repeated | times back to a packet |
|---|---|---|---|---|---|
`, 64*((4_000_000+4095)/4096))
	for _, c := range []struct {
		repeat, timeout string
		selective       bool
	}{{"go-back-N", "4.2", false}, {"go-back-N", "0.5", false}, {"selective", "4.2", true}, {"selective", "0.5", true}} {
		exponent := map[string]string{"4.2": "10", "0.5": "7"}[c.timeout]
		took, median, single, back := run(permutation, "spray", 1, fmt.Sprint("rdma.selective_repeat=", c.selective), "rdma.timeout="+exponent)
		text += fmt.Sprintf("| %s | %s | %.2f | %.2f | %.0f | %.0f |\n", c.repeat, c.timeout, took, median, single, back)
		if took > 4.2 {
			t.Errorf("with a timeout of %s ms, a flow of %.2f ms has waited for it", c.timeout, took)
		}
	}
	text += `
The time is that of the last flow, and the median shows the others. No flow waits for the timeout. With selective
repeat a few wait for probes. Spraying needs adapters that place packets in any order, and wait before they call one lost.
`
	write(t, "ecmp.md", text)
}
