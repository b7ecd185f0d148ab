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
	Packets   struct{ Sent, Dropped, Marked, Pauses uint64 }
	FCT       struct{ Mean, Max float64 } `json:"fct_us"`
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
	run := func(senders int, until, stagger time.Duration, set ...string) (result, [][]float64) {
		args := []string{"testdata/dcqcn.toml", "--workload", fmt.Sprintf("incast:senders=%d,size=10GB,stagger=%v", senders, stagger),
			"--until", until.String(), "--interval=1ms", "--rates", rates}
		for _, s := range set {
			args = append(args, "--set", s)
		}
		return x.run(args...), x.rates(rates, senders, until)
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
		r, bins := run(c.senders, c.until, 0)
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
Two flows, the second 10 ms later, 100 ms, as in the paper's figure 13. The difference is that of the two rates in a millisecond, on
average of the second half.

| | increases | marks | first, Gbit/s | second | difference | paper |
|---|---|---|---|---|---|---|
`
	var differences []float64
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
		r, bins := run(2, 100*time.Millisecond, 10*time.Millisecond, c.set...)
		s := sharesOf(bins[len(bins)/2:])
		first, second := 0.0, 0.0
		for _, b := range bins[len(bins)/2:] {
			first, second = first+b[0], second+b[1]
		}
		half := float64(len(bins) / 2)
		differences = append(differences, s.difference)
		text += fmt.Sprintf("| %s | %s | %s | %.2f | %.2f | %.2f | %s |\n", c.name, c.increases, c.marks,
			first/half, second/half, s.difference, c.paper)
		if r.Packets.Dropped > 0 || r.Flows.Failed > 0 {
			t.Errorf("%s: %+v", c.name, r)
		}
	}
	text += "\nThe paper's curves are remembered in words only: its numbers were not at hand.\n"
	write(t, "dcqcn.md", text)
	if a, best := differences[0], max(differences[1], differences[3]); a < 2*best {
		t.Errorf("differences of the four sets: %.2f: QCN's parameters are to be the worst", differences)
	}
}

// TestECMP repeats Meta's experience with ECMP: the time by QPs between two hosts.
func TestECMP(t *testing.T) {
	x := newExperiment(t)
	const seeds = 2
	interleaved := make([]string, 64) // neighbours in the ring are at different leaves
	for i := range interleaved {
		interleaved[i] = strconv.Itoa(i%8*8 + i/8)
	}
	text := `# ECMP and the number of QPs

Gangidi et al., RDMA over Ethernet for Distributed AI Training at Meta Scale, SIGCOMM 2024, and Meta's summary of it (A RoCE network for
distributed AI training at scale, 2024): with the destination QP in the hash and messages over several QPs (E-ECMP), an all-reduce took
up to 40 % less time than with ECMP and one QP. Numbers by QPs were not at hand.

64 hosts, 8 leaves, 8 spines, 100 Gbit/s, PFC, no DCQCN ([ecmp.toml](../testdata/ecmp.toml)). Times are in ms, from the start to the last
completion, on average of two seeds. By flow, the hash has addresses and ports, of which each QP of SoftRNIC has its own.

| | ways by | 1 QP | 4 QPs | 16 QPs | 16 to 1 |
|---|---|---|---|---|---|
`
	for _, c := range []struct{ name, workload, ecmp string }{
		{"each host sends 4 MB to the next leaf", "permutation:size=4MB,shift=8", "flow"},
		{"", "permutation:size=4MB,shift=8", "qp"},
		{"", "permutation:size=4MB,shift=8", "spray"},
		{"ring all-reduce of 4 MB, each hop to another leaf", "all-reduce-ring:size=4MB,hosts=[" + strings.Join(interleaved, ",") + "]", "flow"},
	} {
		var times []float64
		for _, qps := range []int{1, 4, 16} {
			sum := 0.0
			for seed := range seeds {
				r := x.run("testdata/ecmp.toml", "--workload", c.workload, "--seed", strconv.Itoa(seed+1), "--set", "switch.ecmp="+c.ecmp,
					"--set", "rdma.qps="+strconv.Itoa(qps))
				if r.Flows.Done != r.Flows.Planned || r.Packets.Dropped > 0 {
					t.Errorf("%+v: %+v", c, r)
				}
				sum += r.Workloads[0].Took / 1000
			}
			times = append(times, sum/seeds)
		}
		text += fmt.Sprintf("| %s | %s | %.2f | %.2f | %.2f | %+.0f %% |\n", c.name, c.ecmp,
			times[0], times[1], times[2], 100*(times[2]/times[0]-1))
		if c.ecmp != "spray" && times[2] > 0.8*times[0] {
			t.Errorf("%+v: %.2f ms with 1, 4 and 16 QPs: more are to take less time", c, times)
		}
	}
	write(t, "ecmp.md", text)
}
