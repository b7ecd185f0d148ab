package perf

import (
	"runtime"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/completion"
)

// peek reads a byte that the device may write meanwhile: how receivers of WRITEs without immediate data find out. The
// Go memory model says nothing of devices, and the race detector takes this one's for a goroutine: it is not to look.
//
//go:norace
//go:noinline
func peek(b []byte) byte { return b[0] }

// mark makes the last byte of the next message the count of messages, so that it differs from the one before.
func (q *queuePair) mark() {
	b, _ := q.lane.side.mr.Bytes(q.tx.Addr, uint64(q.plan.Size))
	b[len(b)-1] = byte(q.posted + 1)
}

// relax is for who polls memory: now and then it lets other goroutines run, and after a while it sleeps. See waiter.
func relax(spins int, how completion.Waiting) {
	switch {
	case spins%completion.SpinsBetween != 0:
	case spins < 10_000 || how == completion.Poll:
		runtime.Gosched()
	default:
		time.Sleep(completion.LeastSpin)
	}
}
