package rpcrdma

import (
	"context"
	"net/netip"
	"slices"
	"sync"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/admission"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// budget bounds the memory of the calls of all clients. The clients at one address have their share
// of it, but always one call. Calls get it in the order in which they ask, as far as that allows.
type budget struct {
	clock verbs.Clock

	mu      sync.Mutex
	all     int
	taken   int
	of      map[netip.Addr]int // bytes that the clients at an address have
	waiting []*claim
	waited  uint64 // claims that had to wait
}

type claim struct {
	peer  netip.Addr
	n     int
	ready chan struct{}
}

func newBudget(clock verbs.Clock, n int) *budget {
	return &budget{clock: clock, all: n, of: map[netip.Addr]int{}}
}

// take waits until a client may have n bytes, or all of them if n is more than that, and takes
// them. It returns the number taken.
func (b *budget) take(ctx context.Context, peer netip.Addr, n int) (int, error) {
	n = min(n, b.all)
	w := &claim{peer: peer, n: n, ready: make(chan struct{})}
	b.mu.Lock()
	b.waiting = append(b.waiting, w)
	b.grant()
	if slices.Contains(b.waiting, w) {
		b.waited++
	}
	b.mu.Unlock()
	err := wakeup.ReceiveContext(ctx, b.clock, w.ready)
	if err == nil {
		return n, nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, o := range b.waiting {
		if o == w {
			b.waiting = append(b.waiting[:i], b.waiting[i+1:]...)
			b.grant() // to those behind it
			return 0, err
		}
	}
	b.give(w.peer, w.n) // it was granted meanwhile
	return 0, err
}

// put returns n bytes.
func (b *budget) put(peer netip.Addr, n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.give(peer, n)
}

// waits returns the number of claims that had to wait.
func (b *budget) waits() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.waited
}

func (b *budget) give(peer netip.Addr, n int) {
	b.taken -= n
	if b.of[peer] -= n; b.of[peer] == 0 {
		delete(b.of, peer)
	}
	b.grant()
}

// grant grants what may be had. Claims of clients that have their share let others pass. One for
// which there is no memory does not, so that it gets some. mu is held.
func (b *budget) grant() {
	kept := b.waiting[:0]
	for i, w := range b.waiting {
		mine := b.of[w.peer]
		switch {
		case mine > 0 && mine+w.n > admission.Share(mine, b.taken, b.all):
			kept = append(kept, w)
			continue
		case b.taken+w.n > b.all:
			b.waiting = append(kept, b.waiting[i:]...)
			return
		}
		b.taken += w.n
		b.of[w.peer] += w.n
		close(w.ready)
	}
	b.waiting = kept
}
