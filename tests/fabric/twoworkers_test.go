package fabric

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestTwoWorkers has the real time and the processor time of two workers as shares of those of one:
// whole runs of the command in turns, the least of five each. The machine must be quiet. All runs
// have one digest.
func TestTwoWorkers(t *testing.T) {
	gate.Long(t)
	x := newExperiment(t)
	for _, c := range []struct{ topology, workload string }{
		{"fat-tree:k=8", "permutation:size=32MB,shift=37"},
		{"fat-tree:k=8", "permutation:size=8MB,shift=37"},
		{"fat-tree:k=6", "permutation:size=32MB,shift=19"},
		{"fat-tree:k=6", "permutation:size=8MB,shift=19"},
		{"leaf-spine:leaves=8,hosts=8,spines=8", "permutation:size=32MB,shift=9"},
		{"leaf-spine:leaves=8,hosts=8,spines=8", "permutation:size=8MB,shift=9"},
		{"leaf-spine:leaves=4,hosts=8,spines=4", "poisson:load=0.5,duration=20ms,sizes=../../cmd/softrnic/internal/fabric/testdata/sizes.csv"},
		{"leaf-spine:leaves=16,hosts=16,spines=16", "permutation:size=4MB,shift=67"},
		{"fat-tree:k=8", "poisson:load=0.5,duration=1ms,sizes=../../cmd/softrnic/internal/fabric/testdata/sizes.csv"},
		{"fat-tree:k=16", "permutation:size=1MB,shift=67"},
		{"fat-tree:k=8", "all-reduce-ring:size=32MB"},
	} {
		var real, processors [2]time.Duration
		digest := ""
		for range 5 {
			for i := range 2 {
				cmd := exec.Command(x.program, "fabric", "run", "--topology", c.topology, "--workload", c.workload, "--digest",
					"--workers", fmt.Sprint(1+i))
				cmd.Env = append(os.Environ(), "GOMAXPROCS=2")
				begun := time.Now()
				out, err := cmd.Output()
				if digest == "" {
					digest = string(out)
				}
				if err != nil || string(out) != digest {
					t.Fatalf("%v: %v: digest %s, want %s", cmd, err, out, digest)
				}
				took, used := time.Since(begun), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
				if real[i] == 0 || took < real[i] {
					real[i] = took
				}
				if processors[i] == 0 || used < processors[i] {
					processors[i] = used
				}
			}
		}
		t.Logf("result: %s, %s: two workers take %.2f of the time of one, and %.2f of its processor time", c.topology, c.workload,
			real[1].Seconds()/real[0].Seconds(), processors[1].Seconds()/processors[0].Seconds())
	}
}
