//go:build linux

package main

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"
)

// pingSize is the UDP payload of a frame of 64 bytes.
const pingSize = 64 - (headerLen - vnetLen)

// spinFor is how long a side polls for a frame before it sleeps.
const spinFor = 50 * time.Microsecond

// ping sends a frame to another process, which returns it, and so on.
func ping(bridge string, messages int) (_ *result, err error) {
	if messages < 1 {
		return nil, fmt.Errorf("-messages %d: must be at least 1", messages)
	}
	runtime.LockOSThread()
	fd, err := pinger(0, bridge)
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	other := exec.Command(self, "ping", "-pong", "-bridge", bridge)
	other.Stderr = os.Stderr
	other.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	if err := other.Start(); err != nil {
		return nil, err
	}
	defer func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	}()
	trips := hdrhistogram.New(1, int64(time.Minute), 3)
	buf, f := make([]byte, 1<<16), frame(0, pingSize, 1)
	const warmup = 200
	for i := range messages + warmup {
		began := time.Now()
		for {
			if _, err := unix.Write(fd, f); err != nil {
				return nil, err
			}
			ok, err := await(fd, 0, buf, 100*time.Millisecond)
			if err != nil {
				return nil, err
			}
			if ok {
				break
			}
			if time.Since(began) > 5*time.Second { // the other process did not exist yet
				return nil, fmt.Errorf("no answer to frame %d", i)
			}
		}
		if i >= warmup {
			_ = trips.RecordValue(int64(time.Since(began))) // it is in range
		}
	}
	return &result{HalfTrip: float64(trips.ValueAtPercentile(50)) / 2e3}, nil
}

// answer returns every frame, until it is killed.
func answer(bridge string) error {
	runtime.LockOSThread()
	fd, err := pinger(1, bridge)
	if err != nil {
		return err
	}
	buf, f := make([]byte, 1<<16), frame(1, pingSize, 1)
	for {
		ok, err := await(fd, 1, buf, time.Minute)
		if err != nil || !ok {
			return err
		}
		if _, err := unix.Write(fd, f); err != nil {
			return err
		}
	}
}

func pinger(side int, bridge string) (fd int, err error) {
	if fd, err = openTAP(side, bridge); err != nil {
		return 0, err
	}
	pin(side)
	return fd, unix.SetNonblock(fd, true)
}

// await reads until there is a frame for a side. It polls and yields, then sleeps.
func await(fd, side int, buf []byte, timeout time.Duration) (bool, error) {
	began := time.Now()
	for {
		n, err := unix.Read(fd, buf)
		switch {
		case err == nil:
			if data, _ := payload(buf[:n], side); data != nil {
				return true, nil
			}
			continue
		case err == unix.EINTR:
			continue
		case err != unix.EAGAIN:
			return false, err
		}
		yield()
		switch waited := time.Since(began); {
		case waited > timeout:
			return false, nil
		case waited > spinFor:
			ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			if _, err := unix.Poll(ready, int(timeout.Milliseconds())); err != nil && err != unix.EINTR {
				return false, err
			}
		}
	}
}
