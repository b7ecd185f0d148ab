package hub

// Rings between this client and other clients of the hub. Their datagrams bypass the hub, except
// for messages of connection management, whose numbers the hub checks.
//
// A client that has a route to a QP (see Route) requests rings with the client that has the QPN.
// The hub tells each client the other's QPNs and the addresses between which they send. It gives
// each one end of a connection, on which they exchange the memory of their rings. Records in a ring
// are accepted only between those addresses, and attributed to those QPNs. A client without routes
// refuses rings, for example if its packets are captured. It waits a while first, because the two
// ends of a connection create their routes one after the other.
//
// Rings continue to exist when the hub ends. The clients tell its successor about them, and pass it
// the connection, so that it can end the rings when one client has left.

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/stack"
)

const (
	maxPairs      = 64      // other clients with rings to one client
	maxEnds       = 256     // address pairs of one pair of rings
	neighbourRing = 1 << 20 // size of each ring in bytes
	quotaBytes    = 4 * ring.QueueBytes
)

// A route that has no rings requests them again after a pause, which doubles each time up to
// lastPause.
const lastPause = 30 * time.Second

// Variables for tests.
var (
	firstPause = 500 * time.Millisecond
	// routeWait is the time that a client without a route waits for one before it refuses rings. The
	// other client waits for helloTimeout.
	routeWait = helloTimeout / 2
)

// neighbours are the clients that this one has, or requests, rings with. Client.mu guards all
// fields.
type neighbours struct {
	pairs      []*neighbour
	routes     map[routeKey]*Route
	routed     chan struct{} // closed while there are routes
	endedPairs []uint32      // serial numbers of ended pairs of which the hub has not been told
	due        chan struct{} // signals due requests
}

func (n *neighbours) init() {
	n.routes, n.routed, n.due = map[routeKey]*Route{}, make(chan struct{}), make(chan struct{}, 1)
}

// neighbour is another client to which this one has rings, or is setting them up.
type neighbour struct {
	conn   *net.UnixConn
	serial uint32
	qpns   stack.Range
	ends   atomic.Pointer[[]ends] // replaced under Client.mu, never modified
	pair   *ring.Pair             // nil during the handshake; guarded by Client.mu
}

// has reports whether datagrams go between two addresses.
func (n *neighbour) has(e ends) bool { return slices.Contains(*n.ends.Load(), e) }

// disconnect ends the neighbour's goroutine.
func (n *neighbour) disconnect() {
	if n.pair != nil {
		n.pair.Shutdown()
	} else {
		_ = n.conn.Close()
	}
}

type routeKey struct {
	src, dst netip.Addr
	slot     uint32 // of QPNs
}

// Route is a route to the QPs in one slot, from one of this client's addresses to another client's.
// It can have any number of users.
type Route struct {
	c     *Client
	key   routeKey
	users int // under Client.mu
	pair  atomic.Pointer[ring.Pair]
	// Guarded by Client.mu: when the hub is asked next, and the pause after that.
	next  time.Time
	pause time.Duration
}

// Route returns a route to a QP. It becomes usable when another client has the QP and there are
// rings with that client. Until then Reserve and Send do nothing. The caller must call Leave.
func (c *Client) Route(src, dst netip.Addr, qpn uint32) *Route {
	key := routeKey{src, dst, qpn >> slotBits}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.routes[key]
	if r == nil {
		r = &Route{c: c, key: key, pause: firstPause}
		c.routes[key] = r
		if len(c.routes) == 1 {
			close(c.routed)
		}
		c.connectRoute(r)
		c.askSoon()
	}
	r.users++
	return r
}

// Leave undoes Client.Route.
func (r *Route) Leave() {
	c := r.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if r.users--; r.users == 0 {
		delete(c.routes, r.key)
		if len(c.routes) == 0 {
			c.routed = make(chan struct{})
		}
	}
}

// Reserve reserves room for RecordLen and n bytes in the other client's ring. The caller must call
// Commit. Data is nil if there are no rings, or no room.
func (r *Route) Reserve(n int) link.Reservation {
	if p := r.pair.Load(); p != nil {
		return p.Reserve(recordLen + n)
	}
	return link.Reservation{}
}

// Send queues complete datagrams for the other client's ring. It returns false if there are no
// rings.
func (r *Route) Send(a *Arrival, w *Writer) bool {
	p := r.pair.Load()
	if p == nil {
		return false
	}
	putRecord(w.record[:], a)
	w.more[0] = a.Payload
	w.frames[0] = link.Frame{Data: w.record[:], More: w.more[:]}
	p.Send(w.frames[:])
	w.more[0] = nil
	return true
}

