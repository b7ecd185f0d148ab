// Package pipe is an Ethernet switch inside the process, with any number of ports; each port is a
// link. It needs no privileges and works in testing/synctest bubbles.
package pipe

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/internal/station"
)

// DefaultMTU leaves room for RoCE packets of the largest path MTU, 4096, with all headers.
const DefaultMTU = 4200

// Switch connects ports. A unicast frame goes to the port with its destination address, if there is
// one. Broadcast and multicast frames go to every port but the sender's. Superframes and partial
// checksums pass unchanged, as in a virtio network.
//
// The zero Switch is ready for use, with no ports and DefaultMTU. [New] creates one with a
// configuration. Ports must be closed; the switch need not be.
type Switch struct {
	config Config
	table  atomic.Pointer[table] // replaced, never modified; nil: no port yet
	pools  [len(bufferSizes)]sync.Pool

	mu      sync.Mutex // held to replace table
	created int        // ports created so far
}

type table struct {
	byMAC map[[6]byte]*Port
	all   []*Port
}

// Config configures a switch. The zero Config has useful defaults.
type Config struct {
	// MTU is the MTU of every port, link.MinMTU to link.MaxSuperframe bytes; 0 means DefaultMTU.
	MTU int
	// FramesOnly makes hosts exchange frames only, as if on separate machines. Without it hosts on
	// one switch may detect that they share a process ([link.Shared]), and copy messages from
	// memory to memory without packets.
	FramesOnly bool
}

// New creates a switch without ports. With nil, cfg is the zero Config.
func New(cfg *Config) (*Switch, error) {
	s := new(Switch)
	if cfg != nil {
		s.config = *cfg
	}
	if err := station.CheckMTU(s.config.MTU, link.MaxSuperframe); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	return s, nil
}

// ports returns the present ports.
func (s *Switch) ports() *table {
	if t := s.table.Load(); t != nil {
		return t
	}
	return new(table)
}

// Port adds a port with an address of its own, counted from 02:53:52:00:00:01. The same program
// gets the same addresses each time.
func (s *Switch) Port() *Port {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		s.created++
		mac := [6]byte{0x02, 'S', 'R', byte(s.created >> 16), byte(s.created >> 8), byte(s.created)}
		if s.ports().byMAC[mac] == nil {
			return s.add(mac)
		}
	}
}

// PortWithMAC adds a port for a host with Ethernet address mac.
func (s *Switch) PortWithMAC(mac net.HardwareAddr) (*Port, error) {
	if mac == nil {
		return nil, errors.New("pipe: MAC nil: must be an address, or use Port")
	}
	if err := station.CheckMAC(mac); err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ports().byMAC[[6]byte(mac)] != nil {
		return nil, fmt.Errorf("pipe: MAC %v is taken by another port of this switch: use another, or use Port", mac)
	}
	s.created++
	return s.add([6]byte(mac)), nil
}

// add adds a port. s.mu is held.
func (s *Switch) add(mac [6]byte) *Port {
	p := &Port{sw: s, mtu: cmp.Or(s.config.MTU, DefaultMTU), mac: mac, name: fmt.Sprintf("pipe%d", s.created-1), done: make(chan struct{})}
	p.queue.wake.L = &p.queue.mu
	old := s.ports()
	t := &table{byMAC: map[[6]byte]*Port{mac: p}, all: append([]*Port{p}, old.all...)}
	for _, q := range old.all {
		t.byMAC[q.mac] = q
	}
	s.table.Store(t)
	return p
}

func (s *Switch) remove(p *Port) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := &table{byMAC: map[[6]byte]*Port{}}
	for _, q := range s.ports().all {
		if q != p {
			t.byMAC[q.mac] = q
			t.all = append(t.all, q)
		}
	}
	s.table.Store(t)
}

// Port is one port of a switch, and the link of the host behind it.
type Port struct {
	sw        *Switch
	mtu       int
	name      string
	mac       [6]byte
	closed    atomic.Bool
	unplugged atomic.Bool // SetCarrier has removed the carrier
	watch     atomic.Pointer[func()]
	queue     queue
	recv      link.Receiver // set before the queue is open
	batch     batch         // owned by the goroutine that has taken frames from queue
	done      chan struct{} // closed when the receiving goroutine has ended
}

