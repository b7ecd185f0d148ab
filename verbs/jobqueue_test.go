package verbs

import (
	"math/rand/v2"
	"testing"
)

// TestJobQueue compares a queue with a slice. It grows and becomes short in turns, also beyond what
// it keeps.
func TestJobQueue(t *testing.T) {
	var q jobQueue
	var want []uint64
	r := rand.New(rand.NewPCG(1, 2))
	number := uint64(0)
	for step := range 100_000 {
		grows := step/2000%2 == 0
		if push := r.IntN(4) > 0; push == grows {
			number++
			q.push(&placeJob{number: number})
			want = append(want, number)
		} else if len(want) > 0 {
			if j := q.pop(); j.number != want[0] {
				t.Fatalf("step %d: job %d is first, want %d", step, j.number, want[0])
			}
			want = want[1:]
		}
		if r.IntN(10_000) == 0 {
			q.clear()
			want = nil
		}
		if len(q.list()) != len(want) {
			t.Fatalf("step %d: %d jobs, want %d", step, len(q.list()), len(want))
		}
		if last := q.last(); last == nil != (len(want) == 0) || last != nil && last.number != want[len(want)-1] {
			t.Fatalf("step %d: the last job is %v of %d", step, last, len(want))
		}
		if len(want) == 0 && cap(q.slots) > keptJobs {
			t.Fatalf("step %d: an empty queue keeps %d slots", step, cap(q.slots))
		}
	}
}
