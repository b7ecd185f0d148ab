package verbs

import "sync/atomic"

// cqProgress decides which empty polls of a CQ make the device progress. Any goroutine may call its
// methods.
type cqProgress struct {
	empty atomic.Uint32 // consecutive empty polls
	own   atomic.Bool   // the last series of empty polls ended without a call of Progress
}

// due reports whether the next empty poll of a series calls Progress. Polls of a series are
// numbered from 1, and only those from number from on may call Progress.
func (p *cqProgress) due(from uint32) bool {
	n := p.empty.Load() + 1
	return n >= from && (!p.own.Load() || n%pollsPerOwnProgress == 0)
}

// pollEmpty records that a poll has found nothing.
func (p *cqProgress) pollEmpty() { p.empty.Add(1) }

// pollFound ends a series of empty polls. progress reports whether the last poll called Progress.
func (p *cqProgress) pollFound(progress bool) {
	if p.empty.Load() == 0 {
		return
	}
	p.empty.Store(0)
	if p.own.Load() == progress {
		p.own.Store(!progress)
	}
}

// restart begins a new series of empty polls.
func (p *cqProgress) restart() { p.empty.Store(0) }
