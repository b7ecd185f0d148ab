package rdmatransport_test

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/classify"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// sharing shares one host between several devices, like a hub between processes. It passes
// datagrams to the device that rdmatransport's Classifier chooses. Everything is in this process
// and uses the host, so the tests cover the part of a hub that is in rdmatransport.
type sharing struct {
	t    *testing.T
	host stacktest.Host
	nic  stack.NIC
	busy int // number of further services that another process has

	// from, if not nil, returns the owner of the QPNs in datagrams to a sharer from the same
	// address.
	from atomic.Pointer[func(to *sharer) stack.Range]

	mu         sync.Mutex
	classifier hub.Classifier
	sharers    []*sharer // in the order of their creation, including dead ones
	speak      *time.Timer
	paths      map[netip.Addr]stack.Path
	ended      bool
}

// sharer is the host as seen by one of the devices.
type sharer struct {
	stacktest.Host
	stack.DatagramPort
	s        *sharing
	numbers  stack.Numbers
	dead     bool            // under s.mu
	services []stack.Service // under s.mu; ended services remain at the end
	serving  int             // number of services that have not ended
	mu       sync.RWMutex    // held while receiver runs
	receiver func(*stack.Datagram)
}

var _ stack.Shared = (*sharer)(nil)

// sharedNIC is the host's interface as seen by a sharer.
type sharedNIC struct {
	stack.NIC
	port *sharer
}

func (n *sharedNIC) Datagrams() stack.DatagramPort { return n.port }
func (n *sharedNIC) Watch(func(stack.Change))      {}

// share shares a host until the end of the test.
func share(t *testing.T, h stacktest.Host) *sharing {
	s := &sharing{t: t, host: h, nic: h.NICs()[0], classifier: classify.New(), paths: map[netip.Addr]stack.Path{}}
	s.speak = time.AfterFunc(time.Hour, s.sendDue)
	s.nic.Datagrams().Receive(s.receive)
	t.Cleanup(func() {
		s.mu.Lock()
		s.ended = true
		s.speak.Stop()
		s.mu.Unlock()
		s.nic.Datagrams().Receive(nil)
		for _, p := range s.paths {
			p.Close()
		}
		h.Close()
	})
	return s
}

// sharer creates another sharer.
func (s *sharing) sharer() *sharer {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := uint32(len(s.sharers) + 1)
	c := &sharer{Host: s.host, DatagramPort: s.nic.Datagrams(), s: s, numbers: stack.Numbers{
		QPNs: stack.Range{Base: n << 12, Mask: 1<<12 - 1}, CommIDs: stack.Range{Base: n << 16, Mask: 1<<16 - 1},
	}}
	s.sharers = append(s.sharers, c)
	s.classifier.Leased(c.numbers)
	return c
}

func (c *sharer) NICs() []stack.NIC      { return []stack.NIC{&sharedNIC{c.s.nic, c}} }
func (c *sharer) Numbers() stack.Numbers { return c.numbers }

// Close is an orderly end of the process. The hub treats it like any other end.
func (c *sharer) Close() error {
	c.die()
	return nil
}

// die ends the process. It sends and receives nothing any more.
func (c *sharer) die() {
	c.Receive(nil)
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.dead {
		return
	}
	c.dead, c.services, c.serving = true, nil, 0
	c.s.classifier.Died(c.numbers)
	c.s.speak.Reset(0)
}

func (c *sharer) Receive(f func(*stack.Datagram)) {
	c.mu.Lock()
	c.receiver = f
	c.mu.Unlock()
}

// Sender returns a sender that sends nothing once the process is dead.
func (c *sharer) Sender() stack.Sender {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.dead {
		return nullSender{}
	}
	return c.DatagramPort.Sender()
}

type nullSender struct{}

func (nullSender) Datagram(stack.Path, int) (header, payload []byte) { return nil, nil }
func (nullSender) Drop()                                             {}
func (nullSender) Cut()                                              {}
func (nullSender) Flush()                                            {}

func (c *sharer) Serve(v stack.Service) error {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if c.s.busy > 0 {
		c.s.busy--
		return syscall.EADDRINUSE
	}
	for _, o := range c.s.sharers {
		for _, other := range o.services[:o.serving] {
			if err := v.Conflict(other); o != c && err != nil {
				return err
			}
		}
	}
	c.services = slices.Insert(c.services, c.serving, v)
	c.serving++
	return nil
}

