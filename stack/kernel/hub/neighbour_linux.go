package hub

// Rings between this client and others of the hub: what one sends another does not pass the hub then, but for messages of
// connection management, of which the hub looks at the numbers.
//
// A client that has a route to a QP (see Route) asks the hub for rings with whoever has that QPN. The hub tells both which QPNs the
// other has and between which addresses they talk, and hands each one end of a connection, on which they give each other the
// memory of their rings. What comes through a ring is believed to be from those addresses and QPNs and no others, whatever it
// says. A client that has no routes, such as one whose packets are captured, takes no rings. It waits a while before it refuses them: the
// two ends of a connection make their routes one after the other.
//
// Rings outlive the hub. Its successor is told of them, and is given the connection to end them by when one side is gone.

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
	maxPairs      = 64      // other clients that a client has rings with
	maxEnds       = 256     // pairs of addresses that datagrams go between in one pair of rings
	neighbourRing = 1 << 20 // bytes of each ring
	quotaBytes    = 4 * ring.QueueBytes
)

// A route asks again for rings that it did not get, after a time that doubles, from firstPause on.
const lastPause = 30 * time.Second

// Variables for tests.
var (
	firstPause = 500 * time.Millisecond
	routeWait  = patience / 2 // how long a client waits for a route of its own before it refuses rings; the other waits for patience
)

// neighbours are the other clients that this one has rings with, and where it would have some. All is under Client.mu.
type neighbours struct {
	near   []*neighbour
	routes map[routeKey]*Route
	routed chan struct{} // closed while there are routes
	parted []uint32      // serial numbers of pairs that have ended, of which the hub does not know
	due    chan struct{} // there is something to ask the hub for
}

func (n *neighbours) init() {
	n.routes, n.routed, n.due = map[routeKey]*Route{}, make(chan struct{}), make(chan struct{}, 1)
}

// neighbour is another client that this one has rings with, or is about to.
type neighbour struct {
	conn   *net.UnixConn
	serial uint32
	qpns   stack.Range
	ends   atomic.Pointer[[]ends] // replaced under Client.mu, never changed
	pair   *ring.Pair             // nil: they have not said hello; under Client.mu
}

// has tells whether datagrams go between two addresses.
func (n *neighbour) has(e ends) bool { return slices.Contains(*n.ends.Load(), e) }

