package perf

import (
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/clitest"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
)

// runPerf runs one command line with --json.
func runPerf(t *testing.T, args string) *report {
	t.Helper()
	code, stdout, stderr := program.Run(t.Context(), nil, strings.Fields("perf "+args+" --json --warmup 1ms")...)
	var r report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != cli.ExitOK || stderr != "" {
		t.Fatalf("perf %s: exit code %d, stderr %q, stdout: %v in:\n%s", args, code, stderr, err, stdout)
	}
	return &r
}

// checkRow checks a row for a number of messages.
func checkRow(t *testing.T, row *result, op, metric string, size int, messages int64) {
	t.Helper()
	if row.Operation != op || row.Metric != metric || row.Size != size || row.Iterations != messages || row.Seconds <= 0 ||
		row.Mpps <= 0 || row.Gbps <= 0 || row.GbpsPeak < row.Gbps || row.CPUPerGB < 0 {
		t.Errorf("%s %s of %d bytes, %d messages: %+v", op, metric, size, messages, row)
	}
	if tcp := isStream(row.Over); row.Verified == 0 && !tcp {
		t.Errorf("nothing is verified: %+v", row)
	}
	if (row.Latency != nil) != (metric == metricLat) {
		t.Fatalf("latency: %+v", row)
	}
	if l := row.Latency; l != nil {
		if l.Min <= 0 || l.Typical < l.Min || l.P99 < l.Typical || l.P999 < l.P99 || l.Max < l.P999 || l.Avg < l.Min || l.Avg > l.Max ||
			len(l.Distribution) < 2 || l.Distribution[len(l.Distribution)-1].Percent != 100 {
			t.Errorf("latency: %+v", l)
		}
	}
}

// overs returns the labels of the results, in order and each once.
func (r *report) overs() string {
	var all []string
	for _, row := range r.Results {
		if !slices.Contains(all, row.Over) {
			all = append(all, row.Over)
		}
	}
	return strings.Join(all, "; ")
}

// checkTraffic checks a row of --loopback: all bytes of a row with a wire protocol's label were
// sent in its packets, and those of a direct row without packets.
func checkTraffic(t *testing.T, row *result) {
	t.Helper()
	if row.Packets == nil {
		t.Fatalf("the packets are not counted: %+v", row)
	}
	packets, bytes := *row.Packets, uint64(row.Iterations)*uint64(row.Size)
	switch row.Over {
	case "in process, direct":
		// The control connection uses packets.
		if row.Without < uint64(row.Iterations) || packets > 100 {
			t.Errorf("%d messages, of which %d without packets, and %d packets: %+v", row.Iterations, row.Without, packets, row)
		}
	case "RoCEv2", "iWARP":
		if row.Without != 0 || packets*4200 < bytes || row.QPsOf != row.Over {
			t.Errorf("%d messages, of which %d without packets, and %d packets: %+v", row.Iterations, row.Without, packets, row)
		}
	default:
		t.Errorf("over %q", row.Over)
	}
}

func TestPerf(t *testing.T) {
	t.Parallel()
	for op := range operations {
		for _, metric := range []string{metricBW, metricLat, metricRate} {
			t.Run(op+" "+metric, func(t *testing.T) {
				size := 5000
				if op == opAtomic {
					size = 8
				}
				r := runPerf(t, fmt.Sprintf("%s %s --loopback --verify --size %d --iters 300 --transport rocev2,iwarp", op, metric, size))
				if r.overs() != "RoCEv2; iWARP; in process, direct" || r.PathMTU != 4096 {
					t.Fatalf("%s: %+v", r.overs(), r)
				}
				for _, row := range r.Results {
					checkRow(t, row, op, metric, size, 300)
					checkTraffic(t, row)
					every := op != opWrite && !(op == opAtomic && metric == metricLat)
					if every && row.Verified < 300 {
						t.Errorf("%d of 300 messages are verified", row.Verified)
					}
				}
			})
		}
	}
}

