package ethswitch

import "time"

// An address expires a while after its last frame (IEEE 802.1Q table 8-6). Its time is updated at
// most once in refresh.
const (
	ageing  = 300 * time.Second
	refresh = time.Second
)

// maxAddresses is the most addresses of each port in the table. Frames for further addresses go to
// every port. So a host that forges addresses takes no room from other ports.
const maxAddresses = 4096

// mac is an Ethernet address.
type mac [6]byte

// destination and source are the addresses of a frame.
func destination(frame []byte) mac { return mac(frame) }
func source(frame []byte) mac      { return mac(frame[6:]) }

// table maps addresses to ports.
type table struct {
	entries map[mac]entry
	counts  map[*port]int // entries of each port
	swept   map[*port]time.Time
}

type entry struct {
	port *port
	seen time.Time
}

func newTable() table {
	return table{entries: map[mac]entry{}, counts: map[*port]int{}, swept: map[*port]time.Time{}}
}

// find returns the port of an address, or nil.
func (t *table) find(a mac, now time.Time) *port {
	if e, ok := t.entries[a]; ok && now.Sub(e.seen) < ageing {
		return e.port
	}
	return nil
}

// fresh reports whether a frame from this address needs no update of the table.
func (t *table) fresh(a mac, p *port, now time.Time) bool {
	e, ok := t.entries[a]
	return ok && e.port == p && now.Sub(e.seen) < refresh || !unicast(a)
}

// unicast reports whether an address can be a source address.
func unicast(a mac) bool { return a[0]&1 == 0 && a != mac{} }

// learn records that a port has received a frame from an address.
func (t *table) learn(a mac, p *port, now time.Time) {
	if !unicast(a) {
		return
	}
	old, ok := t.entries[a]
	if !ok || old.port != p {
		if t.counts[p] >= maxAddresses && !t.sweep(p, now) {
			return
		}
		if ok {
			t.count(old.port, -1)
		}
		t.count(p, 1)
	}
	t.entries[a] = entry{p, now}
}

// count changes a port's number of entries.
func (t *table) count(p *port, n int) {
	if t.counts[p] += n; t.counts[p] == 0 {
		delete(t.counts, p)
	}
}

// sweep removes a port's expired addresses. It returns false if that makes no room. It runs at most
// once in refresh, as it takes a while.
func (t *table) sweep(p *port, now time.Time) bool {
	if now.Sub(t.swept[p]) < refresh {
		return false
	}
	t.swept[p] = now
	for a, e := range t.entries {
		if e.port == p && now.Sub(e.seen) >= ageing {
			delete(t.entries, a)
			t.count(p, -1)
		}
	}
	return t.counts[p] < maxAddresses
}

// forget removes all addresses of a port.
func (t *table) forget(p *port) {
	if t.counts[p] > 0 {
		for a, e := range t.entries {
			if e.port == p {
				delete(t.entries, a)
			}
		}
	}
	delete(t.counts, p)
	delete(t.swept, p)
}
