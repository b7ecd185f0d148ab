//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"runtime"
	"sync"
)

// progressInterval is how often polls of an empty CQ enter the engine, as softrnic.h has it. The loop of a program that polls
// takes some nanoseconds, and a call of Progress a microsecond or less.
const progressInterval = 256

// threads counts the program's threads that call the engine often.
//
// A thread that returns from Go to C keeps its P, the runtime's right to run Go code, until another needs it; but if there are
// fewer Ps than such threads, a thread that calls waits until the runtime's monitor takes a P from one that is in C, which takes
// up to 10 ms. So there are more Ps than threads.
var threads struct {
	mu   sync.Mutex
	n    int
	base int // GOMAXPROCS without threads of the program's
}

// mostThreads bounds how many threads of the program's have a P each.
const mostThreads = 256

// handlerStack is how much room a handler of a signal has on the stack of a thread of the program's, besides what the engine needs:
// some 10 KiB. Handlers that are installed without SA_ONSTACK run on the stack that the thread has then, which is Go's while it is in
// the engine, and their frame alone may have 4 KiB. Go does not know of them. It grows a stack once and for all, as the engine
// is built with gcshrinkstackoff.
const handlerStack = 96 << 10

// needStack makes Go grow the stack.
//
//go:noinline
func needStack() byte {
	var room [handlerStack]byte
	return room[len(threadsStack)]
}

var threadsStack []byte // empty, which the compiler does not know

//export srThread
func srThread(n C.int) C.int {
	if n == 0 {
		needStack()
		return 0
	}
	t := &threads
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.base == 0 {
		t.base = runtime.GOMAXPROCS(0)
	}
	t.n += int(n)
	// In steps, as each change stops all of Go for a moment; and never fewer than there were.
	want := t.base + min(mostThreads, (t.n+3)/4*4)
	if want > runtime.GOMAXPROCS(0) {
		runtime.GOMAXPROCS(want)
	}
	return 0
}

//export srProgress
func srProgress(ctx C.uint32_t, busy *C.int) C.int {
	c := contexts.get(uint32(ctx))
	if c == nil {
		return gone
	}
	*busy = 0
	if c.dev.Progress() {
		*busy = 1
	}
	return 0
}

//export srEndProgress
func srEndProgress(ctx C.uint32_t) C.int {
	c := contexts.get(uint32(ctx))
	if c == nil {
		return gone
	}
	c.dev.EndProgress()
	return 0
}
