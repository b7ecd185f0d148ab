package fabric

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// The network of TestNS3: leaves with hosts, each with a cable of 100 Gbit/s to each of four
// spines, or with one of 400 Gbit/s to one.
const (
	ns3Leaves, ns3HostsPerLeaf = 4, 8
	ns3Hosts                   = ns3Leaves * ns3HostsPerLeaf
)

// start is when the first flows begin in ns-3, whose hosts do not work from 0 on.
const start = 2 * time.Second

// during is the time in which flows of a load begin.
const during = 2 * time.Millisecond

// rounding is that of the starts of flows. ns-3 reads them as fractions of seconds, not exactly.
const rounding = 10 * time.Nanosecond

// ns3Config is a file of HPCC's simulator: what its run.py writes for DCQCN at 100 Gbit/s, with
// packets of 1024 bytes.
const ns3Config = `ENABLE_QCN 1
USE_DYNAMIC_PFC_THRESHOLD 1
PACKET_PAYLOAD_SIZE 1024
TOPOLOGY_FILE topology.txt
FLOW_FILE flow.txt
TRACE_FILE trace.txt
TRACE_OUTPUT_FILE mix.tr
FCT_OUTPUT_FILE fct.txt
PFC_OUTPUT_FILE pfc.txt
SIMULATOR_STOP_TIME 2.2
CC_MODE 1
ALPHA_RESUME_INTERVAL 1
RATE_DECREASE_INTERVAL 4
CLAMP_TARGET_RATE 0
RP_TIMER 300
EWMA_GAIN 0.00390625
FAST_RECOVERY_TIMES 1
RATE_AI 20Mb/s
RATE_HAI 200Mb/s
MIN_RATE 100Mb/s
DCTCP_RATE_AI 1000Mb/s
ERROR_RATE_PER_LINK 0
L2_CHUNK_SIZE 4000
L2_ACK_INTERVAL 1
L2_BACK_TO_ZERO 0
HAS_WIN 0
GLOBAL_T 1
VAR_WIN 0
FAST_REACT 0
U_TARGET 0.95
MI_THRESH 0
INT_MULTI 1
MULTI_RATE 0
SAMPLE_FEEDBACK 0
PINT_LOG_BASE 1.01
PINT_PROB 1
RATE_BOUND 1
ACK_HIGH_PRIO 1
LINK_DOWN 0 0 0
ENABLE_TRACE 0
KMAX_MAP 2 100000000000 1600 400000000000 1600
KMIN_MAP 2 100000000000 400 400000000000 400
PMAX_MAP 2 100000000000 0.2 400000000000 0.2
BUFFER_SIZE 32
QLEN_MON_FILE qlen.txt
QLEN_MON_START 4000000000
QLEN_MON_END 4000000000
`

// ns3Flow is a flow of both simulators.
type ns3Flow struct {
	from, to, bytes int
	at              time.Duration
}

// ns3Run is what a simulator says of a list of flows, in microseconds.
type ns3Run struct {
	fct    map[ns3Flow]float64
	pauses int
	cpu    time.Duration
}

