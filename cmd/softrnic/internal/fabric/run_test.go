package fabric

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/verbs"
)

// run runs softrnic fabric run, and returns its output.
func runFabric(t *testing.T, args ...string) string {
	t.Helper()
	code, out, stderr := program.Run(t.Context(), nil, append([]string{"fabric", "run"}, args...)...)
	if code != cli.ExitOK {
		t.Fatalf("%v: exit code %d: %s", args, code, stderr)
	}
	return out
}

// summaryOf runs softrnic fabric run --json.
func summaryOf(t *testing.T, args ...string) *summary {
	t.Helper()
	s := new(summary)
	if err := json.Unmarshal([]byte(runFabric(t, append(args, "--json")...)), s); err != nil {
		t.Fatal(err)
	}
	return s
}

const (
	leafSpine = "--topology=leaf-spine:leaves=2,hosts=4,spines=2"
	star      = "--topology=star:hosts=8"
)

// TestWorkloads: each workload moves its bytes, all of which are right at the receivers.
func TestWorkloads(t *testing.T) {
	for _, c := range []struct {
		workload string
		flows    int
		bytes    int64
	}{
		{"incast:size=100kB", 7, 7 * 100e3},
		{"incast:size=100001,receiver=3,senders=2,stagger=10us,rounds=3", 6, 6 * 100001},
		{"incast:size=1,senders=[5]", 1, 1},
		{"permutation:size=1MB", 8, 8e6},
		{"permutation:size=70kB,shift=3,hosts=[0,2,4,6]", 4, 4 * 70e3},
		{"all-to-all:size=33333", 56, 56 * 33333},
		{"all-to-all:size=5000,hosts=3,rounds=2", 12, 12 * 5000},
		{"all-reduce-ring:size=80kB", 8 * 14, 8 * 14 * 10e3},
		{"all-reduce-ring:size=3,hosts=3,rounds=2", 24, 24},
		{"all-reduce-tree:size=70kB,chunks=7", 2 * 7 * 7, 2 * 7 * 70e3},
		{"all-reduce-tree:size=70kB,hosts=2,rounds=3", 6, 6 * 70e3},
		{"storage:clients=3,servers=2,size=100kB,reads=5,depth=2", 15, 15 * 100e3},
		{"poisson:load=0.5,duration=50us,sizes=testdata/sizes.csv", 0, 0},
		{"trace:file=testdata/trace.csv", 3, 300007},
	} {
		for _, qps := range []string{"1", "3"} {
			t.Run(c.workload+"/"+qps, func(t *testing.T) {
				s := summaryOf(t, leafSpine, "--workload", c.workload, "--verify", "--set", "rdma.qps="+qps)
				if c.flows == 0 {
					c.flows, c.bytes = s.Flows.Planned, s.Bytes
				}
				if s.Flows.Planned == 0 || s.Flows.Done != c.flows || s.Flows.Planned != c.flows || s.Bytes != c.bytes ||
					s.Corrupt != 0 || !s.Verified {
					t.Errorf("%+v, %d bytes, %d corrupt: want %d flows and %d bytes", s.Flows, s.Bytes, s.Corrupt, c.flows, c.bytes)
				}
				if s.Slowdown.P50 < 0.98 || s.Digest == "" || s.Packets.Dropped > 0 {
					t.Errorf("%+v", s)
				}
			})
		}
	}
}

// TestVerify: bytes that change on the way are reported.
func TestVerify(t *testing.T) {
	r := prepared(t, `topology = {kind="star", hosts=2}`, `workload = [{kind="incast", size="200kB"}]`)
	r.at(5*time.Microsecond, 0, func() { r.nodes[0].pattern.Buf()[5000]++ })
	if err := r.advance(context.Background(), func() {}); err != nil {
		t.Fatal(err)
	}
	if s := r.summarize(); s.Corrupt != 1 || s.Flows.Done != 1 {
		t.Errorf("%d flows have wrong bytes of %+v", s.Corrupt, s.Flows)
	}
}

