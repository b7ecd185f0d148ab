package send

import "testing"

// fill returns a queue of requests with PSNs from 10 on, sent up to and including the n-th.
func fill(n int, rs ...request) *queue {
	q := new(queue)
	q.init(8)
	psn := uint32(10)
	for _, r := range rs {
		q.post(r.kind, r.packets, r.is(fenced))
	}
	for range n {
		r := q.current()
		if r.kind == Local {
			q.localExecuted(psn)
			continue
		}
		q.start(r, psn)
		psn += r.packets
		q.advance(r, r.packets)
	}
	return q
}

func TestQueue(t *testing.T) {
	write, read, local := request{kind: Write, packets: 3}, request{kind: Read, packets: 4}, request{kind: Local}
	type cursor struct{ first, next, packet, unanswered uint32 }
	for _, c := range []struct {
		name string
		q    *queue
		do   func(q *queue) int
		want cursor
		done int
	}{
		{"sent", fill(2, write, read), nil, cursor{0, 2, 0, 1}, 0},
		{"half of one", fill(1, write, read), func(q *queue) int { q.start(q.current(), 13); q.advance(q.current(), 2); return 0 },
			cursor{0, 1, 2, 1}, 0},
		{"complete one", fill(2, write, read), func(q *queue) int { return q.completeOldest(q.oldest()) }, cursor{1, 2, 0, 1}, 1},
		{"complete a READ", fill(1, read), func(q *queue) int { return q.completeOldest(q.oldest()) }, cursor{1, 1, 0, 0}, 1},
		{"complete one, and local ones after it", fill(4, write, local, local, read),
			func(q *queue) int { return q.completeOldest(q.oldest()) }, cursor{3, 4, 0, 1}, 3},
		{"a local one after it that is not executed", fill(1, write, local),
			func(q *queue) int { return q.completeOldest(q.oldest()) }, cursor{1, 1, 0, 0}, 1},
		{"rewind", fill(2, write, read), func(q *queue) int { q.rewind(11); return 0 }, cursor{0, 0, 1, 1}, 0},
		{"rewind, and complete requests that were to be retransmitted", fill(2, write, read),
			func(q *queue) int { q.rewind(11); return q.completeOldest(q.oldest()) }, cursor{1, 1, 0, 1}, 1},
		{"rewind and skip", fill(2, write, read), func(q *queue) int { q.rewind(10); q.skip(12); return 0 }, cursor{0, 0, 2, 1}, 0},
		{"skip the following ones", fill(2, write, read), func(q *queue) int { q.rewind(12); q.skip(11); return 0 }, cursor{0, 0, 2, 1}, 0},
		{"over a local one that is executed", fill(3, write, local, read), func(q *queue) int {
			q.rewind(10)
			q.advance(q.current(), 3)
			return 0
		}, cursor{0, 2, 0, 1}, 0},
		{"forward", fill(2, write, read), func(q *queue) int { q.rewind(10); q.forward(15); return 0 }, cursor{0, 1, 2, 1}, 0},
		{"forward to one that cannot be sent", fill(2, write, read),
			func(q *queue) int { q.fail(0, 1); q.rewind(10); q.forward(15); return 0 }, cursor{0, 0, 0, 1}, 0},
		{"copied directly, posted here", fill(0, write), func(q *queue) int { q.movedDirectly(); return 0 }, cursor{1, 1, 0, 0}, 0},
		{"copied directly, not posted here", fill(0), func(q *queue) int { q.movedDirectly(); return 0 }, cursor{1, 1, 0, 0}, 0},
	} {
		done := 0
		if c.do != nil {
			done = c.do(c.q)
		}
		got := cursor{c.q.first, c.q.next, c.q.packet, c.q.unanswered}
		if got != c.want || done != c.done {
			t.Errorf("%s: %+v, %d complete; want %+v, %d", c.name, got, done, c.want, c.done)
		}
	}
	q := fill(3, write, local, read)
	for psn, want := range map[uint32]uint32{10: 0, 12: 0, 13: 2, 16: 2} {
		if n := q.find(psn); n != want {
			t.Errorf("PSN %d is found in request %d, want %d", psn, n, want)
		}
	}
}
