package verbs

import "time"

// Poller polls a CQ one completion at a time, as Poll does for a slice of them. It is for values
// that a WC lacks, such as timestamps, and for loops that end at a certain completion
// (ibv_start_poll, ibv_next_poll, ibv_end_poll):
//
//	p := cq.StartPoll()
//	for p.Next() {
//		if p.WC().Status != verbs.WCSuccess { … }
//	}
//	err := p.End()
//
// Unlike in libibverbs, the CQ is not locked meanwhile: the loop may post work requests.
type Poller struct {
	cq    *CQ
	err   error
	wc    [1]WC
	stamp [1]stamp
}

// StartPoll starts at the oldest completion.
func (cq *CQ) StartPoll() Poller { return Poller{cq: cq} }

// Next removes the next completion from the queue. It returns false if the queue is empty, or after
// an error, which End returns.
func (p *Poller) Next() bool {
	var n int
	n, p.err = p.cq.poll(p.wc[:], p.stamp[:])
	return n == 1
}

// End returns the error that ended the loop: see CQ.Poll.
func (p *Poller) End() error { return p.err }

// WC returns the completion. Next overwrites it.
func (p *Poller) WC() *WC { return &p.wc[0] }

// CompletionTS returns the time of the completion by the device's clock: see Device.RawClock. It is
// 0 if CQInitAttr.Timestamps was not set.
func (p *Poller) CompletionTS() time.Duration { return time.Duration(p.stamp[0].hca) }

// CompletionWallclock returns the time of the completion by the host's clock. It is the zero time
// if CQInitAttr.Timestamps was not set.
func (p *Poller) CompletionWallclock() time.Time {
	if p.stamp[0].wall == 0 {
		return time.Time{}
	}
	return time.Unix(0, p.stamp[0].wall)
}

// stamp is the time of a completion, in nanoseconds.
type stamp struct {
	hca  int64 // since the device was opened
	wall int64 // since 1970, as time.Time.UnixNano
}

func (d *Device) stamp() stamp {
	now := d.clock.Now()
	return stamp{hca: int64(now.Sub(d.opened)), wall: now.UnixNano()}
}

// RawClock returns the device's clock (ibv_query_rt_values_ex): the monotonic time since the device
// was opened.
func (d *Device) RawClock() time.Duration { return d.clock.Since(d.opened) }