// TestLosses: with loss, all bytes arrive, by either way to repeat.
func TestLosses(t *testing.T) {
	for _, set := range []string{"rdma.selective_repeat=true", "rdma.selective_repeat=false"} {
		s := summaryOf(t, "--topology=star:hosts=5", "--workload=incast:size=500kB", "--set=switch.queue=200kB", "--verify", "--set", set)
		if s.Flows.Done != 4 || s.Packets.Dropped == 0 || s.Corrupt > 0 ||
			s.Counters["completer_retry_err"]+s.Counters["selective_repeats"] == 0 {
			t.Errorf("%s: %+v", set, s)
		}
	}
}

// TestTrim: what finds no room is trimmed and repeated at once. So flows end sooner than with
// drops, and without probes.
func TestTrim(t *testing.T) {
	for _, workload := range []string{"incast:size=100kB", "storage:clients=1,servers=7,size=100kB,reads=7,depth=7"} {
		args := []string{star, "--workload", workload, "--set=switch.queue=50kB", "--set=rdma.selective_repeat=true", "--verify"}
		drops, trims := summaryOf(t, args...), summaryOf(t, append(args, "--set=switch.trim.dscp=12")...)
		if drops.Packets.Dropped == 0 || drops.Packets.Trimmed > 0 || trims.Packets.Dropped > 0 || trims.Packets.Trimmed == 0 ||
			trims.Flows.Done != 7 || trims.Corrupt > 0 || trims.Counters["tail_probes"] > 0 || trims.Counters["selective_repeats"] == 0 ||
			trims.FCT.Mean >= drops.FCT.Mean {
			t.Errorf("%s: with drops %+v\nand without %+v", workload, drops, trims)
		}
	}
	text := runFabric(t, star, "--workload=incast:size=100kB", "--set=switch.queue=50kB", "--set=switch.trim.size=128")
	if !strings.Contains(text, " trimmed,") {
		t.Error(text)
	}
}

// TestIdeal: a flow alone takes the ideal time.
func TestIdeal(t *testing.T) {
	for _, topology := range []string{"star:hosts=2", "dumbbell:hosts=2,uplink_rate=10G",
		"leaf-spine:leaves=2,hosts=2,spines=3,uplink_rate=400G",
		"fat-tree:k=4"} {
		for _, workload := range []string{"incast:senders=1,size=1", "incast:senders=1,size=4097", "incast:senders=1,size=1MB",
			"storage:clients=1,servers=1,reads=1,size=10", "storage:clients=1,servers=1,reads=1,size=1MB",
			"storage:clients=1,servers=1,reads=1,size=70001"} {
			for mtu, qps := range map[string]string{"1024": "1", "4096": "1", "2048": "3"} {
				s := summaryOf(t, "--topology", topology, "--workload", workload, "--set=rdma.mtu="+mtu, "--set=rdma.qps="+qps)
				if s.Flows.Done != 1 || s.Slowdown.Max < 0.999 || s.Slowdown.Max > 1.005 {
					t.Errorf("%s, %s, MTU %s, %s QPs: slowdown %v after %v µs", topology, workload, mtu, qps, s.Slowdown.Max, s.FCT.Max)
				}
			}
		}
	}
}

