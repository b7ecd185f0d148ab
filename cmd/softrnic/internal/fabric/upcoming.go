package fabric

import (
	"cmp"
	"slices"
	"time"
)

// upcoming is a flow that starts at a time known from the beginning.
type upcoming struct {
	at   time.Duration
	flow *flow
}

// ahead is the time for which connections are made at once. A flow is known so long before it
// starts. To use two hosts needs a time when no host runs, for which all workers wait.
const ahead = time.Microsecond

// expect plans a flow.
func (r *run) expect(at time.Duration, f *flow) { r.upcoming = append(r.upcoming, upcoming{at, f}) }

// sortUpcoming is called when all are planned.
func (r *run) sortUpcoming() {
	slices.SortStableFunc(r.upcoming, func(a, b upcoming) int { return cmp.Compare(a.at, b.at) })
	r.openUpcoming()
}

// openUpcoming makes the connections of the next flows when their microsecond begins. Each flow
// then starts at its time, at its requester.
func (r *run) openUpcoming() {
	if len(r.upcoming) == 0 {
		return
	}
	begins := r.upcoming[0].at.Truncate(ahead)
	r.at(begins, 0, func() {
		for len(r.upcoming) > 0 && r.upcoming[0].at < begins+ahead {
			a := r.upcoming[0]
			r.upcoming = r.upcoming[1:]
			a.flow.begin(a.at, r.f.Now())
			if c := r.open(a.flow); c != nil {
				c.from.h.Clock().AfterFunc(a.at-r.f.Now(), c.post)
			}
		}
		r.openUpcoming()
	})
}
