// Package bridge is `softrnic switch`: a learning Ethernet bridge (IEEE 802.1D) between links.
package bridge

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
)

// Bridge forwards frames between its ports. A frame for an address that was seen as a source goes
// to the port where it was seen. All others go to every port except their ingress port. Bridge
// forwards superframes whole if the links on both sides support them, and changes no frame.
type Bridge struct {
	log   *slog.Logger
	probe probe
	stop  chan struct{}
	work  sync.WaitGroup

	mu     sync.RWMutex
	closed bool
	made   int
	ports  []*port // copied on write
	table  table
}

// maxPorts is the most ports that a bridge has at a time.
const maxPorts = 256

// port is a link that belongs to a bridge.
type port struct {
	link    link.Link
	number  int
	dropped atomic.Uint64 // frames that the link refused

	received, receivedBytes, sent, sentBytes atomic.Uint64

	mu      sync.Mutex // held while a frame is segmented
	cutter  link.Cutter
	blocked atomic.Int64 // until when the port is blocked, in Unix nanoseconds; 0: not blocked
}

// New returns a bridge without ports. It logs added and removed ports to log.
func New(log *slog.Logger) *Bridge {
	b := &Bridge{log: log, stop: make(chan struct{}), table: newTable()}
	_, _ = rand.Read(b.probe[:]) // never fails
	b.work.Go(b.probePorts)
	return b
}

// Add adds an unattached link as a port. The bridge closes the link when the bridge is closed, when
// the link is removed, or if Add returns an error.
func (b *Bridge) Add(l link.Link) error {
	b.mu.Lock()
	if b.closed || len(b.ports) == maxPorts {
		full := len(b.ports)
		b.mu.Unlock()
		return errors.Join(fmt.Errorf("the switch is closed, or all its ports are taken: it has %d, and may have %d", full, maxPorts),
			l.Close())
	}
	b.made++
	p := &port{link: l, number: b.made}
	b.ports = append(slices.Clone(b.ports), p)
	b.mu.Unlock()
	b.log.Info("port added", "port", p.number, "link", l.Name(), "state", link.StateOf(l))
	link.Watch(l, func() { b.stateChanged(p) })
	if link.StateOf(l) == link.Removed { // before Watch
		b.stateChanged(p)
	}
	l.Attach(func(frames []link.Frame) { b.receive(p, frames) })
	b.sendProbe(p)
	return nil
}

// stateChanged is called on a goroutine of p's link.
func (b *Bridge) stateChanged(p *port) {
	state := link.StateOf(p.link)
	b.log.Info("port changed", "port", p.number, "link", p.link.Name(), "state", state)
	b.mu.Lock()
	defer b.mu.Unlock()
	switch state {
	case link.Up:
		return
	case link.Removed:
		if i := slices.Index(b.ports, p); i >= 0 && !b.closed {
			b.ports = slices.Delete(slices.Clone(b.ports), i, i+1)
			b.work.Go(func() { // Close waits for this goroutine
				if err := p.link.Close(); err != nil {
					b.log.Warn("the link of a port did not close", "port", p.number, "error", err)
				}
			})
		}
	}
	b.table.forget(p) // the next host there may have other addresses
}

// Close closes all links.
func (b *Bridge) Close() error {
	b.mu.Lock()
	ports := b.ports
	if !b.closed {
		close(b.stop)
	}
	b.closed, b.ports = true, nil
	b.mu.Unlock()
	var err error
	for _, p := range ports {
		err = errors.Join(err, p.link.Close())
		if d := p.dropped.Load(); d > 0 {
			b.log.Warn("frames did not fit through a port", "port", p.number, "link", p.link.Name(), "mtu", p.link.MTU(), "frames", d)
		}
	}
	b.work.Wait()
	return err
}

// snapshot returns the current ports.
func (b *Bridge) snapshot() []*port {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.ports
}

// batchFrames is the most frames that are looked up under one lock.
const batchFrames = 64

// receive forwards frames received on a port.
func (b *Bridge) receive(from *port, frames []link.Frame) {
	for len(frames) > batchFrames {
		b.receiveBatch(from, frames[:batchFrames])
		frames = frames[batchFrames:]
	}
	b.receiveBatch(from, frames)
}

// The destinations of a frame without a single egress port.
var (
	everywhere = new(port)
	nowhere    = new(port)
)

func (b *Bridge) receiveBatch(from *port, frames []link.Frame) {
	count(frames, &from.received, &from.receivedBytes)
	now := time.Now()
	var to [batchFrames]*port
	unknown := false // a source address is missing from the table or stale
	b.mu.RLock()
	ports := b.ports
	blocked := from.isBlocked(now)
	for i := range frames {
		data := frames[i].Data
		switch {
		case len(data) < link.EthernetHeaderLen, ofLink(data), b.probe.is(data):
			to[i] = nowhere
			continue
		case blocked:
			to[i] = nowhere
			continue
		}
		unknown = unknown || !b.table.fresh(source(data), from, now)
		to[i] = everywhere
		if p := b.table.find(destination(data), now); p != nil {
			to[i] = p
		}
		if to[i] == from { // source and destination are behind the same port
			to[i] = nowhere
		}
	}
	b.mu.RUnlock()
	for i := range frames {
		if b.probe.is(frames[i].Data) {
			b.onProbe(from, frames[i].Data, now)
		}
	}
	if unknown {
		b.learn(from, frames, now)
	}
	for first := 0; first < len(frames); {
		next := first + 1
		for next < len(frames) && to[next] == to[first] {
			next++
		}
		switch run := frames[first:next]; to[first] {
		case nowhere:
		case everywhere:
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
func (b *Bridge) learn(from *port, frames []link.Frame, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Contains(b.ports, from) {
		return // the port was just removed
	}
	for i := range frames {
		if data := frames[i].Data; len(data) >= link.EthernetHeaderLen && !ofLink(data) && !b.probe.is(data) {
			b.table.learn(source(data), from, now)
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
