package netstack

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
)

// freshFor is the time for which a neighbour's MAC is used before gVisor is asked again. gVisor
// probes a silent neighbour only when it is asked.
const freshFor = time.Second

// maxHeld limits the bytes that wait for one neighbour's MAC. It exceeds the bytes that a transport
// has in flight. Otherwise a peer's first packets would be lost, and cost a retransmission timeout
// for every connection.
const maxHeld = 1 << 20

type neighbourKey struct {
	local, next netip.Addr
}

// neighbour is a next hop, shared by the paths through it.
type neighbour struct {
	nic      *Interface
	key      neighbourKey
	resolved func(gstack.LinkResolutionResult) // n.onResolved, made once

	mac     atomic.Uint64 // in the low 48 bits; 0 while unknown
	stale   atomic.Bool   // gVisor must be asked again; set by recheck
	recheck clock.Timer   // sets stale

	refs int // guarded by nic.neighMu

	mu        sync.Mutex
	resolving bool // resolved will be called
	closed    bool
	held      []link.Frame
	heldBytes int
	waiters   []chan struct{} // closed at the next answer of any kind
}

// neighbour returns the interface's neighbour for a next hop, with a reference for the caller. It
// starts resolution.
func (n *Interface) neighbour(local, next netip.Addr) *neighbour {
	k := neighbourKey{local, next}
	n.neighMu.Lock()
	nb := n.neighbours[k]
	if nb == nil {
		nb = &neighbour{nic: n, key: k}
		nb.resolved = nb.onResolved
		nb.recheck = n.host.clock.AfterFunc(freshFor, func() { nb.stale.Store(true) })
		n.neighbours[k] = nb
	}
	nb.refs++
	first := nb.refs == 1
	n.neighMu.Unlock()
	if first {
		_ = nb.resolve()
	}
	return nb
}

func (nb *neighbour) release() {
	n := nb.nic
	n.neighMu.Lock()
	defer n.neighMu.Unlock()
	if nb.refs--; nb.refs > 0 {
		return
	}
	delete(n.neighbours, nb.key)
	nb.recheck.Stop()
	nb.mu.Lock()
	defer nb.mu.Unlock()
	nb.closed = true
	nb.drop()
}

// lookup returns the MAC, or 0 while it is unknown.
func (nb *neighbour) lookup() uint64 {
	if nb.stale.Load() && nb.stale.CompareAndSwap(true, false) {
		nb.recheck.Reset(freshFor)
		_ = nb.resolve()
	}
	return nb.mac.Load()
}

// hold keeps a copy of f until the MAC is known, and returns 0. If the MAC is known already, hold
// returns it instead.
func (nb *neighbour) hold(f *link.Frame) uint64 {
	nb.mu.Lock()
	if mac := nb.mac.Load(); mac != 0 {
		nb.mu.Unlock()
		return mac
	}
	if nb.closed || nb.heldBytes+len(f.Data) > maxHeld {
		nb.nic.port.sent[0].add(&counts{lost: 1})
	} else {
		c := *f
		c.Data = slices.Clone(f.Data)
		nb.held = append(nb.held, c)
		nb.heldBytes += len(c.Data)
	}
	nb.mu.Unlock()
	_ = nb.resolve()
	return 0
}

// resolve asks gVisor for the MAC, unless an answer is pending. An error means that the host is
// closed. nb.mu is not held: gVisor may answer before it returns.
func (nb *neighbour) resolve() error {
	nb.mu.Lock()
	if nb.resolving || nb.closed {
		nb.mu.Unlock()
		return nil
	}
	nb.resolving = true
	nb.mu.Unlock()

	n := nb.nic
	err := n.host.stack.GetLinkAddress(n.id, tcpipAddr(nb.key.next), tcpipAddr(nb.key.local), protocolOf(nb.key.next), nb.resolved)
	switch err.(type) {
	case nil:
	case *tcpip.ErrWouldBlock:
		// The known neighbour no longer answers.
		nb.mu.Lock()
		if nb.resolving {
			nb.mac.Store(0)
		}
		nb.mu.Unlock()
	default:
		nb.onResolved(gstack.LinkResolutionResult{Err: err})
		return stackError(err)
	}
	return nil
}

// onResolved processes gVisor's answer. gVisor holds the lock of its own entry. Held frames are
// written before the MAC becomes visible, so that no later frame overtakes them.
func (nb *neighbour) onResolved(r gstack.LinkResolutionResult) {
	nb.mu.Lock()
	defer nb.mu.Unlock()
	nb.resolving = false
	defer nb.wake() // after mac is set
	if r.Err != nil || len(r.LinkAddress) != 6 {
		nb.mac.Store(0)
		nb.nic.host.log.Debug("neighbour not found", "nic", nb.nic.Name(), "addr", nb.key.next, "held", len(nb.held))
		nb.drop()
		return
	}
	mac := macNumber([]byte(r.LinkAddress))
	for i := range nb.held {
		putMAC(nb.held[i].Data, mac)
	}
	nb.nic.port.sent[0].write(nb.nic.link, nb.held, false)
	nb.held, nb.heldBytes = nil, 0
	nb.mac.Store(mac)
}

// wait waits until the MAC is known, and asks again whenever resolution fails.
func (nb *neighbour) wait(ctx context.Context) error {
	for {
		nb.mu.Lock()
		if nb.mac.Load() != 0 {
			nb.mu.Unlock()
			return nil
		}
		ch := make(chan struct{})
		nb.waiters = append(nb.waiters, ch)
		nb.mu.Unlock()
		if err := nb.resolve(); err != nil {
			return fmt.Errorf("%v cannot be asked for: %w", nb.key.next, err)
		}
		nb.nic.host.clock.Park(func() bool {
			nb.mu.Lock()
			defer nb.mu.Unlock()
			return nb.mac.Load() != 0 || !slices.Contains(nb.waiters, ch) || ctx.Err() != nil
		})
		select {
		case <-ch:
		case <-ctx.Done():
			return fmt.Errorf("%v does not answer: %w", nb.key.next, context.Cause(ctx))
		}
	}
}

// wake ends the waits. nb.mu is held.
func (nb *neighbour) wake() {
	for _, ch := range nb.waiters {
		close(ch)
	}
	nb.waiters = nil
}

// drop discards the frames that wait for the MAC. nb.mu is held.
func (nb *neighbour) drop() {
	nb.nic.port.sent[0].add(&counts{lost: uint64(len(nb.held))})
	nb.held, nb.heldBytes = nil, 0
}

func macNumber(b []byte) (mac uint64) {
	for _, x := range b[:6] {
		mac = mac<<8 | uint64(x)
	}
	return mac
}

func putMAC(b []byte, mac uint64) {
	_ = b[5]
	b[0], b[1], b[2], b[3], b[4], b[5] = byte(mac>>40), byte(mac>>32), byte(mac>>24), byte(mac>>16), byte(mac>>8), byte(mac)
}
