//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"runtime"
	"sync"

	"github.com/softrnic/softrnic/link/idle"
)

// idleParameters returns the idle policy of a device whose own threads receive.
func idleParameters() C.struct_sr_idle {
	p := &pollParams
	return C.struct_sr_idle{
		polls_per_call_soon: C.uint32_t(p.PollsPerCallSoon), calls_soon: C.uint32_t(p.CallsSoon),
		calls_soon_arrivals: C.uint32_t(p.CallsSoonArrivals), calls_per_yield: C.uint32_t(p.CallsPerYield),
		calls_per_yield_soon: C.uint32_t(p.CallsPerYieldSoon), calls_before_sleep: C.uint32_t(p.CallsBeforeSleep),
		sleep: C.uint32_t(idle.SleepTime), sleep_interval: C.uint32_t(p.SleepInterval),
		first_spin: C.uint32_t(p.FirstSpin), longest_spin: C.uint32_t(p.LongestSpin),
		short_sleep: C.uint32_t(p.ShortSleep), calls_per_clock: C.uint32_t(p.CallsPerClock),
		events_before_poll: C.uint32_t(p.EventsBeforePoll), posts_per_take: C.uint32_t(p.PostsPerTake),
	}
}

// threads counts the program's threads that call the engine often.
//
// A thread that returns from Go to C keeps its P, the runtime's right to run Go code, until another
// thread needs it. If there are fewer Ps than such threads, a thread that calls the engine waits
// until the runtime's monitor takes a P from a thread in C. This takes up to 10 ms. Therefore there
// are more Ps than threads.
var threads struct {
	mu   sync.Mutex
	n    int
	base int // GOMAXPROCS without the program's threads
}

// maxThreads limits the number of the program's threads that have a P each.
const maxThreads = 256

//export srThread
func srThread(n C.int) C.int {
	if n == 0 {
		return 0 // the call itself attaches the thread
	}
	t := &threads
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.base == 0 {
		t.base = runtime.GOMAXPROCS(0)
	}
	t.n += int(n)
	// The number grows in steps, because each change stops all of Go for a moment. It never shrinks.
	want := t.base + min(maxThreads, (t.n+3)/4*4)
	if want > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(want)
	}
	return 0
}

//export srProgress
func srProgress(ctx C.uint32_t, busy *C.int) C.int {
	c := contexts.Get(uint32(ctx))
	if c == nil {
		return notFound
	}
	*busy = flag[C.int](c.dev.Progress())
	return 0
}

//export srEndProgress
func srEndProgress(ctx C.uint32_t) C.int {
	return with(&contexts, ctx, func(c *userContext) error {
		c.dev.EndProgress()
		return nil
	})
}
