package hub

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/kernel/internal/inlet"
)

// relay hands what comes to the clients.
type relay struct {
	dropped atomic.Uint64 // records that no client got
	wake    chan struct{} // speak is to be called soon
	began   time.Time

	mu         sync.Mutex
	classifier stack.Classifier
	byQPN      [qpnSlots]*member
	byComm     [commSlots]*member
	services   []service
	outlets    map[netip.Addr]*outlet
	touched    []*member // have something to publish
	d          stack.Datagram
	head       [inlet.MaxHeader]byte
}

// service is what a client listens for. One that has ended is kept until somebody else has it, or there are too many: requests
// that are repeated go to the client that has seen them.
type service struct {
	stack.Service
	member *member
	uses   int
}

func newRelay(c stack.Classifier) *relay {
	return &relay{classifier: c, wake: make(chan struct{}, 1), began: time.Now(), outlets: map[netip.Addr]*outlet{}}
}

func (r *relay) add(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.byQPN[m.lease.qpnSlot], r.byComm[m.lease.commSlot] = m, m
	r.classifier.Leased(m.lease.numbers())
}

func (r *relay) remove(m *member) {
	r.mu.Lock()
	defer r.mu.Unlock()
	m.gone = true
	r.byQPN[m.lease.qpnSlot], r.byComm[m.lease.commSlot] = nil, nil
	r.services = slices.DeleteFunc(r.services, func(s service) bool { return s.member == m })
}

// died has the classifier say to the peers of a client that it is gone.
func (r *relay) died(n stack.Numbers) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.classifier.Died(n)
	r.later()
}

// later has speak called soon.
func (r *relay) later() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// speak sends what is due on behalf of clients that died, and returns when there is more to send; 0 if there is not.
func (r *relay) speak() (again time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	again = time.Duration(r.classifier.Speak(int64(time.Since(r.began)), r.send))
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
	return had
}

// serve gives a client a service, unless another has it.
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
		case o.uses > 0 && overlap(o.Service, s):
			return fmt.Errorf("service %#x (mask %#x) is another process's, %d: %w", s.ID, s.Mask, o.member.pid, unix.EADDRINUSE)
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
	r.services = slices.DeleteFunc(r.services, func(o service) bool { return o.uses == 0 && o.member != m && overlap(o.Service, s) })
	r.services = append(r.services, service{s, m, 1})
	return nil
}

// overlap tells whether there is a service ID at an address that both have.
func overlap(a, b stack.Service) bool {
	return (a.ID^b.ID)&a.Mask&b.Mask == 0 && (!a.Addr.IsValid() || !b.Addr.IsValid() || a.Addr == b.Addr)
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

// find finds the client that a datagram to dst is for, which must have that address; nil if there is none.
func (r *relay) find(t stack.Target, dst netip.Addr) (m *member) {
	switch t.Kind {
	case stack.TargetQPN:
		m = r.byQPN[t.Number>>qpnBits&(qpnSlots-1)]
	case stack.TargetCommID:
		m = r.byComm[t.Number>>commBits]
	case stack.TargetService:
		for i := range r.services {
			s := &r.services[i]
			if (s.ID^t.Service)&s.Mask == 0 && (!s.Addr.IsValid() || s.Addr == dst) && s.member.addrs[dst] && (m == nil || s.uses > 0) {
				m = s.member
			}
		}
	}
	if m == nil || !m.addrs[dst] {
		return nil
	}
	return m
}

// arrivals takes what comes to one of the hub's addresses.
type arrivals struct {
	relay *relay
	dst   netip.Addr
}

// Polled implements [inlet.Receiver].
func (*arrivals) Polled() bool { return false }

// Deliver implements [inlet.Receiver].
func (in *arrivals) Deliver(a *inlet.Arrival, _ bool) {
	in.relay.mu.Lock()
	defer in.relay.mu.Unlock()
	in.relay.deliver(a, in.dst)
	in.relay.publish()
}

// deliver copies an arrival into the rings of those that it is for. mu is held.
func (r *relay) deliver(a *inlet.Arrival, dst netip.Addr) {
	src := a.From.Addr().Unmap().WithZone("")
	if len(a.Payload) == 0 || src.Is4() != dst.Is4() {
		r.dropped.Add(1)
		return
	}
	size := len(a.Payload)
	if a.Segment > 0 {
		size = min(size, a.Segment)
	}
	head := r.head[:inlet.PutHeader(r.head[:], src, dst, a.From.Port(), a.TrafficClass, a.TTL)]
	stack.PutLengths(head, len(a.Payload))
	r.d = stack.Datagram{
		Src: src, Dst: dst, SrcPort: a.From.Port(), TrafficClass: a.TrafficClass, HopLimit: a.TTL,
		Header: head, Payload: a.Payload, SegmentSize: size, IDGuessed: src.Is4(),
	}
	var last stack.Target
	var to *member
	begin := 0 // of those in a row that are for the same client
	n := 0
	for {
		b, ok := r.d.Next()
		if !ok {
			break
		}
		t := r.classifier.Classify(b, &r.d)
		if n == 0 || t != last {
			m := r.find(t, dst)
			if m == nil && (t.Kind == stack.TargetCommID || t.Kind == stack.TargetService) {
				r.classifier.Refuse(b, &r.d, r.send)
				r.later()
			}
			if m != to {
				r.put(to, a, dst, begin, n, size)
				begin, to = n, m
			}
			last = t
		} else if to == nil && (t.Kind == stack.TargetCommID || t.Kind == stack.TargetService) {
			r.classifier.Refuse(b, &r.d, r.send)
		}
		n++
	}
	r.put(to, a, dst, begin, n, size)
}

// put copies the datagrams from begin to end, of an arrival whose datagrams have size bytes, into a client's ring.
func (r *relay) put(m *member, a *inlet.Arrival, dst netip.Addr, begin, end, size int) {
	if begin == end {
		return
	}
	if m == nil {
		r.dropped.Add(1)
		return
	}
	part := *a
	part.Payload = a.Payload[begin*size : min(end*size, len(a.Payload))]
	if end-begin == 1 {
		part.Segment = 0
	}
	written := m.written
	switch {
	case !m.put(&part, dst, uint16(begin)):
		r.dropped.Add(1)
	case !written:
		r.touched = append(r.touched, m)
	}
}

// publish shows the clients what was put. mu is held.
func (r *relay) publish() {
	for _, m := range r.touched {
		m.publish()
	}
	clear(r.touched)
	r.touched = r.touched[:0]
}

// close closes what the hub has sent from.
func (r *relay) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, o := range r.outlets {
		_ = o.conn.Close()
	}
}
