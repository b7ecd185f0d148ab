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
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// faults sees to it that faults of the program's memory are Go's: a program may install handlers of SIGSEGV and SIGBUS at any
// time, and nobody says so. So before memory is touched that may be gone, the handlers are looked at, unless that was done a
// moment ago. A look takes two system calls.
var faults struct {
	epoch  time.Time
	looked atomic.Int64 // when the handlers were looked at, since epoch
	mu     sync.Mutex
	warned bool
}

// handlerInterval is how long a look at the handlers holds good: less than a program needs to install handlers, unmap memory, and
// have a peer write there.
const handlerInterval = 200 * time.Microsecond

func watchFaults() {
	C.fault_init()
	faults.epoch = time.Now()
	verbs.BeforeGuard(func() {
		if now := int64(time.Since(faults.epoch)); now-faults.looked.Load() > int64(handlerInterval) {
			checkFaults(now)
		}
	})
}

func checkFaults(now int64) {
	f := &faults
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := syscall.Errno(C.fault_check()); err != 0 && !f.warned {
		f.warned = true
		stacks.log.Load().Warn("memory that is unmapped while it is registered may end the program, as it has installed too many handlers of SIGSEGV", "error", err)
	}
	f.looked.Store(now)
}
