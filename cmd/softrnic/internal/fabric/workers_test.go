package fabric

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestWorkers: results, samples and captures are the same with any number of workers.
func TestWorkers(t *testing.T) {
	realTime := regexp.MustCompile(`"real_s": [^,]*,`)
	run := func(workers, workload string) (all []byte) {
		dir := t.TempDir()
		file := func(name string) string { return filepath.Join(dir, name) }
		out := runFabric(t, "--topology=leaf-spine:leaves=3,hosts=2,spines=2", "--workload", workload, "--workers", workers, "--json",
			"--seed=4", "--verify", "--set=switch.queue=60kB", "--set=rdma.timeout=5", "--set=rdma.dcqcn.enabled=true",
			"--set=switch.ecn.max=50kB", "--set=switch.ecn.p=0.1", "--failure=cable-down:node=leaf0,peer=spine1,at=15us,for=10us",
			"--failure=bit-errors:node=leaf1,peer=spine0,rate=1e-7", "--failure=slow-host:node=host3,at=3us,for=50us,share=0.5",
			"--failure=switch-restart:node=spine0,at=40us,for=5us", "--fct", file("fct"), "--queues", file("queues"),
			"--rates", file("rates"), "--capture", "leaf0:spine0="+file("up"), "--capture", "host5:leaf2="+file("host"))
		all = realTime.ReplaceAll([]byte(out), nil)
		for _, name := range []string{"fct", "queues", "rates", "up", "host"} {
			b, err := os.ReadFile(file(name))
			if err != nil || len(b) == 0 {
				t.Fatal(err, len(b))
			}
			all = append(all, b...)
		}
		return all
	}
	for _, workload := range []string{"permutation:size=100kB,shift=3", "poisson:load=0.5,duration=60us,sizes=testdata/sizes.csv",
		"permutation:size=30kB,rounds=2"} {
		first := run("1", workload)
		for _, workers := range []string{"2", "3", "4"} {
			if got := run(workers, workload); !bytes.Equal(got, first) {
				t.Errorf("%s: with %s workers:\n%.2000s\nwith one:\n%.2000s", workload, workers, got, first)
			}
		}
	}
}
