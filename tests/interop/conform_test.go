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

	"github.com/softrnic/softrnic/tests/interop/peer"
)

// fewCases are those that are run without SOFTRNIC_LONG.
const fewCases = "PSN-GAP-*"

// TestConform has softrnic conform test rxe, through the responder for kernel devices. What departs from the statements is what
// the report in tests/conformance/reports says; with SOFTRNIC_LONG all cases are run, twice, and SOFTRNIC_REPORT=1 writes the report.
func TestConform(t *testing.T) {
	program := buildSoftRNIC(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	script, err := os.ReadFile("../../cmd/softrnic/internal/conform/responder/responder.py")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Put(t.Context(), "/tmp/responder.py", script); err != nil {
		t.Fatal(err)
	}
	const token = "a token of a test"
	responder, err := p.Start(fmt.Sprintf("SOFTRNIC_CONFORM_TOKEN='%s' exec /usr/bin/python3 /tmp/responder.py rxe0 0.0.0.0:18516", token))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = responder.Kill() }()
	for began := time.Now(); !strings.Contains(responder.Output(), "conform: rxe0"); time.Sleep(100 * time.Millisecond) {
		if time.Since(began) > time.Minute {
			t.Fatalf("the responder does not begin:\n%s", responder.Output())
		}
	}
	args := []string{"--json", "--link", "tap:conform0,bridge=" + p.Netns.Bridge, "--addr", "10.77.0.101", "--target", p.Addr4().String(),
		"--control", fmt.Sprintf("%v:18516", p.Addr4()), "--wait", "10s", "--quiet", "200ms"}
	rounds := 1
	if os.Getenv("SOFTRNIC_LONG") != "" {
		rounds = 2
	} else {
		args = append(args, "--only", fewCases)
	}
	report := filepath.Join("..", "conformance", "reports", "rxe.txt")
	known, err := os.ReadFile(report)
	if err != nil && os.Getenv("SOFTRNIC_REPORT") == "" {
		t.Fatal(err)
	}
	for round := range rounds {
		cmd := p.Netns.Command(t.Context(), program, append([]string{"conform"}, args...)...)
		cmd.Env = append(os.Environ(), "SOFTRNIC_CONFORM_TOKEN="+token)
		var out, errs strings.Builder
		cmd.Stdout, cmd.Stderr = &out, &errs
		began := time.Now()
		err := cmd.Run() // fails where cases fail
		var result struct {
			Results []struct{ ID, Verdict, Statement, Reason string }
		}
		if e := json.Unmarshal([]byte(out.String()), &result); e != nil {
			t.Fatalf("%v, %v\n%.2000s\n%.2000s", err, e, errs.String(), responder.Output())
		}
		t.Logf("%d cases in %v", len(result.Results), time.Since(began).Round(time.Second))
		var departures []string
		for _, r := range result.Results {
			if r.Verdict != "PASS" {
				departures = append(departures, fmt.Sprintf("%s %s: %s", r.Verdict, r.ID, r.Statement))
				t.Logf("%s %s: %s", r.Verdict, r.ID, r.Reason)
			}
		}
		if os.Getenv("SOFTRNIC_REPORT") != "" && round == 0 {
			text := fmt.Sprintf("rxe of Linux %s, %d cases of RoCEv2. It departs from these statements:\n\n%s\n",
				strings.TrimSpace(p.Run(t, "uname -r")), len(result.Results), strings.Join(departures, "\n"))
			if err := os.WriteFile(report, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
			known = []byte(text)
		}
		for _, d := range departures {
			if !slices.Contains(strings.Split(string(known), "\n"), d) {
				t.Errorf("%s, which %s does not say", d, report)
			}
		}
		if rounds > 1 {
			for line := range strings.Lines(string(known)) {
				if line = strings.TrimSpace(line); (strings.HasPrefix(line, "FAIL ") || strings.HasPrefix(line, "SKIP ")) && !slices.Contains(departures, line) {
					t.Errorf("%s says %s, which is not so", report, line)
				}
			}
		}
	}
	p.Run(t, "ibv_devinfo -d rxe0") // it has taken no harm
}
