//go:build linux

package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
)

// queues compares two queues of a link with one. Both programs may use all processors, so that an
// additional queue does not add a processor. With two processors, each program already uses both,
// with a thread that sends and one that receives. The best possible result is then 1.
func queues(p path, op, metric string) *experiment {
	size, unit := "64 KiB", "Gbit/s"
	args := []string{op, metric, "--qps", "4", "--threads", "2", "--size", strconv.Itoa(small), "--buffer", strconv.Itoa(memory / 4)}
	if metric == "rate" {
		size, unit = "8 bytes", "M/s"
		args = []string{op, metric, "--qps", "4", "--threads", "2"}
	}
	r := &row{What: fmt.Sprintf("%s %s, RoCEv2, %s, two queues, 4 QPs on 2 threads", strings.ToUpper(op), size, p.name), Goal: 0.9,
		Unit: unit, Against: "one queue's"}
	return &experiment{[]*row{r}, func(ctx context.Context, l *lab) error {
		l.anywhere = true
		defer func() { l.anywhere = false }()
		flags, err := p.mtu(l, pathMTUs[0].link)
		if err != nil {
			return err
		}
		var figures [2]float64
		for i := range figures {
			links := p.links
			for k := range links {
				links[k] += ",queues=" + strconv.Itoa(i+1)
			}
			got, err := between(links, flags, args...)(ctx, l)
			if err != nil {
				return err
			}
			if figures[i] = got[0].Gbps; metric == "rate" {
				figures[i] = got[0].Mpps
			}
		}
		r.add(figures[1], figures[0])
		return nil
	}}
}
