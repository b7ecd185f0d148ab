//go:build linux

package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

const (
	setups   = 4000 // connections of a sample
	at1Time  = 32   // that are set up at a time
	cmListen = "10.0.0.2:7471"
)

// connect prints how many connections are set up in a second: rdmacm.Dial on one node and Accept on the other, QPs included.
func connect(o *options) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tset up a second\tclosed a second\tCPU µs to set up\tto close\t")
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		var up, down [2][]float64 // a second, CPU µs of both sides
		for range o.rounds {
			nodes, err := newNodes(true, 1)
			if err != nil {
				return err
			}
			u, d, err := dials(nodes, transport)
			if err != nil {
				return err
			}
			for i := range u {
				up[i], down[i] = append(up[i], u[i]), append(down[i], d[i])
			}
		}
		fmt.Fprintf(w, "%v\t%.0f\t%.0f\t%.0f\t%.0f\t\n", transport, median(up[0]), median(down[0]), median(up[1]), median(down[1]))
	}
	return w.Flush()
}

// dials sets connections up and closes them, and returns how many of either a second, and what CPU time each took.
func dials(nodes [2]*node, transport verbs.Transport) (up, down [2]float64, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	config := func(n *node) *rdmacm.Config {
		return &rdmacm.Config{Transport: transport, PD: n.pd, SendCQ: n.cq, RecvCQ: n.cq,
			Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}
	}
	l, err := rdmacm.Listen(nodes[1].dev, cmListen, config(nodes[1]))
	if err != nil {
		return up, down, err
	}
	defer l.Close()
	conns := make([]*rdmacm.Conn, 2*setups)
	failed := make(chan error, at1Time+1)
	from := now()
	var all sync.WaitGroup
	all.Go(func() {
		for i := range setups {
			c, err := l.Accept(ctx)
			if err != nil {
				failed <- err
				return
			}
			conns[setups+i] = c
		}
	})
	for k := range at1Time {
		all.Go(func() {
			for i := k; i < setups; i += at1Time {
				c, err := rdmacm.Dial(ctx, nodes[0].dev, cmListen, config(nodes[0]))
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
	for k := range at1Time {
		all.Go(func() {
			for i := k; i < len(conns); i += at1Time {
				_ = conns[i].Close() // an error is that the peer was faster
			}
		})
	}
	all.Wait()
	return up, from.rate(), nil
}

// moment is a time, and the CPU time that this process had used then.
type moment struct {
	time time.Time
	cpu  time.Duration
}

func now() moment {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u) // cannot fail
	return moment{time.Now(), time.Duration(u.Utime.Nano() + u.Stime.Nano())}
}

// rate is what a connection has taken since: how many a second, and the CPU time of each in µs.
func (m moment) rate() [2]float64 {
	to := now()
	return [2]float64{setups / to.time.Sub(m.time).Seconds(), float64((to.cpu - m.cpu).Microseconds()) / setups}
}
