package demo

import (
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

func runDemo(t *testing.T, args ...string) (int, report, string) {
	t.Helper()
	code, stdout, stderr := program.Run(t.Context(), nil, append([]string{"demo", "--json", "--time=1ms"}, args...)...)
	var r report
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatalf("exit code %d, stderr %q, stdout: %v in:\n%s", code, stderr, err, stdout)
	}
	return code, r, stderr
}

func checkDemo(t *testing.T, code int, r report, stderr string, rows, mtu int) {
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
		// Over a wire protocol there are at least as many packets as the data needs. The direct
		// path has none, except for neighbour discovery of the stacks.
		linkMTU := map[int]uint64{1024: 1500, 4096: 4200}[mtu]
		few := row.Packets*linkMTU < uint64(row.Messages*row.Size) || row.Packets == 0
		if direct := row.Transport == "in process, direct"; direct && row.Packets > 20 || !direct && few {
			t.Errorf("%d messages in %d packets: %+v", row.Messages, row.Packets, row)
		}
	}
}

func TestDemoVerifiesEverything(t *testing.T) {
	t.Parallel()
	code, r, stderr := runDemo(t, "--size=0", "--size=1", "--size=4097", "--size=100000")
	checkDemo(t, code, r, stderr, 5*4+2, 4096)
	code, r, stderr = runDemo(t, "--mtu=1500", "--size=5000")
	checkDemo(t, code, r, stderr, 5+2, 1024)
}

func TestDemoOnABadLinkIntoACapture(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "demo.pcapng")
	code, r, stderr := runDemo(t, "--size=3000", "--impair=loss=1%,corrupt=1%,dup=1%,seed=7", "--capture="+file)
	checkDemo(t, code, r, stderr, 5+2, 4096)
	if info, err := os.Stat(file); err != nil || info.Size() < 1<<16 {
		t.Errorf("capture: %v, %v", info, err)
	}
}

// TestDemoSaysWhatIsWrong: on a link that loses all packets the first row fails, as the table and
// the exit code show.
func TestDemoSaysWhatIsWrong(t *testing.T) {
	t.Parallel()
	code, r, stderr := runDemo(t, "--size=8", "--impair=loss=100%")
	if code != 1 || !strings.Contains(stderr, "RETRY_EXC_ERR") || strings.Count(stderr, "\n") != 1 {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
	if r.Verified || len(r.Results) != 1 || r.Results[0].Verified != 0 || !strings.Contains(r.Results[0].Error, "RETRY_EXC_ERR") {
		t.Errorf("%+v", r)
	}
	code, stdout, _ := program.Run(t.Context(), nil, "demo", "--size=8", "--impair=loss=100%")
	if code != 1 || !strings.Contains(stdout, "FAILED") {
		t.Errorf("exit code %d, stdout:\n%s", code, stdout)
	}
}

// TestDemoNoticesWrongData changes a byte of received data.
func TestDemoNoticesWrongData(t *testing.T) {
	p, err := newPair(&cli.Env{Stdout: io.Discard, Stderr: io.Discard}, &Command{}, false)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if err := p.connectIWARP(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		for _, op := range operations {
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
	code, _, stderr := program.Run(ctx, nil, "demo")
	if code != 1 || stderr != "softrnic: interrupted\n" {
		t.Errorf("exit code %d, stderr %q", code, stderr)
	}
}
