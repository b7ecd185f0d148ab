package node

import (
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/softrnic/softrnic/link/wireguard"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs/rdmacm"

	"github.com/softrnic/softrnic/cmd/internal/cli"
)

// Allowed is an address, a network or a peer of --allow.
type Allowed struct {
	netip.Prefix
	peer string // with --secure or TLS: the name or the public key of a peer
	key  bool   // peer is a key, or with TLS the hash of one
}

// UnmarshalText parses an address, a network, or the name or public key of a peer.
func (a *Allowed) UnmarshalText(b []byte) error {
	text := string(b)
	if addr, err := netip.ParseAddr(text); err == nil {
		addr = addr.Unmap().WithZone("")
		a.Prefix = netip.PrefixFrom(addr, addr.BitLen())
		return nil
	}
	var err error
	if a.Prefix, err = netip.ParsePrefix(text); err == nil {
		return nil
	}
	_, err = wireguard.ParsePublicKey(text) // a hash has its form
	if a.key = err == nil; !a.key && wireguard.CheckName(text) != nil && !isDNSName(text) {
		return cli.Usagef("%q: must be an address, such as 10.0.0.2, a network, such as 10.0.0.0/24, or a peer's name or public key", text)
	}
	a.peer = text
	return nil
}

// isDNSName reports whether a text may be a name in a certificate (RFC 1123 §2.1).
func isDNSName(text string) bool {
	return text != "" && len(text) <= 253 && !strings.ContainsFunc(text, func(r rune) bool {
		return r != '.' && r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z')
	})
}

// String returns what UnmarshalText parses.
func (a Allowed) String() string {
	if a.peer != "" {
		return a.peer
	}
	return a.Prefix.String()
}

// is reports whether a peer is the one that --allow names.
func (a *Allowed) is(name string, key wireguard.PublicKey) bool {
	if a.key {
		return a.peer == key.String()
	}
	return a.peer != "" && a.peer == name
}

// allow returns the access control that the flags ask for; nil: all hosts are allowed. A peer's
// address is authenticated, so that its name and key are too. The node may reach itself.
func (f *Flags) allow(n *Node) (func(netip.Addr) bool, error) {
	if len(f.Allow) == 0 || f.Describe { // a node that is only described has no tunnel
		return nil, nil
	}
	if n.TLS != nil && f.allowsNames() {
		return nil, nil // openTLS's Admit decides for each connection
	}
	for _, a := range f.Allow {
		switch {
		case a.peer == "":
		case n.Tunnel == nil:
			return nil, cli.Usagef("--allow %s: neither an address nor a network, and only with --secure or --tls do peers have names and keys",
				a.peer)
		case !slices.ContainsFunc(n.Tunnel.Peers(), func(p wireguard.PeerState) bool { return a.is(p.Name, p.PublicKey) }):
			return nil, cli.Usagef("--allow %s: no peer has this name or public key", a.peer)
		}
	}
	return func(host netip.Addr) bool {
		var peer wireguard.Peer
		known := false
		if n.Tunnel != nil && !n.has(host) {
			peer, known = n.Tunnel.Peer(host)
		}
		return slices.ContainsFunc(f.Allow, func(a Allowed) bool {
			return a.peer == "" && a.Contains(host) || known && a.is(peer.Name, peer.PublicKey)
		}) || n.has(host)
	}, nil
}

// has reports whether an address is the node's own.
func (n *Node) has(a netip.Addr) bool { return slices.Contains(n.Host.NICs()[0].GIDs(), a) }

// identify returns the identity of a peer's host.
func (n *Node) identify(host netip.Addr) (rdmacm.Identity, bool) {
	if n.Tunnel == nil || n.has(host) {
		return rdmacm.Identity{}, false
	}
	p, known := n.Tunnel.Peer(host)
	return rdmacm.Identity{Name: p.Name, PublicKey: p.PublicKey.String()}, known
}

// ListenStream listens for TCP connections of the hosts that may reach the node. It closes others.
func (n *Node) ListenStream(laddr netip.AddrPort) (stack.StreamListener, error) {
	l, err := n.Host.ListenStream(laddr)
	if err != nil || n.allow == nil {
		return l, err
	}
	return &guardedListener{l, n.Dev.Provider().(rdmacm.AccessController)}, nil
}

type guardedListener struct {
	stack.StreamListener
	access rdmacm.AccessController
}

// Accept implements net.Listener.
func (l *guardedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.StreamListener.Accept()
		if err != nil {
			return nil, err
		}
		a, ok := c.RemoteAddr().(*net.TCPAddr)
		if ok && l.access.Admits(a.AddrPort().Addr()) {
			return c, nil
		}
		_ = c.Close()
	}
}
