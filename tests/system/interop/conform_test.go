//go:build linux

package interop

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// fewCases are the cases outside the long run.
var fewCases = map[string][]string{"rxe": {"PSN-GAP-*"}, "siw": {"DDP-TAGGED-*", wrongCRC}}

// wrongCRC is the case that shows how siw writes a Terminate (peer.SwapsTerminate).
const wrongCRC = "FPDU-CRC-WRONG"

// TestConform runs softrnic conform on rxe and siw, through the responder for kernel devices.
// Deviations from the statements must equal the kernel's reports in tests/conformance/reports. In
// the long run all cases run, twice, and SOFTRNIC_REPORT=1 writes the reports.
func TestConform(t *testing.T) {
	gate.System(t)
	t.Run("rxe", func(t *testing.T) { testConform(t, verbs.RoCEv2, "rxe") })
	t.Run("siw", func(t *testing.T) { testConform(t, verbs.IWARP, "siw") })
}

func testConform(t *testing.T, transport verbs.Transport, driver string) {
	only, rounds := fewCases[driver], 1
	if os.Getenv("SOFTRNIC_LONG") != "" {
		only, rounds = nil, 2
	}
	row := cmPeer(t, 2, transport).Kernel
	report := filepath.Join("..", "..", "conformance", "reports", fmt.Sprintf("%s-%v.txt", driver, row.Linux))
	known, err := os.ReadFile(report)
	if err != nil && os.Getenv("SOFTRNIC_REPORT") == "" {
		t.Fatal(err)
	}
	for round := range rounds {
		results := judged(t, transport, driver, only)
		t.Logf("result: %d cases", len(results))
		var departures []string
		for _, r := range results {
			if swapped := strings.HasPrefix(r.Reason, "layer of message"); r.ID == wrongCRC && swapped != row.Has(peer.SwapsTerminate) {
				t.Errorf("%s: %s: %s", wrongCRC, r.Verdict, r.Reason)
			}
			if r.Verdict != "PASS" {
				departures = append(departures, fmt.Sprintf("%s %s: %s", r.Verdict, r.ID, r.Statement))
				t.Logf("%s %s: %s", r.Verdict, r.ID, r.Reason)
			}
		}
		if os.Getenv("SOFTRNIC_REPORT") != "" && round == 0 {
			kernel := strings.TrimSpace(cmPeer(t, 2, transport).Run(t, "uname -r"))
			text := fmt.Sprintf("%s of Linux %s, %d cases of %v. It departs from these statements:\n\n%s\n",
				driver, kernel, len(results), transport, strings.Join(departures, "\n"))
			if err := os.WriteFile(report, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			known = []byte(text)
		}
		for _, d := range departures {
			if !slices.Contains(strings.Split(string(known), "\n"), d) {
				t.Errorf("%s, which is not in %s", d, report)
			}
		}
		if rounds > 1 {
			for line := range strings.Lines(string(known)) {
				if line = strings.TrimSpace(line); (strings.HasPrefix(line, "FAIL ") || strings.HasPrefix(line, "SKIP ")) &&
					!slices.Contains(departures, line) {
					t.Errorf("%s has %s, which no longer happens", report, line)
				}
			}
		}
	}
}

// conformResult is a verdict of softrnic conform.
type conformResult struct{ ID, Verdict, Statement, Reason string }

// judged runs the cases of only, or all. The target must survive them.
func judged(t *testing.T, transport verbs.Transport, driver string, only []string) []conformResult {
	t.Helper()
	p := cmPeer(t, 2, transport)
	results, stopped := conform(t, p, transport, driver, only)
	if stopped != "" {
		p.Kill()
		t.Fatalf("%s does not survive %s: no case may harm a target", driver, stopped)
	}
	p.Run(t, "ibv_devinfo -d "+driver+"0") // it still works
	return results
}

// TestConformOtherDevice: rdma_cm takes rxe0, the older device, for the address of rxe0 and siw0.
// The responder of siw0 notices it before the first case, and conform says that it cannot test.
func TestConformOtherDevice(t *testing.T) {
	gate.System(t)
	p := peer.Boot(t, peer.Config{ID: 52})[0]
	useTransport(t, p, verbs.RoCEv2)
	p.Run(t, "modprobe siw; rdma link add siw0 type siw netdev eth0")
	defer p.Run(t, "rdma link del siw0")
	code, out, errs := runConform(t, p, verbs.IWARP, "siw", nil)
	want := fmt.Sprintf("cannot test siw0: listen: the target says: OSError: rdma_cm takes rxe0 for %v:0, not siw0", p.Addr4())
	if code != 2 || out != "" || !strings.Contains(errs, want) {
		t.Errorf("conform exits with %d, want 2 and %q\n%.2000s\n%.2000s", code, want, out, errs)
	}
}

// conform runs softrnic conform against a peer, until it ends or the target stops answering.
func conform(t *testing.T, p *peer.Peer, transport verbs.Transport, driver string, only []string) (results []conformResult,
	stopped string) {
	t.Helper()
	code, out, errs := runConform(t, p, transport, driver, only) // fails if cases fail
	var report struct {
		Results []conformResult
		Stopped string
	}
	if err := json.Unmarshal([]byte(out), &report); err != nil {
		t.Fatalf("exit status %d, %v\n%.4000s", code, err, errs)
	}
	return report.Results, report.Stopped
}

// runConform runs softrnic conform --json against a peer. After the tester's, errs has the output
// of the responder.
func runConform(t *testing.T, p *peer.Peer, transport verbs.Transport, driver string, only []string) (code int, out, errs string) {
	t.Helper()
	script, err := os.ReadFile("../../../cmd/softrnic/internal/conform/responder/responder.py")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Put(t.Context(), "/tmp/responder.py", script); err != nil {
		t.Fatal(err)
	}
	const token = "a token of a test"
	responder, err := p.Start(fmt.Sprintf("SOFTRNIC_CONFORM_TOKEN='%s' exec /usr/bin/python3 /tmp/responder.py %s0 0.0.0.0:18516", token,
		driver))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = responder.Kill() }()
	for began := time.Now(); !strings.Contains(responder.Output(), "conform: "+driver+"0"); time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > 3*time.Minute {
			t.Fatalf("the responder does not begin:\n%s", responder.Output())
		}
	}
	args := []string{"conform", "--json", "--transport", strings.ToLower(transport.String()),
		"--link", "tap:conform0,bridge=" + p.Netns.Bridge, "--addr", "10.77.0.101", "--target", p.Addr4().String(),
		"--control", fmt.Sprintf("%v:18516", p.Addr4()), "--wait", "10s", "--quiet", "200ms"}
	for _, o := range only {
		args = append(args, "--only", o)
	}
	cmd := p.Netns.Command(t.Context(), softrnicProgram(t), args...)
	cmd.Env = append(os.Environ(), "SOFTRNIC_CONFORM_TOKEN="+token)
	var printed, said strings.Builder
	cmd.Stdout, cmd.Stderr = &printed, &said
	if err := cmd.Run(); cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode(), printed.String(), said.String() + responder.Output()
}
