package fabric

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// TestWrongValues: an error names the key and the value.
func TestWrongValues(t *testing.T) {
	dir := t.TempDir()
	files := 0
	table := func(text string) string {
		files++
		name := filepath.Join(dir, fmt.Sprint("file", files))
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	star, incast := "--topology=star:hosts=4", "--workload=incast:size=1kB"
	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "use a file, or --topology and --workload"},
		{[]string{"testdata/none.toml"}, "testdata/none.toml"},
		{[]string{table("[topology\n")}, "line 2"},
		{[]string{table("[topology]\nkind = 5\n")}, `"topology.kind"`},
		{[]string{table("[topologie]\nkind = 'star'\n")}, "no key topologie"},
		{[]string{table("[link]\nrate = 'fast'\n")}, `"link.rate"): "fast" is no rate`},
		{[]string{table("[link]\ndelay = '-1us'\n")}, `"-1us" is no time`},
		{[]string{table("seed = -1\n")}, "seed is -1"},
		{[]string{table(strings.Repeat("#", maxFile+1))}, "it must have at most 1048576"},
		{[]string{"--topology=ring:hosts=4", incast}, `topology.kind is "ring"`},
		{[]string{"--topology=star:hosts=1", incast}, "topology has 1 hosts: there must be 2"},
		{[]string{"--topology=star:hosts=0", incast}, "topology.hosts is 0"},
		{[]string{"--topology=star:hosts=4,spines=2", incast}, "topology.spines: a topology of kind star has no such key"},
		{[]string{"--topology=fat-tree:k=5", incast}, "topology.k is 5: it must be even"},
		{[]string{"--topology=fat-tree:k=42", incast}, "topology.k is 42"},
		{[]string{"--topology=leaf-spine:leaves=4096,hosts=1,spines=4096", incast}, "topology.leaves times topology.spines"},
		{[]string{"--topology=leaf-spine:leaves=4096,hosts=1000,spines=1", incast}, "hosts: there must be 2 to 16384"},
		{[]string{`--topology=cables:attach=["a"]`, incast}, "1 hosts"},
		{[]string{`--topology=cables:attach=["a","host"]`, incast}, `switch "host"`},
		{[]string{star, incast, "--set=link.rate=1"}, "link.rate is 1: it must be 1e+06"},
		{[]string{star, incast, "--set=switch.ecmp=random"}, `switch.ecmp is "random"`},
		{[]string{star, incast, "--set=switch.ecn.p=0.5"}, "switch.ecn.max is 0"},
		{[]string{star, incast, "--set=switch.ecn.max=5kB", "--set=switch.ecn.min=6kB"}, "switch.ecn.min is 6000: it must be 0 to 5000"},
		{[]string{star, incast, "--set=switch.ecn.max=5kB", "--set=switch.ecn.p=nan"}, "switch.ecn.p is NaN"},
		{[]string{star, incast, "--set=switch.pfc.xoff=0"}, "switch.pfc.xoff is 0"},
		{[]string{star, incast, "--set=switch.pfc={classes=[8],xoff=1}"}, "switch.pfc.classes[0] is 8"},
		{[]string{star, incast, "--set=switch.trim.dscp=0"}, "switch.trim.dscp is 0: it must be 1 to 63"},
		{[]string{star, incast, "--set=switch.trim.dscp=64"}, "switch.trim.dscp is 64: it must be 1 to 63"},
		{[]string{star, incast, "--set=switch.trim.size=73"}, "switch.trim.size is 73: it must be 74 to 4096"},
		{[]string{star, incast, "--set=switch.weights=[1,2,-3]"}, "switch.weights[2] is -3"},
		{[]string{star, incast, "--set=rdma.mtu=1500"}, "rdma.mtu is 1500"},
		{[]string{star, incast, "--set=rdma.qps=1000"}, "rdma.qps is 1000"},
		{[]string{star, incast, "--set=rdma.window=5"}, "Window"},
		{[]string{star, incast, "--set=rdma.dcqcn.rpg_gd=77"}, "rdma.dcqcn.rpg_gd is 77"},
		{[]string{star, incast, "--set=rdma.dcqcn.rpg_max_rat=77"}, "no key rdma.dcqcn.rpg_max_rat"},
		{[]string{star, incast, "--set=rdma.dcqcn.enabled=true", "--set=rdma.by_delay=true"}, "rdma.by_delay and rdma.dcqcn"},
		{[]string{star, incast, "--set=until=2000h"}, `"2000h" is no time`},
		{[]string{star, incast, "--interval=1ns"}, "--interval is 1ns"},
		{[]string{star, "--workload=outcast:size=1kB"}, `workload[0].kind is "outcast"`},
		{[]string{star, "--workload=incast"}, "workload[0].size is missing"},
		{[]string{star, incast, "--workload=incast:size=1.5"}, "1.5 is no size"},
		{[]string{star, incast, "--workload=incast:size=1kB,load=0.5"}, "workload[1].load: a workload of kind incast has no such key"},
		{[]string{star, "--workload=incast:size=1kB,receiver=4"}, "workload[0].receiver is 4: it must be 0 to 3"},
		{[]string{star, "--workload=incast:size=1kB,senders=4"}, "workload[0].senders: 4"},
		{[]string{star, "--workload=incast:size=1kB,senders=[0]"}, "host 0 is the receiver"},
		{[]string{star, "--workload=incast:size=1kB,senders=[1,1]"}, "host 1 is there twice"},
		{[]string{star, "--workload=incast:size=1kB,senders=[9]"}, "host 9: the topology has 4 hosts"},
		{[]string{star, "--workload=incast:size=1kB,senders=two"}, `"two" are no hosts`},
		{[]string{star, "--workload=permutation:size=1kB,hosts=[1]"}, "hosts are 1"},
		{[]string{star, "--workload=permutation:size=1kB,hosts=2,shift=2"}, "shift is 2: there are 2 hosts"},
		{[]string{star, "--workload=all-to-all:size=1kB,rounds=1000000"}, "workload[0].kind: it has more than 1048576 flows"},
		{[]string{star, "--workload=storage:size=1kB,reads=1,clients=3,servers=2"}, "clients: host 2 is a server too"},
		{[]string{star, "--workload=poisson:load=0.5,duration=1ms,sizes=none.csv"}, "none.csv"},
		{[]string{star, "--workload=poisson:load=11,duration=1ms,sizes=" + table("1,1")}, "workload[0].load is 11"},
		{[]string{star, "--workload=poisson:load=0.5,duration=1h,sizes=" + table("1,1")}, "workload[0].duration"},
		{[]string{star, "--workload=poisson:load=0.5,duration=1ms,sizes=" + table("1,0.5")}, "the last cumulative probability must be 1"},
		{[]string{star, "--workload=poisson:load=0.5,duration=1ms,sizes=" + table("9,0.5\n8,1")}, "line 2: bytes and probability"},
		{[]string{star, "--workload=poisson:load=0.5,duration=1ms,sizes=" + table("9;0.5")}, "wrong number of fields"},
		{[]string{star, "--workload=poisson:load=0.5,duration=1ms,sizes=" + table("9,NaN")}, `line 1: "NaN" is no probability`},
		{[]string{star, "--workload=trace:file=" + table("0,1,2,3\n0,1,4,3")}, `line 2: "4" is no host`},
		{[]string{star, "--workload=trace:file=" + table("0,1,1,3")}, "from host 1 to itself"},
		{[]string{star, "--workload=trace:file=" + table("0,1,2,0")}, `"0" is no number of bytes`},
		{[]string{star, "--workload=trace:file=" + table("-5,1,2,9")}, `"-5" is no time`},
		{[]string{star, incast, "--failure=fire:node=switch"}, `failure[0].kind is "fire"`},
		{[]string{star, incast, "--failure=cable-down:node=switch,peer=host9"}, `node "switch" and peer "host9"`},
		{[]string{star, incast, "--failure=switch-restart:node=switch"}, "failure[0].for is missing"},
		{[]string{star, incast, "--failure=switch-restart:node=host1,for=1ms"}, `node "host1" is no switch`},
		{[]string{star, incast, "--failure=pfc-storm:node=switch"}, `node "switch" is no host`},
		{[]string{star, incast, "--failure=slow-host:node=host1"}, "failure[0].share is 0"},
		{[]string{star, incast, "--failure=bit-errors:node=host1,rate=1"}, "failure[0].rate is 1"},
		{[]string{star, incast, "--failure=pfc-storm:node=host1,share=0.5"}, "failure[0].kind pfc-storm"},
		{[]string{star, incast, "--set=until=0"}, "until is 0"},
		{[]string{star, incast, "--set=rdma.qps=0"}, "rdma.qps is 0"},
		{[]string{star, incast, "--set=rdma.mtu=0"}, "rdma.mtu is 0"},
		{[]string{star, incast, "--set=rdma.message=0"}, "rdma.message is 0"},
		{[]string{star, incast, "--set=rdma.timeout=0"}, "rdma.timeout is 0"},
		{[]string{star, incast, "--set=rdma.window=0"}, "rdma.window is 0"},
		{[]string{star, incast, "--set=switch.alpha=0"}, "switch.alpha is 0"},
		{[]string{star, incast, "--set=switch.buffer=0"}, "switch.buffer is 0"},
		{[]string{star, incast, "--set=switch.queue=0"}, "switch.queue is 0"},
		{[]string{star, incast, "--set=switch.ecmp="}, `switch.ecmp is ""`},
		{[]string{star, incast, "--set=rdma.dcqcn.rpg_min_dec_fac=0"}, "rdma.dcqcn.rpg_min_dec_fac is 0"},
		{[]string{star, incast, "--set=rdma.dcqcn.dce_tcp_rtt=0"}, "rdma.dcqcn.dce_tcp_rtt is 0"},
		{[]string{"--topology=star:hosts=4,spines=0", incast}, "topology.spines: a topology of kind star has no such key"},
		{[]string{star, "--workload=incast:size=0"}, "workload[0].size is 0"},
		{[]string{star, "--workload=incast:size=1kB,rounds=0"}, "workload[0].rounds is 0"},
		{[]string{star, "--workload=incast:size=1kB,shift=0"}, "workload[0].shift: a workload of kind incast has no such key"},
		{[]string{star, incast, "--workload=permutation:size=1kB,shift=0"}, "workload[1].shift is 0"},
		{[]string{star, "--workload=all-reduce-tree:size=1kB,chunks=0"}, "workload[0].chunks is 0"},
		{[]string{star, "--workload=storage:size=1kB,reads=0,clients=1,servers=1"}, "workload[0].reads is 0"},
		{[]string{star, "--workload=storage:size=1kB,reads=1,clients=1,servers=1,depth=0"}, "workload[0].depth is 0"},
		{[]string{star, incast, "--failure=cable-down:node=host1,for=0"}, "failure[0].for is 0"},
		{[]string{star, incast, "--failure=bit-errors:node=host1,rate=0"}, "failure[0].rate is 0"},
		{[]string{star, incast, "--failure=pfc-storm:node=host1,share=0"}, "failure[0].kind pfc-storm"},
		{[]string{"--topology=star:hosts=600", "--workload=all-to-all:size=1kB"}, "workload[0].kind: it has more than 262144 QPs at a time"},
		{[]string{"--topology=star:hosts=600", incast, "--set=rdma.qps=256"}, "workload[0].kind: it has more than 262144 QPs"},
		{[]string{star, incast, "--capture=switch"}, "--capture switch"},
		{[]string{star, incast, "--capture=switch:host1=testdata/leafspine.toml"}, "is not empty"},
	} {
		code, _, stderr := program.Run(t.Context(), nil, append([]string{"fabric", "run"}, c.args...)...)
		if code == cli.ExitOK || !strings.Contains(stderr, c.want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("%v: exit code %d, %q: want %q", c.args, code, stderr, c.want)
		}
	}
}