// TestPerfManyWays: several QPs on several threads, in both directions, with sizes, --cq-mod and
// --post-list that do not divide evenly.
func TestPerfManyWays(t *testing.T) {
	t.Parallel()
	for _, args := range []string{
		"--qps 5 --threads 2 --cq-mod 7 --depth 9 --post-list 4 --bidirectional --size 1 --size 4097",
		"--qps 2 --depth 1 --size 70000",
		"--qps 2 --depth 5 --post-list 5 --size 70000",
		"--one-device --bidirectional --depth 16 --size 8",
		"--qps 3 --depth 2 --cq-mod 2 --bidirectional --size 100",
	} {
		for op := range operations {
			args := args
			if op == opAtomic {
				args = regexp.MustCompile(`--size \d+`).ReplaceAllString(args, "")
			}
			for _, over := range []string{"rocev2", "iwarp"} {
				t.Run(op+" "+over+" "+args, func(t *testing.T) {
					r := runPerf(t, op+" bw --loopback --verify --iters 50 --transport "+over+" "+args)
					for _, row := range r.Results {
						n := int64(50 * row.QPs)
						if row.Bidirectional {
							n *= 2
						}
						checkRow(t, row, op, metricBW, row.Size, n)
						if op == opRead && row.Verified < n {
							t.Errorf("%d of %d messages are verified", row.Verified, n)
						}
					}
				})
			}
		}
	}
}

func TestPerfForATime(t *testing.T) {
	t.Parallel()
	for _, args := range []string{"write bw --cq-mod 16 --bidirectional", "send bw --qps 3", "read lat", "send lat", "write lat"} {
		r := runPerf(t, args+" --loopback --packets --verify --size 4096 --duration 5ms --tcp --transport iwarp,rocev2")
		if r.overs() != "iWARP; RoCEv2; TCP; kernel TCP" {
			t.Fatalf("%s: %s", args, r.overs())
		}
		for _, row := range r.Results {
			words := strings.Fields(args)
			checkRow(t, row, words[0], words[1], row.Size, max(1, row.Iterations))
			if row.Seconds < 0.005 && row.Metric != metricLat {
				t.Errorf("%s: %v seconds, want 0.005", args, row.Seconds)
			}
		}
	}
}

func TestPerfConnect(t *testing.T) {
	t.Parallel()
	for _, threads := range []int64{1, 4} {
		r := runPerf(t, fmt.Sprintf("connect rate --loopback --iters 100 --threads %d --transport rocev2,iwarp", threads))
		if len(r.Results) != 2 {
			t.Fatalf("%+v", r)
		}
		for _, row := range r.Results {
			if l := row.Latency; row.Iterations != 100*threads || row.Seconds <= 0 || l == nil || l.Min <= 0 || l.Max < l.Typical {
				t.Errorf("%d threads over %s: %+v", threads, row.Over, row)
			}
		}
	}
	code, stdout, stderr := program.Run(t.Context(), nil, strings.Fields("perf connect rate --loopback --iters 5 --warmup 0")...)
	if line := regexp.MustCompile(`(?m)^ 5 +\d+ +\d+\.\d\d `); code != cli.ExitOK || stderr != "" || !line.MatchString(stdout) {
		t.Errorf("exit code %d, stderr %q, stdout:\n%s", code, stderr, stdout)
	}
}

// TestPerfCounters: --counters prints each side's counters to stderr, and does not change stdout.
func TestPerfCounters(t *testing.T) {
	code, stdout, stderr := program.Run(t.Context(), nil,
		strings.Fields("perf send bw --loopback --impair seed=1 --iters 300 --warmup 1ms --json --counters")...)
	if code != cli.ExitOK || !json.Valid([]byte(stdout)) {
		t.Fatalf("exit code %d, stderr %q, stdout:\n%s", code, stderr, stdout)
	}
	sides := strings.Split(stderr, "Counters of ")
	if len(sides) != 3 || sides[0] != "" {
		t.Fatalf("counters of two nodes are wanted:\n%s", stderr)
	}
	for i, want := range [][]string{{"10.0.0.2", "rdma_recvs", "rcvd_pkts"}, {"10.0.0.1", "rdma_sends", "sent_pkts"}} {
		counters := sides[i+1]
		for _, name := range want[1:] {
			n := -1
			if _, after, ok := strings.Cut(counters, "\n  "+name+" "); ok {
				_, _ = fmt.Sscan(after, &n)
			}
			if n < 300 || !strings.Contains(counters, want[0]) {
				t.Errorf("%s of %s is %d:\n%s", name, want[0], n, counters)
			}
		}
	}
}

func TestPerfAllSizes(t *testing.T) {
	t.Parallel()
	r := runPerf(t, "write bw --loopback --direct --all --iters 2")
	if len(r.Results) != 23 || r.Results[0].Size != 2 || r.Results[22].Size != 8<<20 {
		t.Errorf("%d rows: %+v", len(r.Results), r)
	}
}

