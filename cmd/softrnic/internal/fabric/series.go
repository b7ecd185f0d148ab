package fabric

import (
	"slices"
	"time"
)

// series are samples over time: of queues, and of flows.
type series struct {
	interval time.Duration
	queues   []sample // of ports
	rates    []sample // of flows
	moved    []*flow  // since the last sample
	sent     []uint64 // by ports, until then
}

// sample is what a port or a flow has in an interval. Those with nothing have none.
type sample struct {
	bin    int32 // number of the interval
	id     int32
	queued int64 // bytes at its end
	bytes  int64 // sent, or acknowledged
}

// maxSamples is the most samples of a kind. Then the interval doubles.
const maxSamples = 1 << 20

// sample adds the samples of an interval that has ended.
func (r *run) sample() {
	s := &r.series
	bin := int32((r.f.Now() - 1) / s.interval)
	ports := r.ports
	if s.sent == nil {
		s.sent = make([]uint64, len(ports))
	}
	for i, p := range ports {
		n := p.Counters().Bytes
		queued := 0
		if i >= len(r.nodes) { // a switch's
			queued = p.Queued()
		}
		if n != s.sent[i] || queued > 0 {
			s.queues = append(s.queues, sample{bin, int32(i), int64(queued), int64(n - s.sent[i])})
			s.sent[i] = n
		}
	}
	for _, f := range s.moved {
		s.rates = append(s.rates, sample{bin, int32(f.id), 0, f.recent})
		f.recent = 0
	}
	s.moved = s.moved[:0]
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
		if a.bin != b.bin {
			return int(a.bin) - int(b.bin)
		}
		return int(a.id) - int(b.id)
	})
	n := 0
	for _, s := range all {
		if n > 0 && all[n-1].bin == s.bin && all[n-1].id == s.id {
			all[n-1].bytes += s.bytes
			all[n-1].queued = max(all[n-1].queued, s.queued)
			continue
		}
		all[n] = s
		n++
	}
	return all[:n]
}
