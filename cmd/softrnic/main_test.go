package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alecthomas/kong"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
)

// transcript is a buffer that a running command writes and a test reads.
type transcript struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *transcript) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *transcript) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// runCommand runs a command line as main does, on lan if that is not nil.
func runCommand(ctx context.Context, lan *pipe.Switch, args ...string) (code int, stdout, stderr string) {
	var out, errs transcript
	code = run(ctx, args, &env{stdout: &out, stderr: &errs, lan: lan})
	return code, out.String(), errs.String()
}

func TestHelp(t *testing.T) {
	for args, want := range map[string]string{
		"":                     "softrnic demo",
		"--help":               "softrnic demo",
		"demo --help":          "SHA-256",
		"devinfo --help":       "--link=LINK",
		"rping --help":         "Usage: softrnic rping [flags]",
		"perf --help":          "--packets",
		"pingpong --help":      "ibv_rc_pingpong",
		"pingpong rc --help":   "--gid-idx=INDEX",
		"pingpong xsrq --help": "ibv_xsrq_pingpong -d mlx5_0 -g 3 10.0.0.9 ",
		"--version":            "softrnic ",
	} {
		code, stdout, stderr := runCommand(t.Context(), nil, strings.Fields(args)...)
		if code != 0 || stderr != "" || !strings.Contains(stdout, want) {
			t.Errorf("%q: exit code %d, stderr %q, stdout without %q:\n%s", args, code, stderr, want, stdout)
		}
	}
}

func TestErrorsAreOneLineWithTheirExitCode(t *testing.T) {
	dir := t.TempDir()
	full := filepath.Join(dir, "full.pcapng")
	if err := os.WriteFile(full, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		args string
		code int
		want string // in the message
	}{
		{"bogus", 2, "unexpected argument bogus: the commands are demo, devinfo, pingpong, rping, mckey, perf, serve (softrnic --help explains)"},
		{"pingpong bogus", 2, "unexpected argument bogus: the commands are rc, uc, ud, srq, xsrq (softrnic pingpong --help explains)"},
		{"demo --bogus", 2, "--bogus"},
		{"pingpong rc --transport iwarp", 2, "use softrnic rping"},
		{"demo --size x", 2, "--size"},
		{"demo --size -1", 2, "-1"},
		{"demo --time -1s", 2, "--time"},
		{"demo --time soon", 2, `--time: "soon" is no time: give one such as 500ms, 5s or 2m; a bare number is of seconds`},
		{"demo --impair loss=200%", 2, "200%"},
		{"demo --mtu 100", 2, "--mtu: 100: give 1280 to 65535"},
		{"demo --capture " + filepath.Join(dir, "no", "such"), 1, "--capture"},
		{"devinfo --link wire", 2, "pipe, tap:NAME"},
		{"devinfo --link tap:", 2, "tap:"},
		{"devinfo --link pipe:x", 2, "pipe:x"},
		{"devinfo --link tap:a,bridge=", 2, "bridge="},
		{"devinfo --link tap:a,wait=never", 2, "give adaptive, event or poll"},
		{"devinfo --link packet:a,queues=0", 2, "give 1 to 16"},
		{"devinfo --link pipe,vlan=4095", 2, "give 1 to 4094"},
		{"devinfo --link tap:a,vlan=", 2, "give 1 to 4094"},
		{"devinfo --link pipe,queues=2", 2, "all with [,vlan=ID]"},
		{"devinfo --link tap:a,mac=interface", 2, "mac=interface"},
		{"devinfo --link packet:a,mac=interface --mac 02:00:00:00:00:01", 2, "--mac"},
		{"devinfo --link packet:no-such-ifc", 1, "no-such-ifc"},
		{"devinfo --link tap:a/b", 1, "a/b"},
		{"devinfo --addr 10.0.0.1", 2, "10.0.0.1/24"[:8]},
		{"devinfo --addr 10.0.0.0/24", 1, "10.0.0.0/24"},
		{"devinfo --gateway x", 2, "--gateway"},
		{"devinfo --gateway 10.0.0.1", 1, "10.0.0.1"},
		{"devinfo --mac 01:00:00:00:00:01", 2, "01:00:00:00:00:01"},
		{"devinfo --log-level loud", 2, "--log-level"},
		{"pingpong", 2, "rc"},
		{"pingpong rc", 2, "pipe"},
		{"pingpong rc --size 0", 2, "--size 0"},
		{"pingpong rc --iters 0", 2, "--iters 0"},
		{"pingpong rc --rx-depth 0", 2, "--rx-depth 0"},
		{"pingpong rc --path-mtu 1000", 2, "--path-mtu"},
		{"pingpong rc --gid-idx 256", 2, "--gid-idx"},
		{"pingpong rc --port 0", 2, "--port: 0: give 1 to 65535"},
		{"demo --capture " + full, 1, "remove it, or give another name"},
	} {
		code, stdout, stderr := runCommand(t.Context(), nil, strings.Fields(test.args)...)
		if code != test.code || stdout != "" || !strings.HasPrefix(stderr, "softrnic: ") ||
			strings.Count(stderr, "\n") != 1 || !strings.HasSuffix(stderr, "\n") || !strings.Contains(stderr, test.want) {
			t.Errorf("%s: exit code %d, want %d; stdout %q; stderr %q, want one line with %q",
				test.args, code, test.code, stdout, stderr, test.want)
		}
	}
	if b, err := os.ReadFile(full); string(b) != "precious" {
		t.Errorf("the file that was there has %q, %v", b, err)
	}
}