func (c *sharer) EndServe(v stack.Service) {
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	if i := slices.Index(c.services[:c.serving], v); i >= 0 {
		c.services = append(slices.Delete(c.services, i, i+1), v)
		c.serving--
	}
}

// serves reports whether the sharer serves a service at an address, or has ended one.
func (c *sharer) serves(id uint64, at netip.Addr, ended bool) bool {
	services := c.services[:c.serving]
	if ended {
		services = c.services
	}
	return slices.ContainsFunc(services, stack.Service{Addr: at, ID: id, Mask: 1<<64 - 1}.Overlaps)
}

// owner returns the sharer of a datagram, or nil.
func (s *sharing) owner(to hub.Target, at netip.Addr) *sharer {
	for _, ended := range []bool{false, true} {
		for _, c := range s.sharers {
			if !c.dead && (to.Kind == hub.TargetQPN && c.numbers.QPNs.Contains(to.Number) ||
				to.Kind == hub.TargetCommID && c.numbers.CommIDs.Contains(to.Number) ||
				to.Kind == hub.TargetService && c.serves(to.Service, at, ended)) {
				return c
			}
		}
	}
	return nil
}

// receive passes on received datagrams. Consecutive segments for the same sharer stay together.
func (s *sharing) receive(d *stack.Datagram) {
	var run *stack.Datagram
	var to *sharer
	start := 0
	for p, ok := d.Next(); ok; p, ok = d.Next() {
		if c := s.classify(p, d); run == nil || c != to {
			to.deliver(run)
			to, start = c, start+runLen(run)
			r := stack.Datagram{
				Src: d.Src, Dst: d.Dst, SrcPort: d.SrcPort, TrafficClass: d.TrafficClass, TCI: d.TCI,
				Polled: d.Polled, HopLimit: d.HopLimit,
				Looped: d.Looped, IDGuessed: d.IDGuessed, NoICRC: d.NoICRC, InPlace: d.InPlace,
				Header: slices.Clone(d.Header), SegmentSize: d.SegmentSize,
			}
			run = &r
		}
		run.Payload = d.Payload[start : start+runLen(run)+len(p)]
	}
	to.deliver(run)
}

func runLen(d *stack.Datagram) int {
	if d == nil {
		return 0
	}
	return len(d.Payload)
}

func (c *sharer) deliver(d *stack.Datagram) {
	if c == nil || d == nil {
		return
	}
	stack.PutLengths(d.Header, len(d.Payload))
	if from := c.s.from.Load(); from != nil && d.Src == d.Dst {
		d.SrcQPNs = (*from)(c)
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.receiver != nil {
		c.receiver(d)
	}
}

// classify finds the sharer of a segment. If there is none, the hub may answer it.
func (s *sharing) classify(payload []byte, d *stack.Datagram) *sharer {
	s.mu.Lock()
	defer s.mu.Unlock()
	to := s.classifier.Classify(payload, d)
	c := s.owner(to, d.Dst)
	if c == nil && (to.Kind == hub.TargetCommID || to.Kind == hub.TargetService) && !s.ended {
		s.classifier.Refuse(payload, d, s.send)
		s.speak.Reset(0)
	}
	return c
}

// sendDue sends the messages that are due for dead processes.
func (s *sharing) sendDue() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended {
		return
	}
	if again := s.classifier.SendDue(time.Since(began).Nanoseconds(), s.send); again > 0 {
		s.speak.Reset(time.Duration(again))
	}
}

var began = time.Now()

// send is a hub.SendFunc. s.mu is held.
func (s *sharing) send(to stack.PathAttr, n int, fill func(header, payload []byte)) {
	p := s.paths[to.Dst]
	if p == nil {
		var err error
		if p, err = s.nic.Datagrams().Path(to); err != nil {
			s.t.Errorf("path for a dead process: %v", err)
			return
		}
		s.paths[to.Dst] = p
	}
	out := s.nic.Datagrams().Sender()
	if header, payload := out.Datagram(p, n); payload != nil {
		fill(header, payload)
	}
	out.Flush()
}

// shared creates two stations that share an address, and one at another address.
func (m medium) shared(t *testing.T) (a1, a2, b *station, s *sharing) {
	hostA, hostB := m.hosts(t)
	s = share(t, hostA.Host)
	return stationOf(t, s.sharer(), hostA.Addr, nil), stationOf(t, s.sharer(), hostA.Addr, nil),
		stationOf(t, hostB.Host, hostB.Addr, nil), s
}

// within returns a context with the time limit of a test.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}
