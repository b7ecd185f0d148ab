package hub

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
)

// process identifies a process with a lease, so that a successor of the hub recognizes the process.
// Two processes with the same PID differ in their start time.
type process struct {
	PID   int32  // 0: not visible from here, for example in another container
	Began uint64 // clock ticks since boot
}

// processOf returns the present process with this PID.
func processOf(pid int32) (p process) {
	if began, alive := beganAt(pid); alive {
		p = process{pid, began}
	}
	return p
}

// isAlive reports whether the process exists. It may be stopped, or get no CPU time.
func (p process) isAlive() bool {
	began, alive := beganAt(p.PID)
	return alive && began == p.Began
}

// beganAt returns the start time of a process. alive is false if there is none, or if it is a
// zombie.
func beganAt(pid int32) (ticks uint64, alive bool) {
	if pid <= 0 {
		return 0, false
	}
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, false
	}
	// The start time is preceded by the PID, the name in parentheses, the state and 18 more
	// fields (proc(5)).
	fields := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	if len(fields) < 20 || fields[0][0] == 'Z' || fields[0][0] == 'X' {
		return 0, false
	}
	ticks, err = strconv.ParseUint(string(fields[19]), 10, 64)
	return ticks, err == nil
}
