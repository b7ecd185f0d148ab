package wireguard

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"github.com/softrnic/softrnic/link"
)

// DefaultPort is the UDP port of a node that others have to find, as most use it for WireGuard.
const DefaultPort = 51820

// DefaultMTU is the largest IP packet within the tunnel, if the network allows it: packets of 1500
// bytes without those headers.
const DefaultMTU = 1420

// MaxMTU is the largest MTU, in bytes.
const MaxMTU = link.MaxSuperframe - overhead6

// Bytes that the tunnel adds to a packet: an IP header, a UDP header, and 32 bytes of its own.
const (
	overhead4 = 20 + 8 + 32
	overhead6 = 40 + 8 + 32
)

// MaxPeers is the most peers of a link.
const MaxPeers = 1 << 16

// Config configures a link.
type Config struct {
	// PrivateKey is the node's own key. It must be set.
	PrivateKey SecretKey
	// Port is the UDP port, on all addresses of the machine. 0 means DefaultPort if a peer has no
	// endpoint and must thus find this node, and otherwise any free port.
	Port uint16
	// Peers are the nodes that this node talks to. Nothing else gets through.
	Peers []PeerConfig
	// MTU is the largest IP packet within the tunnel, link.MinMTU to MaxMTU bytes. 0 means
	// DefaultMTU, or less if the way to a peer's endpoint begins with an interface of a smaller MTU.
	MTU int
	// Mark is the mark of the encrypted packets (SO_MARK of Linux); 0 means none.
	Mark uint32
	// Bind sends and receives the encrypted packets. Nil means UDP sockets of this machine.
	Bind conn.Bind
	// Under carries the encrypted packets in Ethernet frames instead of UDP: such as a link/stream to
	// a switch that relays between nodes behind NATs, and sees nothing in clear. Its MAC must be
	// PublicKey.MAC of this node; peers are found by theirs, and have no Endpoint. The link owns it.
	Under link.Link
	// Logger is the log; nil discards it. It contains no secret key.
	Logger *slog.Logger
}

// PeerConfig is a node that this node talks to.
type PeerConfig struct {
	// Name is shown beside the key, and access control may use it. It may be empty, and no two peers
	// have the same.
	Name      string
	PublicKey PublicKey
	// PresharedKey is a further secret that both nodes have; zero means none.
	PresharedKey SecretKey
	// Endpoint is the address and UDP port where the peer is at first; "": the peer contacts this
	// node. A name is looked up when the link is opened. From then on the peer is where its last
	// authentic packet came from. It is best if one of two nodes has the other's endpoint: if both
	// begin within one round trip, WireGuard may lose packets of one of them for 15 seconds.
	Endpoint string
	// AllowedIPs are the addresses that the peer sends from, and where packets to it go. Besides
	// these a peer always has PublicKey.Addr and PublicKey.LinkLocal. If they are empty, a peer that
	// is the only one has all addresses, and others have no more.
	AllowedIPs []netip.Prefix
	// Keepalive is the time between packets to a peer that is otherwise silent, so that NATs on the
	// way to this node do not forget it. It is a number of seconds, at most 65535; 0 means none.
	Keepalive time.Duration
}

// title names a peer in errors.
func (p *PeerConfig) title() string {
	if p.Name != "" {
		return "peer " + p.Name
	}
	return "peer " + p.PublicKey.String()
}

