package netstack

import (
	"net/netip"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
)

// announce tells the neighbours the MAC of a new address, as Linux does. Without it, a neighbour
// that has cached another node's MAC for the address would use that for minutes. gVisor sends no
// such message.
func (n *Interface) announce(a netip.Addr) {
	src := tcpip.LinkAddress(n.mac[:])
	var b []byte
	if a.Is4() {
		b = gratuitousARP(src, tcpipAddr(a))
	} else {
		b = unsolicitedNA(src, tcpipAddr(a))
	}
	// If the message cannot be sent, neighbours learn of the address later.
	_, _ = n.link.Write([]link.Frame{{Data: b}})
}

// gratuitousARP returns an unsolicited ARP reply to all neighbours. Linux takes the MAC from it.
// gVisor at least resolves the address again soon. It would ignore the ARP request of RFC 5227 §3.
func gratuitousARP(src tcpip.LinkAddress, addr tcpip.Address) []byte {
	b := make([]byte, header.EthernetMinimumSize+header.ARPSize)
	header.Ethernet(b).Encode(&header.EthernetFields{
		SrcAddr: src, DstAddr: header.EthernetBroadcastAddress, Type: header.ARPProtocolNumber,
	})
	p := header.ARP(b[header.EthernetMinimumSize:])
	p.SetIPv4OverEthernet()
	p.SetOp(header.ARPReply)
	copy(p.HardwareAddressSender(), src)
	copy(p.ProtocolAddressSender(), addr.AsSlice())
	copy(p.HardwareAddressTarget(), src)
	copy(p.ProtocolAddressTarget(), addr.AsSlice())
	return b
}

// unsolicitedNA returns a neighbour advertisement to all nodes (RFC 4861 §7.2.6).
func unsolicitedNA(src tcpip.LinkAddress, addr tcpip.Address) []byte {
	options := header.NDPOptionsSerializer{header.NDPTargetLinkLayerAddressOption(src)}
	icmp := make(header.ICMPv6, header.ICMPv6NeighborAdvertMinimumSize+options.Length())
	icmp.SetType(header.ICMPv6NeighborAdvert)
	na := header.NDPNeighborAdvert(icmp.MessageBody())
	na.SetOverrideFlag(true)
	na.SetTargetAddress(addr)
	na.Options().Serialize(options)
	to := header.IPv6AllNodesMulticastAddress
	icmp.SetChecksum(header.ICMPv6Checksum(header.ICMPv6ChecksumParams{
		Header: icmp[:header.ICMPv6HeaderSize], Src: addr, Dst: to,
		PayloadCsum: checksum.Checksum(icmp[header.ICMPv6HeaderSize:], 0), PayloadLen: len(icmp) - header.ICMPv6HeaderSize,
	}))
	b := make([]byte, header.EthernetMinimumSize+header.IPv6MinimumSize, header.EthernetMinimumSize+header.IPv6MinimumSize+len(icmp))
	header.Ethernet(b).Encode(&header.EthernetFields{
		SrcAddr: src, DstAddr: header.EthernetAddressFromMulticastIPv6Address(to), Type: header.IPv6ProtocolNumber,
	})
	header.IPv6(b[header.EthernetMinimumSize:]).Encode(&header.IPv6Fields{
		PayloadLength: uint16(len(icmp)), TransportProtocol: header.ICMPv6ProtocolNumber, HopLimit: header.NDPHopLimit,
		SrcAddr: addr, DstAddr: to,
	})
	return append(b, icmp...)
}
