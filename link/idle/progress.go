package idle

import "sync/atomic"

// Progress decides which empty polls of a CQ make the device progress. Any goroutine may call its
// methods.
type Progress struct {
	empty atomic.Uint32 // consecutive empty polls
	own   atomic.Bool   // the last series of empty polls ended without a call of Progress
}

// Due reports whether the next empty poll of a series calls Progress. Polls of a series are
// numbered from 1, and only those from number from on may call Progress.
func (p *Progress) Due(from uint32) bool {
	n := p.empty.Load() + 1
	return n >= from && (!p.own.Load() || n%PollsPerOwnProgress == 0)
}

// Empty records that a poll has found nothing.
func (p *Progress) Empty() { p.empty.Add(1) }

// Found ends a series of empty polls. progress reports whether the last poll called Progress.
func (p *Progress) Found(progress bool) {
	if p.empty.Load() == 0 {
		return
	}
	p.empty.Store(0)
	if p.own.Load() == progress {
		p.own.Store(!progress)
	}
}

// Restart begins a new series of empty polls.
func (p *Progress) Restart() { p.empty.Store(0) }
