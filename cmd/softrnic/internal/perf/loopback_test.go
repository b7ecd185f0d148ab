package perf

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/status/query"
)

// TestPerfWays: perf --loopback by default measures each wire protocol in packets and on the direct
// path. Flags choose one. The packet counts match the labels.
func TestPerfWays(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, overs string }{
		{"write bw", "RoCEv2; in process, direct"},
		{"write bw --transport iwarp", "iWARP; in process, direct"},
		{"write bw --packets --transport iwarp,rocev2", "iWARP; RoCEv2"},
		{"read bw --direct", "in process, direct"},
		{"send bw --direct --transport iwarp", "in process, direct"},
		{"send lat --one-device", "in process, direct"},
		{"write bw --link pipe,vlan=7", "RoCEv2; in process, direct"},
		{"write bw --impair seed=1", "RoCEv2"},
		{"atomic rate --capture " + filepath.Join(t.TempDir(), "x.pcapng"), "RoCEv2"},
	} {
		r := runPerf(t, c.args+" --loopback --iters 100")
		if got := r.overs(); got != c.overs {
			t.Errorf("%s: %s; want %s", c.args, got, c.overs)
		}
		for _, row := range r.Results {
			checkTraffic(t, row)
		}
	}
	r := runPerf(t, "connect rate --loopback --iters 5")
	if p := r.Results[0].Packets; r.overs() != "RoCEv2" || p == nil || *p < 4*5 {
		t.Errorf("connect: %s, %v packets", r.overs(), p)
	}
}

// TestPerfTables: the printed tables have the labels and packet counts, and a hint to measure
// packets only.
func TestPerfTables(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ args, row string }{
		{"write bw", " 65536 "}, {"send lat", " 8 "},
	} {
		code, stdout, stderr := program.Run(t.Context(), nil, strings.Fields("perf "+c.args+" --loopback --iters 64 --warmup 1ms")...)
		wire, direct, found := strings.Cut(stdout, "(in process, direct)\n")
		if code != cli.ExitOK || stderr != "" || !found || !strings.Contains(wire, "(RoCEv2)\n") || !strings.Contains(wire, "Path MTU") {
			t.Fatalf("%s: exit code %d, stderr %q, stdout:\n%s", c.args, code, stderr, stdout)
		}
		if !strings.Contains(direct, "QPs             : RoCEv2 (--packets has all go in packets)\n") ||
			strings.Contains(direct, "Path MTU") {
			t.Errorf("%s: the direct way's heading:\n%s", c.args, direct)
		}
		for _, table := range []string{wire, direct} {
			columns := 0
			for line := range strings.Lines(table) {
				switch {
				case strings.HasPrefix(line, " #bytes "):
					if !strings.HasSuffix(line, " #packets\n") {
						t.Errorf("%s: columns %q", c.args, line)
					}
					columns = strings.Index(line, "#packets")
				case strings.HasPrefix(line, c.row):
					if at := strings.LastIndex(line, " ") + 1; at != columns {
						t.Errorf("%s: the packets are in column %d, below one that begins at %d:\n%s", c.args, at, columns, table)
					}
				}
			}
		}
	}
}

