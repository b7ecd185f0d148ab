package rpcrdma

import (
	"context"
	"sync"
)

// budget bounds the memory of a connection's calls. Calls get it in the order in which they ask.
type budget struct {
	mu      sync.Mutex
	all     int
	left    int
	waiting []*claim
}

type claim struct {
	n     int
	ready chan struct{}
}

func newBudget(n int) *budget { return &budget{all: n, left: n} }

// take waits until n bytes are free, or all of them if n is more than that, and takes them. It
// returns the number taken.
func (b *budget) take(ctx context.Context, n int) (int, error) {
	n = min(n, b.all)
	b.mu.Lock()
	if len(b.waiting) == 0 && b.left >= n {
		b.left -= n
		b.mu.Unlock()
		return n, nil
	}
	w := &claim{n: n, ready: make(chan struct{})}
	b.waiting = append(b.waiting, w)
	b.mu.Unlock()
	select {
	case <-w.ready:
		return n, nil
	case <-ctx.Done():
		return 0, ctx.Err() // the connection has ended, and with it the budget
	}
}

// put returns n bytes.
func (b *budget) put(n int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
	for len(b.waiting) > 0 && b.left >= b.waiting[0].n {
		b.left -= b.waiting[0].n
		close(b.waiting[0].ready)
		b.waiting = b.waiting[1:]
	}
}
