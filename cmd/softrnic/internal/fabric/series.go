package fabric

import (
	"cmp"
	"slices"
	"time"
)

// series are samples over time: of queues, and of flows.
type series struct {
	interval time.Duration
	queues   []sample  // of ports
	rates    []sample  // of flows
	moved    [][]*flow // since the last sample, by the worker of their requester
	sent     []uint64  // by ports, until then
	queued   []int64   // at ports, then
}

// sample is what a port or a flow has in an interval. There is none of a port that has sent nothing
// and whose queue is as it was, and of a flow that has nothing.
type sample struct {
	bin    int64 // number of the interval
	id     int32 // of a flow, its number until run.order
	queued int64 // bytes at its end, or the most of those of joined intervals
	after  int64 // bytes at its end
	bytes  int64 // sent, or acknowledged
}

// maxSamples is the most samples of a kind. Then the interval doubles.
const maxSamples = 1 << 20

// sample adds the samples of an interval that has ended.
func (r *run) sample() {
	s := &r.series
	bin := int64((r.f.Now() - 1) / s.interval)
	ports := r.ports
	if s.sent == nil {
		s.sent, s.queued = make([]uint64, len(ports)), make([]int64, len(ports))
	}
	for i, p := range ports {
		n := p.Counters().Bytes
		queued := int64(0)
		if i >= len(r.nodes) { // a switch's
			queued = int64(p.Queued())
		}
		if n != s.sent[i] || queued != s.queued[i] {
			s.queues = append(s.queues, sample{bin, int32(i), queued, queued, int64(n - s.sent[i])})
			s.sent[i], s.queued[i] = n, queued
		}
	}
	first := len(s.rates)
	for i, flows := range s.moved {
		for _, f := range flows {
			s.rates = append(s.rates, sample{bin: bin, id: int32(f.number), bytes: f.recent})
			f.recent = 0
		}
		s.moved[i] = flows[:0]
	}
	slices.SortFunc(s.rates[first:], func(a, b sample) int { return cmp.Compare(a.id, b.id) })
	for len(s.queues) > maxSamples || len(s.rates) > maxSamples {
		s.interval *= 2
		s.queues, s.rates = coarsen(s.queues), coarsen(s.rates)
	}
}

// coarsen joins the samples of two intervals.
func coarsen(all []sample) []sample {
	for i := range all {
		all[i].bin /= 2
	}
	slices.SortStableFunc(all, func(a, b sample) int {
		return cmp.Or(cmp.Compare(a.bin, b.bin), cmp.Compare(a.id, b.id))
	})
	n := 0
	for _, s := range all {
		if n > 0 && all[n-1].bin == s.bin && all[n-1].id == s.id {
			all[n-1].bytes += s.bytes
			all[n-1].queued, all[n-1].after = max(all[n-1].queued, s.queued), s.after
			continue
		}
		all[n] = s
		n++
	}
	return all[:n]
}
