//go:build linux

package main

import (
	"cmp"
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

// idle prints the memory of connected QPs, in pairs, that do nothing.
func idle(o *options) error {
	n := cmp.Or(o.qps, 1_000_000)
	nodes, err := newNodes(true, 1)
	if err != nil {
		return err
	}
	before, start := inUse(), time.Now()
	qps := make([][2]*verbs.QP, n/2)
	for i := range qps {
		if qps[i], err = pair(nodes, verbs.RC, 1); err != nil {
			return err
		}
	}
	made := time.Since(start)
	// The queues as requested: one request with one SGE in each direction.
	const queues = unsafe.Sizeof(verbs.SendWR{}) + unsafe.Sizeof(verbs.RecvWR{}) + 2*unsafe.Sizeof(verbs.SGE{})
	each := float64(inUse()-before) / float64(n)
	start = time.Now()
	runtime.GC()
	collection := time.Since(start)
	start = time.Now()
	for _, p := range qps {
		if err := errors.Join(p[0].Close(), p[1].Close()); err != nil {
			return err
		}
	}
	destroyed := time.Since(start)
	fmt.Printf("%d QPs: made and connected in %v, %.1f µs each; %.0f bytes each, %.0f beyond its queues; "+
		"a garbage collection %v; destroyed in %v, %.1f µs each\n",
		n, made.Round(time.Millisecond), float64(made.Microseconds())/float64(n), each, each-float64(queues),
		collection.Round(time.Millisecond), destroyed.Round(time.Millisecond), float64(destroyed.Microseconds())/float64(n))
	return nil
}

// inUse returns the memory in use: heap and stacks.
func inUse() uint64 {
	runtime.GC()
	runtime.GC() // memory held by pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}