// TestPerfServer: a server and a client on one switch. The output has what perftest's users expect.
func TestPerfServer(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, title string }{
		{"send bw", "Send BW Test (RoCEv2)"}, {"write lat --transport iwarp", "RDMA_Write Latency Test (iWARP)"},
		{"read bw --qps 4 --verify --tcp", "RDMA_Read BW Test (RoCEv2)"},
	} {
		lan := new(pipe.Switch)
		s := program.Start(t, lan, "perf send bw --addr 10.0.0.1/24")
		s.Await(t, &s.Out, "Waiting for a client")
		p := program.Start(t, lan,
			"perf "+c.args+" 10.0.0.1 --kernel-tcp 127.0.0.1 --addr 10.0.0.2/24 --iters 50 --warmup 1ms --size 64 --size 9000")
		if code := p.Wait(t); code != cli.ExitOK {
			t.Fatalf("client exits with %d: %s", code, &p.Err)
		}
		if code := s.Wait(t); code != cli.ExitOK {
			t.Errorf("server exits with %d: %s", code, &s.Err)
		}
		line := regexp.MustCompile(`(?m)^ 9000 +(50|200) +\d+\.\d\d +\d`)
		for side, out := range map[string]string{"client": p.Out.String(), "server": s.Out.String()} {
			if !strings.Contains(out, c.title) || !strings.Contains(out, " #bytes ") || !line.MatchString(out) {
				t.Errorf("%s: the %s prints:\n%s", c.args, side, out)
			}
		}
	}
}

// TestPerfServerCPU: each side reports the CPU time of its own process.
func TestPerfServerCPU(t *testing.T) {
	lan := new(pipe.Switch)
	s := program.Start(t, lan, "perf send bw --addr 10.0.0.1/24 --json --log-level debug")
	s.Await(t, &s.Err, "msg=listening")
	c := program.Start(t, lan, "perf send bw 10.0.0.1 --addr 10.0.0.2/24 --iters 2000 --warmup 1ms --json")
	var client, server report
	for _, side := range []struct {
		*clitest.Command
		says *report
	}{{c, &client}, {s, &server}} {
		if code := side.Wait(t); code != cli.ExitOK {
			t.Fatalf("exit code %d: %s", code, &side.Err)
		}
		if err := json.Unmarshal([]byte(side.Out.String()), side.says); err != nil {
			t.Fatal(err)
		}
	}
	if c, s := client.Results[0], server.Results[0]; s.CPUPerGB != c.PeerCPUPerGB || s.PeerCPUPerGB != c.CPUPerGB ||
		s.CPUSeconds == c.CPUSeconds {
		t.Errorf("the client says %+v, the server %+v", c, s)
	}
}

// TestPerfInterrupted: if one side is interrupted, the other side ends too and reports the reason.
func TestPerfInterrupted(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"client", "server"} {
		for _, args := range []string{"send bw", "write lat", "write bw --tcp --transport iwarp --bidirectional"} {
			lan := new(pipe.Switch)
			s := program.Start(t, lan, "perf send bw --addr 10.0.0.1/24")
			s.Await(t, &s.Out, "Waiting for a client")
			p := program.Start(t, lan,
				"perf "+args+" 10.0.0.1 --addr 10.0.0.2/24 --duration 20ms --warmup 0s"+strings.Repeat(" --size 64", 500))
			p.Await(t, &p.Out, " 64 ")
			stopped, other := p, s
			if who == "server" {
				stopped, other = s, p
			}
			stopped.Stop()
			if code := stopped.Wait(t); code != cli.ExitFailed || !strings.Contains(stopped.Err.String(), "interrupted") {
				t.Errorf("%s: the %s exits with %d: %s", args, who, code, &stopped.Err)
			}
			// A server may take it for the end of the measurements.
			if code := other.Wait(t); who == "server" && code != cli.ExitFailed || strings.Count(other.Err.String(), "\n") > 1 {
				t.Errorf("%s: the other of the %s exits with %d: %s", args, who, code, &other.Err)
			}
		}
	}
}

