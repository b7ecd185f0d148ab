// Package netstack is a [stack.Network] on gVisor's network stack: one host with an interface on
// each of its Ethernet links. gVisor implements addresses, routes, neighbours, ICMP echo, IGMP, MLD
// and TCP. RoCE packets bypass gVisor: they pass between the link and the datagram port on the
// goroutine that received them.
package netstack

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	gvisorlog "gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/network/arp"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv6"
	"gvisor.dev/gvisor/pkg/tcpip/ports"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/tcpip/transport/udp"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/clock"
	"github.com/softrnic/softrnic/stack"
)

// gVisor writes warnings about peers to stderr, for the whole process. A library must not do so.
// Some of gVisor's packages keep the logger that was installed when they were initialized, which
// was before this package. A new logger would not silence them, so the installed logger is
// modified.
func init() { gvisorlog.Log().Emitter = discard{} }

type discard struct{}

func (discard) Emit(int, gvisorlog.Level, time.Time, string, ...any) {}

// Host is one host on gVisor's netstack. gVisor implements addresses, routes, neighbours, ICMP echo
// and TCP; RoCEv2 datagrams bypass it, between the link and the datagram port.
type Host struct {
	stack *gstack.Stack
	tcp   *lazyTCP
	nics  []*Interface
	log   *slog.Logger
	clock clock.Clock // of its links

	tcpConfig TCPConfig

	mu   sync.Mutex // held to change addresses and routes
	once sync.Once  // Close
}

var (
	_ stack.Network = (*Host)(nil)
	_ stack.Clocked = (*Host)(nil)
)

// Ports that the host chooses for streams and listeners. rdma_cm also chooses ports, and then
// requests them from the host. Neither knows which ports the other uses, so the host's ports lie
// above those of rdma_cm.
const (
	firstEphemeral = 61000
	lastEphemeral  = 65535
)

// New returns a host with l as its first NIC. The host owns the links: New closes them if it fails.
// With nil, cfg is the zero Config. An error names the field whose value is out of bounds.
func New(l link.Link, cfg *Config) (*Host, error) {
	c, err := cfg.check(l)
	if err != nil {
		for _, n := range c.nics {
			if n.link != nil {
				_ = n.link.Close()
			}
		}
		return nil, fmt.Errorf("netstack: %w", err)
	}
	h := &Host{log: c.log, tcpConfig: c.tcp, clock: c.clock}
	options := gstack.Options{
		NetworkProtocols: []gstack.NetworkProtocolFactory{
			arp.NewProtocol,
			// IGMP and MLD, so that snooping switches forward groups and solicitations.
			ipv4.NewProtocolWithOptions(ipv4.Options{IGMP: ipv4.IGMPOptions{Enabled: true}}),
			// No duplicate address detection, because addresses would be unusable for a
			// second, and no autoconfiguration: the host has the given addresses only.
			ipv6.NewProtocolWithOptions(ipv6.Options{MLD: ipv6.MLDOptions{Enabled: true}}),
		},
		TransportProtocols: []gstack.TransportProtocolFactory{
			h.newTCP, udp.NewProtocol, icmp.NewProtocol4, icmp.NewProtocol6,
		},
		HandleLocal: true,
	}
	h.setClock(&options)
	h.stack = gstack.New(options)
	if err := h.configure(c); err != nil {
		h.Close()
		for _, n := range c.nics[len(h.nics):] {
			_ = n.link.Close()
		}
		return nil, fmt.Errorf("netstack: %w", err)
	}
	return h, nil
}

func (h *Host) configure(c *config) error {
	if err := h.reserveRoCE(); err != nil {
		return err
	}
	for _, nc := range c.nics {
		if err := h.addInterface(nc); err != nil {
			return err
		}
	}
	// Gateways come last: a gateway must be in the network of one of the addresses.
	for i, nc := range c.nics {
		for _, gw := range nc.gateways {
			if err := h.nics[i].setGateway(gw); err != nil {
				return err
			}
		}
	}
	// Frames must find every address configured.
	for _, n := range h.nics {
		n.endpoint.SetFrameHandler(n.port.handle)
	}
	return nil
}

