package accept

import (
	"net/netip"
	"sync"

	"github.com/softrnic/softrnic/verbs/admission"
)

// Limits has the limits of a command's servers, which package running shows to Prometheus. The
// table of all is in SECURITY.md.
type Limits struct {
	mu      sync.Mutex
	servers map[string]func() admission.Stats
	reached map[limit]func() uint64
}

// limit is one of a server, except that of its places.
type limit struct{ server, of string }

// Gate makes the gate of a server.
func (l *Limits) Gate(server string, places int) *Gate {
	g := admission.New[netip.Addr](places)
	l.Add(server, g.Stats)
	return g
}

// Add adds a server that has a gate of its own.
func (l *Limits) Add(server string, stats func() admission.Stats) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.servers == nil {
		l.servers = map[string]func() admission.Stats{}
	}
	l.servers[server] = stats
}

// Reached adds a limit of a server of something else than places. count is how often a peer, or
// all, had as much of it as they may: what they asked for had to wait, or was refused.
func (l *Limits) Reached(server, of string, count func() uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reached == nil {
		l.reached = map[limit]func() uint64{}
	}
	l.reached[limit{server, of}] = count
}

// Each calls server for each server, and reached for each limit of one that Reached has added.
func (l *Limits) Each(server func(name string, s admission.Stats), reached func(server, of string, count uint64)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, stats := range l.servers {
		server(name, stats())
	}
	for at, count := range l.reached {
		reached(at.server, at.of, count())
	}
}
