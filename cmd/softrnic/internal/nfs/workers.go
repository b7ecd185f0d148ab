package nfs

import (
	"context"
	"net/netip"
	"sync"
)

// workers bound the calls that are inside the store, where each may block a thread: in all, and of
// each client. A call that its client has abandoned counts until it ends. Further calls wait; the
// credits of the connections bound those.
type workers struct {
	export *export
	slots  chan struct{} // has a value for each call

	mu    sync.Mutex
	free  []*session
	peers map[netip.Addr]*peerWorkers
}

// peerWorkers are those of one client.
type peerWorkers struct {
	slots chan struct{}
	users int // calls that have or want one
}

const (
	maxSessions       = 32 // calls inside the store in all
	maxSessionsOfPeer = 8  // and of a client's address
)

func newWorkers(e *export) *workers {
	return &workers{export: e, slots: make(chan struct{}, maxSessions), peers: map[netip.Addr]*peerWorkers{}}
}

// take waits for a worker for a call of a client. Clients get them in turn. It returns nil if ctx
// ends before.
func (w *workers) take(ctx context.Context, client netip.Addr) *session {
	w.mu.Lock()
	p := w.peers[client]
	if p == nil {
		p = &peerWorkers{slots: make(chan struct{}, maxSessionsOfPeer)}
		w.peers[client] = p
	}
	p.users++
	w.mu.Unlock()
	select {
	case p.slots <- struct{}{}:
	case <-ctx.Done():
		w.leave(client)
		return nil
	}
	select {
	case w.slots <- struct{}{}:
	case <-ctx.Done():
		<-p.slots
		w.leave(client)
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := len(w.free); n > 0 {
		s := w.free[n-1]
		w.free = w.free[:n-1]
		return s
	}
	return newSession(w.export)
}

// put returns the worker of a call that has ended.
func (w *workers) put(client netip.Addr, s *session) {
	w.mu.Lock()
	if !s.ended() {
		w.free = append(w.free, s)
	}
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

// close waits for the calls that are inside the store, and ends all sessions.
func (w *workers) close() {
	for range maxSessions {
		w.slots <- struct{}{}
	}
	for _, s := range w.free {
		_ = s.Close()
	}
}