// TestDurations: times may be bare numbers, of seconds, as with perftest's -D.
func TestDurations(t *testing.T) {
	for arg, want := range map[string]time.Duration{"5": 5 * time.Second, "0.25": 250 * time.Millisecond, "1e-3": time.Millisecond,
		"90s": 90 * time.Second, "1m30s": 90 * time.Second, "0": 0, "-2": -2 * time.Second} {
		var c struct {
			D time.Duration `short:"D"`
		}
		parser, err := kong.New(&c, mappers)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parser.Parse([]string{"--d=" + arg}); err != nil || c.D != want {
			t.Errorf("%s is %v, %v; want %v", arg, c.D, err, want)
		}
		for _, bad := range []string{"", "NaN", "Inf", "1e300", "5 s", "five"} {
			if _, err := parser.Parse([]string{"--d=" + bad}); err == nil {
				t.Errorf("%q is %v", bad, c.D)
			}
		}
	}
	r := runPerf(t, "write lat --loopback --direct --duration 0.02")
	if s := r.Results[0].Seconds; s < 0.02 || s > 10 {
		t.Errorf("--duration 0.02 took %v s", s)
	}
}

func TestDevinfo(t *testing.T) {
	args := []string{"devinfo", "--addr", "10.0.0.9/24", "--addr", "fd00::9/64", "--mac", "02:00:00:00:00:09", "--mtu", "1500"}
	code, brief, stderr := runCommand(t.Context(), nil, args...)
	if code != 0 || stderr != "" || strings.Contains(brief, "GID") {
		t.Fatalf("exit code %d, stderr %q, stdout:\n%s", code, stderr, brief)
	}
	code, full, stderr := runCommand(t.Context(), nil, append(args, "-v")...)
	if code != 0 || stderr != "" {
		t.Fatalf("-v: exit code %d, stderr %q", code, stderr)
	}
	for _, want := range []string{
		"\ttransport:\t\t\tInfiniBand (0)\n",
		"\twire_protocols:\t\t\tRoCEv2, iWARP\n",
		"\tnode_guid:\t\t\t0000:00ff:fe00:0009\n",
		"\t\tport:\t1\n",
		"\t\t\tstate:\t\t\tPORT_ACTIVE (4)\n",
		"\t\t\tactive_mtu:\t\t1024 (3)\n",
		"\t\t\tGID[  0]:\t\tfe80::ff:fe00:9, RoCE v2\n",
		"\t\t\tGID[  1]:\t\t::ffff:10.0.0.9, RoCE v2\n",
		"\t\t\tGID[  2]:\t\tfd00::9, RoCE v2\n",
		"\t\t\tGID[128]:\t\tfe80::ff:fe00:9, RoCE v1\n",
		"\t\t\tGID[130]:\t\tfd00::9, RoCE v1\n",
	} {
		if !strings.Contains(full, want) {
			t.Errorf("-v: no line %q in:\n%s", want, full)
		}
	}
	for line := range strings.Lines(brief) {
		if line != "\n" && !strings.Contains(full, line) && !strings.HasPrefix(line, "hca_id") {
			t.Errorf("-v lacks the line %q", line)
		}
	}
	code, stdout, _ := runCommand(t.Context(), nil, append(args, "--json")...)
	var info struct {
		Ports []struct {
			State string
			GIDs  []struct{ GID, Type string }
		}
	}
	if err := json.Unmarshal([]byte(stdout), &info); code != 0 || err != nil {
		t.Fatalf("--json: exit code %d, %v in:\n%s", code, err, stdout)
	}
	if len(info.Ports) != 1 || info.Ports[0].State != "PORT_ACTIVE" || len(info.Ports[0].GIDs) != 6 ||
		info.Ports[0].GIDs[2].GID != "fd00::9" || info.Ports[0].GIDs[4].Type != "RoCE v1" {
		t.Errorf("--json: %+v", info)
	}
}

