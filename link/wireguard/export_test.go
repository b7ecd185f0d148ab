package wireguard

import (
	"sync"

	"golang.zx2c4.com/wireguard/device"
)

var kept struct {
	sync.Mutex
	peers []*device.Peer
}

// Keep keeps what the device has of a link's peers until the process ends. It has finalizers that
// receive from channels, which must not happen outside of the bubble of testing/synctest.
func Keep(l *Link) {
	kept.Lock()
	defer kept.Unlock()
	for _, p := range l.peers {
		kept.peers = append(kept.peers, l.dev.LookupPeer(device.NoisePublicKey(p.PublicKey)))
	}
}

// Receive passes packets on as the device does. Each has 16 bytes of room before it.
func (l *Link) Receive(packets ...[]byte) {
	for i, p := range packets {
		packets[i] = append(make([]byte, device.MessageTransportOffsetContent), p...)
	}
	l.receive(packets, device.MessageTransportOffsetContent)
}