// TestNS3 compares flow completion times and processor time with those of HPCC's public simulator.
func TestNS3(t *testing.T) {
	gate.Long(t)
	dir := os.Getenv("SOFTRNIC_NS3")
	if dir == "" {
		t.Skip("it needs HPCC's simulator: see ns3.sh")
	}
	x := newExperiment(t)
	text := `# Beside ns-3

The simulator of HPCC (Li et al., SIGCOMM 2019) is ns-3 with RDMA, DCQCN, ECN and PFC: [ns3.sh](../ns3.sh) builds its public source. The
same flows in both: 32 hosts, 4 leaves, 4 spines, 100 Gbit/s, 1 µs, packets of 1024 bytes, marks from 400 to 1,600 kB with 20 %, and
DCQCN with the parameters that its authors use: 300 µs, 20 and 200 Mbit/s, alpha each µs, decreases each 4 µs. Sizes of the loads are
those of its file for WebSearch; they begin within 2 ms. ns-3's switches have 32 MB and PFC; SoftRNIC's have neither limits nor PFC here
([ns3.toml](../testdata/ns3.toml)). SoftRNIC runs its engines, with real payloads and ICRCs. Processor time is that of whole processes on one
core, one after the other, with what they need to start. The ratio of packets is the worst of three runs of both.

| | flows | FCT, mean, µs: ns-3 | SoftRNIC | ratio | median: ns-3 | SoftRNIC | ratio | largest: ns-3 | SoftRNIC | ratio | pauses of ns-3 | payload packets each second of processor time: ns-3 | SoftRNIC | ratio |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
`
	sizes := webSearch(t, filepath.Join(dir, "traffic_gen", "WebSearch_distribution.txt"))
	for _, c := range []struct {
		name  string
		flows []ns3Flow
	}{
		{"16 to 1, 1 MB each", incast(16, 1e6)},
		{"30 %", poisson(sizes, 0.3, during)},
		{"50 %", poisson(sizes, 0.5, during)},
	} {
		theirs, ours := x.inNS3(dir, c.flows, 4, 0), x.inOurs(c.flows)
		packets, row := 0, fmt.Sprintf("| %s | %d", c.name, len(c.flows))
		for _, f := range c.flows {
			packets += (f.bytes + 1023) / 1024
		}
		var a, b []float64
		for _, f := range c.flows {
			if theirs.fct[f] == 0 || ours.fct[f] == 0 {
				t.Fatalf("%s: a flow has not ended: %+v: %v µs in ns-3, %v", c.name, f, theirs.fct[f], ours.fct[f])
			}
			a, b = append(a, theirs.fct[f]), append(b, ours.fct[f])
		}
		for i, of := range statistics(a) {
			row += fmt.Sprintf(" | %.0f | %.0f | %.2f", of, statistics(b)[i], statistics(b)[i]/of)
		}
		for range 2 {
			if a, b := x.inNS3(dir, c.flows, 4, 0), x.inOurs(c.flows); b.cpu.Seconds()/a.cpu.Seconds() > ours.cpu.Seconds()/theirs.cpu.Seconds() {
				theirs.cpu, ours.cpu = a.cpu, b.cpu
			}
		}
		perSecond := func(r ns3Run) float64 { return float64(packets) / r.cpu.Seconds() }
		text += row + fmt.Sprintf(" | %d | %.0f | %.0f | %.2f |\n", theirs.pauses, perSecond(theirs), perSecond(ours),
			perSecond(ours)/perSecond(theirs))
		t.Logf("%s: %d flows, %d packets; processor time %v in ns-3, %v", c.name, len(c.flows), packets, theirs.cpu, ours.cpu)
	}
	write(t, "ns3.md", text+x.explain(dir, sizes))
}

