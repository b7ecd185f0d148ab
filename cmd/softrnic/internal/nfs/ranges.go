package nfs

import (
	"context"
	"slices"
	"sync"
)

// ranges keep the order of calls that change the same bytes of a file. A call that its client has
// abandoned may still wait for the disk. It must not replace what a later call has written.
type ranges struct {
	mu    sync.Mutex
	files map[identity][]*span // in the order of the calls
}

// span is what one call changes: the bytes from, up to before to.
type span struct {
	in       *ranges
	id       identity
	from, to uint64
	ended    chan struct{}
}

func newRanges() *ranges { return &ranges{files: map[identity][]*span{}} }

// enter waits until earlier calls have left the range. If it returns nil, ctx has ended.
func (r *ranges) enter(ctx context.Context, id identity, from, to uint64) *span {
	s := &span{in: r, id: id, from: from, to: to, ended: make(chan struct{})}
	var before []*span
	r.mu.Lock()
	for _, other := range r.files[id] {
		if other.from < to && from < other.to {
			before = append(before, other)
		}
	}
	r.files[id] = append(r.files[id], s)
	r.mu.Unlock()
	for _, other := range before {
		select {
		case <-other.ended:
		case <-ctx.Done():
			s.leave()
			return nil
		}
	}
	return s
}

// leave ends the call's use of the range. s may be nil.
func (s *span) leave() {
	if s == nil {
		return
	}
	s.in.mu.Lock()
	defer s.in.mu.Unlock()
	left := slices.DeleteFunc(s.in.files[s.id], func(other *span) bool { return other == s })
	if len(left) == 0 {
		delete(s.in.files, s.id)
	} else {
		s.in.files[s.id] = left
	}
	close(s.ended)
}
