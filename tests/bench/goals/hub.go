//go:build linux

package main

// Nodes that share an address through a hub, compared with nodes that have their own addresses.

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// withHub starts a hub in a namespace on a side's processor, and stops it when f has returned.
// Other nodes in the namespace would use it.
func (l *lab) withHub(ctx context.Context, in netns.NsHandle, on side, f func() error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*programTimeout)
	defer cancel()
	says, stderr, err := os.Pipe()
	if err != nil {
		return err
	}
	defer says.Close()
	cmd, err := l.start(ctx, in, on, io.Discard, stderr, l.softrnic, "hub")
	_ = stderr.Close()
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(says)
	up := lines.Scan() && strings.Contains(lines.Text(), "is up")
	var more bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(&more, says)
	}()
	if up {
		err = f()
	}
	_ = cmd.Process.Signal(unix.SIGTERM)
	ended := cmd.Wait()
	<-read
	if !up || err == nil && ended != nil {
		return fmt.Errorf("%s: %v: %s %s", strings.Join(cmd.Args, " "), ended, lines.Text(), bytes.TrimSpace(more.Bytes()))
	}
	return err
}

var shared = []string{"--shared"}

// throughHubs runs perf between two namespaces with a hub in each.
func (l *lab) throughHubs(ctx context.Context, args ...string) (p []perfResult, err error) {
	err = l.withHub(ctx, l.inside, client, func() error {
		return l.withHub(ctx, l.beyond, server, func() error {
			p, err = l.overSockets(ctx, shared, args...)
			return err
		})
	})
	return p, err
}

// onLoopback runs perf between two nodes in one namespace, over the kernel's sockets.
func (l *lab) onLoopback(ctx context.Context, addrs [2]string, flags []string, args ...string) ([]perfResult, error) {
	return l.run(ctx, l.inside, [2]string{"kernel:lo", "kernel:lo"}, addrs, append(slices.Clone(flags), selective), args...)
}

var (
	ownAddrs    = [2]string{"127.0.0.1", "127.0.0.2"}
	sharedAddrs = [2]string{"127.0.0.1", "127.0.0.1"}
)

// underOneHub runs perf between two nodes of one hub, whose packets need not pass through it.
func (l *lab) underOneHub(ctx context.Context, args ...string) (p []perfResult, err error) {
	err = l.withHub(ctx, l.inside, client, func() error {
		p, err = l.onLoopback(ctx, sharedAddrs, shared, args...)
		return err
	})
	return p, err
}

func hubBandwidth(m pathMTU) *experiment {
	r := &row{What: fmt.Sprintf("WRITE 64 KiB, RoCEv2, the kernel's sockets, veth, through hubs, path MTU %d", m.payload), Goal: 0.8,
		Unit: "Gbit/s", Against: "without hubs"}
	return compare(r, gbps, func(ctx context.Context, l *lab) ([]perfResult, error) {
		if err := l.setSocketMTU(m.link); err != nil {
			return nil, err
		}
		return l.throughHubs(ctx, bandwidthFlags...)
	}, func(ctx context.Context, l *lab) ([]perfResult, error) {
		return l.overSockets(ctx, nil, bandwidthFlags...)
	})
}

// latencyArgs are perf's arguments for half round trips, polling.
var latencyArgs = append([]string{"send", "lat"}, polling...)

func hubLatency() *experiment {
	r := &row{What: "SEND 8 bytes, RoCEv2, the kernel's sockets, veth, through hubs, half round trip, polling", Goal: 1.25, AtMost: true,
		Unit: "µs", Against: "without hubs"}
	return compare(r, halfTrip,
		func(ctx context.Context, l *lab) ([]perfResult, error) { return l.throughHubs(ctx, latencyArgs...) },
		func(ctx context.Context, l *lab) ([]perfResult, error) {
			return l.overSockets(ctx, nil, latencyArgs...)
		})
}

func besideHubBandwidth() *experiment {
	r := &row{What: "WRITE 64 KiB, RoCEv2, two nodes of one hub", Goal: 0.95, Unit: "Gbit/s", Against: "without a hub"}
	return besideHub(r, gbps, bandwidthFlags)
}

func besideHubLatency() *experiment {
	r := &row{What: "SEND 8 bytes, RoCEv2, two nodes of one hub, half round trip, polling", Goal: 1.05, AtMost: true, Unit: "µs",
		Against: "without a hub"}
	return besideHub(r, halfTrip, latencyArgs)
}

// besideHub compares two nodes of one hub with two nodes that have an address each.
func besideHub(r *row, figure func(*perfResult) float64, args []string) *experiment {
	return compare(r, figure,
		func(ctx context.Context, l *lab) ([]perfResult, error) { return l.underOneHub(ctx, args...) },
		func(ctx context.Context, l *lab) ([]perfResult, error) {
			return l.onLoopback(ctx, ownAddrs, nil, args...)
		})
}
