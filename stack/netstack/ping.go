package netstack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	"gvisor.dev/gvisor/pkg/tcpip/transport/icmp"
	"gvisor.dev/gvisor/pkg/waiter"
)

// Ping sends one ICMP echo request with 56 bytes of data and returns the time until the answer.
func (h *Host) Ping(ctx context.Context, addr netip.Addr) (time.Duration, error) {
	addr = addr.Unmap()
	if !isHostAddr(addr) {
		return 0, fmt.Errorf("ping %v: want the address of a host", addr)
	}
	remote, netProto := h.fullAddress(netip.AddrPortFrom(addr, 0))
	request := make([]byte, 8+56)
	proto := icmp.ProtocolNumber4
	request[0] = byte(header.ICMPv4Echo)
	reply := byte(header.ICMPv4EchoReply)
	if !addr.Is4() {
		proto = icmp.ProtocolNumber6
		request[0] = byte(header.ICMPv6EchoRequest)
		reply = byte(header.ICMPv6EchoReply)
	}

	var wq waiter.Queue
	ep, terr := h.stack.NewEndpoint(proto, netProto, &wq)
	if terr != nil {
		return 0, fmt.Errorf("ping %v: %w", addr, stackError(terr))
	}
	defer ep.Close()
	readable, ready := waiter.NewChannelEntry(waiter.ReadableEvents)
	wq.EventRegister(&readable)
	defer wq.EventUnregister(&readable)

	if terr := ep.Connect(remote); terr != nil {
		return 0, fmt.Errorf("ping %v: %w", addr, stackError(terr))
	}
	start := h.clock.Now()
	if _, terr := ep.Write(bytes.NewReader(request), tcpip.WriteOptions{}); terr != nil {
		return 0, fmt.Errorf("ping %v: %w", addr, stackError(terr))
	}
	for {
		var answer bytes.Buffer
		_, terr := ep.Read(&answer, tcpip.ReadOptions{})
		if terr == nil && answer.Len() > 0 && answer.Bytes()[0] == reply {
			return h.clock.Since(start), nil
		}
		if terr != nil {
			if _, wait := terr.(*tcpip.ErrWouldBlock); !wait {
				return 0, fmt.Errorf("ping %v: %w", addr, stackError(terr))
			}
		}
		h.clock.Park(func() bool { return len(ready) > 0 || ctx.Err() != nil })
		select {
		case <-ready:
		case <-ctx.Done():
			return 0, fmt.Errorf("ping %v: no answer: %w", addr, ctx.Err())
		}
	}
}

// stackError converts a gVisor error.
func stackError(err tcpip.Error) error { return errors.New(err.String()) }
