package hub

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

// relay passes received datagrams to the clients.
type relay struct {
	counters *Counters
	system   bool          // users have limits
	turn     chan struct{} // full while an arrival is delivered, if system is true: users' sockets take turns
	wake     chan struct{} // signals that sendDue should be called soon
	began    time.Time

	mu         sync.Mutex
	classifier Classifier
	patient    bool // no number is refused: see server.settle
	byQPN      [qpnSlots]*member
	byComm     [commSlots]*member
	services   []service
	own        map[netip.Addr]bool        // the hub's addresses
	senders    map[netip.AddrPort]*member // client whose socket sends from there; nil: the hub's
	kept       map[netip.AddrPort]int     // descriptors of these sockets: see keepSender
	sockets    map[netip.Addr]*hubSocket
	touched    []*member // clients that have records to publish
	d          stack.Datagram
	head       [rxsocket.MaxHeader]byte
}

// service is a client's registration of a service. After its end it is kept, until another client
// registers the service or there are too many. Retransmitted requests thus go to the client that
// has received them before.
type service struct {
	stack.Service
	member *member
	uses   int
}

// listens reports whether the client listens to a service ID at an address of its own.
func (s *service) listens(id uint64, dst netip.Addr) bool {
	return s.Overlaps(stack.Service{Addr: dst, ID: id, Mask: 1<<64 - 1}) && s.member.addrs[dst]
}

func newRelay(c Classifier, counters *Counters) *relay {
	return &relay{classifier: c, counters: counters, wake: make(chan struct{}, 1), turn: make(chan struct{}, 1), began: time.Now(),
		own: map[netip.Addr]bool{}, senders: map[netip.AddrPort]*member{}, kept: map[netip.AddrPort]int{},
		sockets: map[netip.Addr]*hubSocket{}}
}

func (r *relay) add(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setOwner(m.lease.span, m)
	r.classifier.Leased(m.lease.numbers())
}

// setOwner sets the owner of a lease's numbers. mu is held.
func (r *relay) setOwner(s span, m *member) {
	for i := range uint32(1) << s.bits {
		r.byQPN[s.qpnSlot+i] = m
	}
	r.byComm[s.commSlot] = m
}

func (r *relay) remove(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.gone, m.left = true, time.Now()
	r.setOwner(m.lease.span, nil)
	r.services = slices.DeleteFunc(r.services, func(s service) bool { return s.member == m })
}

// senderTime is the time for which the sockets of a departed client are still attributed to it. Its
// last datagrams, such as acknowledgements, may be read after the hub has detected its departure.
// If another process gets such a port within this time, it can send as the departed client, and
// only as that.
// else.
const senderTime = time.Second

// forgetSenders removes the sockets of clients that departed more than senderTime ago.
func (r *relay) forgetSenders(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.deleteSenders(func(_ netip.AddrPort, m *member) bool {
		return m != nil && m.gone && now.Sub(m.left) >= senderTime
	})
}

// deleteSenders deletes some of senders. mu is held.
func (r *relay) deleteSenders(which func(netip.AddrPort, *member) bool) {
	maps.DeleteFunc(r.senders, func(from netip.AddrPort, m *member) bool {
		gone := which(from, m)
		if gone {
			r.endSender(from)
		}
		return gone
	})
}

// setOwn sets whether an address is the hub's.
func (r *relay) setOwn(a netip.Addr, own bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if own {
		r.own[a] = true
	} else {
		delete(r.own, a)
	}
}

// addSender registers a client's socket at an address and port. An earlier owner has closed its
// socket, because no two sockets can share an address and port.
func (r *relay) addSender(m *member, from netip.AddrPort, fd int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !m.addrs[from.Addr()] {
		return fmt.Errorf("%v is not one of the client's addresses: %w", from.Addr(), unix.EADDRNOTAVAIL)
	}
	n := 0
	for _, o := range r.senders {
		if o == m {
			n++
		}
	}
	if n >= maxSourceSockets {
		return fmt.Errorf("a client has at most %d sockets to send from: %w", maxSourceSockets, unix.ENOSPC)
	}
	if err := r.keepSender(m, from, fd); err != nil {
		return err
	}
	r.senders[from] = m
	return nil
}

// died tells the classifier to end the connections of a dead client.
func (r *relay) died(n stack.Numbers) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.classifier.Died(n)
	r.later()
}

