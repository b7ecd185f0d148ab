//go:build linux

package main

// Nodes that share an address through a hub, compared with nodes that have their own addresses.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"

	"github.com/vishvananda/netns"
)

// withHub starts a hub in a namespace on a side's processor, and stops it when f has returned.
// Other nodes in the namespace would use it.
func (l *lab) withHub(ctx context.Context, in netns.NsHandle, on side, f func() error) error {
	return l.withServer(ctx, in, on, "is up", f, "hub")
}

var shared = []string{"--shared"}

// throughHubs runs perf between two namespaces with a hub in each.
func throughHubs(args ...string) measurement {
	return func(ctx context.Context, l *lab) (p []perfResult, err error) {
		err = l.withHubs(ctx, func() error {
			p, err = overSockets(shared, args...)(ctx, l)
			return err
		})
		return p, err
	}
}

// withHubs calls f while there is a hub in each of two namespaces.
func (l *lab) withHubs(ctx context.Context, f func() error) error {
	return l.withHub(ctx, l.inside, client, func() error { return l.withHub(ctx, l.beyond, server, f) })
}

// manyThroughHubs is throughHubs with n processes on each side at a time. The result is the sum of
// their throughput. They run for long, as they do not begin at the same moment.
func manyThroughHubs(n int, args ...string) measurement {
	const times = 10
	return func(ctx context.Context, l *lab) ([]perfResult, error) {
		long := *l
		long.duration *= times
		sum := make([]perfResult, 1)
		err := l.withHubs(ctx, func() error {
			results, errs := make([][]perfResult, n), make([]error, n)
			var running sync.WaitGroup
			for i := range n {
				running.Go(func() {
					flags := append(slices.Clone(shared), "--port", strconv.Itoa(18600+i))
					results[i], errs[i] = overSockets(flags, args...)(ctx, &long)
				})
			}
			running.Wait()
			for _, p := range results {
				if len(p) > 0 {
					sum[0].Gbps += p[0].Gbps
				}
			}
			return errors.Join(errs...)
		})
		return sum, err
	}
}

func hubMany() *experiment {
	const n = 8
	return single(&row{
		What: fmt.Sprintf("WRITE 64 KiB, RoCEv2, the kernel's sockets, veth, through hubs, %d processes at once, their sum", n),
		Goal: 0.9, Unit: "Gbit/s", Against: "one process"},
		gbps(manyThroughHubs(n, bandwidthFlags...)), gbps(manyThroughHubs(1, bandwidthFlags...)))
}

var (
	ownAddrs    = [2]string{"127.0.0.1", "127.0.0.2"}
	sharedAddrs = [2]string{"127.0.0.1", "127.0.0.1"}
)

// underOneHub runs perf between two nodes of one hub, whose packets need not pass through it.
func underOneHub(args ...string) measurement {
	return func(ctx context.Context, l *lab) (p []perfResult, err error) {
		err = l.withHub(ctx, l.inside, client, func() error {
			p, err = onLoopback(sharedAddrs, shared, args...)(ctx, l)
			return err
		})
		return p, err
	}
}

func hubBandwidth(m pathMTU) *experiment {
	return single(&row{What: fmt.Sprintf("WRITE 64 KiB, RoCEv2, the kernel's sockets, veth, through hubs, path MTU %d", m.payload),
		Goal: 0.95, Unit: "Gbit/s", Against: "without hubs"},
		withSocketMTU(m, gbps(throughHubs(bandwidthFlags...))), gbps(overSockets(nil, bandwidthFlags...)))
}

// latencyArgs are perf's arguments for half round trips, polling.
var latencyArgs = append([]string{"send", "lat"}, polling...)

func hubLatency() *experiment {
	return single(&row{What: "SEND 8 bytes, RoCEv2, the kernel's sockets, veth, through hubs, half round trip, polling", Goal: 1.1,
		AtMost: true, Unit: "µs", Against: "without hubs"},
		halfTrip(throughHubs(latencyArgs...)), halfTrip(overSockets(nil, latencyArgs...)))
}

// The nodes beside a hub are compared with two nodes that have an address each.

func besideHubBandwidth() *experiment {
	return single(&row{What: "WRITE 64 KiB, RoCEv2, two nodes of one hub", Goal: 0.95, Unit: "Gbit/s", Against: "without a hub"},
		gbps(underOneHub(bandwidthFlags...)), gbps(onLoopback(ownAddrs, nil, bandwidthFlags...)))
}

func besideHubLatency() *experiment {
	return single(&row{What: "SEND 8 bytes, RoCEv2, two nodes of one hub, half round trip, polling", Goal: 1.05, AtMost: true, Unit: "µs",
		Against: "without a hub"}, halfTrip(underOneHub(latencyArgs...)), halfTrip(onLoopback(ownAddrs, nil, latencyArgs...)))
}