// explain compares completion times with many choices of ways, and with none; then with marks at
// departure, as in ns-3, and also with cables that make up for ns-3's shorter headers.
func (x *experiment) explain(dir string, sizes []point) string {
	const ofNS3, ofOurs = 1024 + 14 + 20 + 8 + 6, 1024 + 14 + 20 + 8 + 12 + 4 + 24 // bytes of a packet on a cable
	set := func(name string, gbits float64) []string {
		return []string{"--set", fmt.Sprintf("%s=%.4fG", name, gbits*ofOurs/ofNS3)}
	}
	text := `
## What explains the completion times

Three things explain the means: luck with the ways, where a packet is marked, and what its headers take. The runs of the second table were
made one at a time.

- Ways. The hashes differ, and so do the flows that share a cable. With others the mean at 30 % was 376 to 470 µs in ns-3, and 397 to 545
  in SoftRNIC. With one spine, whose cables have 400 Gbit/s, there is no choice. With four, the table has averages over eight hashes: of
  other ports in ns-3, and of other seeds in SoftRNIC. The first table has one hash, and so luck too.
- Marks. ns-3 marks a packet that leaves a queue, by the queue that it leaves behind (SwitchNotifyDequeue). SoftRNIC does so if at_departure
  is set, and otherwise marks one that comes. By that a sender learns of a queue of 400 kB 32 µs later, and gets marks of a queue that is
  gone meanwhile.
- Headers. A full packet takes 1072 bytes of a cable in ns-3, and 1106 in SoftRNIC, which has BTH, ICRC, preamble, FCS and the gap. The last
  column has cables, and DCQCN's highest rate, that are faster by as much.

| load | spines | | ns-3 | SoftRNIC | ratio | marks at departure | ratio | and faster cables | ratio |
|---|---|---|---|---|---|---|---|---|---|
`
	curve := ""
	for _, load := range []float64{0.3, 0.5} {
		flows := poisson(sizes, load, during)
		var curves [][]float64 // mean FCT by size: of ns-3 and SoftRNIC with one spine, and with four
		for _, c := range []struct{ spines, hashes int }{{1, 1}, {4, 8}} {
			uplinks := 400 / float64(c.spines)
			ways := []string{"--set", fmt.Sprint("topology.spines=", c.spines), "--set", fmt.Sprintf("topology.uplink_rate=%gG", uplinks)}
			departure := append(slices.Clip(ways), "--set", "switch.ecn.at_departure=true")
			faster := slices.Concat(departure, set("link.rate", 100), set("topology.uplink_rate", uplinks), set("rdma.dcqcn.rpg_max_rate", 100))
			marks := [][]string{ways, departure, faster}
			if c.hashes > 1 {
				marks = marks[:1]
			}
			all := make([][3]float64, 1+len(marks))
			theirs, ours := make([]float64, len(sizeClasses)), make([]float64, len(sizeClasses))
			for i := range c.hashes {
				runs := []ns3Run{x.inNS3(dir, flows, c.spines, i)}
				for _, args := range marks {
					runs = append(runs, x.inOurs(flows, append(slices.Clip(args), "--seed", fmt.Sprint(i))...))
				}
				addBySize(theirs, flows, runs[0], c.hashes)
				addBySize(ours, flows, runs[len(runs)-1], c.hashes)
				for k, r := range runs {
					var took []float64
					for _, f := range flows {
						took = append(took, r.fct[f])
					}
					for j, v := range statistics(took) {
						all[k][j] += v / float64(c.hashes)
					}
				}
			}
			curves = append(curves, theirs, ours)
			for j, name := range []string{"mean", "median", "largest"} {
				text += fmt.Sprintf("| %.0f %% | %d | %s, µs | %.0f", load*100, c.spines, name, all[0][j])
				for _, of := range all[1:] {
					text += fmt.Sprintf(" | %.0f | %.2f", of[j], of[j]/all[0][j])
				}
				text += strings.Repeat(" | |", 3-len(marks)) + " |\n"
			}
		}
		for i, most := range sizeClasses {
			n := 0
			for _, f := range flows {
				if sizeClass(f.bytes) == i {
					n++
				}
			}
			curve += fmt.Sprintf("| %.0f %% | %s | %d", load*100, most.name, n)
			for k := 0; k < len(curves); k += 2 {
				curve += fmt.Sprintf(" | %.1f | %.1f | %.2f", curves[k][i], curves[k+1][i], curves[k+1][i]/curves[k][i])
			}
			curve += " |\n"
		}
	}
	return text + `
The same by the sizes of flows: means in µs, with one spine, marks at departure and faster cables, and with four spines, on average of
eight hashes.

| load | size | flows | one spine: ns-3 | SoftRNIC | ratio | four spines: ns-3 | SoftRNIC | ratio |
|---|---|---|---|---|---|---|---|---|
` + curve + `
Other differences between the models matter little. Alpha: ns-3 updates it each µs, by whether a CNP came in it, and SoftRNIC when it
handles a CNP, at most each 4 µs; ns-3 first decreases 4 µs after the first CNP, and SoftRNIC at once. Increases: ns-3's third one by
timer and those after it are of 200 Mbit/s, and SoftRNIC's of 20, as hyper increase needs the byte counter too, which never expires here.
With ns-3's rules of both in SoftRNIC, tried once with one spine, marks at departure and faster cables, the means were 1.00 and 1.03 times
ns-3's. With these rules, marks at departure and four spines, the means over eight hashes were 426 and 505 µs, and the medians 27 and 47.
The rest of the difference between the medians was not examined.

No difference: windows (there are none), CNPs (of each marked packet in ns-3, each µs in SoftRNIC, for decreases each 4 µs), the target
rate (both keep it if nothing increased since the last decrease), limits by RED, packets of 1024 bytes, and what is counted (from the start
to the last acknowledgement). Slowdowns are not compared.
`
}

