package perf

import (
	"runtime"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
)

// peek reads a byte that the device may write at the same time: that is how the receiver of a WRITE without immediate data
// learns of it. The Go memory model says nothing of devices. The race detector would take the device for another goroutine of
// the program, and report a race; therefore this function is not instrumented.
//
//go:norace
//go:noinline
func peek(b []byte) byte { return b[0] }

// mark makes the last byte of the next message the count of messages, so that it differs from the one before.
func (q *queuePair) mark() {
	b, _ := q.lane.side.mr.Bytes(q.tx.Addr, uint64(q.plan.Size))
	b[len(b)-1] = byte(q.posted + 1)
}

const (
	spinsBetween = 8                     // looks at memory for one call of the scheduler
	pause        = 50 * time.Microsecond // of a side that has looked 10,000 times in vain
)

// relax is called by a loop that polls memory. Now and then it lets other goroutines run, and after a while it sleeps.
func relax(spins int, how completion.Waiting) {
	switch {
	case spins%spinsBetween != 0:
	case spins < 10_000 || how == completion.Poll:
		runtime.Gosched()
	default:
		time.Sleep(pause)
	}
}
