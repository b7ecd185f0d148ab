//go:build !windows

package perf

import (
	"syscall"
	"time"
)

// cpuTime returns the CPU time of this process, in user mode and in the kernel.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
