//go:build linux

// Command yardstick measures the limits of the machine on SoftRNIC's paths, without any code of
// SoftRNIC: bare system calls, checksums and copies. tests/bench/goals runs it beside softrnic
// perf. It prints one line of JSON.
//
// Usage (except for copy, ring and start, as root in a namespace with the named interfaces):
//
//	yardstick tap -bridge br0       two TAP interfaces in a bridge, a thread writes and another reads
//	yardstick packet -on v0,v1      the same with packet sockets on the two ends of a veth pair
//	yardstick ping -bridge br0      two processes on such TAPs return a 64-byte frame to each other
//	yardstick copy                  one goroutine copies memory, with -crc also CRC32C
//	yardstick ring                  a thread copies from memory to a ring, another from there to other memory
//	yardstick start PROGRAM ...     the time and memory of a program from its start to its end
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"
)

// result is the output; what was not measured is omitted.
type result struct {
	Gbps     float64 `json:"gbit_per_second,omitempty"` // of payload, at the receiver
	CPUPerGB float64 `json:"cpu_seconds_per_gb,omitempty"`
	Lost     uint64  `json:"frames_lost,omitempty"`
	CRC      uint32  `json:"crc,omitempty"`                // of all copies, so that none is left out
	HalfTrip float64 `json:"half_round_trip_us,omitempty"` // the median
	Took     float64 `json:"took_ms,omitempty"`
	CPU      float64 `json:"cpu_ms,omitempty"`
	Memory   float64 `json:"memory_mb,omitempty"` // of the largest process
}

func main() {
	r, err := run(os.Args[1:])
	if err == nil && r != nil {
		err = json.NewEncoder(os.Stdout).Encode(r)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "yardstick:", err)
		os.Exit(1)
	}
}

func run(args []string) (*result, error) {
	if len(args) == 0 {
		return nil, fmt.Errorf("no measurement: must be tap, packet, ping, copy, ring or start")
	}
	if args[0] == "start" {
		return start(args[1:])
	}
	fs := flag.NewFlagSet(args[0], flag.ExitOnError)
	duration := fs.Duration("duration", 300*time.Millisecond, "how long to measure")
	warmup := fs.Duration("warmup", 100*time.Millisecond, "how long to run before")
	bridge := fs.String("bridge", "br0", "tap, ping: the bridge")
	on := fs.String("on", "v0,v1", "packet: the two interfaces")
	var t traffic
	fs.IntVar(&t.payload, "payload", 4096, "tap, packet: bytes of data in a packet")
	fs.IntVar(&t.packets, "packets", 15, "tap, packet: packets in a frame; 1 is no superframe")
	fs.BoolVar(&t.work, "work", false, "tap, packet: compute and check ICRCs, and copy from and to memory")
	crc := fs.Bool("crc", false, "copy: also compute CRC32C over each copy")
	fs.IntVar(&t.window, "window", 512<<10, "tap, packet: bytes in flight")
	fs.IntVar(&t.cpu, "cpu", 0, "tap, packet: the sender's processor, 0 or 1; the receiver has the other")
	memory := fs.Int("memory", 16<<20, "bytes of memory on each side to copy from and to")
	size := fs.Int("size", 64<<10, "copy, ring: bytes at a time")
	messages := fs.Int("messages", 10000, "ping: round trips")
	pong := fs.Bool("pong", false, "ping: be the side that answers; for the command's own use")
	_ = fs.Parse(args[1:]) // it exits
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("unknown argument %q", fs.Arg(0))
	}
	t.memory = *memory
	// Threads that wait in the kernel must not stop others from running.
	runtime.GOMAXPROCS(max(4, runtime.NumCPU()))
	switch args[0] {
	case "tap":
		if err := t.check(); err != nil {
			return nil, err
		}
		ends, err := openTAPs(*bridge)
		if err != nil {
			return nil, err
		}
		return t.measure(ends, *warmup, *duration)
	case "packet":
		if err := t.check(); err != nil {
			return nil, err
		}
		names := strings.Split(*on, ",")
		if len(names) != 2 {
			return nil, fmt.Errorf("-on %q: must be two interfaces, such as v0,v1", *on)
		}
		ends, err := openPackets(names)
		if err != nil {
			return nil, err
		}
		return t.measure(ends, *warmup, *duration)
	case "ping":
		if *pong {
			return nil, answer(*bridge)
		}
		return ping(*bridge, *messages)
	case "copy", "ring":
		if *size < 1 || *memory < *size {
			return nil, fmt.Errorf("-size %d: must be 1 to -memory, %d", *size, *memory)
		}
		if args[0] == "ring" {
			return throughRing(*memory, *size, *warmup, *duration)
		}
		return copyMemory(*memory, *size, *crc, *warmup, *duration), nil
	}
	return nil, fmt.Errorf("%q is not a measurement: must be tap, packet, ping, copy, ring or start", args[0])
}
