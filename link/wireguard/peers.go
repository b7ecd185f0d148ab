package wireguard

import (
	"encoding/hex"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Peer identifies a peer.
type Peer struct {
	PublicKey PublicKey `json:"publicKey"`
	// Name is PeerConfig.Name.
	Name string `json:"name,omitempty"`
}

// Peer returns the peer that has an address. A packet with this source address that the link has
// received was sent by this peer: the tunnel has authenticated it by the peer's key.
func (l *Link) Peer(a netip.Addr) (Peer, bool) {
	p := l.routes.find(a.Unmap().WithZone(""))
	if p == nil {
		return Peer{}, false
	}
	return Peer{p.PublicKey, p.Name}, true
}

// PeerState is a peer and the state of the tunnel to it.
type PeerState struct {
	Peer
	// Addr is PublicKey.Addr.
	Addr netip.Addr `json:"addr"`
	// AllowedIPs are all addresses of the peer.
	AllowedIPs []netip.Prefix `json:"allowedIPs"`
	// Endpoint is where packets to the peer go; invalid if that is not known yet.
	Endpoint netip.AddrPort `json:"endpoint"`
	// Handshake is the time of the last handshake; zero if there was none. A tunnel in use has one
	// every two minutes.
	Handshake time.Time `json:"handshake"`
	// Sent and Received are bytes of encrypted packets.
	Sent      uint64        `json:"sent"`
	Received  uint64        `json:"received"`
	Keepalive time.Duration `json:"keepalive"`
}

// Peers returns the state of all peers, in the order of Config.Peers.
func (l *Link) Peers() []PeerState {
	states := make([]PeerState, len(l.peers))
	index := make(map[PublicKey]*PeerState, len(l.peers))
	for i, p := range l.peers {
		states[i] = PeerState{Peer: Peer{p.PublicKey, p.Name}, Addr: p.PublicKey.Addr(), AllowedIPs: p.allowed, Keepalive: p.Keepalive}
		index[p.PublicKey] = &states[i]
	}
	text, err := l.dev.IpcGet()
	if err != nil {
		return states // the device is being closed
	}
	var s *PeerState
	var seconds int64
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		if key == "public_key" {
			var k PublicKey
			_, _ = hex.Decode(k[:], []byte(value))
			s = index[k]
		}
		if s == nil {
			continue
		}
		switch n, _ := strconv.ParseInt(value, 10, 64); key {
		case "endpoint":
			s.Endpoint, _ = netip.ParseAddrPort(value)
		case "last_handshake_time_sec":
			seconds = n
		case "last_handshake_time_nsec":
			if seconds != 0 || n != 0 {
				s.Handshake = time.Unix(seconds, n)
			}
		case "tx_bytes":
			s.Sent = uint64(n)
		case "rx_bytes":
			s.Received = uint64(n)
		}
	}
	return states
}
