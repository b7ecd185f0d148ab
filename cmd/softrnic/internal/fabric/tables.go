package fabric

import (
	"bytes"
	"fmt"
	"time"
)

// writeFCT writes the flows that have ended, in the order of their start.
func (s *summary) writeFCT(b *bytes.Buffer) error {
	fmt.Fprintln(b, "flow,workload,source,destination,bytes,start_us,fct_us,ideal_us,slowdown")
	for _, w := range s.rows {
		fmt.Fprintf(b, "%d,%d,%d,%d,%d,%.3f,%.3f,%.3f,%.4f\n", w.id, w.load, w.from, w.to, w.bytes, micro(w.start), micro(w.fct),
			micro(w.ideal), w.slowdown())
	}
	return nil
}

// writeQueues writes the samples of ports: what is queued at the end of an interval, and what was
// sent in it. A port without a row has sent nothing, and its queue is as it was.
func (r *run) writeQueues(b *bytes.Buffer) error {
	fmt.Fprintln(b, "time_us,node,peer,queued_bytes,sent_bytes,utilisation")
	for _, s := range r.series.queues {
		p := r.ports[s.id]
		fmt.Fprintf(b, "%.3f,%s,%s,%d,%d,%.4f\n", micro(r.series.end(s.bin)), p.Node(), p.Peer().Node(), s.after, s.bytes,
			float64(s.bytes)*8/p.Rate()/r.series.interval.Seconds())
	}
	return nil
}

// writeRates writes the samples of flows: what was acknowledged in an interval.
func (r *run) writeRates(b *bytes.Buffer) error {
	fmt.Fprintln(b, "time_us,flow,source,destination,acknowledged_bytes,gbps")
	for _, s := range r.series.rates {
		f := r.flows[s.id]
		fmt.Fprintf(b, "%.3f,%d,%d,%d,%d,%.4f\n", micro(r.series.end(s.bin)), f.id, f.from, f.to, s.bytes, r.series.gbps(s.bytes))
	}
	return nil
}

// end is the end of an interval.
func (s *series) end(bin int64) time.Duration { return time.Duration(bin+1) * s.interval }

// gbps is the rate of bytes in an interval, in Gbit/s.
func (s *series) gbps(n int64) float64 { return float64(n) * 8 / s.interval.Seconds() / 1e9 }
