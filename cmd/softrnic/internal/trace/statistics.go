package trace

import (
	"math"
	"time"

	hdrhistogram "github.com/HdrHistogram/hdrhistogram-go"
)

// statistics are the counts of one direction of a connection.
type statistics struct {
	Packets  uint64
	Wire     uint64 // bytes of all packets, with their IP headers and without Ethernet's
	Bytes    uint64 // of payload, without retransmissions
	Messages uint64
	Repeated uint64 // retransmitted packets
	Lost     uint64 // packets that were missing and then retransmitted
	Gaps     uint64
	NAKs     uint64 // answers to this direction's requests
	RNRs     uint64
	Timeouts uint64
	Marked   uint64 // CE, or CNPs
	closed   bool

	trips    *hdrhistogram.Histogram // nanoseconds from a request to its answer
	shortest int64
}

// Round trips are kept with one significant digit, in 2 KiB for each direction.
const longestTrip = int64(100 * time.Second)

func (s *statistics) roundTrip(ns int64) {
	if ns < 0 {
		return
	}
	if s.trips == nil {
		s.trips = hdrhistogram.New(100, longestTrip, 1)
		s.shortest = math.MaxInt64
	}
	s.shortest = min(s.shortest, ns)
	_ = s.trips.RecordValue(min(max(ns, 100), longestTrip)) // always within the limits
}

// tooSoon reports whether an answer that comes so long after a packet is not to that packet: it
// takes much less than every answer so far.
func (s *statistics) tooSoon(ns int64) bool { return s.trips != nil && ns < s.shortest/2 }

// trip returns a quantile of the round trips, or 0 if there was none.
func (s *statistics) trip(q float64) time.Duration {
	if s.trips == nil {
		return 0
	}
	return time.Duration(s.trips.ValueAtQuantile(q))
}

// gbits returns a rate in Gbit/s.
func gbits(bytes uint64, ns int64) float64 {
	if ns <= 0 {
		return 0
	}
	return float64(bytes) * 8 / float64(ns)
}
