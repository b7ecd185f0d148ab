package fabric

import (
	"fmt"
	"math"
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

// start is when the first flows begin in ns-3, whose hosts do not work from 0 on.
const start = 2 * time.Second

// rounding is that of the starts of flows. ns-3 reads them as fractions of seconds, not exactly.
const rounding = 10 * time.Nanosecond

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
	file, err := os.ReadFile("testdata/ns3.toml")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(ourConfig) {
		if !strings.Contains("\n"+string(file), "\n"+line) {
			t.Fatalf("ns3.toml has no line %q: the text says so", line)
		}
	}
	text := inText(`# Beside ns-3

The simulator of HPCC (Li et al., SIGCOMM 2019) is ns-3 with RDMA, DCQCN, ECN and PFC: [ns3.sh](../ns3.sh) builds its public source. The
same flows in both: {{.hosts}} hosts, {{.leaves}} leaves, {{.spines}} spines, {{.rate}} Gbit/s, {{.delay}} µs, packets of {{.payload}} bytes,
marks from {{.kmin}} to {{.kmax}} kB with {{.percent}} %, and DCQCN with the parameters that its authors use: {{.timer}} µs, {{.ai}} and
{{.hai}} Mbit/s, updates of alpha each {{.alphaEach}} µs, and decreases each {{.decreaseEach}} µs. Sizes of the loads are those of its file
for WebSearch; they begin within {{.during}} ms. ns-3's switches have {{.buffer}} MB and PFC; SoftRNIC's have neither limits nor PFC here
([ns3.toml](../testdata/ns3.toml)). SoftRNIC runs its engines, with real payloads and ICRCs. Processor time is that of whole processes on one
core, one after the other, with what they need to start. The ratio of packets is the worst of {{.runs}} runs of both.

| | flows | FCT, mean, µs: ns-3 | SoftRNIC | ratio | median: ns-3 | SoftRNIC | ratio | largest: ns-3 | SoftRNIC | ratio | pauses of ns-3 | payload packets each second of processor time: ns-3 | SoftRNIC | ratio |
|---|---|---|---|---|---|---|---|---|---|---|---|---|---|---|
`, nil)
	sizes := webSearch(t, filepath.Join(dir, "traffic_gen", "WebSearch_distribution.txt"))
	type row struct {
		name  string
		flows []ns3Flow
	}
	var rows []row
	for _, bytes := range []int{ns3IncastBytes, 10 * ns3IncastBytes} { // the first is over soon after the start of the programs
		rows = append(rows, row{fmt.Sprintf("%d to 1, %g MB each", ns3Senders, float64(bytes)/1e6), incast(ns3Senders, bytes)})
	}
	for _, load := range ns3Loads {
		rows = append(rows, row{percent(load), poisson(sizes, load, during)})
	}
	for _, c := range rows {
		theirs, ours := x.inNS3(dir, c.flows, ns3Spines, 0), x.inOurs(c.flows)
		packets, row := 0, fmt.Sprintf("| %s | %d", c.name, len(c.flows))
		for _, f := range c.flows {
			packets += (f.bytes + ns3Payload - 1) / ns3Payload
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
		for range ns3Runs - 1 {
			a, b := x.inNS3(dir, c.flows, ns3Spines, 0), x.inOurs(c.flows)
			if b.cpu.Seconds()/a.cpu.Seconds() > ours.cpu.Seconds()/theirs.cpu.Seconds() {
				theirs.cpu, ours.cpu = a.cpu, b.cpu
			}
		}
		perSecond := func(r ns3Run) float64 { return float64(packets) / r.cpu.Seconds() }
		text += row + fmt.Sprintf(" | %d | %.0f | %.0f | %.2f |\n", theirs.pauses, perSecond(theirs), perSecond(ours),
			perSecond(ours)/perSecond(theirs))
		t.Logf("%s: %d flows, %d packets; processor time %v in ns-3, %v", c.name, len(c.flows), packets, theirs.cpu, ours.cpu)
	}
	text += `
The first incast is over so soon that the start of the programs counts. In CPU profiles of both incasts ICRCs had 4 % of SoftRNIC's time,
so that leaving them out would gain as much. There is no option for that.
`
	write(t, "ns3.md", text+x.explain(dir, sizes))
}

// explain compares completion times with many choices of ways, and with none; then with marks at
// departure, as in ns-3, and also with cables that make up for ns-3's shorter headers.
func (x *experiment) explain(dir string, sizes []point) string {
	set := func(name string, gbits float64) []string {
		return []string{"--set", fmt.Sprintf("%s=%.4fG", name, gbits*ofOurs/ofNS3)}
	}
	const intro = `
## What explains the completion times

Three things explain the means: luck with the ways, where a packet is marked, and what its headers take. The runs of the second table were
made one at a time.

- Ways. The hashes differ, and so do the flows that share a cable. With others the mean at {{.least}} was {{.theirs}} µs
  in ns-3, and {{.ours}} in SoftRNIC. With one spine, whose cables have {{.uplinks}} Gbit/s, there is no choice. With {{.spines}}, the
  table has averages over {{.hashes}} hashes: of other ports in ns-3, and of other seeds in SoftRNIC. The first table has one hash, and so
  luck too.
- Marks. ns-3 marks a packet that leaves a queue, by the queue that it leaves behind (SwitchNotifyDequeue). SoftRNIC does so if at_departure
  is set, and otherwise marks one that comes. By that a sender learns of a queue of {{.kmin}} kB {{.later}} µs later, and gets marks of a queue
  that is gone meanwhile.
- Headers. A full packet takes {{.theirBytes}} bytes of a cable in ns-3, and {{.ourBytes}} in SoftRNIC, which has BTH, ICRC, preamble, FCS and the gap. The last
  column has cables, and DCQCN's highest rate, that are faster by as much.

| load | spines | | ns-3 | SoftRNIC | ratio | marks at departure | ratio | and faster cables | ratio |
|---|---|---|---|---|---|---|---|---|---|
`
	text, curve := "", ""
	of := map[string]any{}
	for _, load := range ns3Loads {
		flows := poisson(sizes, load, during)
		var curves [][]float64 // mean FCT by size: of ns-3 and SoftRNIC with one spine, and with four
		for _, c := range []struct{ spines, hashes int }{{1, 1}, {ns3Spines, ns3Hashes}} {
			uplinks := ns3Uplinks / float64(c.spines)
			ways := []string{"--set", fmt.Sprint("topology.spines=", c.spines), "--set", fmt.Sprintf("topology.uplink_rate=%gG", uplinks)}
			departure := append(slices.Clip(ways), "--set", "switch.ecn.at_departure=true")
			faster := slices.Concat(departure, set("link.rate", ns3Rate), set("topology.uplink_rate", uplinks),
				set("rdma.dcqcn.rpg_max_rate", ns3Rate))
			marks := [][]string{ways, departure, faster}
			if c.hashes > 1 {
				marks = marks[:1]
			}
			all := make([][3]float64, 1+len(marks))
			theirs, ours := make([]float64, len(sizeClasses)), make([]float64, len(sizeClasses))
			means := make([][]float64, 2)
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
					of := statistics(took)
					for j, v := range of {
						all[k][j] += v / float64(c.hashes)
					}
					if k < len(means) {
						means[k] = append(means[k], of[0])
					}
				}
			}
			curves = append(curves, theirs, ours)
			if c.hashes > 1 && load == ns3Loads[0] {
				for k, name := range []string{"theirs", "ours"} {
					of[name] = fmt.Sprintf("%.0f to %.0f", slices.Min(means[k]), slices.Max(means[k]))
				}
			}
			for j, name := range []string{"mean", "median", "largest"} {
				text += fmt.Sprintf("| %s | %d | %s, µs | %.0f", percent(load), c.spines, name, all[0][j])
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
			curve += fmt.Sprintf("| %s | %s | %d", percent(load), most.name, n)
			for k := 0; k < len(curves); k += 2 {
				curve += fmt.Sprintf(" | %.1f | %.1f | %.2f", curves[k][i], curves[k+1][i], curves[k+1][i]/curves[k][i])
			}
			curve += " |\n"
		}
	}
	return inText(intro, of) + text + inText(`
The same by the sizes of flows: means in µs, with one spine, marks at departure and faster cables, and with {{.spines}} spines, on average of
{{.hashes}} hashes.

| load | size | flows | one spine: ns-3 | SoftRNIC | ratio | {{.spines}} spines: ns-3 | SoftRNIC | ratio |
|---|---|---|---|---|---|---|---|---|
{{.curve}}
Other differences between the models matter little. Alpha: ns-3 updates it each {{.alphaEach}} µs, by whether a CNP came in it, and SoftRNIC
when it handles a CNP, at most each {{.decreaseEach}} µs; ns-3 first decreases {{.decreaseEach}} µs after the first CNP, and SoftRNIC at
once. Increases: ns-3's third one by timer and those after it are of {{.hai}} Mbit/s, and SoftRNIC's of {{.ai}}, as hyper increase needs the
byte counter too, which never expires here. With ns-3's rules of both in SoftRNIC, tried once with one spine, marks at departure and faster
cables, the means were {{.once.ratios}} times ns-3's. With these rules, marks at departure and {{.spines}} spines, the means over
{{.once.hashes}} hashes were {{.once.means}} µs, and the medians {{.once.medians}}. The rest of the difference between the medians was not examined.

No difference: windows (there are none), CNPs (of each marked packet in ns-3, each {{.cnpsEach}} µs in SoftRNIC, for decreases each
{{.decreaseEach}} µs), the target rate (both keep it if nothing increased since the last decrease), limits by RED, packets of {{.payload}}
bytes, and what is counted (from the start to the last acknowledgement). Slowdowns are not compared.
`, map[string]any{"curve": curve})
}

// sizeClasses are sizes of flows in bytes, each up to the next.
var sizeClasses = []struct {
	name string
	most int
}{{"up to 10 kB", 10_000}, {"up to 100 kB", 100_000}, {"up to 1 MB", 1_000_000}, {"larger", math.MaxInt}}

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
	gap := average * 8 / (ns3Rate * 1e9 * load * ns3Hosts) // seconds
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
	cable := func(a, b, rate int) {
		topology += fmt.Sprintf("\n%d %d %dGbps %gms 0", a, b, rate, ns3Delay.Seconds()*1000)
	}
	for i := range ns3Hosts {
		cable(i, ns3Hosts+i/ns3HostsPerLeaf, ns3Rate)
	}
	for leaf := range ns3Leaves {
		for spine := range spines {
			cable(ns3Hosts+leaf, ns3Hosts+ns3Leaves+spine, ns3Uplinks/spines)
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