// later arranges for sendDue to run soon.
func (r *relay) later() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// sendDue sends packets that are due on behalf of dead clients. It returns the time until the next
// are due, or 0 if none are.
func (r *relay) sendDue() (again time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	again = time.Duration(r.classifier.SendDue(int64(time.Since(r.began)), r.send))
	r.publish()
	return again
}

func (r *relay) addAddr(m *member, a netip.Addr) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.addrs[a] = true
}

func (r *relay) dropAddr(m *member, a netip.Addr) (had bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	had = m.addrs[a]
	delete(m.addrs, a)
	// The client's sockets at the address are closed. If the address is added again, another
	// process may get such a port.
	r.deleteSenders(func(from netip.AddrPort, o *member) bool { return o == m && from.Addr() == a })
	return had
}

// serve registers a service for a client, unless another client has it.
func (r *relay) serve(m *member, s stack.Service) error {
	s.ID &= s.Mask
	r.mu.Lock()
	defer r.mu.Unlock()
	same, own := -1, 0
	for i := range r.services {
		o := &r.services[i]
		switch {
		case o.member == m:
			if own++; o.Service == s {
				same = i
			}
		case o.uses > 0 && o.Overlaps(s) && o.member.hasEnded():
			o.uses = 0 // a killed program's parent may start the next program before remove is called
		case o.uses > 0 && o.Overlaps(s):
			return fmt.Errorf("service %#x (mask %#x) is in use by another process, %d: %w", s.ID, s.Mask, o.member.pid, s.Conflict(o.Service))
		}
	}
	if same >= 0 {
		r.services[same].uses++
		return nil
	}
	if own >= maxServices {
		ended := slices.IndexFunc(r.services, func(o service) bool { return o.member == m && o.uses == 0 })
		if ended < 0 {
			return fmt.Errorf("a client has at most %d services: %w", maxServices, unix.ENOSPC)
		}
		r.services = slices.Delete(r.services, ended, ended+1)
	}
	if err := r.mayServe(m, s); err != nil {
		return err
	}
	r.services = slices.DeleteFunc(r.services, func(o service) bool { return o.uses == 0 && o.member != m && o.Overlaps(s) })
	r.services = append(r.services, service{s, m, 1})
	return nil
}

func (r *relay) endServe(m *member, s stack.Service) {
	s.ID &= s.Mask
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range r.services {
		if o := &r.services[i]; o.member == m && o.Service == s && o.uses > 0 {
			o.uses--
			return
		}
	}
}

// find finds the destination client of a datagram to dst, which must have that address. It returns
// nil if there is none.
func (r *relay) find(t Target, dst netip.Addr) (m *member) {
	switch t.Kind {
	case TargetQPN:
		m = r.byQPN[t.Number>>slotBits&(qpnSlots-1)]
	case TargetCommID:
		m = r.byComm[t.Number>>commBits]
	case TargetService:
		for i := range r.services {
			s := &r.services[i]
			if s.listens(t.Service, dst) && (m == nil || s.uses > 0) {
				m = s.member
			}
		}
	}
	if m == nil || !m.addrs[dst] {
		return nil
	}
	return m
}

// arrivals receives datagrams to one of the hub's addresses.
type arrivals struct {
	relay  *relay
	dst    netip.Addr
	shares *atomic.Pointer[[]*share] // to drain before a MAD; nil: none
	remote bool                      // the kernel steers only other machines' datagrams to the socket
}

// Polling implements [rxsocket.Receiver].
func (*arrivals) Polling() bool { return false }

// Deliver implements [rxsocket.Receiver].
func (in *arrivals) Deliver(a *rxsocket.Arrival, _ bool) {
	if in.relay.system {
		in.drainShares(a)
		in.relay.turn <- struct{}{}
		defer func() { <-in.relay.turn }()
	}
	in.relay.mu.Lock()
	defer in.relay.mu.Unlock()
	in.relay.deliver(&Arrival{Payload: a.Payload, From: a.From, Dst: in.dst,
		TrafficClass: a.TrafficClass, TTL: a.TTL, Segment: a.Segment}, in.remote)
	in.relay.publish()
}

