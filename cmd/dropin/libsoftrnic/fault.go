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

	"github.com/softrnic/softrnic/cmd/dropin/libsoftrnic/internal/ticks"
	"github.com/softrnic/softrnic/cmd/internal/node"
)

// faults keeps Go's handlers of SIGSEGV and SIGBUS in front of the program's. A program may install
// handlers at any time without notice. Before the engine accesses memory that may be unmapped, it
// therefore checks the handlers, unless the last check was a moment ago. A check takes two system
// calls.
var faults struct {
	checked atomic.Uint64 // when the handlers were checked, in ticks
	mu      sync.Mutex
	warned  bool
}

// handlerInterval is the time for which a check of the handlers is valid. In less time, no program
// can install handlers, unmap memory, and have a peer write there. The engine accesses memory for
// each packet, and a message of 64 KiB may have 64 packets. Reading the system's clock each time
// would take a tenth of the sender's time.
const handlerInterval = ticks.Second / 5000 // 0.2 ms or less

// initFaultHandlers makes the devices check the handlers before they access the program's memory.
func initFaultHandlers(nodes []*node.Node) {
	C.fault_init()
	for _, n := range nodes {
		n.Dev.BeforeMappedAccess(func() {
			if now := ticks.Now(); now-faults.checked.Load() > handlerInterval {
				checkFaults(now)
			}
		})
	}
}

func checkFaults(now uint64) {
	f := &faults
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := syscall.Errno(C.fault_check()); err != 0 && !f.warned {
		f.warned = true
		stacks.log.Load().Warn("memory that is unmapped while it is registered may end the program, "+
			"as it has installed too many handlers of SIGSEGV", "error", err)
	}
	f.checked.Store(now)
}
