// Package running is a node that softrnic top and Prometheus can observe while it runs.
package running

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/softrnic/softrnic/cmd/internal/accept"
	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/cmd/internal/status"
)

// Flags describe a node of a command.
type Flags struct {
	node.Flags
	Metrics string `group:"node" placeholder:"HOST:PORT" help:"Serve Prometheus metrics at http://HOST:PORT/metrics, on an address of this machine, not of the node. The names are those of node_exporter's infiniband collector, and softrnic_NAME for rxe's hw_counters and all others."`

	// Limits are those of the command's servers, while it has a node.
	Limits *accept.Limits `kong:"-"`
	// Collector has further metrics of the command for Prometheus.
	Collector prometheus.Collector `kong:"-"`
}

// RunNode is node.Flags.RunNode for an observable node.
func (f *Flags) RunNode(ctx context.Context, e *cli.Env, do func(context.Context, *node.Node) error) error {
	return f.Flags.RunNode(ctx, e, f.observable(do))
}

// RunNodeForPeer is node.Flags.RunNodeForPeer for an observable node.
func (f *Flags) RunNodeForPeer(ctx context.Context, e *cli.Env, do func(context.Context, *node.Node) error) error {
	return f.Flags.RunNodeForPeer(ctx, e, f.observable(do))
}

func (f *Flags) observable(do func(context.Context, *node.Node) error) func(context.Context, *node.Node) error {
	return func(ctx context.Context, n *node.Node) error {
		f.Limits = new(accept.Limits)
		stop, err := f.startMetrics(n)
		if err != nil {
			return err
		}
		defer stop()
		defer status.PublishNode(n, 0, false)()
		return do(ctx, n)
	}
}