// Backlog returns the number of bytes that wait for room.
func (r *Route) Backlog() int {
	if p := r.pair.Load(); p != nil {
		return p.Queued()
	}
	return 0
}

// HasRings reports whether there are rings.
func (r *Route) HasRings() bool { return r.pair.Load() != nil }

// connectRoute finds the pair of a route. mu is held.
func (c *Client) connectRoute(r *Route) {
	e := ends{r.key.dst, r.key.src}
	for _, n := range c.pairs {
		if n.pair != nil && !n.pair.Ended() && n.qpns.Contains(r.key.slot<<slotBits) && n.has(e) {
			r.pair.Store(n.pair)
			r.pause = firstPause
			return
		}
	}
	if r.pair.Swap(nil) != nil {
		r.next = time.Now().Add(r.pause)
		c.askSoon()
	}
}

// connectRoutes finds the pairs of all routes, after a pair was added or removed. mu is held.
func (c *Client) connectRoutes() {
	for _, r := range c.routes {
		c.connectRoute(r)
	}
	c.setGroup()
}

// setGroup sets the pairs to receive from. mu is held.
func (c *Client) setGroup() {
	var all []*ring.Pair
	if c.hub != nil {
		all = append(all, c.hub)
	}
	for _, n := range c.pairs {
		if n.pair != nil {
			all = append(all, n.pair)
		}
	}
	c.group.Set(all)
}

// askSoon wakes askForRings.
func (c *Client) askSoon() {
	select {
	case c.due <- struct{}{}:
	default:
	}
}

// askForRings makes requests for routes until the client is closed. It has its own goroutine,
// because the goroutine that creates a route may be the one that reads the hub's answers.
func (c *Client) askForRings() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-c.ended:
			return
		case <-c.due:
		case <-timer.C:
		}
		requests, again := c.dueRequests(time.Now())
		for i := range requests {
			if err := c.ask(&requests[i]); err != nil {
				c.cfg.Log.Debug("no rings", "error", err)
			}
		}
		timer.Reset(again)
	}
}

// dueRequests returns the requests that are due, and the time until the next.
func (c *Client) dueRequests(now time.Time) (all []request, again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, serial := range c.endedPairs {
		all = append(all, request{kind: unpair, serial: serial})
	}
	all = append(all, c.owed...)
	c.endedPairs, c.owed, again = nil, nil, lastPause
	for _, r := range c.routes {
		if r.pair.Load() != nil {
			continue
		}
		if r.next.After(now) {
			again = min(again, r.next.Sub(now))
			continue
		}
		all = append(all, request{kind: pair, addr: r.key.dst, own: r.key.src, qpn: r.key.slot << slotBits})
		r.next = now.Add(r.pause)
		again = min(again, r.pause)
		r.pause = min(2*r.pause, lastPause)
	}
	return all, again
}

// onPair processes a pairMessage: rings with a new client, or more addresses for existing rings.
func (c *Client) onPair(m *pairMessage, fds []int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.pairs, func(n *neighbour) bool { return n.serial == m.serial && n.qpns == m.qpns }); i >= 0 {
		n := c.pairs[i]
		if known := *n.ends.Load(); !slices.Contains(known, m.ends) && len(known) < maxEnds {
			known = append(slices.Clone(known), m.ends)
			n.ends.Store(&known)
		}
		c.connectRoutes()
		return nil
	}
	if len(fds) != 1 || c.closed || len(c.pairs) >= maxPairs {
		return nil // the other client is told by the closing of the descriptor
	}
	for _, n := range c.pairs {
		if n.qpns.Contains(m.qpns.Base) || m.qpns.Contains(n.qpns.Base) {
			n.disconnect() // according to the hub, the numbers have a new owner
		}
	}
	conn, err := connOf(fds[0])
	if err != nil {
		return nil
	}
	n := &neighbour{conn: conn, serial: m.serial, qpns: m.qpns}
	n.ends.Store(&[]ends{m.ends})
	c.pairs = append(c.pairs, n)
	c.work.Go(func() { c.serveNeighbour(n) })
	return nil
}

// connOf returns a connection with a duplicate of a descriptor.
func connOf(fd int) (*net.UnixConn, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(own), "neighbour")
	defer f.Close()
	conn, err := net.FileConn(f) // duplicates the descriptor
	if err != nil {
		return nil, err
	}
	u, ok := conn.(*net.UnixConn)
	if !ok {
		_ = conn.Close()
		return nil, unix.EINVAL
	}
	return u, nil
}

