//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

const (
	setups   = 4000 // connections per sample
	atOnce   = 32   // concurrent set-ups
	listenAt = "10.0.0.2:7471"
)

// connect prints how many connections are set up per second, including their QPs: rdmacm.Dial on
// one node and Accept on the other. For comparison it also prints the number of TCP connections of
// the stack.
func connect(o *options) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tset up a second\tclosed a second\tCPU µs to set up\tto close\t")
	type way struct {
		name   string
		listen func(nodes [2]*node) (*ways, error)
	}
	for _, way := range []way{{"RoCEv2", cmWays(verbs.RoCEv2)}, {"iWARP", cmWays(verbs.IWARP)}, {"TCP", tcpWays}} {
		var up, down [2][]float64 // per second, CPU µs of both sides
		for range o.rounds {
			nodes, err := newNodes(true, 1)
			if err != nil {
				return err
			}
			u, d, err := dials(nodes, way.listen)
			if err != nil {
				return err
			}
			for i := range u {
				up[i], down[i] = append(up[i], u[i]), append(down[i], d[i])
			}
		}
		fmt.Fprintf(w, "%v\t%.0f\t%.0f\t%.0f\t%.0f\t\n", way.name, median(up[0]), median(down[0]), median(up[1]), median(down[1]))
	}
	return w.Flush()
}

// ways are functions that dial and accept.
type ways struct {
	listener io.Closer
	dial     func(context.Context) (io.Closer, error)
	accept   func(context.Context) (io.Closer, error)
}

// cmWays returns the ways of rdma_cm.
func cmWays(transport verbs.Transport) func([2]*node) (*ways, error) {
	return func(nodes [2]*node) (*ways, error) {
		config := func(n *node) *rdmacm.Config {
			return &rdmacm.Config{Transport: transport, PD: n.pd, SendCQ: n.cq, RecvCQ: n.cq,
				Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
		}
		l, err := rdmacm.Listen(nodes[1].dev, listenAt, config(nodes[1]))
		if err != nil {
			return nil, err
		}
		return &ways{l,
			func(ctx context.Context) (io.Closer, error) {
				return rdmacm.Dial(ctx, nodes[0].dev, listenAt, config(nodes[0]))
			},
			func(ctx context.Context) (io.Closer, error) { return l.Accept(ctx) },
		}, nil
	}
}

// tcpWays returns the ways of the stack's TCP.
func tcpWays(nodes [2]*node) (*ways, error) {
	at := netip.MustParseAddrPort(listenAt)
	l, err := nodes[1].host.ListenStream(at)
	if err != nil {
		return nil, err
	}
	return &ways{l,
		func(ctx context.Context) (io.Closer, error) {
			return nodes[0].host.DialStream(ctx, netip.AddrPort{}, at)
		},
		func(context.Context) (io.Closer, error) { return l.Accept() },
	}, nil
}

// dials sets connections up and closes them. It returns the rates per second of both, and the CPU
// time of each.
func dials(nodes [2]*node, listen func([2]*node) (*ways, error)) (up, down [2]float64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := listen(nodes)
	if err != nil {
		return up, down, err
	}
	defer l.listener.Close()
	conns := make([]io.Closer, 2*setups)
	failed := make(chan error, atOnce+1)
	from := now()
	var all sync.WaitGroup
	all.Go(func() {
		for i := range setups {
			c, err := l.accept(ctx)
			if err != nil {
				failed <- err
				return
			}
			conns[setups+i] = c
		}
	})
	for k := range atOnce {
		all.Go(func() {
			for i := k; i < setups; i += atOnce {
				c, err := l.dial(ctx)
				if err != nil {
					failed <- err
					cancel()
					return
				}
				conns[i] = c
			}
		})
	}
	all.Wait()
	up = from.rate()
	select {
	case err := <-failed:
		return up, down, err
	default:
	}
	from = now()
	for k := range atOnce {
		all.Go(func() {
			for i := k; i < len(conns); i += atOnce {
				_ = conns[i].Close() // an error means that the peer was faster
			}
		})
	}
	all.Wait()
	return up, from.rate(), nil
}

// moment is a time, and the CPU time that this process had used by then.
type moment struct {
	time time.Time
	cpu  time.Duration
}

func now() moment {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail
	return moment{time.Now(), time.Duration(u.Utime.Nano() + u.Stime.Nano())}
}

// rate returns the connections per second since m, and the CPU time of each in µs.
func (m moment) rate() [2]float64 {
	to := now()
	return [2]float64{setups / to.time.Sub(m.time).Seconds(), float64((to.cpu - m.cpu).Microseconds()) / setups}
}
