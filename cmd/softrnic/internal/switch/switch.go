// Package ethswitch is `softrnic switch`: a learning Ethernet bridge (IEEE 802.1D) between links.
package ethswitch

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/fabric"
)

// Switch forwards frames between its ports. A frame for an address that was seen as a source goes
// to the port where it was seen. All others go to every port except their ingress port. Switch
// forwards superframes whole if the links on both sides support them, and changes no frame.
type Switch struct {
	log   *slog.Logger
	net   *network // nil: frames take no time from port to port
	probe probe
	stop  chan struct{}
	work  sync.WaitGroup

	mu     sync.RWMutex
	closed bool
	made   int
	ports  []*port // copied on write
	table  table
}

// maxPorts is the most ports that a switch has at a time.
const maxPorts = 256

// port is a link that belongs to a switch.
type port struct {
	link    link.Link
	number  int
	host    *fabric.Host  // its place in the switch's network
	dropped atomic.Uint64 // frames that the link refused
	refused atomic.Uint64 // frames of the link that the network did not take

	received, receivedBytes, sent, sentBytes atomic.Uint64

	mu      sync.Mutex // held while a frame is segmented
	cutter  link.Cutter
	blocked atomic.Int64 // until when the port is blocked, in Unix nanoseconds; 0: not blocked
}

// New returns a switch without ports. It logs added and removed ports to log. Frames pass through
// f, where each port takes the place of a host, unless f is nil.
func New(log *slog.Logger, f *fabric.Fabric) *Switch {
	s := &Switch{log: log, stop: make(chan struct{}), table: newTable()}
	_, _ = rand.Read(s.probe[:]) // never fails
	s.work.Go(s.probePorts)
	if f != nil {
		s.net = newNetwork(f)
		s.work.Go(func() { s.net.run(s.stop) })
	}
	return s
}

// Add adds an unattached link as a port. The switch closes the link when the switch is closed, when
// the link is removed, or if Add returns an error.
func (s *Switch) Add(l link.Link) error {
	s.mu.Lock()
	if s.closed || len(s.ports) == maxPorts {
		full := len(s.ports)
		s.mu.Unlock()
		return errors.Join(fmt.Errorf("the switch is closed, or all its ports are taken: it has %d, and may have %d", full, maxPorts),
			l.Close())
	}
	s.made++
	p := &port{link: l, number: s.made}
	log := s.log
	if s.net != nil {
		place, err := s.net.add(p)
		if err != nil {
			s.mu.Unlock()
			return errors.Join(err, l.Close())
		}
		log = log.With("place", place)
	}
	s.ports = append(slices.Clone(s.ports), p)
	s.mu.Unlock()
	log.Info("port added", "port", p.number, "link", l.Name(), "state", link.StateOf(l))
	link.Watch(l, func() { s.stateChanged(p) })
	if link.StateOf(l) == link.Removed { // before Watch
		s.stateChanged(p)
	}
	l.Attach(func(frames []link.Frame) { s.receive(p, frames) })
	s.sendProbe(p)
	return nil
}

// stateChanged is called on a goroutine of p's link.
func (s *Switch) stateChanged(p *port) {
	state := link.StateOf(p.link)
	s.log.Info("port changed", "port", p.number, "link", p.link.Name(), "state", state)
	s.mu.Lock()
	defer s.mu.Unlock()
	switch state {
	case link.Up:
		return
	case link.Removed:
		if i := slices.Index(s.ports, p); i >= 0 && !s.closed {
			s.ports = slices.Delete(slices.Clone(s.ports), i, i+1)
			if s.net != nil {
				s.net.remove(p)
			}
			s.work.Go(func() { // Close waits for this goroutine
				if err := p.link.Close(); err != nil {
					s.log.Warn("the link of a port did not close", "port", p.number, "error", err)
				}
			})
		}
	}
	s.table.forget(p) // the next host there may have other addresses
}

// Close closes all links.
func (s *Switch) Close() error {
	s.mu.Lock()
	ports := s.ports
	if !s.closed {
		close(s.stop)
	}
	s.closed, s.ports = true, nil
	s.mu.Unlock()
	var err error
	for _, p := range ports {
		err = errors.Join(err, p.link.Close())
		if d := p.dropped.Load(); d > 0 {
			s.log.Warn("frames did not fit through a port", "port", p.number, "link", p.link.Name(), "mtu", p.link.MTU(), "frames", d)
		}
	}
	s.work.Wait()
	return err
}