// TestSameSeed: a seed gives the same digest and the same files, whatever GOMAXPROCS is. Samples
// and captures change nothing.
func TestSameSeed(t *testing.T) {
	dir := t.TempDir()
	run := func(name string, args ...string) (digest string, files [3]string) {
		var flags []string
		for i, flag := range []string{"--fct", "--queues", "--rates"} {
			flags = append(flags, flag, filepath.Join(dir, name+flag))
			defer func() {
				b, err := os.ReadFile(filepath.Join(dir, name+flag))
				if err != nil {
					t.Fatal(err)
				}
				files[i] = string(b)
			}()
		}
		return strings.TrimSpace(runFabric(t, append(append(flags, "testdata/leafspine.toml", "--digest"), args...)...)), files
	}
	digest, files := run("a")
	for i := range 2 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1 + 2*i))
		if d, f := run("b" + string(rune('0'+i))); d != digest || f != files {
			t.Errorf("digest %s, then %s; same files: %t, %t, %t", digest, d, f[0] == files[0], f[1] == files[1], f[2] == files[2])
		}
	}
	if d, f := run("c", "--interval=70us", "--capture", "host0="+filepath.Join(dir, "up.pcapng")); d != digest || f[0] != files[0] {
		t.Errorf("digest %s, with other samples and a capture %s", digest, d)
	}
	if d, _ := run("d", "--seed=2"); d == digest {
		t.Error("another seed has the same digest")
	}
	for i, want := range []string{
		"flow,workload,source,destination,bytes,start_us,fct_us,ideal_us,slowdown\n",
		"time_us,node,peer,queued_bytes,sent_bytes,utilisation\n", "time_us,flow,source,destination,acknowledged_bytes,gbps\n"} {
		if !strings.HasPrefix(files[i], want) || strings.Count(files[i], "\n") < 50 {
			t.Errorf("%.200s", files[i])
		}
	}
	code, out, stderr := program.Run(t.Context(), nil, "trace", "--stats", filepath.Join(dir, "up.pcapng"))
	if code != cli.ExitOK || !strings.Contains(out, "10.0.0.1") {
		t.Errorf("softrnic trace: exit code %d: %.1000s%s", code, out, stderr)
	}
}

// TestTraced: softrnic trace finds nothing wrong in captures at hosts, whatever the network loses,
// reorders or delays in front of them.
func TestTraced(t *testing.T) {
	const small = "--topology=leaf-spine:leaves=2,hosts=2,spines=2"
	seeds := 2
	switch {
	case os.Getenv("SOFTRNIC_LONG") != "":
		seeds = 60
	case os.Getenv("SOFTRNIC_SYSTEM") != "":
		seeds = 10
	}
	for name, args := range map[string][]string{
		"a restart":  {"testdata/leafspine.toml"},
		"spray":      {"testdata/leafspine.toml", "--set=switch.ecmp=spray", "--until=5ms"},
		"bit errors": {"--topology=star:hosts=4", "--workload=permutation:size=400kB", "--failure=bit-errors:node=host0,rate=1e-6,at=0"},
		"READs, a cut": {small, "--workload=storage:clients=2,servers=2,size=200kB,reads=4",
			"--failure=cable-down:node=leaf0,peer=spine0,at=20us", "--failure=cable-down:node=leaf0,peer=spine1,at=60us,for=20us"},
		"selective repeat": {small, "--workload=permutation:size=300kB,shift=2", "--set=rdma.selective_repeat=true",
			"--failure=bit-errors:node=leaf0,peer=spine0,rate=2e-6,at=0"},
	} {
		t.Run(name, func(t *testing.T) {
			lost := false
			for seed := range seeds {
				flags := []string{"--seed", strconv.Itoa(seed)}
				files := map[string]string{"host0": "", "host3": ""}
				for host := range files {
					files[host] = filepath.Join(t.TempDir(), host+".pcapng")
					flags = append(flags, "--capture", host+"="+files[host])
				}
				s := summaryOf(t, slices.Concat(args, flags)...)
				lost = lost || s.Packets.Lost > 0
				for host, file := range files {
					code, out, stderr := program.Run(t.Context(), nil, "trace", "--errors", file)
					if code != cli.ExitOK {
						t.Errorf("seed %d, %s: exit code %d: %.2000s%s", seed, host, code, out, stderr)
					}
				}
			}
			if !lost {
				t.Error("nothing was lost")
			}
		})
	}
}

