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
	}
	return all
}

// socketWrites compares writes of 64 KiB with the QP's WRITE, and on the kernel's sockets also with
// the kernel's TCP.
func socketWrites(on socketLink, transport string, flags []string) *experiment {
	what := fmt.Sprintf("rsocket, writes of 64 KiB, %s, %s", transport, on.name)
	rows := []*row{{What: what, Goal: 0.8, Unit: "Gbit/s", Against: "the QP's WRITE"}}
	args := slices.Concat(bandwidthFlags, flags)
	if kernel, _, _ := strings.Cut(socketAddrs[1], "/"); on.name == socketLinks[2].name {
		rows = append(rows, &row{What: what + ", beside TCP", Goal: 1, Unit: "Gbit/s", Against: "the kernel's TCP"})
		args = append(args, "--kernel-tcp", kernel)
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
		return nil
	}}
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
