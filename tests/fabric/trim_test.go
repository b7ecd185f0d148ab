package fabric

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
)

// TestTrimming compares switches that trim what finds no room with those that drop it.
func TestTrimming(t *testing.T) {
	x := newExperiment(t)
	const seeds = 3
	type outcome struct{ mean, p99, lost, repeats, back, probes float64 }
	run := func(args []string, sets ...string) (got outcome) {
		for seed := range seeds {
			all := append(slices.Clone(args), "--seed", strconv.Itoa(seed+1))
			for _, set := range sets {
				all = append(all, "--set", set)
			}
			r := x.run(all...)
			if r.Flows.Done != r.Flows.Planned {
				t.Errorf("%v: %+v", all, r)
			}
			got.mean += r.FCT.Mean / seeds
			got.p99 += r.FCT.P99 / seeds
			got.lost += float64(r.Packets.Dropped+r.Packets.Trimmed) / float64(r.Packets.Sent) * 100 / seeds
			got.repeats += float64(r.Counters["selective_repeats"]) / seeds
			got.back += float64(r.Counters["completer_retry_err"]) / seeds
			got.probes += float64(r.Counters["tail_probes"]) / seeds
		}
		return got
	}
	const trim = "switch.trim.dscp=10"
	selective, dcqcn := "rdma.selective_repeat=true", []string{`switch.ecn={min="40kB",max="160kB",p=0.2}`, paperDCQCN}
	star := func(hosts int, workload string) []string {
		return []string{"--topology", fmt.Sprint("star:hosts=", hosts), "--workload", workload}
	}
	text := `# Trimming

Trimming is that of Handley et al., Re-architecting datacenter networks and stacks for low latency and high performance, SIGCOMM 2017 (NDP),
and of SONiC's switches. NDP's receivers pull packets, which these devices do not, so its numbers are no comparison. 100 Gbit/s, no PFC,
queues of 100 kB for each class, selective repeat unless it says go-back-N, on average of three seeds. Times are in µs. An incast has
256 KiB from each host to host 0, and is the same with each seed, except with DCQCN. Storage has READs of 256 KiB by one client from each
server, and the permutation has 1 MB from each of 32 hosts, on 4 leaves and 4 spines. DCQCN has the parameters of its paper, and marks
between 40 and 160 kB.

| | no room | FCT, average | FCT, 99 % | dropped or trimmed | single repeats | times back | probes |
|---|---|---|---|---|---|---|---|
`
	for _, c := range []struct {
		name   string
		args   []string
		sets   []string
		atOnce bool // nothing waits for a probe if packets are trimmed
		slower bool // if packets are trimmed
	}{
		{name: "incast of 16", args: star(17, "incast:size=256KiB"), sets: []string{selective}, atOnce: true},
		{name: "incast of 32", args: star(33, "incast:size=256KiB"), sets: []string{selective}, atOnce: true},
		{name: "incast of 32, go-back-N", args: star(33, "incast:size=256KiB")},
		{name: "incast of 32, DCQCN", args: star(33, "incast:size=256KiB"), sets: append([]string{selective}, dcqcn...), atOnce: true},
		{name: "storage, 16 servers", args: star(17, "storage:clients=1,servers=16,size=256KiB,reads=16,depth=16"),
			sets: []string{selective}, atOnce: true},
		{name: "storage, 16 servers, go-back-N", args: star(17, "storage:clients=1,servers=16,size=256KiB,reads=16,depth=16"), slower: true},
		{name: "permutation", args: []string{"--topology", "leaf-spine:leaves=4,hosts=8,spines=4", "--workload", "permutation:size=1MB"},
			sets: []string{selective}, atOnce: true},
	} {
		sets := append(slices.Clone(c.sets), "switch.queue=100kB")
		drops, trims := run(c.args, sets...), run(c.args, append(sets, trim)...)
		for _, row := range []struct {
			name string
			outcome
		}{{"dropped", drops}, {"trimmed", trims}} {
			text += fmt.Sprintf("| %s | %s | %.0f | %.0f | %.0f %% | %.0f | %.0f | %.0f |\n", c.name, row.name, row.mean, row.p99, row.lost,
				row.repeats, row.back, row.probes)
		}
		if trims.p99 >= drops.p99 != c.slower || c.atOnce && trims.probes+trims.back > 0 {
			t.Errorf("%s: %+v, and trimmed %+v", c.name, drops, trims)
		}
	}
	text += `
With selective repeat each trimmed packet is repeated at once, and nothing waits for a probe. Not expected was:

- Headers fill the link. Elsewhere a window has at least 8 packets under loss. So 32 hosts had 256 under way, for a queue with room for 23.
  Each of the 2,048 packets of the incast was trimmed 25 times, and the average was 1167 µs. A requester whose packets are trimmed now has
  windows down to 4, and 9 times remain. With 2 the average is 609 µs, but in other cases later packets or probes must then show losses.
  NDP's receivers pull instead.
- With equal weights of all classes, in place of strict priority for what is trimmed, the average of the same incast is a fifth shorter,
  and the 99 % longer: headers are dropped, and only a probe finds that. It is the same with 256 bytes in place of 98.
- A requester that does not know what the list says gains most of it too: nothing is dropped, and answers keep coming. The incast of 32
  with queues of 200 kB takes 6.0 ms on average with drops, 1.7 with such requesters, and 0.75 with those that know.
- READs with go-back-N become slower. The requester asks for all responses again, whether it learns of a loss sooner or not, and headers
  take room.
- DCQCN with mlx5's parameters, in place of the paper's, does not help beside trimming: after each 32 KiB the rate rises again, and what
  is repeated counts too.
`
	write(t, "trim.md", text)
}