// sizeClasses are sizes of flows in bytes, each up to the next.
var sizeClasses = []struct {
	name string
	most int
}{{"up to 10 kB", 10_000}, {"up to 100 kB", 100_000}, {"up to 1 MB", 1_000_000}, {"larger", 1 << 62}}

func sizeClass(bytes int) int {
	for i, c := range sizeClasses {
		if bytes <= c.most {
			return i
		}
	}
	panic("unreachable")
}

// addBySize adds the mean completion time of each class, divided by the number of runs.
func addBySize(to []float64, flows []ns3Flow, r ns3Run, runs int) {
	sum, n := make([]float64, len(to)), make([]float64, len(to))
	for _, f := range flows {
		i := sizeClass(f.bytes)
		sum[i] += r.fct[f]
		n[i]++
	}
	for i := range to {
		if n[i] > 0 {
			to[i] += sum[i] / n[i] / float64(runs)
		}
	}
}

// statistics returns the mean, the median and the largest.
func statistics(v []float64) [3]float64 {
	v = slices.Sorted(slices.Values(v))
	return [3]float64{mean(v), v[len(v)/2], v[len(v)-1]}
}

func mean(v []float64) (m float64) {
	for _, x := range v {
		m += x / float64(len(v))
	}
	return m
}

// incast has senders of all leaves and one receiver.
func incast(senders, bytes int) (flows []ns3Flow) {
	for i := range senders {
		flows = append(flows, ns3Flow{from: 1 + i*(ns3Hosts-1)/senders, bytes: bytes})
	}
	return flows
}

// point is a point of a distribution: the share of flows with up to so many bytes.
type point struct{ bytes, share float64 }

// webSearch reads a distribution of HPCC's generator of traffic.
func webSearch(t *testing.T, file string) (points []point) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 2 {
			points = append(points, point{number(t, f[0]), number(t, f[1]) / 100})
		}
	}
	return points
}

// poisson has flows between random hosts, in the order of their start.
func poisson(sizes []point, load float64, during time.Duration) (flows []ns3Flow) {
	random := rand.New(rand.NewPCG(1, 2))
	average := 0.0
	for i := 1; i < len(sizes); i++ {
		average += (sizes[i].bytes + sizes[i-1].bytes) / 2 * (sizes[i].share - sizes[i-1].share)
	}
	gap := average * 8 / (100e9 * load * ns3Hosts) // seconds
	for at := random.ExpFloat64() * gap; at < during.Seconds(); at += random.ExpFloat64() * gap {
		share, i := random.Float64(), 1
		for sizes[i].share < share {
			i++
		}
		a, b := sizes[i-1], sizes[i]
		f := ns3Flow{from: random.IntN(ns3Hosts), at: time.Duration(at * 1e9).Round(rounding),
			bytes: max(1, int(a.bytes+(b.bytes-a.bytes)*(share-a.share)/(b.share-a.share)))}
		if f.to = random.IntN(ns3Hosts - 1); f.to >= f.from {
			f.to++
		}
		flows = append(flows, f)
	}
	return flows
}

