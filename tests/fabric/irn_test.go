package fabric

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// TestIRN repeats the comparison of RoCE on a lossless network with IRN on one that loses.
func TestIRN(t *testing.T) {
	x := newExperiment(t)
	const seeds = 3
	fct := filepath.Join(x.dir, "fct.csv")
	text := `# IRN: selective repeat without PFC

Mittal et al., Revisiting Network Support for RDMA, SIGCOMM 2018 (arXiv 1806.08159). Its abstract: IRN without PFC performs 6 to 83 %
better than RoCE with PFC. Other numbers were not at hand.

54 hosts in a fat tree, 40 Gbit/s, 2 µs, path MTU 1024, 240 kB a port, a load of 70 % for 3 ms. Half of the flows have 32 to 1,000
bytes, 35 % up to 200 kB, 15 % up to 3 MB, evenly in each class, and the sources and destinations are random ([irn.toml](../testdata/irn.toml),
[irn.csv](../testdata/irn.csv)). Each flow is one WRITE on a QP of its own. Numbers are averages of three seeds.

- RoCE: go-back-N, and a window of 4 MiB, which is more than a flow has. Timeouts are 4 ms.
- IRN: selective repeat, and a window of 128 KiB, about the product of the bandwidth and the longest path's delay. Timeouts are 0.5 ms.
- PFC from 220 kB on, with headroom of 40 kB. Without it a queue has 240 kB.
- DCQCN: the paper's parameters and marks, as in [dcqcn.md](dcqcn.md).

| | slowdown, average | FCT, average, µs | FCT, 99 %, µs | dropped | pauses | to RoCE: slowdown, FCT, 99 % |
|---|---|---|---|---|---|---|
`
	roce := []string{"rdma.window=4MiB"}
	irn := []string{"rdma.window=128KiB", "rdma.selective_repeat=true", "rdma.timeout=7"}
	lossless := []string{"switch.pfc={xoff=\"220kB\",headroom=\"40kB\"}"}
	lossy := []string{"switch.queue=240kB"}
	dcqcn := []string{"switch.ecn={min=\"5kB\",max=\"200kB\",p=0.01}",
		paperDCQCN}
	for _, cc := range []struct {
		name string
		set  []string
	}{{"", nil}, {" + DCQCN", dcqcn}} {
		var base [3]float64
		for i, c := range []struct {
			name string
			set  []string
		}{
			{"RoCE + PFC", slices.Concat(roce, lossless)},
			{"IRN", slices.Concat(irn, lossy)},
			{"IRN + PFC", slices.Concat(irn, lossless)},
		} {
			var got [3]float64
			var dropped, pauses, sent uint64
			for seed := range seeds {
				args := []string{"testdata/irn.toml", "--seed", strconv.Itoa(seed + 1), "--fct", fct}
				for _, s := range slices.Concat(c.set, cc.set) {
					args = append(args, "--set", s)
				}
				r := x.run(args...)
				if r.Flows.Done != r.Flows.Planned {
					t.Errorf("%s%s: %+v", c.name, cc.name, r.Flows)
				}
				var times []float64
				slowdown, sum := 0.0, 0.0
				for _, row := range x.table(fct) {
					times = append(times, number(t, row[6]))
					sum += number(t, row[6])
					slowdown += number(t, row[8])
				}
				slices.Sort(times)
				n := len(times)
				for j, v := range []float64{slowdown / float64(n), sum / float64(n), percentile99(times)} {
					got[j] += v / seeds
				}
				dropped, pauses, sent = dropped+r.Packets.Dropped, pauses+r.Packets.Pauses, sent+r.Packets.Sent
			}
			change := ""
			if i == 0 {
				base = got
			} else {
				change = fmt.Sprintf("%+.0f, %+.0f, %+.0f %%", 100*(got[0]/base[0]-1), 100*(got[1]/base[1]-1), 100*(got[2]/base[2]-1))
			}
			text += fmt.Sprintf("| %s%s | %.2f | %.0f | %.0f | %.2f %% | %d | %s |\n", c.name, cc.name, got[0], got[1], got[2],
				100*float64(dropped)/float64(sent), pauses, change)
			if i == 1 && (got[0] > base[0] || got[1] > base[1]) {
				t.Errorf("%s%s is slower than %+v: %+v", c.name, cc.name, base, got)
			}
			if i != 1 && dropped > 0 {
				t.Errorf("%s%s: %d packets are dropped in spite of PFC", c.name, cc.name, dropped)
			}
		}
	}
	write(t, "irn.md", text)
}
