//go:build linux

package rsocket_test

import (
	"net"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// TestKernelDatagrams: datagram sockets over the kernel's UDP sockets.
func TestKernelDatagrams(t *testing.T) {
	var socks [2]*rsocket.PacketConn
	for i, addr := range []string{"127.30.0.1", "127.30.0.2"} {
		host, err := kernel.New(&kernel.Config{Addrs: []string{addr}})
		ok(t, err)
		dev, err := rdmatransport.Open(host, nil)
		ok(t, err)
		udp, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr)})
		ok(t, err)
		socks[i], err = rsocket.NewPacketConn(dev, udp, nil)
		ok(t, err)
		t.Cleanup(func() {
			socks[i].Close()
			dev.Close()
			host.Close()
		})
	}
	counter := func() uint64 {
		counters, err := socks[0].QP().Device().PortCounters(1)
		ok(t, err)
		return counters["port_rcv_packets"]
	}
	buf := make([]byte, 100)
	for deadline := time.Now().Add(20 * time.Second); counter() < 10; {
		_, err := socks[1].WriteTo([]byte("hello"), socks[0].LocalAddr())
		ok(t, err)
		n, from, err := socks[0].ReadFrom(buf)
		ok(t, err)
		if string(buf[:n]) != "hello" || from.String() != socks[1].LocalAddr().String() {
			t.Fatalf("%q from %v", buf[:n], from)
		}
		if time.Now().After(deadline) {
			t.Fatal("no datagram arrives at the QP")
		}
	}
}
