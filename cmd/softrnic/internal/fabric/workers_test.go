package fabric

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestWorkers: results, samples and captures are the same with any number of workers, also where
// the end of a flow starts others.
func TestWorkers(t *testing.T) {
	realTime := regexp.MustCompile(`"real_s": [^,]*,`)
	run := func(t *testing.T, workers string, args []string) (all []byte) {
		dir := t.TempDir()
		file := func(name string) string { return filepath.Join(dir, name) }
		out := runFabric(t, append(args, "--workers", workers, "--json",
			"--seed=4", "--verify", "--set=switch.queue=60kB", "--set=rdma.timeout=5", "--set=rdma.dcqcn.enabled=true",
			"--set=switch.ecn.max=50kB", "--set=switch.ecn.p=0.1", "--failure=cable-down:node=leaf0,peer=spine1,at=15us,for=10us",
			"--failure=bit-errors:node=leaf1,peer=spine0,rate=1e-7", "--failure=slow-host:node=host3,at=3us,for=50us,share=0.5",
			"--failure=switch-restart:node=spine0,at=40us,for=5us", "--fct", file("fct"), "--queues", file("queues"),
			"--rates", file("rates"), "--capture", "leaf0:spine1="+file("up"), "--capture", "host5:leaf2="+file("host"))...)
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
	const rounds = "all-to-all:size=3kB,rounds=4"
	for _, c := range []struct{ topology, workloads string }{
		{"", "permutation:size=100kB,shift=3"},
		{"", "poisson:load=0.5,duration=60us,sizes=testdata/sizes.csv"},
		{"", "permutation:size=30kB,rounds=2"},
		{"", rounds},
		{",uplink_delay=20us", rounds}, // flows between hosts of a leaf end before the next ones are opened
		{"", "incast:size=20kB,senders=[5,1,3],stagger=100ns,rounds=5"},
		{"", "all-reduce-ring:size=150kB,rounds=2"},
		{"", "all-reduce-ring:size=7,hosts=[4,0,3],rounds=3"},
		{"", "all-reduce-tree:size=60kB,chunks=3,rounds=2"},
		{",uplink_delay=20us", "all-reduce-tree:size=20kB,chunks=2,rounds=3"},
		{"", "storage:clients=3,servers=2,size=30kB,reads=6,depth=2"},
		{"", "all-reduce-ring:size=60kB,rounds=2 storage:clients=[1],servers=[2,4],size=10kB,reads=5,start=3us " +
			"poisson:load=0.2,duration=60us,sizes=testdata/sizes.csv incast:size=10kB,rounds=3,start=20us"},
	} {
		t.Run(c.workloads+c.topology, func(t *testing.T) {
			args := []string{"--topology=leaf-spine:leaves=3,hosts=2,spines=2" + c.topology}
			for _, w := range strings.Fields(c.workloads) {
				args = append(args, "--workload", w)
			}
			first := run(t, "1", args)
			for _, workers := range []string{"2", "3", "4"} {
				if got := run(t, workers, args); !bytes.Equal(got, first) {
					t.Errorf("with %s workers:\n%.2000s\nwith one:\n%.2000s", workers, got, first)
				}
			}
		})
	}
}

// TestRounds: a flow begins when the one before has ended, between hosts of different switches too.
// A collective operation begins again when all hosts can know of each other's end.
func TestRounds(t *testing.T) {
	const delay = 2 * time.Microsecond
	for _, c := range []struct {
		workload string
		between  time.Duration // of two rounds
	}{
		{`kind="permutation", size=100, shift=4, rounds=4`, 0},
		{`kind="all-reduce-ring", size=100, rounds=4`, delay},
		{`kind="all-reduce-tree", size=100, rounds=4`, delay},
	} {
		r := prepared(t, `topology = {kind="leaf-spine", leaves=2, hosts=4, spines=2, uplink_delay="`+delay.String()+`"}`,
			"workload = [{"+c.workload+"}]")
		if err := r.advance(t.Context(), func() {}); err != nil || len(r.flows) != r.planned {
			t.Fatalf("%s: %d of %d flows: %v", c.workload, len(r.flows), r.planned, err)
		}
		last := map[int]time.Duration{} // the last end, of each host or of all
		for i, f := range r.flows {
			of, begins := f.from, true
			if c.between > 0 {
				of, begins = 0, i%(r.planned/4) == 0
			}
			if before := last[of]; begins && before > 0 && f.start != before+c.between {
				t.Errorf("%s: flow %d begins at %v, and the one before has ended at %v", c.workload, i, f.start, before)
			}
			last[of] = max(last[of], f.end)
		}
	}
}
