//go:build linux

package interop

import (
	"context"
	"encoding/hex"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/tests/system/interop/pyverbs"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// cmHost is one side of a connection that is not established: the rdma_cm of a kernel, or of
// SoftRNIC.
type cmHost interface {
	// attempt connects, and returns the events up to the final one.
	attempt(t *testing.T, space rdmacm.PortSpace, to netip.AddrPort, privateData []byte) []pyverbs.Event
	// listen starts a listener that ends with the test. The returned function waits for a request
	// and answers it.
	listen(t *testing.T, space rdmacm.PortSpace, at netip.AddrPort) func(refusal) pyverbs.Event
}

// refusal is how a listener refuses a request.
type refusal struct {
	drop        bool // destroy the ID without an answer
	privateData []byte
}

// kernelCM is a peer's rdma_cm.
type kernelCM struct{ pyverbs.CM }

func (k kernelCM) attempt(t *testing.T, space rdmacm.PortSpace, to netip.AddrPort, privateData []byte) []pyverbs.Event {
	t.Helper()
	return k.In(t).Attempt(space, to, privateData)
}

func (k kernelCM) listen(t *testing.T, space rdmacm.PortSpace, at netip.AddrPort) func(refusal) pyverbs.Event {
	t.Helper()
	l := k.In(t).ListenRaw(space, at)
	t.Cleanup(l.Close)
	return func(r refusal) pyverbs.Event {
		if r.drop {
			return l.Drop()
		}
		return l.Reject(r.privateData)
	}
}

// softrnicCM is SoftRNIC's rdma_cm.
type softrnicCM struct{ cmLab }

func eventOf(e *rdmacm.Event) pyverbs.Event {
	data := e.Param.PrivateData
	if e.ID.PortSpace() == rdmacm.UDP {
		data = e.UD.PrivateData
	}
	return pyverbs.Event{Type: e.Type, Status: e.Status, PrivateData: hex.EncodeToString(data)}
}

func (s softrnicCM) attempt(t *testing.T, space rdmacm.PortSpace, to netip.AddrPort, privateData []byte) (events []pyverbs.Event) {
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	p := newCMProgram(t, s.dev)
	id, err := p.createID(space, s.transport, nil)
	if err != nil {
		t.Error(err)
		return nil
	}
	if err := id.ResolveAddr(netip.AddrPort{}, to, 2*time.Second); err != nil {
		t.Error(err)
	}
	if err := p.events(ctx, func(e *rdmacm.Event) (bool, error) {
		events = append(events, eventOf(e))
		switch e.Type {
		case rdmacm.AddrResolved:
			return false, e.ID.ResolveRoute()
		case rdmacm.RouteResolved:
			return false, e.ID.Connect(&rdmacm.ConnParam{
				PrivateData: privateData, ResponderResources: 1, InitiatorDepth: 1, RetryCount: 1, RNRRetryCount: 1, QPNum: 0x123,
			})
		}
		return true, nil
	}); err != nil {
		t.Error(err)
	}
	if err := id.Close(); err != nil {
		t.Error(err)
	}
	return events
}

func (s softrnicCM) listen(t *testing.T, space rdmacm.PortSpace, at netip.AddrPort) func(refusal) pyverbs.Event {
	t.Helper()
	p := newCMProgram(t, s.dev)
	p.listen(t, space, s.transport, at)
	return func(r refusal) (request pyverbs.Event) {
		ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
		defer cancel()
		var id *rdmacm.ID
		if err := p.events(ctx, func(e *rdmacm.Event) (enough bool, err error) {
			id, request = e.ID, eventOf(e)
			if !r.drop {
				err = id.Reject(r.privateData)
			}
			return true, err
		}); err != nil {
			t.Error(err)
		}
		if id != nil {
			if err := id.Close(); err != nil {
				t.Error(err)
			}
		}
		return request
	}
}

// cmRefusal is one reason for which a connection is not established.
type cmRefusal struct {
	name        string
	space       rdmacm.PortSpace
	to          func(netip.Addr) netip.Addr // destination other than the listener's address
	privateData []byte                      // of the client
	listens     rdmacm.PortSpace            // port space of the listener, if there is one
	refusal     *refusal                    // if the request arrives
}

var cmRefusals = []cmRefusal{
	{name: "nobody listens", space: rdmacm.TCP},
	{name: "an address nobody has", space: rdmacm.TCP, to: func(a netip.Addr) netip.Addr {
		b := a.AsSlice()
		b[len(b)-1] = 0xee
		a, _ = netip.AddrFromSlice(b)
		return a
	}},
	{name: "rejected", space: rdmacm.TCP, listens: rdmacm.TCP, refusal: &refusal{}},
	{name: "rejected with private data", space: rdmacm.TCP, privateData: counting(56), listens: rdmacm.TCP,
		refusal: &refusal{privateData: counting(148)}},
	{name: "dropped", space: rdmacm.TCP, privateData: counting(1), listens: rdmacm.TCP, refusal: &refusal{drop: true}},
	{name: "in another port space", space: rdmacm.TCP, listens: rdmacm.UDP},
	{name: "UDP, nobody listens", space: rdmacm.UDP},
	{name: "UDP, in another port space", space: rdmacm.UDP, listens: rdmacm.TCP},
	{name: "UDP, rejected", space: rdmacm.UDP, listens: rdmacm.UDP, refusal: &refusal{}},
	{name: "UDP, rejected with private data", space: rdmacm.UDP, privateData: counting(180), listens: rdmacm.UDP,
		refusal: &refusal{privateData: counting(136)}},
	{name: "UDP, dropped", space: rdmacm.UDP, listens: rdmacm.UDP, refusal: &refusal{drop: true}},
}

// run tries to connect. It returns the events of the client, then those of the listener.
func (r *cmRefusal) run(t *testing.T, client, server cmHost, at netip.Addr) (events []pyverbs.Event) {
	const port = 7999
	to := at
	if r.to != nil {
		to = r.to(at)
	}
	requests := make(chan []pyverbs.Event, 1)
	if r.listens != 0 {
		answer := server.listen(t, r.listens, netip.AddrPortFrom(at, port))
		if r.refusal != nil {
			go func() {
				defer close(requests) // it may end otherwise
				requests <- []pyverbs.Event{answer(*r.refusal)}
			}()
		}
	}
	if r.refusal == nil {
		close(requests)
	}
	events = client.attempt(t, r.space, netip.AddrPortFrom(to, port), r.privateData)
	return append(events, <-requests...)
}

// TestRefusedConnections compares the events of refused connections with those between two kernels.
func TestRefusedConnections(t *testing.T) {
	gate.System(t)
	peers := peer.Boot(t, peer.Config{ID: 2}, peer.Config{ID: 3})
	lab := openCM(t, verbs.RoCEv2)
	here := softrnicCM{lab}
	kernels := []kernelCM{{pyverbs.OpenCM(t, peers[0], "rxe0")}, {pyverbs.OpenCM(t, peers[1], "rxe0")}}
	lab.eachFamily(t, func(t *testing.T, p cmPair) {
		for _, r := range cmRefusals {
			t.Run(r.name, func(t *testing.T) {
				var want []pyverbs.Event
				t.Run("kernels", func(t *testing.T) {
					if want = r.run(t, kernels[1], kernels[0], p.there); len(want) == 0 {
						t.Fatal("no event")
					}
				})
				t.Run("client", func(t *testing.T) {
					if got := r.run(t, here, kernels[0], p.there); !slices.Equal(got, want) {
						t.Errorf("events %v, want %v", got, want)
					}
				})
				t.Run("server", func(t *testing.T) {
					if got := r.run(t, kernels[1], here, p.here); !slices.Equal(got, want) {
						t.Errorf("events %v, want %v", got, want)
					}
				})
			})
		}
	})
}