// TestPerfPlanString: errors begin with the measurement.
func TestPerfPlanString(t *testing.T) {
	for want, p := range map[string]plan{
		"write bw over RoCEv2, 64 KiB":      {Op: opWrite, Metric: metricBW, Over: OverRoCE, Size: 64 << 10},
		"send lat over kernel TCP, 8 B":     {Op: opSend, Metric: metricLat, Over: overKernel, Size: 8},
		"read bw in process, direct, 100 B": {Op: opRead, Metric: metricBW, Over: OverIWARP, Size: 100, Direct: true},
		"connect rate over iWARP":           {Op: opConnect, Metric: metricRate, Over: OverIWARP},
	} {
		if got := p.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestPerfLoopbackAddresses(t *testing.T) {
	t.Parallel()
	for given, want := range map[string]string{
		"10.0.0.1/24": "10.0.0.2/24", "10.0.0.254/24": "10.0.0.253/24", "10.0.0.2/30": "10.0.0.1/30", "10.0.0.0/31": "10.0.0.1/31",
		"10.0.0.1/31": "10.0.0.0/31", "fd00::1/64": "fd00::2/64", "fd00::ffff/112": "fd00::fffe/112", "10.0.0.1/32": "", "fd00::1/128": "",
	} {
		got, err := neighbour(node.CIDR{Prefix: netip.MustParsePrefix(given)})
		if (err != nil) != (want == "") || err == nil && got.String() != want {
			t.Errorf("next to %s: %v, %v; want %s", given, got, err, want)
		}
		code, _, stderr := program.Run(t.Context(), nil, "perf", "write", "bw", "--loopback", "--direct", "--iters", "5", "--warmup", "0",
			"--addr", given)
		if (code != cli.ExitOK) != (want == "") || code != cli.ExitOK &&
			!strings.Contains(stderr, "--addr "+given+": the network has no address for the other node") {
			t.Errorf("--addr %s: exit code %d, stderr %q", given, code, stderr)
		}
	}
}

// TestPerfInterruptedKeepsResults: an interrupted client writes its results as JSON and as a page,
// and reports that some are missing.
func TestPerfInterruptedKeepsResults(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "report.html")
	lan := new(pipe.Switch)
	s := program.Start(t, lan, "perf write bw --addr 10.0.0.1/24")
	s.Await(t, &s.Out, "Waiting for a client")
	p := program.Start(t, lan,
		"perf write bw 10.0.0.1 --addr 10.0.0.2/24 --json --report "+page+" --duration 20ms --warmup 0"+
			strings.Repeat(" --size 64 --size 128", 250))
	s.Await(t, &s.Out, " 128 ") // then the client has the result for 64
	p.Stop()
	if code := p.Wait(t); code != cli.ExitFailed || !strings.Contains(p.Err.String(), "interrupted") {
		t.Errorf("exit code %d: %s", code, &p.Err)
	}
	s.Wait(t)
	var r report
	if err := json.Unmarshal([]byte(p.Out.String()), &r); err != nil {
		t.Fatalf("%v in:\n%s", err, &p.Out)
	}
	if r.Error != "interrupted" || len(r.Results) == 0 || r.Results[0].Size != 64 || r.Results[0].Gbps <= 0 {
		t.Errorf("%+v", r)
	}
	b, err := os.ReadFile(page)
	if text := string(b); err != nil || !strings.Contains(text, "<dt>Incomplete</dt><dd>interrupted</dd>") ||
		strings.Count(text, "<svg") != 1 {
		t.Errorf("%v; the page:\n%s", err, text)
	}
}

// TestPerfReportFile: the report's file is opened before the first measurement, and keeps its
// content if nothing is measured.
func TestPerfReportFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept.html")
	if err := os.WriteFile(kept, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ file, flags, want string }{
		{filepath.Join(dir, "no", "such", "report.html"), "--iters 1", "--report: "},
		{dir, "--iters 1", "--report: "},
		{kept, "--addr 10.0.0.1/32", "no address for the other node"},
		{filepath.Join(dir, "new.html"), "--addr 10.0.0.1/32", "no address for the other node"},
	} {
		code, stdout, stderr := program.Run(t.Context(), nil, strings.Fields("perf write bw --loopback --report "+c.file+" "+c.flags)...)
		if code != cli.ExitFailed || stdout != "" || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%s: exit code %d, stderr %q, stdout:\n%s", c.file, code, stderr, stdout)
		}
	}
	if b, err := os.ReadFile(kept); string(b) != "precious" {
		t.Errorf("the previous content is now %q, %v", b, err)
	}
	if files, err := os.ReadDir(dir); err != nil || len(files) != 1 {
		t.Errorf("%v, %v", files, err)
	}
	code, _, stderr := program.Run(t.Context(), nil,
		strings.Fields("perf write lat --loopback --direct --iters 5 --warmup 1ms --size 8 --report "+kept+" --transport iwarp --json")...)
	b, err := os.ReadFile(kept)
	if text := string(b); code != cli.ExitOK || err != nil || !strings.HasPrefix(text, "<!DOCTYPE html>") ||
		!strings.HasSuffix(text, "</html>\n") ||
		strings.Contains(text, "RoCEv2 latency") || !strings.Contains(text, "in process, direct latency") {
		t.Errorf("exit code %d, stderr %q, %v; the page:\n%s", code, stderr, err, text)
	}
	r := runPerf(t, "write lat --loopback --iters 5 --size 8 --report "+kept+" --transport iwarp")
	if got, want := r.overs(), "iWARP; in process, direct; TCP; kernel TCP"; got != want {
		t.Errorf("with --transport iwarp the report is over %s, want %s", got, want)
	}
}

// TestPerfLoopbackFlags: both nodes are set up as the flags say, and both are traced.
func TestPerfLoopbackFlags(t *testing.T) {
	traced := filepath.Join(t.TempDir(), "trace")
	runPerf(t, "write bw --loopback --packets --transport iwarp --iters 10 --mpa no-crc,markers --trace "+traced)
	b, err := os.ReadFile(traced)
	if err != nil {
		t.Fatal(err)
	}
	nodes := map[string]bool{}
	for line := range strings.Lines(string(b)) {
		var event struct{ Node string }
		if err := json.Unmarshal([]byte(line), &event); err != nil {
			t.Fatal(err)
		}
		nodes[event.Node] = true
	}
	if len(nodes) != 2 {
		t.Errorf("events of %v:\n%s", nodes, b)
	}
	if n := strings.Count(string(b), "CRC false, markers sent true, markers received true"); n != 2 {
		t.Errorf("%d of 2 nodes are without CRCs and with markers:\n%s", n, b)
	}
}

// TestPerfLoopbackWatched: softrnic top sees both nodes while they run.
func TestPerfLoopbackWatched(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	p := program.Start(t, nil, "perf write bw --loopback --packets -D 60s --warmup 0")
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		nodes, err := query.Nodes(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if len(nodes) == 2 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("%d nodes", len(nodes))
		}
	}
	p.Stop()
	p.Wait(t)
}