func runDemo(t *testing.T, args ...string) (int, demoReport, string) {
	t.Helper()
	code, stdout, stderr := runCommand(t.Context(), nil, append([]string{"demo", "--json", "--time=1ms"}, args...)...)
	var r demoReport
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("exit code %d, stderr %q, stdout: %v in:\n%s", code, stderr, err, stdout)
	}
	return code, r, stderr
}

func checkDemo(t *testing.T, code int, r demoReport, stderr string, rows, mtu int) {
	t.Helper()
	if code != 0 || stderr != "" || !r.Verified || len(r.Results) != 3*rows || r.PathMTU != mtu {
		t.Fatalf("exit code %d, stderr %q, want %d rows with path MTU %d: %+v", code, stderr, rows, mtu, r)
	}
	for _, row := range r.Results {
		if row.Missing {
			if row.Operation != "SEND_WITH_IMM" || row.Transport != "iWARP" {
				t.Errorf("%+v", row)
			}
			continue
		}
		if row.Messages < 2 || row.Verified != row.Messages || row.P50 <= 0 || row.Size > 0 && row.Gbps <= 0 {
			t.Errorf("%+v", row)
		}
		// Over a wire protocol there are as many packets as the data takes, and more; the direct way has none, but perhaps some
		// with which the stacks look for each other.
		linkMTU := map[int]uint64{1024: 1500, 4096: 4200}[mtu]
		few := row.Packets*linkMTU < uint64(row.Messages*row.Size) || row.Packets == 0
		if direct := row.Transport == "in process, direct"; direct && row.Packets > 20 || !direct && few {
			t.Errorf("%d messages in %d packets: %+v", row.Messages, row.Packets, row)
		}
	}
}

func TestDemoVerifiesEverything(t *testing.T) {
	code, r, stderr := runDemo(t, "--size=0", "--size=1", "--size=4097", "--size=100000")
	checkDemo(t, code, r, stderr, 5*4+2, 4096)
	code, r, stderr = runDemo(t, "--mtu=1500", "--size=5000")
	checkDemo(t, code, r, stderr, 5+2, 1024)
}

func TestDemoOnABadLinkIntoACapture(t *testing.T) {
	file := filepath.Join(t.TempDir(), "demo.pcapng")
	code, r, stderr := runDemo(t, "--size=3000", "--impair=loss=1%,corrupt=1%,dup=1%,seed=7", "--capture="+file)
	checkDemo(t, code, r, stderr, 5+2, 4096)
	if info, err := os.Stat(file); err != nil || info.Size() < 1<<16 {
		t.Errorf("capture: %v, %v", info, err)
	}
}

// TestDemoSaysWhatIsWrong has a link that nothing crosses: the first row fails, in the table and by the exit code.
func TestDemoSaysWhatIsWrong(t *testing.T) {
	code, r, stderr := runDemo(t, "--size=8", "--impair=loss=100%")
	if code != 1 || !strings.Contains(stderr, "RETRY_EXC_ERR") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	if r.Verified || len(r.Results) != 1 || r.Results[0].Verified != 0 || !strings.Contains(r.Results[0].Error, "RETRY_EXC_ERR") {
		t.Errorf("%+v", r)
	}
	code, stdout, _ := runCommand(t.Context(), nil, "demo", "--size=8", "--impair=loss=100%")
	if code != 1 || !strings.Contains(stdout, "FAILED") {
		t.Errorf("exit code %d, stdout:\n%s", code, stdout)
	}
}

// TestDemoNoticesWrongData changes a byte behind the transport's back.
func TestDemoNoticesWrongData(t *testing.T) {
	p, err := newDemoPair(&env{stdout: &transcript{}, stderr: &transcript{}}, &demoCmd{}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.connectIWARP(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		for _, op := range demoOperations {
			if op.missing(transport) {
				continue
			}
			r := p.newRun(transport, op, 8)
			_, verified, err := r.batch(t.Context(), 4)
			if err != nil || verified != 4 {
				t.Fatalf("%v over %v: %d of 4 verified, %v", op.opcode, transport, verified, err)
			}
			r.destination()[8*2] ^= 1
			if got := r.verify(4); got != 3 {
				t.Errorf("%v over %v: %d of 4 verified with one of them wrong", op.opcode, transport, got)
			}
		}
	}
}

func TestDemoStopsWhenInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	code, _, stderr := runCommand(ctx, nil, "demo")
	if code != 1 || stderr != "softrnic: interrupted\n" {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}
