#!/bin/sh
# Versions: golang.zx2c4.com/wireguard v0.0.0-20260522210424-ecfc5a8d5446, Go 1.26, Linux.
#
# Guess: wireguard-go copies the ECN field of a packet to the datagram around it, and combines both
# when it opens the datagram, as Linux's WireGuard does and RFC 6040 has it. So RoCE with DCQCN,
# DCTCP and other congestion control by marks work through the tunnel.
#
# Seen: the datagram's type of service is 0, whatever the packet has: a switch cannot mark it. A
# mark that the datagram gets nevertheless does not reach the packet:
#
#   a packet with TOS 0x02: a datagram with TOS 0x00
#   a datagram marked 0x03: a packet with TOS 0x02
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'EOF'
module finding

go 1.25

require (
	golang.org/x/net v0.44.0
	golang.zx2c4.com/wireguard v0.0.0-20260522210424-ecfc5a8d5446
)
EOF
cat >main.go <<'EOF'
package main

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/ipv4"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun/tuntest"
)

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// relay passes datagrams on, marked with tos. own[i] is where the peer of ports[i] seems to be. relay
// sends the TOS of each datagram with data, type 4, to seen.
func relay(ports [2]int, own [2]*net.UDPConn, tos int, seen chan<- int) {
	for i := range own {
		check(ipv4.NewPacketConn(own[i]).SetTOS(tos))
		go func() {
			oob, b := make([]byte, 64), make([]byte, 2048)
			for {
				n, k, _, _, err := own[i].ReadMsgUDP(b, oob)
				if err != nil {
					return
				}
				if b[0] == 4 {
					seen <- received(oob[:k])
				}
				_, _ = own[1-i].WriteToUDP(b[:n], &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: ports[1-i]})
			}
		}()
	}
}

func main() {
	var private, public [2][]byte
	for i := range private {
		k, err := ecdh.X25519().GenerateKey(rand.Reader)
		check(err)
		private[i], public[i] = k.Bytes(), k.PublicKey().Bytes()
	}
	var own [2]*net.UDPConn // own[i] stands for the other peer at peer i
	for i := range own {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		check(err)
		check(receiveTOS(c))
		own[i] = c
	}
	var ports [2]int
	var tuns [2]*tuntest.ChannelTUN
	for i := range ports {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		check(err)
		ports[i] = c.LocalAddr().(*net.UDPAddr).Port
		check(c.Close())
		tuns[i] = tuntest.NewChannelTUN()
		d := device.NewDevice(tuns[i].TUN(), conn.NewDefaultBind(), device.NewLogger(device.LogLevelSilent, ""))
		check(d.IpcSet(fmt.Sprintf("private_key=%s\nlisten_port=%d\npublic_key=%s\nendpoint=%s\nallowed_ip=10.0.0.%d/32\n",
			hex.EncodeToString(private[i]), ports[i], hex.EncodeToString(public[1-i]), own[i].LocalAddr(), 2-i)))
		check(d.Up())
	}
	seen := make(chan int, 100)
	relay(ports, own, 0x03, seen)
	packet := tuntest.Ping(netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("10.0.0.1"))
	packet[1] = 0x02 // ECT(0)
	packet[10], packet[11] = 0, 0
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(packet[i])<<8 | uint32(packet[i+1])
	}
	sum = sum&0xffff + sum>>16
	packet[10], packet[11] = byte(^sum>>8), byte(^sum)
	tuns[0].Outbound <- packet
	select {
	case got := <-tuns[1].Inbound:
		fmt.Printf("a packet with TOS 0x02: a datagram with TOS %#02x\n", <-seen)
		fmt.Printf("a datagram marked 0x03: a packet with TOS %#02x\n", got[1])
	case <-time.After(10 * time.Second):
		fmt.Println("no packet")
		os.Exit(1)
	}
}
EOF
cat >tos.go <<'EOF'
package main

import (
	"net"
	"syscall"
)

func receiveTOS(c *net.UDPConn) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var opt error
	err = raw.Control(func(fd uintptr) { opt = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_RECVTOS, 1) })
	if err != nil {
		return err
	}
	return opt
}

func received(oob []byte) int {
	messages, err := syscall.ParseSocketControlMessage(oob)
	if err != nil {
		return -1
	}
	for _, m := range messages {
		if m.Header.Level == syscall.IPPROTO_IP && m.Header.Type == syscall.IP_TOS {
			return int(m.Data[0])
		}
	}
	return -1
}
EOF
go mod tidy >log 2>&1 || { cat log >&2; exit 2; }
go run . >seen
cat seen
cat >expected <<'EOF'
a packet with TOS 0x02: a datagram with TOS 0x00
a datagram marked 0x03: a packet with TOS 0x02
EOF
cmp seen expected
