//go:build linux

package main

import (
	"encoding/binary"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/checksum"
)

// Lengths in bytes.
const (
	vnetLen   = 10
	ipLen     = 20
	udpLen    = 8
	headerLen = vnetLen + link.EthernetHeaderLen + ipLen + udpLen
	bthLen    = 12
	icrcLen   = 4
)

const rocePort = 4791

// macs are the addresses of the two sides.
var macs = [2][6]byte{{2, 0, 0, 0, 0x59, 1}, {2, 0, 0, 0, 0x59, 2}}

// frame creates a frame from one side to the other, with a virtio-net header: IPv4, UDP to RoCE's
// port, and segments of zeros. With more than one segment it is a superframe.
func frame(from, segment, segments int) []byte {
	b := make([]byte, headerLen+segment*segments)
	vnet, eth := b[:vnetLen], b[vnetLen:]
	copy(eth, macs[1-from][:])
	copy(eth[6:], macs[from][:])
	binary.BigEndian.PutUint16(eth[12:], 0x0800)

	ip := eth[link.EthernetHeaderLen:]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	ip[6] = 0x40 // DF
	ip[8], ip[9] = 64, 17
	copy(ip[12:], []byte{10, 89, 0, byte(1 + from), 10, 89, 0, byte(2 - from)})
	checksum.PutIPv4(ip[:ipLen])

	udp := ip[ipLen:]
	binary.BigEndian.PutUint16(udp, 49152)
	binary.BigEndian.PutUint16(udp[2:], rocePort)
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	// The pseudo header's part of the checksum; the kernel adds the rest if needed.
	pseudo := append(append([]byte{0, 17}, ip[12:20]...), udp[4:6]...)
	binary.BigEndian.PutUint16(udp[6:], checksum.Sum(pseudo, 0))
	const needsChecksum, gsoUDP = 1, 5
	vnet[0] = needsChecksum
	binary.NativeEndian.PutUint16(vnet[2:], headerLen-vnetLen)
	binary.NativeEndian.PutUint16(vnet[6:], link.EthernetHeaderLen+ipLen)
	binary.NativeEndian.PutUint16(vnet[8:], 6)
	if segments > 1 {
		vnet[1] = gsoUDP
		binary.NativeEndian.PutUint16(vnet[4:], uint16(segment))
	}
	return b
}

// payload returns the UDP payload of a frame to a side, and the size of its segments. It returns
// nil for any other frame.
func payload(b []byte, to int) (data []byte, segment int) {
	if len(b) <= headerLen || [6]byte(b[vnetLen:]) != macs[to] {
		return nil, 0
	}
	if data = b[headerLen:]; b[1] == 0 {
		return data, len(data)
	}
	return data, int(binary.NativeEndian.Uint16(b[4:]))
}
