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

// maxPaths is how many paths a medium keeps at most beside those that are in use: a link may hold packets back until nobody
// uses their path any more.
const maxPaths = 1024

// far stands in frames for the Ethernet address of whoever is not the host: the stack does not know it. It is locally
// administered.
var far = net.HardwareAddr{2, 'F', 'r', 'a', 'm', 'e'}

// senderMAC is the source address of a frame: far, or where the stack knows which process of the same hub has sent the datagrams, one
// that says which QPNs that has. So a capture tells such processes apart, and who receives the frame knows as much as the stack.
func senderMAC(r stack.Range) net.HardwareAddr {
	if r == (stack.Range{}) {
		return far
	}
	return net.HardwareAddr{2, 'Q', byte(bits.Len32(r.Mask)), byte(r.Base >> 16), byte(r.Base >> 8), byte(r.Base)}
}

// senderOf undoes senderMAC.
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
	guessed atomic.Bool // the interface guesses IPv4 identifications
	buffers sync.Pool   // *[ethLen + maxIPPacket]byte

	mu    sync.RWMutex
	paths map[flow]*shared
	idle  int // of paths
}

// shared is a path of the stack, used by as many paths as have the same headers.
type shared struct {
	stack.Path
	users int
}

var (
	_ link.Link   = (*medium)(nil)
	_ link.Poller = (*medium)(nil)
)

func newMedium(nic stack.NIC) *medium {
	m := &medium{nic: nic, inner: nic.Datagrams(), paths: map[flow]*shared{}}
	m.buffers.New = func() any { return new([ethLen + maxIPPacket]byte) }
	return m
}

// Name is the interface's, as are MAC and MTU.
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
		f := [1]link.Frame{seal(b, ethLen+len(d.Header), d.SegmentSize, senderMAC(d.SrcQPNs), mac)}
		f[0].Polled = d.Polled
		recv(f[:])
	})
}

// Write implements [link.Link]. A frame that is no packet of an open path, because it was damaged, is lost.
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
	header, payload, ok := open(f)
	if !ok {
		return nil
	}
	m.mu.RLock()
	p := m.paths[flowOf(header)] // nil if a damaged packet looks like one of no path
	m.mu.RUnlock()
	if p == nil {
		return nil
	}
	size := len(payload)
	if f.Segmentation == link.UDP {
		size = int(f.SegmentSize)
	}
	// One superframe, or one datagram, each: so it has the identifications that its ICRCs were computed with.
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

// keep notes that a path is used. The path that it returns leads the same way, and may be another's.
func (m *medium) keep(f flow, p stack.Path) *shared {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.paths[f]
	switch {
	case s == nil:
		s = &shared{Path: p}
		m.paths[f] = s
		m.makeRoom()
	case s.users == 0:
		m.idle--
		fallthrough
	default:
		p.Close()
	}
	s.users++
	return s
}

// drop notes that a path is not used any more.
func (m *medium) drop(s *shared) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.users--; s.users == 0 {
		m.idle++
		m.makeRoom()
	}
}

// makeRoom closes paths that nobody uses, if there are too many. mu is held.
func (m *medium) makeRoom() {
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