var (
	_ link.Link    = (*Port)(nil)
	_ link.Poller  = (*Port)(nil)
	_ link.Shared  = (*Port)(nil)
	_ link.Carrier = (*Port)(nil)
)

type batch struct {
	frames [batchFrames]link.Frame
	held   [batchFrames]*queuedFrame
}

// Name is "pipe" and the number of the port in its switch.
func (p *Port) Name() string { return p.name }

// MAC is the port's address.
func (p *Port) MAC() net.HardwareAddr { return net.HardwareAddr(p.mac[:]) }

// MTU is the switch's MTU.
func (p *Port) MTU() int { return p.mtu }

// Offloads are all offloads.
func (p *Port) Offloads() link.Offloads { return offloads }

// Medium implements link.Shared. It is the switch, or nil with FramesOnly.
func (p *Port) Medium() any {
	if p.sw.config.FramesOnly || p.closed.Load() || p.unplugged.Load() {
		return nil
	}
	return p.sw
}

// SetCarrier unplugs the port's cable, or plugs it in again. While it is unplugged, all frames to
// and from the port are lost.
func (p *Port) SetCarrier(on bool) {
	if p.unplugged.Swap(!on) == on {
		if f := p.watch.Load(); f != nil && *f != nil {
			(*f)()
		}
	}
}

// State implements link.Carrier.
func (p *Port) State() link.State {
	if p.unplugged.Load() {
		return link.NoCarrier
	}
	return link.Up
}

// Watch implements link.Carrier; f is called by SetCarrier.
func (p *Port) Watch(f func()) { p.watch.Store(&f) }

var offloads = link.Offloads{USO: true, TSO: true, Checksum: true}

// Dropped returns the number of frames to this port that found its queue full.
func (p *Port) Dropped() uint64 { return p.queue.dropped.Load() }

// Attach starts the port's goroutine. Frames that were sent to the port earlier are lost.
func (p *Port) Attach(recv link.Receiver) {
	switch p.queue.open(func() { p.recv = recv }) {
	case unopened:
		go func() {
			defer close(p.done)
			for p.receive(true) {
			}
		}()
	case opened:
		panic("pipe: Attach called twice on " + p.name + ": a port serves one host")
	}
}

// receive passes a batch of frames to the receiver. It returns false if there was none.
func (p *Port) receive(wait bool) bool {
	b := &p.batch
	n := p.queue.take(b.held[:], wait)
	if n == 0 {
		return false
	}
	for i, h := range b.held[:n] {
		b.frames[i] = h.f
	}
	p.recv(b.frames[:n])
	for _, h := range b.held[:n] {
		h.pool.Put(h)
	}
	p.queue.done()
	return true
}

// Poll implements link.Poller.
func (p *Port) Poll() bool {
	if p.receive(false) {
		return true
	}
	runtime.Gosched() // the sender is a goroutine of this program and may need the P
	return false
}

// EndPoll implements link.Poller. It does nothing, because the port's goroutine receives while
// others poll, too.
func (p *Port) EndPoll() {}

// Write copies each frame into the queue of every destination port. It never waits.
func (p *Port) Write(frames []link.Frame) (int, error) {
	if p.closed.Load() {
		return 0, fmt.Errorf("%s: %w", p.name, net.ErrClosed)
	}
	t := p.sw.table.Load() // not nil: p is or was in it
	for i := range frames {
		f := &frames[i]
		if err := f.Validate(p.mtu, offloads); err != nil {
			return i, fmt.Errorf("%s: %w", p.name, err)
		}
		if f.Data[0]&1 == 0 {
			if q := t.byMAC[[6]byte(f.Data)]; q != nil && p.reaches(q) {
				q.queue.put(p.sw, f)
			}
			continue
		}
		for _, q := range t.all {
			if p.reaches(q) {
				q.queue.put(p.sw, f)
			}
		}
	}
	return len(frames), nil
}

// reaches reports whether frames from p can reach q.
func (p *Port) reaches(q *Port) bool { return q != p && !p.unplugged.Load() && !q.unplugged.Load() }

// Close removes the port from its switch.
func (p *Port) Close() error {
	if p.closed.CompareAndSwap(false, true) {
		p.sw.remove(p)
		if !p.queue.close() {
			close(p.done) // no goroutine was started
		}
	}
	<-p.done
	return nil
}