// TestQuantities: values have the units of the documentation.
func TestQuantities(t *testing.T) {
	for text, want := range map[any]int64{int64(4096): 4096, "4096": 4096, "64KiB": 65536,
		"1.5MB": 1500000, "5 kB": 5000, "2G": 2e9, "1B": 1} {
		var s size
		if err := s.UnmarshalTOML(text); err != nil || int64(s) != want {
			t.Errorf("size %v: %v, %v", text, s, err)
		}
	}
	for text, want := range map[any]float64{1e9: 1e9, "100G": 100e9, "2.5Gbit/s": 2.5e9, "40Gbps": 40e9, "1e6": 1e6, int64(5): 5} {
		var r rate
		if err := r.UnmarshalTOML(text); err != nil || float64(r) != want {
			t.Errorf("rate %v: %v, %v", text, r, err)
		}
	}
	for text, want := range map[any]time.Duration{"10us": 10 * time.Microsecond, "0.5": time.Second / 2, 1e-6: time.Microsecond,
		int64(2): 2 * time.Second} {
		var d duration
		if err := d.UnmarshalTOML(text); err != nil || time.Duration(d) != want {
			t.Errorf("duration %v: %v, %v", text, time.Duration(d), err)
		}
	}
}

// TestDistribution: the sizes that are drawn have the distribution, and its mean.
func TestDistribution(t *testing.T) {
	d, err := readDistribution(strings.NewReader("bytes,p\n100,0.25\n200,0.25\n1000,0.75\n2000,1\n"))
	if err != nil {
		t.Fatal(err)
	}
	const n = 100000
	random := rand.New(rand.NewPCG(1, 1))
	sum, small, large := 0.0, 0, 0
	for range n {
		v := d.draw(random)
		sum += float64(v)
		if v == 100 {
			small++
		} else if v > 1000 {
			large++
		} else if v < 200 {
			t.Fatal(v)
		}
	}
	if mean := sum / n; math.Abs(mean-d.mean()) > 10 || small < n*24/100 || small > n*26/100 || large < n*24/100 || large > n*26/100 {
		t.Errorf("mean %v, that of the distribution %v; %d of 100 bytes, %d of more than 1000", mean, d.mean(), small, large)
	}
}

