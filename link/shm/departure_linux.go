package shm

import (
	"net"
	"sync"
	"time"
)

// departures reports the processes that have left the segment. The end of a connection does not
// prove a departure: two processes that connect to each other at once close one connection, and a
// corrupt ring ends a pair. The claim of an Ethernet address, however, ends with its process,
// shortly before or after the connection.
type departures struct {
	// Held while watch runs, so that a departure is reported before a successor's frames.
	mu      sync.Mutex
	watch   func(mac [6]byte)
	pending map[[6]byte]*departure // processes whose connection has ended
}

// departure is the pending departure of a process, which has left or will connect again.
type departure struct {
	id       id
	resolved chan struct{} // closed when it is known which
}

// WatchDepartures implements link.Departures.
func (s *segment) WatchDepartures(f func(mac [6]byte)) {
	s.departures.mu.Lock()
	defer s.departures.mu.Unlock()
	s.departures.watch = f
}

// connectionEnded is called when the connection of a peer has ended. It waits until the peer's
// claim ends too.
func (s *segment) connectionEnded(p *peer) {
	d := &departure{id: p.id, resolved: make(chan struct{})}
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
		case <-d.resolved:
			return
		case <-timer.C:
		}
		wait = min(2*wait, connectInterval)
		timer.Reset(wait)
	}
	s.resolve(p.mac, d, true)
}

// connected is called before a process becomes a peer. It ends a pending departure of the same
// address. Unless the process is the same, the earlier one has left.
func (s *segment) connected(p *peer) {
	s.departures.mu.Lock()
	d := s.departures.pending[p.mac]
	s.departures.mu.Unlock()
	if d != nil {
		s.resolve(p.mac, d, d.id != p.id)
	}
}

// resolve ends a pending departure. left says whether the process has left.
func (s *segment) resolve(mac [6]byte, d *departure, left bool) {
	s.departures.mu.Lock()
	defer s.departures.mu.Unlock()
	if s.departures.pending[mac] != d {
		return
	}
	delete(s.departures.pending, mac)
	close(d.resolved)
	if left && s.departures.watch != nil {
		s.departures.watch(mac)
	}
}
