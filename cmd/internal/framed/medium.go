package framed

import (
	"errors"
	"fmt"
	"math/bits"
	"net"
	"sync"
	"sync/atomic"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
)

// maxPaths is the number of unused paths that a medium keeps. A link may delay packets until their
// path is unused.
const maxPaths = 1024

// peerMAC is the Ethernet address of other hosts in frames, because the stack does not know their
// real addresses. It is locally administered.
var peerMAC = net.HardwareAddr{2, 'F', 'r', 'a', 'm', 'e'}

// senderMAC returns the source address of a frame. It is peerMAC, unless the stack knows which
// process of the same hub sent the datagrams. It is then an address that encodes the QPNs of the
// process. A capture thus distinguishes such processes, and the frame's receiver knows as much as
// the stack.
func senderMAC(r stack.Range) net.HardwareAddr {
	if r == (stack.Range{}) {
		return peerMAC
	}
	return net.HardwareAddr{2, 'Q', byte(bits.Len32(r.Mask)), byte(r.Base >> 16), byte(r.Base >> 8), byte(r.Base)}
}

// senderOf is the inverse of senderMAC.
func senderOf(mac []byte) (r stack.Range) {
	const qpnBits = 24
	if mac[0] != 2 || mac[1] != 'Q' || mac[2] > qpnBits {
		return r
	}
	mask := uint32(1)<<mac[2] - 1
	return stack.Range{Base: (uint32(mac[3])<<16 | uint32(mac[4])<<8 | uint32(mac[5])) &^ mask, Mask: mask}
}

// medium is a link whose frames are the datagrams of a stack's interface.
type medium struct {
	nic     stack.NIC
	inner   stack.DatagramPort
	guessed atomic.Bool // the interface guesses the IPv4 identifications of received packets
	buffers sync.Pool   // *[ethLen + maxIPPacket]byte

	mu    sync.RWMutex
	paths map[flow]*shared
	idle  int // number of unused paths
}

// shared is a path of the stack. All paths with the same headers use it.
type shared struct {
	stack.Path
	users int
}

var (
	_ link.Link        = (*medium)(nil)
	_ link.Poller      = (*medium)(nil)
	_ stack.Backlogged = (*shared)(nil)
)

// Backlog implements [stack.Backlogged].
func (s *shared) Backlog() (bytes int, ok bool) {
	if b, is := s.Path.(stack.Backlogged); is {
		return b.Backlog()
	}
	return 0, false
}

func newMedium(nic stack.NIC) *medium {
	m := &medium{nic: nic, inner: nic.Datagrams(), paths: map[flow]*shared{}}
	m.buffers.New = func() any { return new([ethLen + maxIPPacket]byte) }
	return m
}

// Name is the interface's name.
func (m *medium) Name() string          { return m.nic.Name() }
func (m *medium) MAC() net.HardwareAddr { return m.nic.MAC() }
func (m *medium) MTU() int              { return m.nic.MTU() }

// Offloads implements [link.Link].
func (m *medium) Offloads() link.Offloads { return link.Offloads{USO: true, Checksum: true} }

// Attach implements [link.Link].
func (m *medium) Attach(recv link.Receiver) {
	mac := m.nic.MAC()
	m.inner.Receive(func(d *stack.Datagram) {
		if d.V1 {
			return
		}
		if d.IDGuessed {
			m.guessed.Store(true)
		}
		buf := m.buffers.Get().(*[ethLen + maxIPPacket]byte)
		defer m.buffers.Put(buf)
		b := append(append(buf[:ethLen], d.Header...), d.Payload...)
		f := [1]link.Frame{buildFrame(b, ethLen+len(d.Header), d.SegmentSize, senderMAC(d.SrcQPNs), mac)}
		f[0].Polled = d.Polled
		recv(f[:])
	})
}

// Write implements [link.Link]. A corrupted frame that belongs to no open path is lost.
func (m *medium) Write(frames []link.Frame) (int, error) {
	for i := range frames {
		if err := m.write(&frames[i]); err != nil {
			return i, err
		}
	}
	return len(frames), nil
}

func (m *medium) write(f *link.Frame) error {
	if f.Len() > ethLen+maxIPPacket {
		return fmt.Errorf("%s: %d bytes: %w", m.Name(), f.Len(), link.ErrTooLong)
	}
	if len(f.More) > 0 {
		return errors.New("a frame in pieces")
	}
	header, payload, ok := parseFrame(f)
	if !ok {
		return nil
	}
	m.mu.RLock()
	p := m.paths[flowOf(header)] // nil if a corrupted packet has headers of no path
	m.mu.RUnlock()
	if p == nil {
		return nil
	}
	size := len(payload)
	if f.Segmentation == link.UDP {
		size = int(f.SegmentSize)
	}
	// Each Flush sends one superframe or one datagram, so that its identifications are those of the
	// ICRCs.
	s := m.inner.Sender()
	defer s.Flush()
	for len(payload) > 0 {
		n := min(size, len(payload))
		_, b := s.Datagram(p.Path, n)
		if b == nil {
			return fmt.Errorf("%s: datagram of %d bytes, at most %d: %w", m.Name(), n, p.MTU(), link.ErrTooLong)
		}
		copy(b, payload[:n])
		payload = payload[n:]
	}
	return nil
}

// acquire counts a use of a path. If a path with the same headers exists, it returns that.
func (m *medium) acquire(f flow, p stack.Path) *shared {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.paths[f]
	switch {
	case s == nil:
		s = &shared{Path: p}
		m.paths[f] = s
		m.evict()
	case s.users == 0:
		m.idle--
		fallthrough
	default:
		p.Close()
	}
	s.users++
	return s
}

// release ends a use of a path.
func (m *medium) release(s *shared) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.users--; s.users == 0 {
		m.idle++
		m.evict()
	}
}

// evict closes unused paths if there are too many. mu is held.
func (m *medium) evict() {
	for f, s := range m.paths {
		if m.idle <= maxPaths {
			return
		}
		if s.users == 0 {
			s.Close()
			delete(m.paths, f)
			m.idle--
		}
	}
}

// Poll implements [link.Poller].
func (m *medium) Poll() bool { return m.nic.Poll() }

// EndPoll implements [link.Poller].
func (m *medium) EndPoll() { m.nic.EndPoll() }

// Close implements [link.Link]. The stack stays open.
func (m *medium) Close() error {
	m.inner.Receive(nil)
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.paths {
		s.Close()
	}
	clear(m.paths)
	return nil
}
