// Package raw implements raw packet QPs: their work requests are whole Ethernet frames, and flows
// select the frames that they receive.
//
// Send path: PostSend copies the frame into one of the stack's and completes the request, on the
// caller's goroutine. Receive path: the stack passes frames to the tables of the port (table.go),
// whose flows are compared with the parsed headers (match.go). Each QP that gets the frame places
// it in its next receive request (qp.go).
package raw

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/softrnic/softrnic/rdmatransport/internal/keys"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// Engine is the raw packet part of a device.
type Engine struct {
	Counters Counters

	nics    []stack.NIC
	regions *memory.Regions
	qps     *keys.Table[qp]
	ports   []port
}

// Counters count frames.
type Counters struct {
	// Frames without a receive request, or to a QP in a state without reception.
	OutOfBuffer atomic.Uint64
	TooLong     atomic.Uint64 // frames too long for the receive request
	Dropped     atomic.Uint64 // by a flow's FlowSpecActionDrop

	sent, received atomic.Uint64 // of closed QPs
}

// New returns an engine. QP numbers are drawn from qpns with rand, except those that taken reports
// as used by another transport.
func New(nics []stack.NIC, regions *memory.Regions, rand io.Reader, qpns stack.Range, taken func(qpn uint32) bool) *Engine {
	e := &Engine{nics: nics, regions: regions, ports: make([]port, len(nics))}
	e.qps = keys.NewRange[qp](qpns.Base, qpns.Mask, rand, func(n uint32) bool { return n <= 1 || n == 1<<24-1 || taken(n) })
	for i, nic := range nics {
		e.ports[i].e, e.ports[i].nic = e, nic
	}
	return e
}

// HasQP reports whether a QP number is in use.
func (e *Engine) HasQP(qpn uint32) bool { return e.qps.Get(qpn) != nil }

// CreateQP creates a QP in state RESET with a random number.
func (e *Engine) CreateQP(h verbs.QPHandle) (verbs.ProviderQP, uint32, error) {
	q := &qp{e: e, h: h}
	num, err := e.qps.Insert(q)
	if err != nil {
		return nil, 0, fmt.Errorf("%w: %w", verbs.ErrNoMemory, err)
	}
	q.num = num
	return q, num, nil
}

// Close ends all steering. No flow is created afterwards.
func (e *Engine) Close() {
	for i := range e.ports {
		if p := &e.ports[i]; p.flows != nil {
			p.change(func([]*flow) []*flow { return nil })
		}
	}
}

// Snapshot returns all counters by name; out_of_buffer is mlx5's. It locks each QP in turn.
func (e *Engine) Snapshot() map[string]uint64 {
	c := &e.Counters
	sent, received := c.sent.Load(), c.received.Load()
	for _, q := range e.qps.All() {
		q.h.Lock()
		sent += q.sent
		received += q.received
		q.h.Unlock()
	}
	return map[string]uint64{
		"raw_sent_frames":     sent,
		"raw_rcvd_frames":     received,
		"raw_too_long":        c.TooLong.Load(),
		"raw_dropped_by_flow": c.Dropped.Load(),
		"out_of_buffer":       c.OutOfBuffer.Load(),
	}
}