// hangUp has the neighbour's goroutine end.
func (n *neighbour) hangUp() {
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

// Route is a way to the QPs in one slot, from one of this client's addresses to another's, for any number of users.
type Route struct {
	c     *Client
	key   routeKey
	users int // under Client.mu
	pair  atomic.Pointer[ring.Pair]
	// Under Client.mu: when the hub is to be asked, and how long to wait from then on.
	next  time.Time
	pause time.Duration
}

// Route makes a way to a QP, if that is another client's and as soon as there are rings with that: until then, Reserve and Send
// do nothing. Leave is to be called.
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
		c.direct(r)
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

// Reserve sets room for RecordLen and n bytes aside in the other client's ring, for which Commit is to be called; its Data is nil if
// there are no rings, or no room.
func (r *Route) Reserve(n int) link.Reservation {
	if p := r.pair.Load(); p != nil {
		return p.Reserve(recordLen + n)
	}
	return link.Reservation{}
}

// Send hands complete datagrams to the other client, as soon as there is room; false if there are no rings.
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

// Backlog is how many bytes wait for room.
func (r *Route) Backlog() int {
	if p := r.pair.Load(); p != nil {
		return p.Queued()
	}
	return 0
}

// HasRings tells whether there are rings.
func (r *Route) HasRings() bool { return r.pair.Load() != nil }

// direct looks for the pair of a route. mu is held.
func (c *Client) direct(r *Route) {
	e := ends{r.key.dst, r.key.src}
	for _, n := range c.near {
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

// directAll looks for the pairs of all routes, as there is another one, or one less. mu is held.
func (c *Client) directAll() {
	for _, r := range c.routes {
		c.direct(r)
	}
	c.setGroup()
}

// setGroup says what is received from. mu is held.
func (c *Client) setGroup() {
	var all []*ring.Pair
	if c.hub != nil {
		all = append(all, c.hub)
	}
	for _, n := range c.near {
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

// askForRings asks the hub for what routes need, until the client is closed: here, as who makes a route may be who would hear the
// answer.
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

// dueRequests are what the hub is to be asked for now, and when to look again.
func (c *Client) dueRequests(now time.Time) (all []request, again time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, serial := range c.parted {
		all = append(all, request{kind: unpair, serial: serial})
	}
	all = append(all, c.owed...)
	c.parted, c.owed, again = nil, nil, lastPause
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

// meet takes in which client there are to be rings with, or between which more addresses.
func (c *Client) meet(m *meeting, fds []int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.IndexFunc(c.near, func(n *neighbour) bool { return n.serial == m.serial && n.qpns == m.qpns }); i >= 0 {
		n := c.near[i]
		if known := *n.ends.Load(); !slices.Contains(known, m.ends) && len(known) < maxEnds {
			known = append(slices.Clone(known), m.ends)
			n.ends.Store(&known)
		}
		c.directAll()
		return nil
	}
	if len(fds) != 1 || c.closed || len(c.near) >= maxPairs {
		return nil // the descriptor is closed, which the other sees
	}
	for _, n := range c.near {
		if n.qpns.Contains(m.qpns.Base) || m.qpns.Contains(n.qpns.Base) {
			n.hangUp() // the hub says who has the numbers now
		}
	}
	conn, err := connOf(fds[0])
	if err != nil {
		return nil
	}
	n := &neighbour{conn: conn, serial: m.serial, qpns: m.qpns}
	n.ends.Store(&[]ends{m.ends})
	c.near = append(c.near, n)
	c.work.Go(func() { c.serveNeighbour(n) })
	return nil
}

// connOf makes a connection of a descriptor, which stays the caller's.
func connOf(fd int) (*net.UnixConn, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(own), "neighbour")
	defer f.Close()
	conn, err := net.FileConn(f) // has a duplicate of the descriptor
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

// serveNeighbour says hello to another client, and receives from it until one of the two hangs up.
func (c *Client) serveNeighbour(n *neighbour) {
	p, err := (*ring.Pair)(nil), errNoRoute
	if c.awaitRoute() {
		p, err = c.greetNeighbour(n.conn)
	}
	if err == nil {
		c.mu.Lock()
		n.pair = p
		if c.closed {
			p.Shutdown()
		}
		c.directAll()
		c.mu.Unlock()
		c.cfg.Log.Debug("rings with another client", "QPNs", fmt.Sprintf("%#x", n.qpns.Base))
		err = p.Serve(c.receiverOf(n), nil)
	}
	c.cfg.Log.Debug("no rings with another client any more", "QPNs", fmt.Sprintf("%#x", n.qpns.Base), "error", err)
	c.mu.Lock()
	c.near = slices.DeleteFunc(c.near, func(o *neighbour) bool { return o == n })
	c.parted = append(c.parted, n.serial)
	c.directAll()
	c.askSoon()
	c.mu.Unlock()
	// Whoever has a duplicate of the connection, as the hub has: it ends.
	if raw, err := n.conn.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RDWR) })
	}
	if p != nil {
		p.Close()
	}
	_ = n.conn.Close()
}

var errNoRoute = errors.New("this process has no route to another client")

// awaitRoute waits until the client has a route; false if it has none for long, or is closed.
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

// greetNeighbour exchanges the memory of rings.
func (c *Client) greetNeighbour(conn *net.UnixConn) (*ring.Pair, error) {
	hello := append(make([]byte, 0, neighbourHelloLen), magic...)
	hello = binary.BigEndian.AppendUint32(hello, version)
	hello = binary.BigEndian.AppendUint32(hello, neighbourRing)
	in, out, err := ring.Handshake(conn, patience, hello, neighbourRing, decodeNeighbourHello)
	if err != nil {
		return nil, err
	}
	p, err := ring.NewPair(c.group, &c.quota, conn, in, out)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(in), unix.Munmap(out))
	}
	return p, nil
}

// neighbourHelloLen is the length of what clients say to each other first: magic, version, and the size of the ring.
const neighbourHelloLen = 16

func decodeNeighbourHello(b []byte) (size int, err error) {
	if err := checkMagic(b); err != nil {
		return 0, err
	}
	if len(b) != neighbourHelloLen {
		return 0, fmt.Errorf("a hello of %d bytes, want %d", len(b), neighbourHelloLen)
	}
	n := binary.BigEndian.Uint32(b[12:])
	if n < ring.MinLen || n > ring.MaxLen || n&(n-1) != 0 {
		return 0, fmt.Errorf("a ring of %d bytes", n)
	}
	return int(n), nil
}

// receiverOf hands on what a neighbour sends. Who has sent it is what the hub said.
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

// hangUpAll ends all rings.
func (c *Client) hangUpAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.near {
		n.hangUp()
	}
}

// keepPairs tells a hub which rings the one before it has arranged. Those that it does not want are ended.
func (c *Client) keepPairs(conn *net.UnixConn) {
	c.mu.Lock()
	near := slices.Clone(c.near)
	c.mu.Unlock()
	for _, n := range near {
		raw, err := n.conn.SyscallConn()
		if err == nil {
			err = c.request(&request{kind: keepPair, qpn: n.qpns.Base, serial: n.serial, socket: raw, on: conn}, true)
		}
		if errors.Is(err, errGone) {
			return // the next is told
		}
		if err != nil {
			c.cfg.Log.Debug("rings of the hub before are given up", "QPNs", fmt.Sprintf("%#x", n.qpns.Base), "error", err)
			c.mu.Lock()
			n.hangUp()
			c.mu.Unlock()
		}
	}
}
