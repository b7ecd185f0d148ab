package perf

import (
	"runtime"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
	"github.com/softrnic/softrnic/link/idle"
)

// peek reads a byte that the device may write concurrently. The receiver of a WRITE without
// immediate data polls memory in this way. The Go memory model does not cover devices. The race
// detector would take the device for a goroutine and report a race, so this function is not
// instrumented.
//
//go:norace
//go:noinline
func peek(b []byte) byte { return b[0] }

// mark sets the last byte of the next message to the count of messages, so that it differs from the
// previous one.
func (q *queuePair) mark() {
	b, _ := q.lane.side.mr.Bytes(q.tx.Addr, uint64(q.plan.Size))
	b[len(b)-1] = byte(q.posted + 1)
}

const (
	spinsBetween = 8 // polls of memory per call of the scheduler
)

// relax is called by a loop that polls memory. It sometimes yields to other goroutines, and after a
// while it sleeps.
func relax(spins int, how completion.Waiting) {
	switch {
	case spins%spinsBetween != 0:
	case spins < 10_000 || how == completion.Poll:
		runtime.Gosched()
	default:
		time.Sleep(idle.SleepTime)
	}
}
