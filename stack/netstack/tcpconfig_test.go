package netstack_test

import (
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

// cutOff returns a stream whose link is cut.
func cutOff(t *testing.T, before func(a stack.Stream), cfg *netstack.Config) stack.Stream {
	t.Helper()
	lan := new(pipe.Switch)
	w := &ward{Link: lan.Port()}
	a, b := streamsOn(t, w, lan.Port(), cfg)
	if before != nil {
		before(a)
	} else {
		transfer(t, a, b, 1)
		transfer(t, b, a, 1)
	}
	w.held.Lock()
	t.Cleanup(w.held.Unlock)
	return a
}

// TestStreamDeadPeer checks that a dead peer is noticed within the time of the options, with and
// without data in flight.
func TestStreamDeadPeer(t *testing.T) {
	for name, tc := range map[string]struct {
		opts *netstack.Config
		send bool
	}{
		"user timeout": {&netstack.Config{TCP: netstack.TCPConfig{UserTimeout: 300 * time.Millisecond, KeepAliveIdle: -1}}, true},
		"keepalive": {&netstack.Config{TCP: netstack.TCPConfig{UserTimeout: -1, KeepAliveIdle: 100 * time.Millisecond,
			KeepAliveInterval: 50 * time.Millisecond, KeepAliveCount: 4}},
			false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := cutOff(t, nil, tc.opts)
			start := time.Now()
			if tc.send {
				if ok, err := s.Send(100, nothing{}); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			if err := s.SetReadDeadline(start.Add(20 * time.Second)); err != nil {
				t.Fatal(err)
			}
			err := s.Wait()
			if err == nil {
				err = s.Receive(&counter{})
			}
			if !errors.Is(err, syscall.ETIMEDOUT) || time.Since(start) < 200*time.Millisecond {
				t.Errorf("after %v: %v", time.Since(start), err)
			}
		})
	}
}

// TestUserTimeoutOfZeroWindow checks that a connection ends if the peer acknowledges but opens no
// window.
func TestUserTimeoutOfZeroWindow(t *testing.T) {
	t.Parallel()
	lan := new(pipe.Switch)
	a, _ := streamsOn(t, lan.Port(), lan.Port(), &netstack.Config{TCP: netstack.TCPConfig{UserTimeout: 500 * time.Millisecond}})
	if err := a.SetWriteDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, err := a.Write(make([]byte, 64<<20)) // more than the buffers of both ends
	if err == nil || !strings.Contains(err.Error(), "timed out") {
		t.Errorf("%d bytes, %v", n, err)
	}
}

// askLittle is a link whose peers request segments of at most 60 bytes.
type askLittle struct{ link.Link }

func (l askLittle) Attach(recv link.Receiver) {
	l.Link.Attach(func(frames []link.Frame) {
		for i := range frames {
			b := frames[i].Data
			if len(b) < 14+20+20 || header.Ethernet(b).Type() != header.IPv4ProtocolNumber {
				continue
			}
			ip := header.IPv4(b[14:])
			if tcp := header.TCP(ip[20:]); ip.TransportProtocol() == header.TCPProtocolNumber && tcp.Flags()&header.TCPFlagSyn != 0 {
				o := tcp.Options()
				// gVisor's position of the option.
				o[0], o[1], o[2], o[3] = header.TCPOptionMSS, 4, 0, 60
				tcp.SetChecksum(0)
				sum := header.PseudoHeaderChecksum(header.TCPProtocolNumber, ip.SourceAddress(), ip.DestinationAddress(), uint16(len(tcp)))
				tcp.SetChecksum(^tcp.CalculateChecksum(sum))
			}
		}
		recv(frames)
	})
}

// TestStreamLeastMSS checks a peer that requests too small segments. It gets segments of the least
// size that every host accepts, from either side of the connection.
func TestStreamLeastMSS(t *testing.T) {
	for _, asks := range []int{0, 1} {
		lan := new(pipe.Switch)
		w := &ward{Link: lan.Port()}
		links := []link.Link{w, lan.Port()}
		links[asks] = askLittle{links[asks]}
		a, b := streamsOn(t, links[0], links[1], nil)
		from, to := a, b
		if asks == 1 {
			from, to = b, a
		}
		if mss := from.MSS(); mss < 400 || mss > 536 {
			t.Errorf("MSS %d", mss)
		}
		w.sent.Store(0)
		transfer(t, from, to, 100_000)
		if n := w.sent.Load(); asks == 0 && n > 400 {
			t.Errorf("%d frames for 100,000 bytes", n)
		}
	}
}

func TestTCPConfigRefused(t *testing.T) {
	for want, c := range map[string]netstack.TCPConfig{
		"TCP.KeepAliveIdle 1ns: must be at least 1ms, 0 for 5s, or less than 0 for none": {KeepAliveIdle: 1},
		"TCP.KeepAliveInterval 999µs: must be 1ms to":                                    {KeepAliveInterval: 999 * time.Microsecond},
		"TCP.KeepAliveInterval -1s: must be 1ms to":                                      {KeepAliveInterval: -time.Second},
		"TCP.KeepAliveCount -1: must be 1 to":                                            {KeepAliveCount: -1},
		"TCP.UserTimeout 1ns: must be at least 1ms, 0 for 10s":                           {UserTimeout: 1},
		"TCP.SendBuffer 131071: must be 131072 to 1073741824, or 0 for 4194304":          {SendBuffer: 128<<10 - 1},
		"TCP.SendBuffer 1073741825: must be":                                             {SendBuffer: 1<<30 + 1},
		"TCP.RecvBuffer 65535: must be 65536 to 1073741824, or 0 for 8388608":            {RecvBuffer: 64<<10 - 1},
		"TCP.RecvBuffer 1073741825: must be":                                             {RecvBuffer: 1<<30 + 1},
		"TCP.RecvBuffer -1: must be":                                                     {RecvBuffer: -1},
		"TCP.Memory 196607: must be 196608 to":                                           {Memory: 192<<10 - 1},
		"TCP.Memory -1: must be":                                                         {Memory: -1},
	} {
		h, err := netstack.New(new(pipe.Switch).Port(), &netstack.Config{TCP: c})
		if err == nil {
			h.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