// serveNeighbour completes the handshake with another client, and receives from it until one of
// them disconnects.
func (c *Client) serveNeighbour(n *neighbour) {
	p, err := (*ring.Pair)(nil), errNoRoute
	if c.awaitRoute() {
		p, err = c.neighbourHandshake(n.conn)
	}
	if err == nil {
		c.mu.Lock()
		n.pair = p
		if c.closed {
			p.Shutdown()
		}
		c.connectRoutes()
		c.mu.Unlock()
		c.cfg.Log.Debug("rings with another client", "QPNs", fmt.Sprintf("%#x", n.qpns.Base))
		err = p.Serve(c.receiverOf(n), nil)
	}
	c.cfg.Log.Debug("no rings with another client any more", "QPNs", fmt.Sprintf("%#x", n.qpns.Base), "error", err)
	c.mu.Lock()
	c.pairs = slices.DeleteFunc(c.pairs, func(o *neighbour) bool { return o == n })
	c.endedPairs = append(c.endedPairs, n.serial)
	c.connectRoutes()
	c.askSoon()
	c.mu.Unlock()
	// Shutdown ends the connection for its duplicates too, such as the hub's.
	if raw, err := n.conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	if p != nil {
		p.Close()
	}
	_ = n.conn.Close()
}

var errNoRoute = errors.New("this process has no route to another client")

// awaitRoute waits until the client has a route. It returns false after routeWait, or if the client
// is closed.
func (c *Client) awaitRoute() bool {
	c.mu.Lock()
	routed := c.routed
	c.mu.Unlock()
	late := time.NewTimer(routeWait)
	defer late.Stop()
	select {
	case <-routed:
		return true
	case <-late.C:
	case <-c.ended:
	}
	return false
}

// neighbourHandshake exchanges the memory of rings.
func (c *Client) neighbourHandshake(conn *net.UnixConn) (*ring.Pair, error) {
	hello := append(make([]byte, 0, neighbourHelloLen), magic...)
	hello = binary.BigEndian.AppendUint32(hello, version)
	hello = binary.BigEndian.AppendUint32(hello, neighbourRing)
	in, out, err := ring.Handshake(conn, helloTimeout, hello, neighbourRing, decodeNeighbourHello)
	if err != nil {
		return nil, err
	}
	p, err := ring.NewPair(c.group, &c.quota, conn, in, out)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(in), unix.Munmap(out))
	}
	return p, nil
}

// neighbourHelloLen is the length of the hello between clients: magic, version and the size of the
// ring.
const neighbourHelloLen = 16

func decodeNeighbourHello(b []byte) (size int, err error) {
	if err := checkMagic(b); err != nil {
		return 0, err
	}
	if len(b) != neighbourHelloLen {
		return 0, fmt.Errorf("hello of %d bytes, want %d", len(b), neighbourHelloLen)
	}
	n := binary.BigEndian.Uint32(b[12:])
	if n < ring.MinLen || n > ring.MaxLen || n&(n-1) != 0 {
		return 0, fmt.Errorf("a ring of %d bytes", n)
	}
	return int(n), nil
}

// receiverOf returns a receiver for a neighbour's ring. The identity of the sender comes from the
// hub's message.
func (c *Client) receiverOf(n *neighbour) link.Receiver {
	deliver := c.cfg.Receiver()
	var a Arrival
	return func(frames []link.Frame) {
		for i := range frames {
			f := &frames[i]
			a = arrivalOf(f)
			a.SrcQPNs = n.qpns
			if !n.has(ends{a.From.Addr(), a.Dst}) {
				a.Payload = nil // malformed
			}
			deliver(&a, f.Polled)
		}
	}
}

// disconnectAll ends all rings.
func (c *Client) disconnectAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.pairs {
		n.disconnect()
	}
}

// keepPairs tells a new hub about existing rings. Rings that the hub refuses are ended.
func (c *Client) keepPairs(conn *net.UnixConn) {
	c.mu.Lock()
	pairs := slices.Clone(c.pairs)
	c.mu.Unlock()
	for _, n := range pairs {
		raw, err := n.conn.SyscallConn()
		if err == nil {
			err = c.request(&request{kind: keepPair, qpn: n.qpns.Base, serial: n.serial, socket: raw, on: conn}, true)
		}
		if errors.Is(err, errGone) {
			return // the next hub is told
		}
		if err != nil {
			c.cfg.Log.Debug("rings of the previous hub are ended", "QPNs", fmt.Sprintf("%#x", n.qpns.Base), "error", err)
			c.mu.Lock()
			n.disconnect()
			c.mu.Unlock()
		}
	}
}