func TestPerfUsage(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"perf":                             "<op>",
		"perf push bw":                     "push",
		"perf send speed":                  "speed",
		"perf send bw":                     "use --loopback",
		"perf send bw --loopback 10.0.0.1": "use one of the two",
		"perf send bw --loopback --size 0": "must be 1 to",
		"perf send bw --loopback --metrics 127.0.0.1:0":  "--metrics is of one node",
		"perf send bw --loopback --all --size 8":         "use one of the two",
		"perf send bw --loopback --depth 0":              "--depth 0",
		"perf send bw --loopback --qps 100000":           "--qps 100000",
		"perf send bw --loopback --duration 1s -n 3":     "use one of the two",
		"perf connect bw --loopback":                     "connect has only rate",
		"perf connect rate --loopback --size 8":          "leave out --size",
		"perf send bw --loopback --kernel-tcp 127.0.0.1": "--kernel-tcp is for the client",
		"perf send lat --loopback --bidirectional":       "one message at a time on one QP",
		"perf send bw --one-device --link tap:x":         "--loopback",
		"perf send bw --link tap:x --report f":           "--report is for the client",
		"perf send bw --loopback --transport ib":         "must be rocev2 or iwarp",
		"perf send bw --loopback --warmup=-1s":           "--warmup -1s",
		"perf send bw --loopback --duration 999h":        "--duration 999h",
		"perf send bw --loopback -D 0":                   "--duration 0s: must be more than 0",
		"perf send bw --loopback --duration=-1":          "--duration -1s: must be more than 0",
		"perf send bw --loopback -n 0":                   "--iters 0: must be 1 to",
		"perf send bw --loopback --cq-mod 0":             "--cq-mod 0: must be 1 to",
		"perf send bw --loopback --port 0":               "--port: 0: must be 1 to 65535",
		// Flags that would be ignored are refused.
		"perf atomic bw --loopback --size 16": "atomics are of 8 bytes",
		"perf atomic bw --loopback --all":     "atomics are of 8 bytes",
		"perf write bw --loopback --threads 8 --qps 1": "--threads 8: each needs its own QPs, and there are 1: use " +
			"--qps 8 or more",
		"perf write bw --loopback --threads 8":                       "use --qps 8 or more",
		"perf write bw --loopback --depth 8 --cq-mod 9":              "--cq-mod 9: must be at most the 8 messages outstanding",
		"perf write bw --loopback --post-list 129":                   "--post-list 129: must be at most the 128 messages outstanding",
		"perf write bw --loopback --buffer 100":                      "--buffer 100: must be 4096 to",
		"perf write bw --loopback --verify --size 1048576 -t 64":     "--depth 64: must be at most",
		"perf write lat --loopback --depth 16":                       "--depth 16: lat is of one message at a time",
		"perf write lat --loopback --qps 2 --threads 2":              "--qps 2: lat is of one message at a time",
		"perf write lat --loopback --cq-mod 2":                       "--cq-mod 2: lat is of one message at a time",
		"perf connect rate --loopback --qps 5":                       "leave out --qps",
		"perf connect rate --loopback --verify":                      "leave out --verify",
		"perf connect lat --loopback":                                "connect lat: connect has only rate",
		"perf connect rate --loopback --direct":                      "connections are made with packets only",
		"perf connect rate --loopback --one-device":                  "is not measured",
		"perf write bw --packets --link tap:x":                       "--packets and --direct need --loopback",
		"perf write bw --loopback --packets --direct":                "can't be used together",
		"perf write bw --loopback --packets --one-device":            "there are none between two QPs of one node",
		"perf write bw --loopback --packets --link tap:x":            "there are none between two QPs of one node",
		"perf write bw --loopback --direct --impair loss=1%":         "with --capture or --impair all goes in packets",
		"perf write bw --loopback --one-device --capture f":          "nothing passes the link between two QPs of one node",
		"perf write bw --loopback --direct --transport rocev2,iwarp": "use one --transport",
		"perf send bw --loopback --post-list 0":                      "--post-list 0",
		"perf send bw --loopback --iters=-1":                         "--iters -1",
		"perf send bw --loopback --mac 02:00:00:00:00:01 -Qx":        "cq-mod",
	} {
		code, _, stderr := program.Run(t.Context(), nil, strings.Fields(args)...)
		if code != cli.ExitUsage || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, stderr %q, want one line with %q", args, code, stderr, want)
		}
	}
	for args, want := range map[string]string{
		"perf send bw --loopback --size 268435456 --qps 100":       "bytes of memory",
		"perf send bw --loopback --depth 16384 --qps 100":          "outstanding",
		"perf send bw --loopback --pprof /no/such/file":            "--pprof",
		"perf write bw --addr 10.0.0.2/24 10.0.0.1 --port 1 -n 10": "10.0.0.1",
	} {
		code, _, stderr := program.Run(t.Context(), new(pipe.Switch), strings.Fields(args)...)
		if code != cli.ExitFailed || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, stderr %q, want one line with %q", args, code, stderr, want)
		}
	}
}