// check returns an error if a field is out of bounds.
func (c *Config) check() error {
	switch {
	case c.PrivateKey == (SecretKey{}):
		return errors.New("PrivateKey is zero: must be a key, such as NewPrivateKey's")
	case c.MTU != 0 && (c.MTU < link.MinMTU || c.MTU > MaxMTU):
		return fmt.Errorf("MTU %d: must be %d to %d (1420 for a RoCE path MTU of 1024, 4200 for 4096)", c.MTU, link.MinMTU, MaxMTU)
	case len(c.Peers) == 0:
		return errors.New("Peers is empty: without a peer, nothing can be sent or received")
	case len(c.Peers) > MaxPeers:
		return fmt.Errorf("Peers has %d peers: must be at most %d", len(c.Peers), MaxPeers)
	}
	if err := c.checkUnder(); err != nil {
		return err
	}
	own, seen, names := c.PrivateKey.Public(), map[PublicKey]bool{}, map[string]bool{}
	for i := range c.Peers {
		p := &c.Peers[i]
		switch {
		case p.PublicKey == (PublicKey{}):
			return fmt.Errorf("%s: its PublicKey is zero", p.title())
		case p.PublicKey == own:
			return fmt.Errorf("%s: it has the key of this node itself", p.title())
		case seen[p.PublicKey]:
			return fmt.Errorf("%s: there are two peers with its key", p.title())
		case p.Name != "" && names[p.Name]:
			return fmt.Errorf("%s: there are two peers with this name", p.title())
		case p.Keepalive < 0 || p.Keepalive > 65535*time.Second || p.Keepalive%time.Second != 0:
			return fmt.Errorf("%s: Keepalive %v: must be a number of seconds, 0 to 65535", p.title(), p.Keepalive)
		}
		seen[p.PublicKey], names[p.Name] = true, true
		for _, a := range p.AllowedIPs {
			if !a.IsValid() || a.Addr().Is4In6() || a.Addr().Zone() != "" {
				return fmt.Errorf("%s: AllowedIPs has %v: must be addresses with their prefix lengths, such as 10.7.0.2/32", p.title(), a)
			}
		}
		if p.Endpoint != "" {
			if err := checkEndpoint(p.Endpoint); err != nil {
				return fmt.Errorf("%s: %w", p.title(), err)
			}
		}
	}
	return nil
}

// checkUnder returns an error if other fields contradict Under.
func (c *Config) checkUnder() error {
	if c.Under == nil {
		return nil
	}
	if mac := c.PrivateKey.Public().MAC(); c.Under.MAC().String() != mac.String() {
		return fmt.Errorf("field Under has MAC %v: must be %v, that of the key", c.Under.MAC(), mac)
	}
	if c.Bind != nil || c.Port != 0 {
		return errors.New("field Under: Bind and Port are for packets that are not in frames: leave them out")
	}
	for i := range c.Peers {
		if c.Peers[i].Endpoint != "" {
			return fmt.Errorf("%s: Endpoint %s: on an Ethernet, peers are found by their keys: leave it out", c.Peers[i].title(),
				c.Peers[i].Endpoint)
		}
	}
	if c.mtu(nil) > c.Under.MTU()-frameOverhead {
		return fmt.Errorf("MTU %d: Under has MTU %d, so it must be at most %d", c.mtu(nil), c.Under.MTU(), c.Under.MTU()-frameOverhead)
	}
	return nil
}

// checkEndpoint returns an error unless text is an address or a name with a port.
func checkEndpoint(text string) error {
	host, port, err := net.SplitHostPort(text)
	if n, perr := strconv.ParseUint(port, 10, 16); err != nil || host == "" || perr != nil || n == 0 {
		return fmt.Errorf("endpoint %.40q: must be an address and a port, such as 192.0.2.1:51820 or [2001:db8::1]:51820, or a name and a port",
			text)
	}
	return nil
}

// TunnelMTU returns MTU, or the one that Open chooses if that is 0. It looks the endpoints up.
func (c *Config) TunnelMTU() int {
	var endpoints []netip.AddrPort
	for i := range c.Peers {
		if a, err := lookup(c.Peers[i].Endpoint); err == nil {
			endpoints = append(endpoints, a)
		}
	}
	return c.mtu(endpoints)
}

func (c *Config) mtu(endpoints []netip.AddrPort) int {
	switch {
	case c.MTU != 0:
		return c.MTU
	case c.Under != nil:
		return c.Under.MTU() - frameOverhead
	case c.Bind != nil:
		return DefaultMTU
	}
	return tunnelMTU(endpoints)
}

// port returns the UDP port to listen on.
func (c *Config) port() uint16 {
	if c.Port != 0 || c.Under != nil {
		return c.Port
	}
	for i := range c.Peers {
		if c.Peers[i].Endpoint == "" {
			return DefaultPort
		}
	}
	return 0
}
