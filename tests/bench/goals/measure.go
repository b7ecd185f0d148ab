//go:build linux

package main

import (
	"context"
	"slices"
)

// measurement is a run of perf. The arguments of those below begin with the operation and the
// metric.
type measurement func(context.Context, *lab) ([]perfResult, error)

// sample measures one figure.
type sample func(context.Context, *lab) (float64, error)

// loopback runs softrnic perf in one process.
func loopback(args ...string) measurement {
	return func(ctx context.Context, l *lab) ([]perfResult, error) { return l.perf(ctx, both, "--loopback", args) }
}

// between runs softrnic perf in two processes, client and server, each with its own processor and
// link. Both nodes have the flags.
func between(links [2]string, flags []string, args ...string) measurement {
	return func(ctx context.Context, l *lab) ([]perfResult, error) {
		return l.run(ctx, l.inside, nodes(links, [2]string{"10.88.0.1/24", "10.88.0.2/24"}), flags, args...)
	}
}

// selective is for nodes on sockets: they lose packets when a buffer in the kernel is full.
const selective = "--selective-repeat"

// overSockets does the same on the kernel's own sockets, in two namespaces.
func overSockets(flags []string, args ...string) measurement {
	return func(ctx context.Context, l *lab) ([]perfResult, error) {
		return l.run(ctx, l.beyond, nodes([2]string{"kernel:" + sockets[0], "kernel:" + sockets[1]}, socketAddrs),
			append(slices.Clone(flags), selective), args...)
	}
}

// onLoopback does the same between two nodes in one namespace.
func onLoopback(addrs [2]string, flags []string, args ...string) measurement {
	return func(ctx context.Context, l *lab) ([]perfResult, error) {
		return l.run(ctx, l.inside, nodes([2]string{"kernel:lo", "kernel:lo"}, addrs), append(slices.Clone(flags), selective), args...)
	}
}

// gbps, mpps and halfTrip measure a figure of a run's first result.
func gbps(m measurement) sample { return m.first(func(p *perfResult) float64 { return p.Gbps }) }
func mpps(m measurement) sample { return m.first(func(p *perfResult) float64 { return p.Mpps }) }
func halfTrip(m measurement) sample {
	return m.first(func(p *perfResult) float64 { return p.Latency.Typical })
}

func (m measurement) first(figure func(*perfResult) float64) sample {
	return func(ctx context.Context, l *lab) (float64, error) {
		p, err := m(ctx, l)
		if err != nil {
			return 0, err
		}
		return figure(&p[0]), nil
	}
}

// yardGbps and yardHalfTrip measure a figure of the yardstick.
func yardGbps(args ...string) sample {
	return func(ctx context.Context, l *lab) (float64, error) {
		y, err := l.yardstick(ctx, args...)
		return y.Gbps, err
	}
}

func yardHalfTrip(args ...string) sample {
	return func(ctx context.Context, l *lab) (float64, error) {
		y, err := l.yardstick(ctx, args...)
		return y.HalfTrip, err
	}
}

// single returns an experiment of one row. The yardstick is absent if the goal is of the figure
// itself.
func single(r *row, figure sample, yardstick ...sample) *experiment {
	return &experiment{[]*row{r}, func(ctx context.Context, l *lab) error {
		var figures []float64
		for _, measure := range append([]sample{figure}, yardstick...) {
			v, err := measure(ctx, l)
			if err != nil {
				return err
			}
			figures = append(figures, v)
		}
		r.add(figures[0], figures[1:]...)
		return nil
	}}
}