// TestFailures: what fails at a time has its effect, and the flows survive it.
func TestFailures(t *testing.T) {
	for _, c := range []struct {
		topology, failure string
		effect            func(s *summary) bool
	}{
		{leafSpine, "cable-down:node=leaf0,peer=spine0,at=20us", func(s *summary) bool { return s.Packets.Lost > 0 }},
		{leafSpine, "cable-down:node=host1,at=20us,for=100us", func(s *summary) bool { return s.Packets.Lost > 0 && s.FCT.Max > 120 }},
		{leafSpine, "switch-restart:node=spine1,at=20us,for=100us", func(s *summary) bool { return s.Packets.Lost > 0 }},
		{leafSpine, "bit-errors:node=leaf1,peer=spine0,rate=1e-6,at=0", func(s *summary) bool { return s.Packets.Lost > 0 }},
		{star, "pfc-storm:node=host5,at=20us,for=2ms", func(s *summary) bool {
			return s.FCT.Max > 2000 && s.FCT.P50 < 100 && s.Packets.Lost == 0
		}},
		{star, "slow-host:node=host5,share=0.25,at=0", func(s *summary) bool {
			return s.Slowdown.Max > 3.5 && s.Slowdown.Max < 4.5 && s.Slowdown.P50 < 1.1
		}},
	} {
		t.Run(c.failure, func(t *testing.T) {
			s := summaryOf(t, c.topology, "--workload=permutation:size=1MB,shift=4", "--failure", c.failure, "--verify",
				"--set=switch.pfc.xoff=300kB", "--seed=4") // both spines have flows
			if s.Flows.Done != 8 || s.Corrupt > 0 || !c.effect(s) {
				t.Errorf("%+v", s)
			}
		})
	}
	s := summaryOf(t, "--topology=star:hosts=3", "--workload=incast:size=1MB", "--failure=cable-down:node=host1,at=20us",
		"--set=rdma.timeout=1")
	if s.Flows.Done != 1 || s.Flows.Failed != 1 || s.Failures["RETRY_EXC_ERR"] != 1 {
		t.Errorf("%+v", s)
	}
}

// prepared makes a run of a file's text.
func prepared(t *testing.T, text ...string) *run {
	t.Helper()
	cfg, err := load("", text)
	if err == nil {
		err = cfg.complete()
	}
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRun(cfg, true, 10*time.Microsecond, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	return r
}

// TestFirstPSN: the first PSNs of QPs follow from the seed, and differ.
func TestFirstPSN(t *testing.T) {
	first := func(seed string) (psns []uint32) {
		r := prepared(t, `topology = {kind="star", hosts=3}`, `workload = [{kind="incast", size="1kB"}]`, "seed = "+seed)
		if err := r.advance(t.Context(), func() {}); err != nil {
			t.Fatal(err)
		}
		for _, c := range r.lingering() {
			for _, qp := range []*verbs.QP{c.lanes[0].x, c.lanes[0].y} {
				a, _, err := qp.Query()
				if err != nil {
					t.Fatal(err)
				}
				psns = append(psns, a.SQPSN, a.RQPSN)
			}
		}
		return psns
	}
	one, again, two := first("1"), first("1"), first("2")
	if len(one) != 8 || !slices.Equal(one, again) || slices.Equal(one, two) {
		t.Errorf("PSNs %v, the same seed %v, another %v", one, again, two)
	}
	for i := 0; i < len(one); i += 4 {
		if one[i] != one[i+3] || one[i+1] != one[i+2] {
			t.Errorf("PSNs of a requester and its responder: %v", one[i:i+4])
		}
	}
	slices.Sort(one)
	if all := slices.Compact(one); len(all) != 4 || all[3]-all[0] < 1<<12 {
		t.Errorf("PSNs %v", all)
	}
}

// TestManyRounds: connections that linger after short flows are closed when the QPs that a run may
// have are needed.
func TestManyRounds(t *testing.T) {
	short := []string{`topology = {kind="star", hosts=2}`, `workload = [{kind="incast", size=1, rounds=200}]`}
	r := prepared(t, short...)
	r.opened = maxOpen - 4 // those of two connections
	if err := r.advance(t.Context(), func() {}); err != nil || r.ended.Load() != 200 || r.f.Now() > lingering || len(r.lingering()) != 2 {
		t.Errorf("after %d flows and %v, %d connections linger: %v", r.ended.Load(), r.f.Now(), len(r.lingering()), err)
	}
	r = prepared(t, short...)
	r.opened = maxOpen - 2 // those of one, which ends in the function that begins the next
	if err := r.advance(t.Context(), func() {}); err != nil || r.ended.Load() != 200 {
		t.Errorf("with room for one connection, after %d flows: %v", r.ended.Load(), err)
	}
	r = prepared(t, short...)
	r.opened = maxOpen - 1
	if err := r.advance(t.Context(), func() {}); err == nil || !strings.Contains(err.Error(), "QPs at a time") {
		t.Errorf("without room for a connection: %v", err)
	}
	r = prepared(t, `topology = {kind="star", hosts=3}`, `workload = [{kind="incast", size=1, rounds=600}]`)
	err := r.advance(t.Context(), func() {})
	closed := r.opened < 2*2*600 && r.opened == 2*len(r.lingering())
	if err != nil || r.ended.Load() != 1200 || r.f.Now() < 2*lingering || !closed {
		t.Errorf("after %d flows and %v, %d connections linger, with %d QPs: %v", r.ended.Load(), r.f.Now(), len(r.lingering()), r.opened, err)
	}
}

// TestUntil: flows that are left at the end are reported.
func TestUntil(t *testing.T) {
	out := runFabric(t, "--topology=star:hosts=4", "--workload=incast:size=1GB", "--until=100us")
	if !strings.Contains(out, "0 done, 0 failed, 3 unfinished") || !strings.Contains(out, "100µs virtual") {
		t.Error(out)
	}
}

// TestReport: the page has its plots, and needs no other file.
func TestReport(t *testing.T) {
	for _, args := range [][]string{
		{"testdata/leafspine.toml"}, {"testdata/training.toml"}, {"testdata/cables.toml"},
		{"--topology=star:hosts=2", "--workload=incast:size=1GB", "--until=50us"},
	} {
		name := filepath.Join(t.TempDir(), "x.html")
		runFabric(t, append(args, "--report", name)...)
		page, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(page), "<svg"); n != strings.Count(string(page), "</svg>") || n < 3 {
			t.Errorf("%v: %d pictures", args, n)
		}
		if other := regexp.MustCompile(`(?i)https?://|\bsrc=|@import|NaN|<no value>`).FindString(string(page)); other != "" {
			t.Errorf("%v: the page has %q", args, other)
		}
	}
}