// inNS3 runs flows in HPCC's simulator, with a port's number for its hash.
func (x *experiment) inNS3(dir string, flows []ns3Flow, spines, port int) ns3Run {
	x.t.Helper()
	work := x.t.TempDir()
	nodes := ns3Hosts + ns3Leaves + spines
	topology := fmt.Sprintf("%d %d %d\n", nodes, ns3Leaves+spines, ns3Hosts+ns3Leaves*spines)
	for i := ns3Hosts; i < nodes; i++ {
		topology += fmt.Sprint(i, " ")
	}
	cable := func(a, b, rate int) { topology += fmt.Sprintf("\n%d %d %dGbps 0.001ms 0", a, b, rate) }
	for i := range ns3Hosts {
		cable(i, ns3Hosts+i/ns3HostsPerLeaf, 100)
	}
	for leaf := range ns3Leaves {
		for spine := range spines {
			cable(ns3Hosts+leaf, ns3Hosts+ns3Leaves+spine, 400/spines)
		}
	}
	list := fmt.Sprintln(len(flows))
	for _, f := range flows {
		list += fmt.Sprintf("%d %d 3 %d %d %.9f\n", f.from, f.to, 100+port, f.bytes, (start + f.at).Seconds())
	}
	for name, text := range map[string]string{"topology.txt": topology + "\n", "flow.txt": list, "trace.txt": "0\n", "config.txt": ns3Config} {
		if err := os.WriteFile(filepath.Join(work, name), []byte(text), 0o666); err != nil {
			x.t.Fatal(err)
		}
	}
	build := filepath.Join(dir, "simulation", "build")
	cmd := exec.Command(filepath.Join(build, "scratch", "third"), "config.txt")
	cmd.Dir, cmd.Env = work, []string{"LD_LIBRARY_PATH=" + build}
	if out, err := cmd.CombinedOutput(); err != nil {
		x.t.Fatalf("%v: %v: %s", cmd, err, out)
	}
	r := ns3Run{fct: map[ns3Flow]float64{}, cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(work, name))
		if err != nil {
			x.t.Fatal(err)
		}
		return string(text)
	}
	r.pauses = strings.Count(read("pfc.txt"), "\n")
	for line := range strings.Lines(read("fct.txt")) {
		var from, to, fromPort, toPort, bytes, begun, took int
		if _, err := fmt.Sscanf(line, "%x %x %d %d %d %d %d", &from, &to, &fromPort, &toPort, &bytes, &begun, &took); err != nil {
			x.t.Fatalf("%s: %v", line, err)
		}
		f := ns3Flow{from: from >> 8 & 0xffff, to: to >> 8 & 0xffff, bytes: bytes, at: (time.Duration(begun) - start).Round(rounding)}
		r.fct[f] = float64(took) / 1000
	}
	return r
}

// inOurs runs flows with softrnic fabric run.
func (x *experiment) inOurs(flows []ns3Flow, args ...string) ns3Run {
	x.t.Helper()
	work := x.t.TempDir()
	text := "start,source,destination,bytes\n"
	for _, f := range flows {
		text += fmt.Sprintf("%dns,%d,%d,%d\n", f.at.Nanoseconds(), f.from, f.to, f.bytes)
	}
	trace, fct := filepath.Join(work, "trace.csv"), filepath.Join(work, "fct.csv")
	if err := os.WriteFile(trace, []byte(text), 0o666); err != nil {
		x.t.Fatal(err)
	}
	cmd := exec.Command(x.program, "fabric", "run", "testdata/ns3.toml", "--fct", fct, "--workload", "trace:file="+trace,
		"--interval", "100us", "--json")
	cmd.Args = append(cmd.Args, args...)
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		x.t.Fatalf("%v: %v: %s", cmd, err, out)
	}
	r := ns3Run{fct: map[ns3Flow]float64{}, cpu: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
	for _, row := range x.table(fct) {
		at := time.Duration(number(x.t, row[5]) * 1000).Round(rounding)
		f := ns3Flow{from: int(number(x.t, row[2])), to: int(number(x.t, row[3])), bytes: int(number(x.t, row[4])), at: at}
		r.fct[f] = number(x.t, row[6])
	}
	return r
}
