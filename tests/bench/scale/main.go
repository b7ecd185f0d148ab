//go:build linux

// Command scale measures what many QPs and connections of one process cost.
//
// Usage:
//
//	go run ./tests/bench/scale active    # the time of a message against the number of QPs that are used in turn
//	go run ./tests/bench/scale idle      # the memory and time of a million QPs that are connected and do nothing
//	go run ./tests/bench/scale connect   # connections that are set up and closed in a second
//	go run ./tests/bench/scale cores     # messages a second, and CPU time each, of one goroutine and of one a processor
//
// Figures are medians of rounds, in which all counts are measured in turn, so that what else the machine does meets all. Two
// nodes are in this process, on a link of memory.
package main

import (
	"flag"
	"fmt"
	"os"
	"runtime/pprof"
	"slices"
)

// options are the flags.
type options struct {
	rounds  int
	qps     int
	profile string
}

func main() {
	var o options
	flag.Usage = func() {
		fmt.Fprintln(flag.CommandLine.Output(), "usage: scale [flags] active|idle|connect|cores")
		flag.PrintDefaults()
	}
	flag.IntVar(&o.rounds, "rounds", 9, "how often each count is measured")
	flag.IntVar(&o.qps, "qps", 0, "the most QPs; 0: 100,000 of active ones, 1,000,000 of idle ones")
	flag.StringVar(&o.profile, "pprof", "", "write a CPU profile to this file")
	flag.Parse()
	if err := run(&o, flag.Arg(0)); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(o *options, what string) error {
	measure, known := map[string]func(*options) error{"active": active, "idle": idle, "connect": connect, "cores": cores}[what]
	if !known || flag.NArg() != 1 || o.rounds < 1 || o.qps < 0 {
		flag.Usage()
		os.Exit(2)
	}
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}
	return measure(o)
}

func median(samples []float64) float64 {
	s := slices.Sorted(slices.Values(samples))
	return s[len(s)/2]
}
