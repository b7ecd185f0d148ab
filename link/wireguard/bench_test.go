package wireguard_test

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/wireguard"
)

// tunnel returns two links over the loopback, without hosts.
func tunnel(b *testing.B, mtu int) (from, to *wireguard.Link) {
	b.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		b.Fatal(err)
	}
	port := c.LocalAddr().(*net.UDPAddr).Port
	_ = c.Close()
	keys := [2]wireguard.SecretKey{wireguard.NewPrivateKey(), wireguard.NewPrivateKey()}
	to = must(wireguard.Open(&wireguard.Config{PrivateKey: keys[1], Port: uint16(port), MTU: mtu,
		Peers: []wireguard.PeerConfig{{PublicKey: keys[0].Public()}}}))(b)
	b.Cleanup(func() { _ = to.Close() })
	from = must(wireguard.Open(&wireguard.Config{PrivateKey: keys[0], MTU: mtu,
		Peers: []wireguard.PeerConfig{{PublicKey: keys[1].Public(), Endpoint: fmt.Sprintf("127.0.0.1:%d", port)}}}))(b)
	b.Cleanup(func() { _ = from.Close() })
	return from, to
}

// BenchmarkSuperframe sends superframes of RoCE packets through a tunnel over the loopback, with at
// most a megabyte in flight. Lost packets end it.
func BenchmarkSuperframe(b *testing.B) {
	for _, c := range []struct{ mtu, size, segments int }{{1420, 1040, 60}, {4200, 4112, 15}} {
		b.Run(fmt.Sprint(c.size), func(b *testing.B) {
			from, to := tunnel(b, c.mtu)
			var got atomic.Int64
			arrived := make(chan struct{}, 1)
			to.Attach(func(frames []link.Frame) {
				got.Add(int64(len(frames)))
				select {
				case arrived <- struct{}{}:
				default:
				}
			})
			from.Attach(func([]link.Frame) {})
			f := linktest.Superframe(to.MAC(), from.MAC(), false, c.segments, c.size)
			send := func(n int) {
				for range n {
					if _, err := from.Write([]link.Frame{f}); err != nil {
						b.Fatal(err)
					}
				}
			}
			await := func(n int64) {
				for got.Load() < n {
					<-arrived
				}
			}
			send(1) // the handshake
			await(int64(c.segments))
			b.SetBytes(int64(c.segments * c.size))
			b.ReportAllocs()
			sent := int64(c.segments)
			for b.Loop() {
				await(sent - int64(12*c.segments))
				send(1)
				sent += int64(c.segments)
			}
			await(sent)
		})
	}
}

// BenchmarkPing is the time of a packet there and back.
func BenchmarkPing(b *testing.B) {
	from, to := tunnel(b, 1420)
	back := make(chan struct{}, 1)
	from.Attach(func([]link.Frame) { back <- struct{}{} })
	ping := linktest.Superframe(to.MAC(), from.MAC(), false, 1, 64)
	ping.Segmentation = link.NoSegmentation
	pong := linktest.Superframe(from.MAC(), to.MAC(), false, 1, 64)
	pong.Segmentation = link.NoSegmentation
	copy(pong.Data[26:], ping.Data[30:34])
	copy(pong.Data[30:], ping.Data[26:30])
	binary.BigEndian.PutUint16(pong.Data[24:], binary.BigEndian.Uint16(ping.Data[24:]))
	to.Attach(func([]link.Frame) { _, _ = to.Write([]link.Frame{pong}) })
	b.ReportAllocs()
	for b.Loop() {
		if _, err := from.Write([]link.Frame{ping}); err != nil {
			b.Fatal(err)
		}
		<-back
	}
}
