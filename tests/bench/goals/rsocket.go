//go:build linux

package main

// rsockets, compared with the QPs below them on the same link, and with the kernel's TCP on it.

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// socketLink is a link on which rsockets are measured.
type socketLink struct {
	name string
	run  func(args ...string) measurement
}

var socketLinks = []socketLink{
	{"TAP", func(args ...string) measurement { return between(overTAP.links, nil, args...) }},
	{"shm", func(args ...string) measurement { return between(overShm, nil, args...) }},
	{"the kernel's sockets", func(args ...string) measurement { return overSockets(nil, args...) }},
}

// rsockets returns the experiments of all links.
func rsockets() (all []*experiment) {
	for _, transport := range []string{"RoCEv2", "iWARP"} {
		flags := []string{"--sockets", "--transport", strings.ToLower(transport)}
		for _, on := range socketLinks {
			all = append(all, socketWrites(on, transport, flags), socketTrip(on, transport, flags))
		}
		all = append(all, besideLoopback(transport, flags)...)
	}
	return append(all, withoutCRC())
}

// ofTCP are the goals of rsockets on the kernel's sockets, of the kernel's TCP there. An iWARP
// rsocket is a TCP connection with CRCs and headers.
var ofTCP = map[string]float64{"RoCEv2": 0.95, "iWARP": 0.85}

// socketWrites compares writes of 64 KiB with the QP's WRITE, and on the kernel's sockets also with
// the kernel's TCP.
func socketWrites(on socketLink, transport string, flags []string) *experiment {
	what := fmt.Sprintf("rsocket, writes of 64 KiB, %s, %s", transport, on.name)
	rows := []*row{{What: what, Goal: 0.95, Unit: "Gbit/s", Against: "the QP's WRITE"}}
	args := slices.Concat(bandwidthFlags, flags)
	if on.name == socketLinks[2].name {
		rows = append(rows, &row{What: what + ", beside TCP", Goal: ofTCP[transport], Unit: "Gbit/s", Against: "the kernel's TCP"})
		args = append(args, kernelTCP...)
	}
	return &experiment{rows, func(ctx context.Context, l *lab) error {
		p, err := on.run(args...)(ctx, l)
		if err != nil {
			return err
		}
		last := p[len(p)-1].Gbps // of the rsocket
		for i, r := range rows {
			r.add(last, p[i].Gbps)
		}
		each, err := l.measureParts(ctx)
		if err != nil {
			return err
		}
		rows[0].addFloor(copiedToo, each)
		if len(rows) > 1 && transport == "iWARP" {
			rows[1].addFloor(copiedAndCheckedToo, each)
		}
		return nil
	}}
}

// withoutCRC compares iWARP's rsockets without CRCs with the kernel's TCP, to which they add
// headers and copies alone.
func withoutCRC() *experiment {
	rows := []*row{{What: "rsocket, writes of 64 KiB, iWARP without CRC, the kernel's sockets, beside TCP", Goal: 0.95, Unit: "Gbit/s",
		Against: "the kernel's TCP"}}
	args := slices.Concat(bandwidthFlags, []string{"--sockets", "--transport", "iwarp"}, kernelTCP)
	measure := overSockets([]string{"--mpa", "no-crc"}, args...)
	return &experiment{rows, func(ctx context.Context, l *lab) error {
		p, err := measure(ctx, l)
		if err == nil {
			rows[0].add(p[len(p)-1].Gbps, p[len(p)-2].Gbps) // the QP's WRITE is first
		}
		return err
	}}
}

// kernelTCP are perf's flags that also measure the kernel's TCP between the namespaces.
var kernelTCP = []string{"--kernel-tcp", strings.TrimSuffix(socketAddrs[1], "/24")}

// besideLoopback compares rsockets over shared memory with the kernel's TCP on loopback: what a
// program on one machine would use otherwise. Both wait in their default way.
func besideLoopback(transport string, flags []string) []*experiment {
	flags = slices.Concat(flags, []string{"--kernel-tcp", "127.0.0.1"})
	const against = "the kernel's TCP on loopback"
	what := fmt.Sprintf("rsocket, %%s, %s, shm, beside TCP", transport)
	writes := &row{What: fmt.Sprintf(what, "writes of 64 KiB"), Goal: 2, Unit: "Gbit/s", Against: against}
	requests := &row{What: fmt.Sprintf(what, "requests of 8 bytes"), Goal: 1.5, Unit: "requests/s", Against: against}
	measured := func(r *row, figure func(*perfResult) float64, args ...string) *experiment {
		return &experiment{[]*row{r}, func(ctx context.Context, l *lab) error {
			p, err := between(overShm, nil, args...)(ctx, l)
			if err != nil {
				return err
			}
			r.add(figure(&p[len(p)-1]), figure(&p[len(p)-2])) // the QP's is first
			if r != writes || transport != "RoCEv2" {
				return nil
			}
			each, err := l.measureParts(ctx)
			if err == nil {
				r.addFloor(twoCopies, each)
			}
			return err
		}}
	}
	return []*experiment{
		measured(writes, func(p *perfResult) float64 { return p.Gbps }, slices.Concat(bandwidthFlags, flags)...),
		measured(requests, func(p *perfResult) float64 { return 1e6 / (2 * p.Latency.Typical) },
			slices.Concat([]string{"send", "lat"}, flags)...),
	}
}

// socketTrip compares half a round trip of 8 bytes with that of the QP's SEND. Both wait in their
// default way.
func socketTrip(on socketLink, transport string, flags []string) *experiment {
	r := &row{What: fmt.Sprintf("rsocket, 8 bytes, half round trip, %s, %s", transport, on.name), Goal: 1.5, AtMost: true, Unit: "µs",
		Against: "the QP's SEND"}
	return &experiment{[]*row{r}, func(ctx context.Context, l *lab) error {
		p, err := on.run(slices.Concat([]string{"send", "lat"}, flags)...)(ctx, l)
		if err != nil {
			return err
		}
		r.add(p[1].Latency.Typical, p[0].Latency.Typical)
		return nil
	}}
}
