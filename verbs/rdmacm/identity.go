package rdmacm

// Identity is the identity of a peer, as its network has authenticated it: the host (for example by
// WireGuard and the key of the peer), or the peer of one connection (by TLS and its certificate).
// PublicKey has the form that the network uses, such as base64; with TLS, it is the SHA-256 hash of
// the key.
type Identity struct {
	Name      string // as configured on this side, or in the certificate; "" if there is none
	PublicKey string
}

// PeerIdentity returns the identity of the peer, and false if its network does not authenticate it,
// or does not do so yet: hosts before AddrResolved, and connections before the peer has answered.
func (id *ID) PeerIdentity() (Identity, bool) {
	id.mu.Lock()
	conn := id.conn
	id.mu.Unlock()
	if c, ok := conn.(AuthenticatedConn); ok {
		if i, ok := c.PeerIdentity(); ok {
			return i, true
		}
	}
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

// PeerIdentity returns the identity of the peer, and false if its network does not authenticate it.
// It is known before the request is accepted.
func (r *Request) PeerIdentity() (Identity, bool) { return r.id.PeerIdentity() }

// PeerIdentity returns the identity of the peer, and false if its network does not authenticate it.
func (c *Conn) PeerIdentity() (Identity, bool) { return c.id.PeerIdentity() }
