package fabric

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestDigests: 54, 64, 256 and 1,024 hosts give the same digest in ten runs each, on one to three
// processors, beside goroutines that never wait, and on arm64 under qemu-user.
func TestDigests(t *testing.T) {
	gate.Long(t)
	x := newExperiment(t)
	arm := filepath.Join(x.dir, "softrnic-arm64")
	build := exec.Command("go", "build", "-o", arm, "../../cmd/softrnic")
	build.Env = append(os.Environ(), "GOARCH=arm64", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	qemu, err := exec.LookPath("qemu-aarch64-static")
	if err != nil {
		t.Error("it needs qemu-user-static") // a skip would hide the rest
	}
	digest := func(env []string, program ...string) string {
		t.Helper()
		cmd := exec.Command(program[0], program[1:]...)
		cmd.Env = append(os.Environ(), env...)
		out, err := cmd.Output()
		_, after, _ := strings.Cut(string(out), `"digest": "`)
		d, _, ok := strings.Cut(after, `"`)
		if err != nil || !ok || len(d) != 16 {
			t.Fatalf("%v: %v: %.500s", program, err, out)
		}
		return d
	}
	for _, c := range []struct {
		hosts              int
		topology, workload string
	}{
		{54, "fat-tree:k=6", "poisson:load=0.5,duration=200us,sizes=testdata/irn.csv"},
		{64, "leaf-spine:leaves=8,hosts=8,spines=4", "permutation:size=200kB,shift=9"},
		{256, "leaf-spine:leaves=16,hosts=16,spines=8", "permutation:size=100kB,shift=17"},
		{1024, "fat-tree:k=16", "permutation:size=30kB,shift=65"},
	} {
		fatTree := strings.HasPrefix(c.topology, "fat-tree")
		args := []string{"fabric", "run", "--json", "--topology", c.topology, "--workload", c.workload, "--seed=5", "--set=switch.queue=150kB",
			"--set=switch.ecn.max=100kB", "--set=switch.ecn.p=0.1", "--set=rdma.timeout=6", "--set=rdma.dcqcn.enabled=true",
			"--failure=cable-down:node=" + map[bool]string{true: "edge0,peer=aggregation0", false: "leaf0,peer=spine0"}[fatTree] +
				",at=20us,for=30us"}
		first := digest([]string{"GOMAXPROCS=1"}, append([]string{x.program}, args...)...)
		for run := 1; run < 10; run++ {
			stop := func() {}
			if run%2 == 1 {
				stop = keepBusy()
				t.Cleanup(stop)
			}
			processors := 1 + run%3
			got := digest([]string{fmt.Sprint("GOMAXPROCS=", processors)}, append([]string{x.program}, args...)...)
			if stop(); got != first {
				t.Errorf("%d hosts, run %d, GOMAXPROCS=%d: digest %s, and %s on one processor", c.hosts, run, processors, got, first)
			}
		}
		if qemu != "" {
			if got := digest([]string{"GOMAXPROCS=2"}, append([]string{qemu, arm}, args...)...); got != first {
				t.Errorf("%d hosts on arm64: digest %s, and %s on %s", c.hosts, got, first, runtime.GOARCH)
			}
		}
		t.Logf("result: %d hosts: digest %s in all runs", c.hosts, first)
	}
}

// keepBusy lets each processor run a goroutine that never waits, until stop is called.
func keepBusy() (stop func()) {
	var done atomic.Bool
	for range runtime.NumCPU() {
		go func() {
			for !done.Load() {
			}
		}()
	}
	return func() { done.Store(true) }
}
