//go:build linux && amd64

package dropin

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// built returns the directory of programs of another project, which Debian has no package of. The
// test is skipped if the environment variable does not name it.
func built(t *testing.T, variable string) string {
	t.Helper()
	dir := os.Getenv(variable)
	if dir == "" {
		t.Skipf("%s names no directory; README.md says of which one", variable)
	}
	return dir
}

// TestValkey runs runtest-rdma, Valkey's own test of RDMA, with the server of the tree that
// SOFTRNIC_VALKEY names. It compiles its client.
func TestValkey(t *testing.T) {
	gate.Long(t)
	tree := built(t, "SOFTRNIC_VALKEY")
	needs(t, "/usr/bin/make", "make")
	needs(t, "/usr/share/doc/python3-netifaces", "python3-netifaces")
	version, err := exec.Command(filepath.Join(tree, "src/valkey-server"), "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(version), "v=")
	number, _, _ := strings.Cut(rest, " ")
	for called, transport := range map[string]string{"RoCEv2": "roce", "iWARP": "iwarp"} {
		t.Run(called, func(t *testing.T) {
			programs.RanOf(t, "Valkey "+number, "runtest-rdma", "sockets ("+called+")")
			softrnic := command(t)
			w := newNetwork(t)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			own := shared(t) // the script writes next to itself
			for _, line := range [][]string{
				{"cp", "-r", "--parents", "runtest-rdma", "tests/rdma", own}, {"ln", "-s", filepath.Join(tree, "src"), own},
				{"chmod", "-R", "a+rwX", own},
			} {
				cmd := exec.CommandContext(ctx, line[0], line[1:]...)
				cmd.Dir = tree
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%v: %v\n%s", line, err, out)
				}
			}
			counters := filepath.Join(w.dirs[0], "counters")
			var out []byte
			for {
				cmd := w.command(ctx, 0, softrnic, "run", "--link", "kernel:veth0", "--", "sh", "-c", "cd "+own+" && ./runtest-rdma")
				cmd.Env = append(cmd.Env, "SOFTRNIC_COUNTERS="+counters, "SOFTRNIC_TRANSPORT="+transport,
					"PYTHONUNBUFFERED=1") // the script ends by _exit
				out, err = cmd.CombinedOutput()
				// The script gives the server a second to start, which is not enough on a busy machine.
				if !strings.Contains(string(out), "connect failed - RDMA_CM_EVENT_REJECTED") || ctx.Err() != nil {
					break
				}
			}
			if err != nil || !strings.Contains(string(out), "Valkey Over RDMA test over "+addresses[0]+" [OK]\n") {
				t.Errorf("runtest-rdma: %v\n%s", err, out)
			}
			t.Logf("%s", out)
			sum, err := programs.Counted(counters)
			if sent := max(4*sum["port_xmit_data"], sum["iwarp_xmit_bytes"]); err != nil || sent < 1<<20 {
				t.Errorf("the devices have sent %d bytes (%v): %v", sent, err, sum)
			}
		})
	}
}

// TestFabtests runs libfabric's own tests, those that its script calls quick, over RoCE: the
// programs of the installation whose prefix SOFTRNIC_FABTESTS names, with Debian's libfabric.
func TestFabtests(t *testing.T) {
	gate.Long(t)
	prefix := built(t, "SOFTRNIC_FABTESTS")
	needs(t, "/usr/bin/fi_info", "libfabric-bin")
	for provider, known := range fabtestsKnown {
		t.Run(provider, func(t *testing.T) {
			softrnic := command(t)
			w := newNetwork(t)
			ctx, cancel := context.WithTimeout(t.Context(), 25*time.Minute)
			defer cancel()
			own := shared(t) // the script writes into its working directory, and finds there which tests are excluded
			cp := exec.CommandContext(ctx, "cp", "-r", filepath.Join(prefix, "share/fabtests/test_configs"), own)
			if out, err := cp.CombinedOutput(); err != nil {
				t.Fatalf("cp: %v\n%s", err, out)
			}
			cmd := w.command(ctx, 0, softrnic, "run", "--link", "kernel:veth0", "--", "bash", "-c",
				`cd "$0" && exec "$1/bin/runfabtests.sh" -v -T 60 -p "$1/bin" -t quick -s "$3" -c "$3" "$2"`, own, prefix, provider, addresses[0])
			out, err := cmd.CombinedOutput()
			counts := map[string]int{}
			for _, m := range fabtest.FindAllStringSubmatch(string(out), -1) {
				name, result := m[1], m[2]
				counts[result]++
				if result == "Fail" && !slices.Contains(known, name) {
					t.Errorf("%s fails", name)
				}
			}
			t.Logf("result: fabtests over %s: %v", provider, counts)
			if counts["Pass"] == 0 || t.Failed() {
				t.Errorf("runfabtests.sh: %v\n%s", err, out)
			}
		})
	}
}

// fabtestsKnown has the providers, and tests that fail for reasons of libfabric, which SUITES.md
// gives.
var fabtestsKnown = map[string][]string{
	"verbs":         {"fi_msg_sockets", "fi_shared_ctx -e msg --no-tx-shared-ctx"},
	"verbs;ofi_rxm": {"fi_rdm_pingpong -I 5 -v -U"},
}

// fabtest matches the name and the result of a test.
var fabtest = regexp.MustCompile(`- name: +(.*?) +-p ".*"\n +timestamp: .*\n +result: (\w+)`)