// TestZeros: a zero is a value, and not the default.
func TestZeros(t *testing.T) {
	base := []string{"--topology=star:hosts=2", "--workload=incast:size=1"}
	long := summaryOf(t, base...).FCT.Max
	short := summaryOf(t, append(base, "--set=link.delay=0")...).FCT.Max
	if long-short < 3.99 || long-short > 4.01 {
		t.Errorf("%v µs without delay, %v µs with 4 of 1 µs", short, long)
	}
	for _, topology := range []string{"dumbbell:hosts=1,uplink_delay=0",
		`cables:attach=["left","right"],cable=[{a="left",b="right",delay=0}]`} {
		all := summaryOf(t, "--topology=dumbbell:hosts=1", "--workload=incast:size=1").FCT.Max
		some := summaryOf(t, "--topology", topology, "--workload=incast:size=1").FCT.Max
		if all-some < 1.99 || all-some > 2.01 {
			t.Errorf("%s: %v µs, and %v µs with 2 of 1 µs more", topology, some, all)
		}
	}
	pfc := []string{star, "--workload=incast:size=1MB", "--set=switch.pfc.xoff=50kB"}
	usual, empty := summaryOf(t, pfc...), summaryOf(t, append(pfc, "--set=switch.pfc.xon=0")...)
	if empty.Packets.Pauses == 0 || empty.Packets.Pauses >= usual.Packets.Pauses {
		t.Errorf("%d pauses, and %d that last until nothing is stored", usual.Packets.Pauses, empty.Packets.Pauses)
	}
	if none := summaryOf(t, append(pfc, "--set=switch.pfc.headroom=0")...); usual.Packets.Dropped > 0 || none.Packets.Dropped == 0 {
		t.Errorf("%d packets dropped without headroom, and %d with it", none.Packets.Dropped, usual.Packets.Dropped)
	}
	ecn := []string{star, "--workload=incast:size=1MB", "--set=switch.ecn.max=100kB", "--set=rdma.dcqcn.enabled=true"}
	arrival, departure := summaryOf(t, ecn...), summaryOf(t, append(ecn, "--set=switch.ecn.at_departure=true")...)
	if departure.Packets.Marked == 0 || departure.Digest == arrival.Digest {
		t.Errorf("%d packets are marked at departure, with the digest of marks at arrival: %s", departure.Packets.Marked, departure.Digest)
	}
	if s := summaryOf(t, append(ecn, "--set=switch.ecn.p=0")...); s.Packets.Marked >= arrival.Packets.Marked {
		t.Errorf("%d packets are marked, with a probability of 0 up to the maximum", s.Packets.Marked)
	}
}

