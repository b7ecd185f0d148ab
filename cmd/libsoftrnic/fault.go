//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "fault.h"
*/
import "C"

import (
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/cmd/libsoftrnic/internal/ticks"
	"github.com/softrnic/softrnic/verbs"
)

// faults sees to it that faults of the program's memory are Go's: a program may install handlers of SIGSEGV and SIGBUS at any
// time, and nobody says so. So before memory is touched that may be gone, the handlers are looked at, unless that was done a
// moment ago. A look takes two system calls.
var faults struct {
	looked atomic.Uint64 // when the handlers were looked at, in ticks
	mu     sync.Mutex
	warned bool
}

// handlerInterval is how long a look at the handlers holds good: less than a program needs to install handlers, unmap memory, and
// have a peer write there. Memory is touched for each packet, of which a message of 64 KiB may have 64: the system's clock would take a
// tenth of the sender's time.
const handlerInterval = ticks.Second / 5000 // 0.2 ms or less

func watchFaults() {
	C.fault_init()
	verbs.BeforeGuard(func() {
		if now := ticks.Now(); now-faults.looked.Load() > handlerInterval {
			checkFaults(now)
		}
	})
}

func checkFaults(now uint64) {
	f := &faults
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := syscall.Errno(C.fault_check()); err != 0 && !f.warned {
		f.warned = true
		stacks.log.Load().Warn("memory that is unmapped while it is registered may end the program, as it has installed too many handlers of SIGSEGV", "error", err)
	}
	f.looked.Store(now)
}