// snapshot returns the current ports.
func (s *Switch) snapshot() []*port {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.ports
}

// batchFrames is the most frames that are looked up under one lock.
const batchFrames = 64

// receive forwards frames received on a port.
func (s *Switch) receive(from *port, frames []link.Frame) {
	for len(frames) > batchFrames {
		s.receiveBatch(from, frames[:batchFrames])
		frames = frames[batchFrames:]
	}
	s.receiveBatch(from, frames)
}

// The destinations of a frame without a single egress port.
var (
	everywhere = new(port)
	nowhere    = new(port)
)

func (s *Switch) receiveBatch(from *port, frames []link.Frame) {
	count(frames, &from.received, &from.receivedBytes)
	now := time.Now()
	var to [batchFrames]*port
	unknown := false // a source address is missing from the table or stale
	s.mu.RLock()
	ports := s.ports
	blocked := from.isBlocked(now)
	for i := range frames {
		data := frames[i].Data
		switch {
		case len(data) < link.EthernetHeaderLen, ofLink(data), s.probe.is(data):
			to[i] = nowhere
			continue
		case blocked:
			to[i] = nowhere
			continue
		}
		unknown = unknown || !s.table.fresh(source(data), from, now)
		to[i] = everywhere
		if p := s.table.find(destination(data), now); p != nil {
			to[i] = p
		}
		if to[i] == from { // source and destination are behind the same port
			to[i] = nowhere
		}
	}
	s.mu.RUnlock()
	for i := range frames {
		if s.probe.is(frames[i].Data) {
			s.onProbe(from, frames[i].Data, now)
		}
	}
	if unknown {
		s.learn(from, frames, now)
	}
	for first := 0; first < len(frames); {
		next := first + 1
		for next < len(frames) && to[next] == to[first] {
			next++
		}
		switch run := frames[first:next]; {
		case to[first] == nowhere:
		case s.net != nil:
			s.net.forward(from, to[first], run)
		case to[first] == everywhere:
			for _, p := range ports {
				if p != from {
					p.write(run, now)
				}
			}
		default:
			to[first].write(run, now)
		}
		first = next
	}
}

// learn adds the source addresses of frames to the table.
func (s *Switch) learn(from *port, frames []link.Frame, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Contains(s.ports, from) {
		return // the port was just removed
	}
	for i := range frames {
		if data := frames[i].Data; len(data) >= link.EthernetHeaderLen && !ofLink(data) && !s.probe.is(data) {
			s.table.learn(source(data), from, now)
		}
	}
}

// ofLink reports whether a frame is link-local, such as PAUSE, LLDP and spanning tree (IEEE 802.1Q
// §8.6.3: 01-80-C2-00-00-00 to -0F).
func ofLink(frame []byte) bool {
	return [5]byte(frame) == [5]byte{0x01, 0x80, 0xc2, 0, 0} && frame[5] < 0x10
}

// count counts frames and their bytes.
func count(f []link.Frame, frames, bytes *atomic.Uint64) {
	n := 0
	for i := range f {
		n += len(f[i].Data)
	}
	frames.Add(uint64(len(f)))
	bytes.Add(uint64(n))
}

// write writes frames to the port's link. It segments frames that the link does not accept.
func (p *port) write(frames []link.Frame, now time.Time) {
	if p.isBlocked(now) {
		return
	}
	count(frames, &p.sent, &p.sentBytes)
	for len(frames) > 0 {
		n, err := p.link.Write(frames)
		if err == nil || n >= len(frames) {
			return
		}
		p.writePackets(&frames[n])
		frames = frames[n+1:]
	}
}

// writePackets segments a frame and writes its packets to the port's link.
func (p *port) writePackets(f *link.Frame) {
	if f.Segmentation == link.NoSegmentation && !f.NeedsChecksum {
		p.dropped.Add(1) // too long, or the link is closed
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for packet := range p.cutter.Packets(f) {
		if _, err := p.link.Write([]link.Frame{{Data: packet}}); err != nil {
			p.dropped.Add(1)
			return
		}
	}
}
