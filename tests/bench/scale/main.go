//go:build linux

// Command scale measures the cost of many QPs and connections in one process, and where the time of
// a round trip goes.
//
// Usage:
//
//	go run ./tests/bench/scale active    # time of a message against the number of QPs in use
//	go run ./tests/bench/scale idle      # memory and time of a million idle connected QPs
//	go run ./tests/bench/scale connect   # connections set up and closed per second
//	go run ./tests/bench/scale cores     # messages per second on one processor and on all
//	go run ./tests/bench/scale timeline  # where half a round trip over TAP goes; needs root
//
// Figures are medians of rounds. Each round measures all counts in turn, so that other load of the
// machine affects all of them. Two nodes are in this process, on a link in memory.
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
		fmt.Fprintln(flag.CommandLine.Output(), "usage: scale [flags] active|idle|connect|cores|timeline")
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
	measure, known := map[string]func(*options) error{"active": active, "idle": idle, "connect": connect, "cores": cores,
		"timeline": timeline}[what]
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