func TestPerfReport(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	page, profile := filepath.Join(dir, "report.html"), filepath.Join(dir, "cpu.pprof")
	r := runPerf(t, "read bw --loopback --iters 40 --size 2 --size 70000 --report "+page+" --pprof "+profile)
	if len(r.Results) != 5*2+5 {
		t.Errorf("%d rows, want 5 ways with 2 bandwidths and a latency each", len(r.Results))
	}
	b, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	elements := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(string(b))); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("%v in:\n%s", err, b)
		}
		if e, ok := token.(xml.StartElement); ok {
			elements[e.Name.Local]++
			for _, a := range e.Attr {
				if n := a.Name.Local; n == "href" || n == "src" || n == "xmlns" {
					t.Errorf("<%s %s=%q> is from elsewhere", e.Name.Local, n, a.Value)
				}
			}
		}
	}
	if elements["svg"] != 2 || elements["table"] != 10 || elements["path"] < 8 || elements["script"]+elements["link"] > 0 {
		t.Errorf("elements: %v", elements)
	}
	for _, never := range []string{"http:", "https:", "url(", "@import"} {
		if strings.Contains(string(b), never) {
			t.Errorf("the page has %q", never)
		}
	}
	for _, want := range []string{"RoCEv2 bandwidth", "iWARP latency", "in process, direct bandwidth", "is not a wire protocol",
		"--packets",
		"<th>packets</th>", "kernel TCP", "RDMA_Read", "µs"} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the page lacks %q", want)
		}
	}
	if info, err := os.Stat(profile); err != nil || info.Size() == 0 {
		t.Errorf("profile: %v, %v", info, err)
	}
}

// servePerfOn starts a server on a switch, and returns the control connection of a client that the
// test plays.
func servePerfOn(t *testing.T) (ctl *control, served chan error) {
	t.Helper()
	lan := new(pipe.Switch)
	var nodes [2]*node.Node
	for i := range nodes {
		f := node.Flags{Addr: []node.CIDR{{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}), 24)}}}
		n, err := f.Open(&cli.Env{Stdout: io.Discard, Stderr: io.Discard, LAN: lan})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = n.Close() })
		nodes[i] = n
	}
	at := netip.MustParseAddrPort("10.0.0.1:18516")
	l, err := nodes[0].Host.ListenStream(at)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served = make(chan error, 1)
	go func() { served <- serve(ctx, nodes[0], l, nil) }()
	t.Cleanup(cancel)
	conn, err := nodes[1].Host.DialStream(ctx, netip.AddrPort{}, at)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return newControl(conn), served
}

// TestPerfHostileClient: the server ends with an error, which it also sends, if a client sends an
// invalid message.
func TestPerfHostileClient(t *testing.T) {
	planWith := func(change func(*plan)) string {
		p := (&Command{Op: opSend, Depth: 8, QPs: 1, Threads: 1, PostList: 1, Wait: completion.Adaptive}).plan(metricBW, OverRoCE, 64)
		change(&p)
		b, err := json.Marshal(message{Plan: &p})
		if err != nil {
			t.Fatal(err)
		}
		return string(b) + "\n"
	}
	good := planWith(func(*plan) {})
	for what, c := range map[string]struct{ says, want string }{
		"not JSON":         {"GET / HTTP/1.0\r\n\r\n", "is it a softrnic perf?"},
		"no plan":          {"{}\n", "something else than a plan"},
		"endless line":     {strings.Repeat("x", maxLine+10), "token too long"},
		"negative size":    {planWith(func(p *plan) { p.Size = -1 }), "Size -1"},
		"huge size":        {planWith(func(p *plan) { p.Size = math.MaxInt }), "Size"},
		"no depth":         {planWith(func(p *plan) { p.Depth = 0 }), "Depth 0"},
		"no QPs":           {planWith(func(p *plan) { p.QPs = 0 }), "QPs 0"},
		"too much memory":  {planWith(func(p *plan) { p.QPs, p.Size = 1<<10, 1<<28 }), "memory"},
		"more threads":     {planWith(func(p *plan) { p.Threads = 2 }), "Threads 2"},
		"no end":           {planWith(func(p *plan) { p.Duration = 0 }), "neither"},
		"long atomics":     {planWith(func(p *plan) { p.Op = opAtomic }), "atomics of 64"},
		"unknown":          {planWith(func(p *plan) { p.Over = "IPX" }), "IPX"},
		"many at once":     {planWith(func(p *plan) { p.Metric, p.Depth, p.CQMod = metricLat, 2, 1 }), "one message"},
		"gone too early":   {good + `{"Error":"I go"}` + "\n", "I go"},
		"no offer":         {good + good, "something else than its offer"},
		"nothing more":     {"", ""},
		"an error at once": {`{"Error":"never mind"}` + "\n", "never mind"},
	} {
		ctl, served := servePerfOn(t)
		if _, err := ctl.conn.Write([]byte(c.says)); err != nil {
			t.Logf("%s: %v", what, err) // the server may already have closed the connection
		}
		if c.want == "" {
			_ = ctl.conn.Close()
		}
		go func() { // as clients do
			_, _ = io.Copy(io.Discard, ctl.conn)
			_ = ctl.conn.Close()
		}()
		if err := <-served; c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", what, err, c.want)
		}
	}
}

