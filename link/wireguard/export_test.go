package wireguard

import "golang.zx2c4.com/wireguard/device"

// Receive passes packets on as the device does. Each has 16 bytes of room before it.
func (l *Link) Receive(packets ...[]byte) {
	for i, p := range packets {
		packets[i] = append(make([]byte, device.MessageTransportOffsetContent), p...)
	}
	l.receive(packets, device.MessageTransportOffsetContent)
}
