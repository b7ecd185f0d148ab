#!/bin/sh
# Versions: gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237, Go 1.26.
#
# Guess: RACK (RFC 8985), which gVisor's TCP uses unless TCPRecovery is set to 0, recovers losses at
# least as soon as RFC 6675. A user timeout (TCP_USER_TIMEOUT) ends a connection whose data is not
# acknowledged for that time.
#
# Seen: when the last 100 segments of a window are lost, as by a queue that was full, each
# retransmission timeout of 200 ms recovers two of them. The user timeout runs from the first
# retransmission until all sent data is acknowledged, so it ends a connection on which data is
# acknowledged all the time. RFC 6675's recovery, TCPRecovery(0), has none of this:
#
#   RACK: recovered after more than 5 s
#   RFC 6675: recovered after less than 2 s
#   RACK, user timeout of 5 s: operation timed out
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'EOF'
module finding

go 1.25

require gvisor.dev/gvisor v0.0.0-20260905035102-160fafc42237
EOF
cat >main.go <<'EOF'
package main

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/adapters/gonet"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/link/nested"
	"gvisor.dev/gvisor/pkg/tcpip/link/pipe"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"
	"gvisor.dev/gvisor/pkg/tcpip/transport/tcp"
	"gvisor.dev/gvisor/pkg/waiter"
)

const mtu, passes, lost = 1500, 100 * 1448, 100

func check(err error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
}

func must(err tcpip.Error) {
	if err != nil {
		fmt.Println(err)
		os.Exit(2)
	}
}

// full is a link whose queue is full once: it loses what is sent for the first time behind an
// offset.
type full struct {
	nested.Endpoint
	mu          sync.Mutex
	began       bool
	first, next uint32
}

func (e *full) WritePackets(pkts stack.PacketBufferList) (int, tcpip.Error) {
	var list stack.PacketBufferList
	for _, p := range pkts.AsSlice() {
		if h := header.TCP(p.TransportHeader().Slice()); len(h) >= header.TCPMinimumSize && e.loses(h, uint32(p.Data().Size())) {
			continue
		}
		list.PushBack(p)
	}
	_, err := e.Endpoint.WritePackets(list)
	return pkts.Len(), err
}

func (e *full) loses(h header.TCP, n uint32) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	seq := h.SequenceNumber()
	if n == 0 {
		return false
	}
	if !e.began {
		e.began, e.first, e.next = true, seq, seq
	}
	if int32(seq-e.next) < 0 {
		return false
	}
	e.next = seq + n
	return e.next-e.first > passes
}

func host(link stack.LinkEndpoint, addr tcpip.Address, recovery *tcpip.TCPRecovery) *stack.Stack {
	s := stack.New(stack.Options{
		NetworkProtocols:   []stack.NetworkProtocolFactory{ipv4.NewProtocol},
		TransportProtocols: []stack.TransportProtocolFactory{tcp.NewProtocol},
	})
	sack := tcpip.TCPSACKEnabled(true)
	send := tcpip.TCPSendBufferSizeRangeOption{Min: 4096, Default: 1 << 20, Max: 1 << 20}
	receive := tcpip.TCPReceiveBufferSizeRangeOption{Min: 4096, Default: 1 << 20, Max: 1 << 20}
	for _, o := range []tcpip.SettableTransportProtocolOption{&sack, &send, &receive} {
		must(s.SetTransportProtocolOption(tcp.ProtocolNumber, o))
	}
	if recovery != nil {
		must(s.SetTransportProtocolOption(tcp.ProtocolNumber, recovery))
	}
	must(s.CreateNIC(1, link))
	must(s.AddProtocolAddress(1, tcpip.ProtocolAddress{Protocol: ipv4.ProtocolNumber, AddressWithPrefix: addr.WithPrefix()},
		stack.AddressProperties{}))
	s.SetRouteTable([]tcpip.Route{{Destination: header.IPv4EmptySubnet, NIC: 1}})
	return s
}

// transfer returns the time that the bytes take of which the last segments are lost.
func transfer(recovery *tcpip.TCPRecovery, timeout time.Duration) (time.Duration, error) {
	here, there := tcpip.AddrFrom4([4]byte{10, 0, 0, 1}), tcpip.AddrFrom4([4]byte{10, 0, 0, 2})
	one, two := pipe.New("\x02\x00\x00\x00\x00\x01", "\x02\x00\x00\x00\x00\x02", mtu)
	queue := &full{}
	queue.Init(one, queue)
	a, b := host(queue, here, recovery), host(two, there, recovery)
	defer a.Destroy()
	defer b.Destroy()
	l, err := gonet.ListenTCP(b, tcpip.FullAddress{Addr: there, Port: 7}, ipv4.ProtocolNumber)
	check(err)
	received := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.CopyN(io.Discard, c, passes+lost*1448)
		}
		received <- err
	}()
	c, ep := dial(a, tcpip.FullAddress{Addr: there, Port: 7}, timeout)
	began := time.Now()
	if _, err := c.Write(make([]byte, passes+lost*1448)); err != nil {
		return 0, err
	}
	for {
		select {
		case err := <-received:
			return time.Since(began), err
		case <-time.After(100 * time.Millisecond):
			if tcp.EndpointState(ep.State()) == tcp.StateError {
				return 0, fmt.Errorf("%v", ep.LastError())
			}
		}
	}
}

func dial(s *stack.Stack, to tcpip.FullAddress, timeout time.Duration) (*gonet.TCPConn, tcpip.Endpoint) {
	var wq waiter.Queue
	ep, err := s.NewEndpoint(tcp.ProtocolNumber, ipv4.ProtocolNumber, &wq)
	must(err)
	if timeout > 0 {
		o := tcpip.TCPUserTimeoutOption(timeout)
		must(ep.SetSockOpt(&o))
	}
	entry, writable := waiter.NewChannelEntry(waiter.WritableEvents)
	wq.EventRegister(&entry)
	defer wq.EventUnregister(&entry)
	if _, ok := ep.Connect(to).(*tcpip.ErrConnectStarted); ok {
		<-writable
	}
	must(ep.LastError())
	return gonet.NewTCPConn(&wq, ep), ep
}

func main() {
	rfc6675 := tcpip.TCPRecovery(0)
	took, err := transfer(nil, 0)
	check(err)
	if took > 5*time.Second {
		fmt.Println("RACK: recovered after more than 5 s")
	} else {
		fmt.Println("RACK: recovered after", took)
	}
	took, err = transfer(&rfc6675, 0)
	check(err)
	if took < 2*time.Second {
		fmt.Println("RFC 6675: recovered after less than 2 s")
	} else {
		fmt.Println("RFC 6675: recovered after", took)
	}
	_, err = transfer(nil, 5*time.Second)
	fmt.Println("RACK, user timeout of 5 s:", err)
}
EOF
go mod tidy >log 2>&1 || { cat log >&2; exit 2; }
go build -o finding . || exit 2
./finding >seen || { cat seen; exit 2; }
cat seen
cat >expected <<'EOF'
RACK: recovered after more than 5 s
RFC 6675: recovered after less than 2 s
RACK, user timeout of 5 s: operation timed out
EOF
cmp seen expected
