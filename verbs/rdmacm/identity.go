package rdmacm

// Identity is the identity of a host, as its network has authenticated it (for example WireGuard,
// by the key of the peer).
type Identity struct {
	Name      string // as configured on this side; "" if none is
	PublicKey string // as the network writes keys, such as base64
}

// PeerIdentity returns the identity of the peer's host, and false if its network does not
// authenticate hosts, or before AddrResolved.
func (id *ID) PeerIdentity() (Identity, bool) {
	dev, peer := id.Device(), id.PeerAddr()
	if dev == nil || !peer.IsValid() {
		return Identity{}, false
	}
	i, ok := provider(dev).(AccessController)
	if !ok {
		return Identity{}, false
	}
	return i.Identify(peer.Addr())
}

// PeerIdentity returns the identity of the peer's host, and false if its network does not
// authenticate hosts. It is known before the request is accepted.
func (r *Request) PeerIdentity() (Identity, bool) { return r.id.PeerIdentity() }

// PeerIdentity returns the identity of the peer's host, and false if its network does not
// authenticate hosts.
func (c *Conn) PeerIdentity() (Identity, bool) { return c.id.PeerIdentity() }
