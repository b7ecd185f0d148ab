package wireguard_test

import (
	"bytes"
	"net/netip"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/wireguard"
)

// FuzzFrames writes any frame, and receives any packet of a peer: nothing panics, and a packet
// arrives as it was sent, with the Ethernet header of a frame to this host or to a group.
func FuzzFrames(f *testing.F) {
	own, other := wireguard.NewPrivateKey(), wireguard.NewPrivateKey().Public()
	l := must(wireguard.Open(&wireguard.Config{PrivateKey: own, Bind: new(network).at("192.0.2.1:1"), Peers: []wireguard.PeerConfig{
		{PublicKey: other, AllowedIPs: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fe80::/16")}}}}))(f)
	f.Cleanup(func() { _ = l.Close() })
	var packet []byte
	received := 0
	l.Attach(func(frames []link.Frame) {
		for _, fr := range frames {
			if fr.ChecksumValid { // an answer to a solicitation, on another goroutine
				continue
			}
			received++
			if !bytes.Equal(fr.Data[link.EthernetHeaderLen:], packet) || fr.Data[0]&1 == 0 && !bytes.Equal(fr.Data[:6], l.MAC()) ||
				!bytes.Equal(fr.Data[6:12], other.MAC()) {
				panic("a wrong frame")
			}
		}
	})
	for _, v6 := range []bool{false, true} {
		super := linktest.Superframe(other.MAC(), l.MAC(), v6, 3, 100)
		f.Add(super.Data, uint8(link.UDP), uint16(100), super.HeaderLen, true, super.ChecksumStart, super.ChecksumOffset, 14)
	}
	arp := append([]byte{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1}, make([]byte, 20)...)
	f.Add(arp, uint8(0), uint16(0), uint16(0), false, uint16(0), uint16(0), 20)
	f.Fuzz(func(t *testing.T, data []byte, kind uint8, size, header uint16, partial bool, start, offset uint16, split int) {
		fr := link.Frame{Data: bytes.Clone(data), Segmentation: link.Segmentation(kind), SegmentSize: size, HeaderLen: header,
			NeedsChecksum: partial, ChecksumStart: start, ChecksumOffset: offset}
		if split > 0 && split < len(data) {
			fr.Data, fr.More = fr.Data[:split:split], [][]byte{fr.Data[split:]}
		}
		if n, err := l.Write([]link.Frame{fr}); (n == 1) != (err == nil) {
			t.Errorf("%d frames were accepted: %v", n, err)
		}
		packet, received = data, 0
		l.Receive(data)
		if received > 1 {
			t.Error("a packet was received twice")
		}
	})
}
