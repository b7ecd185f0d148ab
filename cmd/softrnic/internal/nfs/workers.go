package nfs

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// workers bound the calls that are inside the store, where each may block a thread: in all, and of
// each client. A call that its client has abandoned counts until it ends. Further calls wait; the
// credits of the connections bound those.
type workers struct {
	slots  chan struct{} // has a value for each call
	waited atomic.Uint64 // calls that had to wait

	mu    sync.Mutex
	peers map[netip.Addr]*peerWorkers
}

// peerWorkers are those of one client.
type peerWorkers struct {
	slots chan struct{}
	users int // calls that have or want one
}

const (
	maxWorkers       = 32 // calls inside the store in all
	maxWorkersOfPeer = 8  // and of a client's address

	closeLimit = 10 * time.Second // for the calls that are inside the store at the end
)

func newWorkers() *workers {
	return &workers{slots: make(chan struct{}, maxWorkers), peers: map[netip.Addr]*peerWorkers{}}
}

// take waits for a worker for a call of a client. Clients get them in turn. It returns false if ctx
// ends before.
func (w *workers) take(ctx context.Context, client netip.Addr) bool {
	w.mu.Lock()
	p := w.peers[client]
	if p == nil {
		p = &peerWorkers{slots: make(chan struct{}, maxWorkersOfPeer)}
		w.peers[client] = p
	}
	p.users++
	if p.users > maxWorkersOfPeer || len(w.slots) == maxWorkers {
		w.waited.Add(1)
	}
	w.mu.Unlock()
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		w.leave(client)
		return false
	}
	select {
	case w.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		<-p.slots
		w.leave(client)
		return false
	}
}

// put returns the worker of a call that has ended.
func (w *workers) put(client netip.Addr) {
	w.mu.Lock()
	p := w.peers[client]
	w.mu.Unlock()
	<-w.slots
	<-p.slots
	w.leave(client)
}

func (w *workers) leave(client netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p := w.peers[client]
	if p.users--; p.users == 0 {
		delete(w.peers, client)
	}
}

// close waits for the calls that are inside the store, but not for ever: a disk that does not
// answer must not keep the command from ending.
func (w *workers) close() error {
	limit := time.NewTimer(closeLimit)
	defer limit.Stop()
	for i := range maxWorkers {
		select {
		case w.slots <- struct{}{}:
		case <-limit.C:
			return fmt.Errorf("after %v, %d calls still wait for the file system", closeLimit, maxWorkers-i)
		}
	}
	return nil
}
