//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// start runs a program, whose output goes to the standard error. The processor time and the memory
// include those of its children, and theirs. Linux counts the memory of the process that starts a
// program as the program's: that is why this small one does.
func start(args []string) (*result, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("start: no program")
	}
	runtime.LockOSThread() // the program ends with the thread that has started it
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("%v: %w", cmd, err)
	}
	took, used := time.Since(began), cmd.ProcessState
	return &result{Took: milliseconds(took), CPU: milliseconds(used.UserTime() + used.SystemTime()),
		Memory: float64(used.SysUsage().(*syscall.Rusage).Maxrss) * 1024 / 1e6}, nil
}

func milliseconds(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
