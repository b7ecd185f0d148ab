//go:build linux

package main

import (
	"errors"
	"runtime"
	"sync/atomic"
	"time"
)

// ringLen is the memory of a ring, equal to that of SoftRNIC's rings.
const ringLen = 4 << 20

// ring is memory with one producer thread and one consumer thread.
type ring struct {
	slots   []byte
	written atomic.Uint64 // slots, in total; a cache line each
	_       [56]byte
	read    atomic.Uint64
	_       [56]byte
}

// throughRing copies from one region to a ring and from the ring to another region, on two threads
// with a processor each. The threads never end: the process does.
func throughRing(bytes, size int, warmup, duration time.Duration) (*result, error) {
	r := &ring{slots: pattern(max(ringLen, 2*size))}
	from, to := memory{bytes: pattern(bytes)}, memory{bytes: pattern(bytes)}
	n := uint64(len(r.slots) / size)
	slot := func(i uint64) []byte { return r.slots[int(i%n)*size:][:size] }
	go func() {
		runtime.LockOSThread()
		pin(0)
		for i := uint64(0); ; i++ {
			for spins := 1; i >= r.read.Load()+n; spins++ {
				rest(spins)
			}
			copy(slot(i), from.next(size))
			r.written.Store(i + 1)
		}
	}()
	go func() {
		runtime.LockOSThread()
		pin(1)
		for i := uint64(0); ; i++ {
			for spins := 1; i >= r.written.Load(); spins++ {
				rest(spins)
			}
			copy(to.next(size), slot(i))
			r.read.Store(i + 1)
		}
	}()
	time.Sleep(warmup)
	before, cpu, began := r.read.Load(), cpuSeconds(), time.Now()
	time.Sleep(duration)
	copied := float64(r.read.Load()-before) * float64(size)
	if copied == 0 {
		return nil, errors.New("nothing arrives")
	}
	return &result{Gbps: copied * 8 / 1e9 / time.Since(began).Seconds(), CPUPerGB: (cpuSeconds() - cpu) / (copied / 1e9)}, nil
}

// rest yields the processor, once in a number of spins.
func rest(spins int) {
	if spins%256 == 0 {
		yield()
	}
}
