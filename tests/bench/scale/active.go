//go:build linux

package main

import (
	"cmp"
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

const (
	inFlight   = 32     // messages, for any number of QPs
	perRound   = 20_000 // measured messages of each count in a round …
	beforehand = 2_000  // … after this many that are not measured
	message    = 8      // bytes
)

// active prints the time of a WRITE of 8 bytes, in frames and directly, with n QPs used in turn.
func active(o *options) error {
	most := cmp.Or(o.qps, 100_000)
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tQPs\tns a message\tof 1 QP\tof 32 QPs\t")
	for _, way := range []string{"in frames", "direct"} {
		nodes, err := newNodes(way == "in frames", inFlight)
		if err != nil {
			return err
		}
		var rings []*ring
		for _, n := range []int{1, inFlight, 100, 1000, 10_000, 100_000} {
			if n > most {
				break
			}
			r, err := newRing(nodes, n)
			if err != nil {
				return err
			}
			rings = append(rings, r)
		}
		for range o.rounds {
			for _, r := range rings {
				if err := r.round(); err != nil {
					return err
				}
			}
		}
		for _, r := range rings {
			each := median(r.samples)
			fmt.Fprintf(w, "%s\t%d\t%.0f\t%.2f\t", way, len(r.qps), each, each/median(rings[0].samples))
			if len(r.qps) >= inFlight {
				fmt.Fprintf(w, "%.2f", each/median(rings[1].samples))
			}
			fmt.Fprintln(w, "\t")
		}
	}
	return w.Flush()
}

// ring is a set of QPs that are used in turn.
type ring struct {
	cq      *verbs.CQ
	qps     []*verbs.QP
	at      int
	posted  int
	wr      verbs.SendWR
	wcs     []verbs.WC
	samples []float64 // ns per message
}

// newRing connects n QPs of the first node with n of the second.
func newRing(nodes [2]*node, n int) (*ring, error) {
	local, err := nodes[0].pd.RegMR(make([]byte, message), 0)
	if err != nil {
		return nil, err
	}
	remote, err := nodes[1].pd.RegMR(make([]byte, message), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	if err != nil {
		return nil, err
	}
	r := &ring{cq: nodes[0].cq, wcs: make([]verbs.WC, inFlight), wr: verbs.SendWR{
		Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{local.SGE(0, message)}, RemoteAddr: remote.Addr(), RKey: remote.RKey(),
	}}
	for range n {
		qps, err := pair(nodes, verbs.RC, (inFlight+n-1)/n)
		if err != nil {
			return nil, err
		}
		r.qps = append(r.qps, qps[0])
	}
	return r, nil
}

// round sends on the next QPs and adds a sample.
func (r *ring) round() error {
	if err := r.send(beforehand); err != nil {
		return err
	}
	start := time.Now()
	err := r.send(perRound)
	r.samples = append(r.samples, float64(time.Since(start).Nanoseconds())/perRound)
	return err
}

// send sends n messages and waits until they are complete.
func (r *ring) send(n int) error {
	for range n {
		if err := r.qps[r.at].PostSend(&r.wr); err != nil {
			return err
		}
		if r.at++; r.at == len(r.qps) {
			r.at = 0
		}
		for r.posted++; r.posted == inFlight; {
			if err := r.take(); err != nil {
				return err
			}
		}
	}
	for r.posted > 0 {
		if err := r.take(); err != nil {
			return err
		}
	}
	return nil
}

// take takes completions.
func (r *ring) take() error {
	n, err := r.cq.Poll(r.wcs)
	for _, wc := range r.wcs[:n] {
		if wc.Status != verbs.WCSuccess {
			return fmt.Errorf("a WRITE: %v", wc.Status)
		}
	}
	r.posted -= n
	return err
}