// FuzzFile: no file makes the parser fail otherwise than by an error.
func FuzzFile(f *testing.F) {
	files, err := filepath.Glob("testdata/*.toml")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Fuzz(func(t *testing.T, text string) {
		c := new(config)
		if c.add(text) != nil || c.complete() != nil {
			return
		}
		if _, err := c.device(); err != nil {
			return
		}
		n, err := c.fabric()
		if err != nil {
			return
		}
		if len(n.Topology.Hosts) < 2 || len(n.Topology.Hosts) > maxHosts || len(n.Topology.Switches) > maxSwitches {
			t.Errorf("%d hosts and %d switches", len(n.Topology.Hosts), len(n.Topology.Switches))
		}
	})
}

// FuzzTable: no distribution and no trace makes its parser fail otherwise than by an error, and
// what is drawn from a distribution is a size.
func FuzzTable(f *testing.F) {
	for _, name := range []string{"testdata/sizes.csv", "testdata/trace.csv"} {
		b, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Add("bytes,p\n0,1\n") // flows have a byte nevertheless
	f.Fuzz(func(t *testing.T, text string) {
		if d, err := readDistribution(strings.NewReader(text)); err == nil {
			random := rand.New(rand.NewPCG(1, 2))
			for range 20 {
				if n := d.draw(random); n < 1 || n > 1<<44 {
					t.Fatal(n)
				}
			}
			if m := d.mean(); !(m >= 1 && m <= 1<<44+1) {
				t.Errorf("the mean is %v", m)
			}
		}
		all, err := readTrace(strings.NewReader(text), 4)
		for _, e := range all {
			if err == nil && (e.from == e.to || e.to > 3 || e.bytes < 1 || e.start < 0) {
				t.Errorf("%+v", e)
			}
		}
	})
}

// TestExponential: the times between random flows have the mean and the deviation of an exponential
// distribution, and its tail.
func TestExponential(t *testing.T) {
	const n = 200000
	random := rand.New(rand.NewPCG(1, 2))
	sum, squares, tail := 0.0, 0.0, 0
	for range n {
		v := exponential(random)
		sum, squares = sum+v, squares+v*v
		if v > 2.5 {
			tail++
		}
	}
	mean := sum / n
	away := func(v, from, most float64) bool { return math.Abs(v-from) > most }
	if d := math.Sqrt(squares/n - mean*mean); away(mean, 1, 0.01) || away(d, 1, 0.01) || away(float64(tail)/n, math.Exp(-2.5), 0.002) {
		t.Errorf("mean %v, deviation %v, %d of %d above 2.5", mean, d, tail, n)
	}
}