// TestPerfNoticesWrongData changes a byte of received data.
func TestPerfNoticesWrongData(t *testing.T) {
	f := node.Flags{Addr: []node.CIDR{{Prefix: netip.MustParsePrefix("10.0.0.1/24")}}}
	n, err := f.Open(&cli.Env{Stdout: io.Discard, Stderr: io.Discard})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	for op, sent := range map[string]int64{opSend: 1, opWrite: 50, opRead: 1} {
		p := (&Command{Op: op, Depth: 4, QPs: 2, Threads: 1, PostList: 1, Wait: completion.Adaptive, Verify: true}).plan(metricBW,
			OverRoCE, 100)
		r, err := newRDMA(n, &p, true)
		if err != nil {
			t.Fatal(err)
		}
		q := newQueuePair(r.ways[0], 1, nil)
		r.prepare(&offer{Seed: 1})
		check := func() error {
			if op == opWrite {
				return q.verifyMemory(sent)
			}
			return q.verify(0, 0)
		}
		if check() == nil {
			t.Errorf("%s: missing data is accepted", op)
		}
		for k := range uint64(sent) { // as the transport does
			copy(q.slot(k%uint64(p.rxSlots())), r.peer[p.block()+int(k)%p.txSlots()*p.stride():])
		}
		if err := check(); err != nil {
			t.Errorf("%s: %v", op, err)
		}
		q.slot(0)[99] ^= 1
		if check() == nil {
			t.Errorf("%s: a wrong byte is not noticed", op)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}

func FuzzPerfPlan(f *testing.F) {
	f.Add([]byte(`{"Plan":{"Op":"send","Metric":"bw","Over":"RoCEv2","Size":64,"Depth":8,"QPs":1,"Threads":1,"CQMod":1,"PostList":1,"Iters":5}}`))
	f.Add([]byte(`{"Sent":[1,2,-3]}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var m message
		if json.Unmarshal(line, &m) != nil || m.Plan == nil || m.Plan.check() != nil {
			return
		}
		p := m.Plan
		if n := p.memory(); n <= 0 || n > maxMemory || p.rxSlots() < 1 || p.txSlots() < 1 || p.stride() < p.Size {
			t.Errorf("%+v: %d bytes, slots %d and %d, stride %d", p, n, p.txSlots(), p.rxSlots(), p.stride())
		}
	})
}

// TestBareNumberOfSeconds: --duration takes a number without a unit.
func TestBareNumberOfSeconds(t *testing.T) {
	r := runPerf(t, "write lat --loopback --direct --duration 0.02")
	if s := r.Results[0].Seconds; s < 0.02 || s > 10 {
		t.Errorf("--duration 0.02 took %v s", s)
	}
}

// TestSockets: --sockets also measures rsockets over each wire protocol, last.
func TestSockets(t *testing.T) {
	t.Parallel()
	for _, metric := range []string{"bw --bidirectional --qps 2", "lat"} {
		r := runPerf(t, "write "+metric+" --loopback --packets --size 4096 --iters 100 --sockets --transport iwarp,rocev2")
		if want := "iWARP; RoCEv2; rsockets, iWARP; rsockets, RoCEv2"; r.overs() != want {
			t.Errorf("%s: measured over %s, want %s", metric, r.overs(), want)
		}
		for _, row := range r.Results {
			if row.Iterations < 100 || row.Gbps <= 0 {
				t.Errorf("%s: %+v", metric, row)
			}
		}
	}
}
