package fabric

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// TestSlowHost asks what one host that takes its packets slowly, or not at all for a time, does to
// flows between all others.
func TestSlowHost(t *testing.T) {
	x := newExperiment(t)
	const seeds = 2
	fct := filepath.Join(x.dir, "fct.csv")
	// others is what the flows between other hosts see.
	type others struct{ slowdown, p99, late, sent, pauses float64 }
	const pfc = `switch.pfc={xoff="220kB",headroom="60kB"}`
	run := func(sets, failure []string) (got others) {
		for seed := range seeds {
			args := append([]string{"testdata/slow.toml", "--seed", strconv.Itoa(seed + 1), "--fct", fct}, failure...)
			for _, set := range sets {
				args = append(args, "--set", set)
			}
			r := x.run(args...)
			if r.Flows.Done != r.Flows.Planned || r.Packets.Dropped > 0 && slices.Contains(sets, pfc) {
				t.Errorf("%v: %+v", args, r)
			}
			var slowdowns []float64
			sum, late := 0.0, 0
			for _, row := range x.table(fct) {
				if row[2] == "0" || row[3] == "0" {
					continue
				}
				slowdowns = append(slowdowns, number(t, row[8]))
				sum += number(t, row[8])
				if number(t, row[6]) > 2000 {
					late++
				}
			}
			slices.Sort(slowdowns)
			n := float64(len(slowdowns))
			got.slowdown += sum / n / seeds
			got.p99 += percentile99(slowdowns) / seeds
			got.late += 100 * float64(late) / n / seeds
			got.sent += float64(r.Packets.Sent) / seeds
			got.pauses += float64(r.Packets.Pauses) / seeds
		}
		return got
	}
	lossless := []string{pfc, "rdma.window=4MiB"}
	dcqcn := []string{`switch.ecn={min="100kB",max="400kB",p=0.2}`,
		paperDCQCN}
	short, selective := []string{"rdma.timeout=7"}, []string{"rdma.selective_repeat=true"}
	lossy := slices.Concat([]string{"switch.queue=280kB", "rdma.window=256KiB"}, short, selective)

	text := `# One slow host

Questions of operators, to which no publication with numbers was at hand. PFC's storms and slow receivers are described in words by Guo
et al., RDMA over Commodity Ethernet at Scale, SIGCOMM 2016.

64 hosts, 8 leaves, 8 spines, 100 Gbit/s, flows between random hosts at 30 % of the hosts' links for 2 ms, of the sizes of
[irn.csv](../testdata/irn.csv) ([slow.toml](../testdata/slow.toml)). Packets and pauses are those of the whole network, all other numbers
those of the flows between the 63 other hosts, on average of two seeds. PFC stops a queue at 220 kB, and a window is 4 MiB. Without PFC a
queue has 280 kB, and devices repeat selectively, with windows of 256 KiB and timeouts of 0.5 ms. DCQCN has the parameters of its paper.

## How much does one slow receiver cost the others?

Host 0 takes a tenth of its link's rate.

| | slowdown: all are fast | host 0 is slow | 99 %: all are fast | host 0 is slow |
|---|---|---|---|---|
`
	slow := []string{"--failure", "slow-host:node=host0,share=0.1"}
	var ratios []float64
	for _, c := range []struct {
		name string
		sets []string
	}{{"PFC", lossless}, {"PFC + DCQCN", slices.Concat(lossless, dcqcn)}, {"no PFC, selective repeat", lossy}} {
		fast, is := run(c.sets, nil), run(c.sets, slow)
		ratios = append(ratios, is.slowdown/fast.slowdown)
		text += fmt.Sprintf("| %s | %.2f | %.2f (%.1f times) | %.1f | %.1f |\n", c.name, fast.slowdown, is.slowdown, ratios[len(ratios)-1],
			fast.p99, is.p99)
	}
	if ratios[0] < 2 || ratios[1] < 2 || ratios[2] > 1.3 {
		t.Errorf("one slow host makes others slower by %.2f: PFC is to spread it, also with DCQCN, and losses are not", ratios)
	}
	text += `
One receiver slows down everybody. Its queue stops the leaf's input from each spine, and then each spine stops all leaves: flows wait that
never meet the host. DCQCN, made against this, does not help. A flow begins at the rate of the link, and marks halve its rate at most
once in 50 µs: a tenth takes 200 µs, and the largest flow lasts 240 µs. Without PFC only the flows to the slow host wait.

## Does a shorter timeout help through a storm of pauses?

Host 0 pauses its switch for 3 ms, and takes nothing meanwhile.

| | repeats | timeout, ms | slowdown | flows over 2 ms | packets sent | pauses |
|---|---|---|---|---|---|---|
`
	storm := []string{"--failure", "pfc-storm:node=host0,at=500us,for=3ms"}
	var slowdowns, sent []float64
	for _, c := range []struct {
		name, repeats, timeout string
		sets                   []string
	}{
		{"PFC", "go-back-N", "4.2", lossless},
		{"PFC", "go-back-N", "0.5", slices.Concat(lossless, short)},
		{"PFC", "selective", "4.2", slices.Concat(lossless, selective)},
		{"PFC", "selective", "0.5", slices.Concat(lossless, short, selective)},
		{"PFC + DCQCN", "go-back-N", "0.5", slices.Concat(lossless, short, dcqcn)},
		{"no PFC", "selective", "0.5", lossy},
	} {
		is := run(c.sets, storm)
		slowdowns, sent = append(slowdowns, is.slowdown), append(sent, is.sent)
		text += fmt.Sprintf("| %s | %s | %s | %.1f | %.1f %% | %.0f | %.0f |\n", c.name, c.repeats, c.timeout, is.slowdown, is.late, is.sent,
			is.pauses)
	}
	s := slowdowns
	shortIsSlower, shortSendsMore := s[1] >= s[0] && s[3] >= s[2], sent[1] >= 1.25*sent[0] && sent[3] >= 1.25*sent[2]
	if causedByPFC := s[5] <= s[0]/4; !shortIsSlower || !shortSendsMore || !causedByPFC {
		t.Errorf("in a storm, slowdowns %.1f, %.0f packets sent: short timeouts are to make both worse, and PFC to be the cause", s, sent)
	}
	text += `
It makes it worse. Nothing is lost, but what waits is taken for lost, and sent again into queues that stand: a third more packets pass.
Selective repeat does not change that, since a timeout goes back to the first packet all the same. The timeouts that a network without PFC
wants are wrong in one with PFC.
`
	write(t, "slow.md", text)
}
