package verbs

import "time"

// Poller reads a CQ one completion at a time, and with each what a WC has no field for (ibv_start_poll, ibv_next_poll,
// ibv_end_poll):
//
//	p := cq.StartPoll()
//	for p.Next() {
//		if p.WC().Status != verbs.WCSuccess { … }
//	}
//	err := p.End()
//
// Other than in libibverbs the CQ is not locked in between: the loop may post work requests.
type Poller struct {
	cq    *CQ
	err   error
	wc    [1]WC
	stamp [1]stamp
}

// StartPoll begins at the oldest completion.
func (cq *CQ) StartPoll() Poller { return Poller{cq: cq} }

// Next takes the next completion out of the queue; false if there is none, or End has an error.
func (p *Poller) Next() bool {
	var n int
	n, p.err = p.cq.poll(p.wc[:], p.stamp[:])
	return n == 1
}

// End is the error that ended the loop: see CQ.Poll.
func (p *Poller) End() error { return p.err }

// WC is the completion; Next overwrites it.
func (p *Poller) WC() *WC { return &p.wc[0] }

// CompletionTS is when the completion was made, by the device's clock: see Device.RawClock. It is 0 if
// CQInitAttr.Timestamps was not set.
func (p *Poller) CompletionTS() time.Duration { return time.Duration(p.stamp[0].hca) }

// CompletionWallclock is when the completion was made, by the host's clock; the zero time without
// CQInitAttr.Timestamps.
func (p *Poller) CompletionWallclock() time.Time {
	if p.stamp[0].wall == 0 {
		return time.Time{}
	}
	return time.Unix(0, p.stamp[0].wall)
}

// stamp is when a completion was made, in nanoseconds.
type stamp struct {
	hca  int64 // since the device was opened
	wall int64 // since 1970
}

func (d *Device) stamp() stamp {
	now := time.Now()
	return stamp{hca: int64(now.Sub(d.opened)), wall: now.UnixNano()}
}

// RawClock is the device's clock (ibv_query_rt_values_ex): monotonic, 0 when it was opened.
func (d *Device) RawClock() time.Duration { return time.Since(d.opened) }