// TestIdle: time in which nothing happens costs nothing, and has no samples. A queue remains as it
// is.
func TestIdle(t *testing.T) {
	dir := t.TempDir()
	queues, rates, page := filepath.Join(dir, "queues"), filepath.Join(dir, "rates"), filepath.Join(dir, "x.html")
	s := summaryOf(t, star, "--workload=incast:size=300kB,stagger=3h", "--failure=pfc-storm:node=host0,at=6h", "--until=24h",
		"--set=rdma.timeout=31", "--interval=100ns", "--queues", queues, "--rates", rates, "--report", page)
	if s.Flows.Done != 2 || s.Flows.Unfinished != 5 || s.Virtual != 24*3600e6 {
		t.Errorf("%+v, %v µs", s.Flows, s.Virtual)
	}
	for _, name := range []string{queues, rates, page} {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) > 1<<20 || strings.Count(string(b), "\n") < 10 {
			t.Errorf("%s has %d bytes", name, len(b))
		}
	}
}

// late is a context that is cancelled after a number of looks at it.
type late struct {
	context.Context
	left int
}

// Err implements context.Context.
func (l *late) Err() error {
	if l.left--; l.left < 0 {
		return context.Canceled
	}
	return nil
}

// TestInterrupted: a run that is interrupted writes what there is.
func TestInterrupted(t *testing.T) {
	dir := t.TempDir()
	fct, page, file := filepath.Join(dir, "fct"), filepath.Join(dir, "x.html"), filepath.Join(dir, "x.pcapng")
	args := []string{"fabric", "run", star, "--workload=incast:size=100kB,senders=1,rounds=100000", "--until=1h", "--interval=1s",
		"--fct", fct, "--report", page, "--capture", "host0=" + file}
	code, out, stderr := program.Run(&late{t.Context(), 100}, nil, args...)
	if code != cli.ExitFailed || !strings.Contains(stderr, "interrupted") || !strings.Contains(out, "interrupted") ||
		!strings.Contains(out, " 0 failed, ") {
		t.Errorf("exit code %d: %s%s", code, out, stderr)
	}
	for name, least := range map[string]int{fct: 2000, page: 20000, file: 1 << 20} {
		if b, err := os.ReadFile(name); err != nil || len(b) < least {
			t.Errorf("%s has %d bytes, %v", name, len(b), err)
		}
	}
	code, out, _ = program.Run(&late{t.Context(), 10}, nil, "fabric", "run", star, "--workload=incast:size=1GB", "--digest")
	if code != cli.ExitFailed || out != "" {
		t.Errorf("exit code %d, and the digest of a part: %s", code, out)
	}
}

// TestCapturedTwice: a port may have several captures.
func TestCapturedTwice(t *testing.T) {
	dir := t.TempDir()
	a, b := filepath.Join(dir, "a.pcapng"), filepath.Join(dir, "b.pcapng")
	runFabric(t, "--topology=star:hosts=2", "--workload=incast:size=100kB", "--capture", "host0="+a, "--capture", "host0:switch="+b)
	for _, name := range []string{a, b} {
		if i, err := os.Stat(name); err != nil || i.Size() < 100e3 {
			t.Errorf("%v, %v", i, err)
		}
	}
}

// TestThousandHosts: a fat tree of 1,024 hosts, with its ideal times and its groups of ways.
func TestThousandHosts(t *testing.T) {
	s := summaryOf(t, "--topology=fat-tree:k=16", "--workload=permutation:size=10kB")
	if s.Flows.Done != 1024 || s.Hosts != 1024 || s.Switches != 320 || len(s.Imbalance) < 200 || s.Slowdown.P50 < 0.999 {
		t.Errorf("%+v, %d groups, slowdown %v", s.Flows, len(s.Imbalance), s.Slowdown)
	}
}
