//go:build linux && amd64

package dropin

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// mooncakeAlone are tests of Mooncake's transfer engine of one process, with the number of their
// cases.
var mooncakeAlone = []struct {
	program, cases string
	env            []string
	link           endpoints
}{
	{"rdma_loopback_test --metadata_server=P2PHANDSHAKE", "1 test", nil, endpoints{link: "kernel:veth0", server: addresses[0]}},
	{"rdma_large_mr_test", "3 tests", []string{"MC_MAX_MR_SIZE=67108864"}, endpoints{link: "kernel:veth0", server: addresses[0]}},
	{"endpoint_store_integration_test", "1 test", nil, endpoints{link: "kernel:veth0", server: addresses[0]}},
	// It has cases for four cards with these names. Two cases want GIDs 0 and 1 to be different
	// addresses; over sockets they are the same.
	{"rdma_endpoint_reestablish_test", "8 tests", []string{"SOFTRNIC_DEVICE=mlx5_1,"},
		endpoints{link: "shm:mooncake", server: "10.9.0.1/24;10.9.0.2/24;10.9.0.3/24;10.9.0.4/24"}},
}

// TestMooncake runs tests of Mooncake's transfer engine that move data, of the tree that
// SOFTRNIC_MOONCAKE names. The processes find each other without a server for metadata. The engine
// connects any device to any other, so that there must be no iWARP device.
func TestMooncake(t *testing.T) {
	gate.Long(t)
	tree := built(t, "SOFTRNIC_MOONCAKE")
	text, err := os.ReadFile(filepath.Join(tree, "mooncake-wheel/pyproject.toml"))
	if err != nil {
		t.Fatal(err)
	}
	version := regexp.MustCompile(`(?m)^version = "(.*)"$`).FindSubmatch(text)
	if version == nil {
		t.Fatal("pyproject.toml has no version")
	}
	pkg := "Mooncake " + string(version[1])
	softrnic, w := command(t), newNetwork(t)
	within := func(ctx context.Context, side int, env []string, program string) *exec.Cmd {
		line := strings.Fields(program)
		line[0] = filepath.Join(tree, "build/tests", line[0])
		cmd := w.command(ctx, side, append([]string{softrnic, "run", "--"}, line...)...)
		cmd.Env = append(append(cmd.Env, "SOFTRNIC_LINK=kernel:veth0", "SOFTRNIC_ADDR="+addresses[side], "SOFTRNIC_DEVICE=mlx5_0,",
			"SOFTRNIC_COUNTERS="+filepath.Join(w.dirs[side], "counters")), env...)
		return cmd
	}
	for _, p := range mooncakeAlone {
		t.Run(p.program, func(t *testing.T) {
			programs.RanOf(t, pkg, p.program, p.link.name()+" (RoCEv2)")
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
			defer cancel()
			env := append([]string{"SOFTRNIC_LINK=" + p.link.link, "SOFTRNIC_ADDR=" + p.link.server}, p.env...)
			out, err := within(ctx, 0, env, p.program).CombinedOutput()
			if err != nil || !strings.Contains(string(out), "[  PASSED  ] "+p.cases+".\n") {
				t.Errorf("%v, want %s\n%s", err, p.cases, out)
			}
		})
	}

	const own = " --metadata_server=P2PHANDSHAKE --device_name=mlx5_0 --local_server_name="
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
	defer cancel()
	target := within(ctx, 1, nil, "rdma_transport_test --mode=target --mem_backend=cpu"+own+addresses[1]+":12345")
	said, ended := proc.Start(t, target)
	if err := said.WaitFor("RDMA device: mlx5_0", ended); err != nil { // next it registers its memory
		t.Fatal(err)
	}
	segment := regexp.MustCompile(`listening on (\S+)`).FindStringSubmatch(said.String())
	if segment == nil {
		t.Fatalf("the target names no segment:\n%s", said.String())
	}
	for _, p := range [][2]string{{"rdma_transport_test --mem_backend=cpu", "RDMA compare: OK"},
		{"rdma_transport_test2", "[  PASSED  ] 2 tests."}} {
		program, ok := p[0], p[1]
		t.Run(program, func(t *testing.T) {
			programs.RanOf(t, pkg, program, "sockets (RoCEv2)")
			out, err := within(ctx, 0, nil, program+own+addresses[0]+":12346 --segment_id="+segment[1]).CombinedOutput()
			if err != nil || !strings.Contains(string(out), ok) || strings.Contains(string(out), "] FAILED") {
				t.Errorf("%v\n%s\ntarget:\n%s", err, out, said.String())
			}
		})
	}
	sum, err := programs.Counted(filepath.Join(w.dirs[0], "counters"))
	if sent := 4 * sum["port_xmit_data"]; err != nil || sent < 900<<20 { // 200 messages of 4,096,000 bytes, and others
		t.Errorf("the devices have sent %d bytes (%v): %v", sent, err, sum)
	}
}
