package hub

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// process is a process that has, or had, a lease, such that a successor of the hub knows it again: no other process of the same
// number began at the same time.
type process struct {
	PID   int32  // 0: it cannot be seen from here, as in another container
	Began uint64 // clock ticks since the machine was started
}

// processOf is the process that has a number now.
func processOf(pid int32) (p process) {
	if began, alive := beganAt(pid); alive {
		p = process{pid, began}
	}
	return p
}

// isAlive tells whether the process is there, whether or not it runs: it may be stopped, or get no processor.
func (p process) isAlive() bool {
	began, alive := beganAt(p.PID)
	return alive && began == p.Began
}

// beganAt is when a process began; false if there is none of this number, or it is a zombie.
func beganAt(pid int32) (ticks uint64, alive bool) {
	if pid <= 0 {
		return 0, false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// PID, name in parentheses, state, and 18 more before this (proc(5)).
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return 0, false
	}
	ticks, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return ticks, err == nil
}