// deliver copies an arrival into the rings of its destinations. remote says that it is certainly
// from another machine. mu is held.
//
// Any process may send from the hub's addresses. Clients are recognized by the sockets that they
// send from, and a datagram is accepted only with numbers of its sender.
func (r *relay) deliver(a *Arrival, remote bool) {
	r.counters.Received.Add(1)
	r.counters.Bytes.Add(uint64(len(a.Payload)))
	src := a.From.Addr().Unmap().WithZone("")
	a.From = netip.AddrPortFrom(src, a.From.Port())
	var from *member // nil: another machine, the hub itself, or an address that is not the hub's
	known := true
	if r.own[src] {
		from, known = r.senders[a.From]
	}
	if len(a.Payload) == 0 || src.Is4() != a.Dst.Is4() || !known {
		r.counters.Dropped.Add(1)
		return
	}
	size := len(a.Payload)
	if a.Segment > 0 {
		size = min(size, a.Segment)
	}
	head := r.head[:rxsocket.PutHeader(r.head[:], src, a.Dst, a.From.Port(), a.TrafficClass, a.TTL)]
	stack.PutLengths(head, len(a.Payload))
	r.d = stack.Datagram{
		Src: src, Dst: a.Dst, SrcPort: a.From.Port(), TrafficClass: a.TrafficClass, HopLimit: a.TTL,
		Header: head, Payload: a.Payload, SegmentSize: size, IDGuessed: src.Is4(),
	}
	var run part // consecutive datagrams with the same destination
	for n := 0; ; n++ {
		b, ok := r.d.Next()
		if !ok {
			r.put(&run, n, size, a)
			return
		}
		if to, same := r.route(b, from, &run); !same {
			r.put(&run, n, size, a)
			to.begin, to.verified, to.from, to.remote = n, r.shouldVerify(&to, a), from, remote
			run = to
		}
		run.verified = run.verified && r.classifier.Verify(b, &r.d)
	}
}

// minVerifyLen is the smallest arrival in bytes whose ICRCs the hub checks. Package ring copies
// shorter ones in any case.
const minVerifyLen = 2048

// shouldVerify reports whether the hub should check the ICRCs of a part of an arrival. The client
// then uses the data in the ring without a copy. It could not check ICRCs there, because the memory
// may change after the check; the hub checks before it copies. A single IPv4 packet is excluded,
// because the hub most likely does not know its identification.
func (r *relay) shouldVerify(p *part, a *Arrival) bool {
	return p.to != nil && p.target.Kind == TargetQPN && a.Segment > 0 && len(a.Payload) >= minVerifyLen && p.to.ring.InPlace()
}

// part is a run of consecutive datagrams of an arrival with the same destination.
type part struct {
	begin    int
	target   Target
	to       *member // nil: none
	src      stack.Range
	verified bool    // the hub has checked the ICRCs
	from     *member // whose socket sent it; nil: unknown
	remote   bool    // it is certainly from another machine
}

// route finds the destination of a datagram, which r.d.Next has just returned. same says that it is
// the destination of the preceding datagrams.
func (r *relay) route(b []byte, from *member, last *part) (p part, same bool) {
	if from != nil && !r.classifier.Permits(b, from.numbers) {
		return p, false
	}
	p.target = r.classifier.Classify(b, &r.d)
	asked := p.target.Kind == TargetCommID || p.target.Kind == TargetService
	if p.target == last.target && !asked {
		return p, true
	}
	p.to = r.find(p.target, r.d.Dst)
	if asked && p.to == nil && !r.patient {
		r.classifier.Refuse(b, &r.d, r.send)
		r.later()
	}
	if from != nil && p.target.Kind == TargetQPN { // the hub has checked the numbers in a MAD
		p.src = from.numbers.QPNs
	}
	if p.to == last.to && p.src == last.src && p.to != nil {
		last.target = p.target
		return p, true
	}
	return p, false
}

// put copies the datagrams of a part, up to number end, into a client's ring. size is the payload
// size of each datagram in the arrival.
func (r *relay) put(p *part, end, size int, a *Arrival) {
	if p.begin == end {
		return
	}
	if p.to == nil || r.system && p.isCrowdedOut() {
		r.counters.Dropped.Add(1)
		return
	}
	some := *a
	some.Payload = a.Payload[p.begin*size : min(end*size, len(a.Payload))]
	some.ID, some.SrcQPNs, some.NoICRC = uint16(p.begin), p.src, p.verified
	if end-p.begin == 1 {
		some.Segment = 0
	}
	written := p.to.written
	switch {
	case !p.to.put(&some):
		r.counters.Dropped.Add(1)
	case !written:
		r.touched = append(r.touched, p.to)
	}
}

// publish makes records visible to the clients. mu is held.
func (r *relay) publish() {
	for _, m := range r.touched {
		m.publish()
	}
	clear(r.touched)
	r.touched = r.touched[:0]
}

// close closes the hub's sockets for sending.
func (r *relay) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.sockets {
		_ = o.conn.Close()
	}
	for from := range r.kept {
		r.endSender(from)
	}
}