// reserveRoCE reserves UDP port 4791 in gVisor: no socket can bind it, and packets that are not for
// the datagram port (fragments, IP options) are dropped without an ICMP error.
func (h *Host) reserveRoCE() error {
	nets := []tcpip.NetworkProtocolNumber{ipv4.ProtocolNumber, ipv6.ProtocolNumber}
	_, err := h.stack.PortManager.ReservePort(h.stack.SecureRNG(), ports.Reservation{
		Networks: nets, Transport: udp.ProtocolNumber, Port: stack.RoCEPort,
	}, nil)
	if err == nil {
		err = h.stack.RegisterTransportEndpoint(nets, udp.ProtocolNumber,
			gstack.TransportEndpointID{LocalPort: stack.RoCEPort}, sink{}, ports.Flags{}, 0)
	}
	if err != nil {
		return fmt.Errorf("reserve UDP port %d: %w", stack.RoCEPort, stackError(err))
	}
	return nil
}

// sink is a transport endpoint that drops everything.
type sink struct{}

func (sink) HandlePacket(gstack.TransportEndpointID, *gstack.PacketBuffer) {}
func (sink) HandleError(gstack.TransportError, *gstack.PacketBuffer)       {}
func (sink) Abort()                                                        {}
func (sink) Wait()                                                         {}

// NICs returns the host's interfaces, as transports see them.
func (h *Host) NICs() []stack.NIC {
	nics := make([]stack.NIC, len(h.nics))
	for i, n := range h.nics {
		nics[i] = n
	}
	return nics
}

// Clock implements [stack.Clocked]: the clock of the links.
func (h *Host) Clock() clock.Clock { return h.clock }

// Interfaces returns the same interfaces as NICs, with their settings.
func (h *Host) Interfaces() []*Interface { return append([]*Interface(nil), h.nics...) }

// Close ends every connection and closes the links. Before that, watchers of an interface are
// notified of LinkGone, and may still send. A datagram receiver must not call it.
func (h *Host) Close() error {
	h.once.Do(func() {
		for _, n := range h.loseLinks() {
			n.notify(stack.LinkGone)
		}
		for _, n := range h.nics {
			n.unregister()
			n.steer(nil)
			n.port.close()
		}
		h.stack.Destroy()
		for _, n := range h.nics {
			n.closeLoopback()
		}
	})
	return nil
}

// loseLinks marks every link as removed. It returns the interfaces whose links were not marked
// before.
func (h *Host) loseLinks() (lost []*Interface) {
	for _, n := range h.nics {
		if !n.lost.Swap(true) {
			lost = append(lost, n)
		}
	}
	return lost
}

// owner returns the interface that has address a, or nil.
func (h *Host) owner(a netip.Addr) *Interface {
	for _, n := range h.nics {
		if n.has(a) {
			return n
		}
	}
	return nil
}

// setRoutes rebuilds the route table from the interfaces. h.mu is held.
func (h *Host) setRoutes() {
	var routes []tcpip.Route
	for _, n := range h.nics {
		for _, p := range n.prefixes {
			if p.IsValid() {
				routes = append(routes, tcpip.Route{Destination: subnet(p), NIC: n.id})
			}
		}
		for _, gw := range n.gateways {
			routes = append(routes, tcpip.Route{
				Destination: subnet(netip.PrefixFrom(gw, 0)), Gateway: tcpipAddr(gw), NIC: n.id,
			})
		}
	}
	h.stack.SetRouteTable(routes)
}

func subnet(p netip.Prefix) tcpip.Subnet {
	a := tcpip.AddressWithPrefix{Address: tcpipAddr(p.Addr()), PrefixLen: p.Bits()}
	return a.Subnet()
}
