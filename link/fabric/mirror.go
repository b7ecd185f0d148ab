package fabric

import (
	"net"
	"slices"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
)

// Mirror is a link that receives a copy of each frame that passes a port, in both directions (a
// mirror port, SPAN). With link/capture it makes a capture of the port:
//
//	c, err := capture.New(f.Port("leaf0", "spine1").Mirror(), file)
//	c.Attach(func([]link.Frame) {})
type Mirror struct {
	port *Port
	recv link.Receiver
	one  [1]link.Frame
	room []byte
}

var (
	_ link.Link    = (*Mirror)(nil)
	_ link.Clocked = (*Mirror)(nil)
)

// Mirror returns a new mirror of the port.
func (o *Port) Mirror() *Mirror {
	o.f.mustBeAlone("Port.Mirror")
	m := &Mirror{port: o}
	o.mirrors = append(o.mirrors, m)
	return m
}

// show passes a copy of a packet to the receiver.
func (m *Mirror) show(p *packet) {
	if m.recv != nil {
		m.room = append(m.room[:0], p.frame...)
		m.one[0] = link.Frame{Data: m.room}
		m.recv(m.one[:])
	}
}

// Name implements link.Link: the names of the port's node and of its neighbour.
func (m *Mirror) Name() string { return m.port.node + ":" + m.port.peer.node }

// MAC implements link.Link. No frame has the address.
func (m *Mirror) MAC() net.HardwareAddr { return net.HardwareAddr{2, 'F', 'M', 0, 0, 1} }

// MTU implements link.Link.
func (m *Mirror) MTU() int { return m.port.f.cfg.MTU }

// Offloads implements link.Link.
func (m *Mirror) Offloads() link.Offloads { return link.Offloads{} }

// Attach implements link.Link.
func (m *Mirror) Attach(recv link.Receiver) { m.recv = recv }

// Write implements link.Link: a mirror drops what is written.
func (m *Mirror) Write(frames []link.Frame) (int, error) { return len(frames), nil }

// Close implements link.Link.
func (m *Mirror) Close() error {
	m.port.f.mustBeAlone("Mirror.Close")
	m.recv = nil
	m.port.mirrors = slices.DeleteFunc(slices.Clone(m.port.mirrors), func(o *Mirror) bool { return o == m })
	return nil
}

// Clock implements link.Clocked.
func (m *Mirror) Clock() clock.Clock { return m.port.shard.hosts[0].Clock() }
