package shm

import (
	"net"
	"sync"
	"time"
)

// departures tells who has left the segment. The end of a connection does not say that: two processes that connect to each other
// at once end one of the connections, and a ring that cannot be ends the pair. But the claim of an Ethernet address ends with its
// process, a moment before or after the connection does.
type departures struct {
	mu      sync.Mutex // held while watch runs, so that a successor's frames come after what is said of the one before
	watch   func(mac [6]byte)
	pending map[[6]byte]*departure // of those whose connection has ended
}

// departure is that of a process that has left, or meets this one again.
type departure struct {
	id      id
	settled chan struct{} // closed when it is known which
}

// WatchDepartures implements link.Departures.
func (s *segment) WatchDepartures(f func(mac [6]byte)) {
	s.departures.mu.Lock()
	defer s.departures.mu.Unlock()
	s.departures.watch = f
}

// hasEnded is called when the connection of a peer has ended: it waits until its claim has too.
func (s *segment) hasEnded(p *peer) {
	d := &departure{id: p.id, settled: make(chan struct{})}
	s.departures.mu.Lock()
	s.departures.pending[p.mac] = d
	s.departures.mu.Unlock()
	name := net.HardwareAddr(p.mac[:]).String()
	wait := time.Millisecond
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for isClaimed(s.config.dir, name) {
		select {
		case <-s.stop:
			return
		case <-d.settled:
			return
		case <-timer.C:
		}
		wait = min(2*wait, meetInterval)
		timer.Reset(wait)
	}
	s.settle(p.mac, d, true)
}

// meets is called before a process becomes a peer: who had its address before, if anybody, has left, unless it is the same.
func (s *segment) meets(p *peer) {
	s.departures.mu.Lock()
	d := s.departures.pending[p.mac]
	s.departures.mu.Unlock()
	if d != nil {
		s.settle(p.mac, d, d.id != p.id)
	}
}

// settle ends a departure that is pending, if it still is.
func (s *segment) settle(mac [6]byte, d *departure, left bool) {
	s.departures.mu.Lock()
	defer s.departures.mu.Unlock()
	if s.departures.pending[mac] != d {
		return
	}
	delete(s.departures.pending, mac)
	close(d.settled)
	if left && s.departures.watch != nil {
		s.departures.watch(mac)
	}
}
