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
func cutOff(t *testing.T, before func(a stack.Stream), opts ...netstack.Option) stack.Stream {
	t.Helper()
	lan := new(pipe.Switch)
	w := &ward{Link: lan.Port()}
	a, b := streamsOn(t, w, lan.Port(), opts...)
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
		opts []netstack.Option
		send bool
	}{
		"user timeout": {[]netstack.Option{netstack.UserTimeout(300 * time.Millisecond), netstack.KeepAlive(0, 0, 0)}, true},
		"keepalive": {[]netstack.Option{netstack.UserTimeout(0), netstack.KeepAlive(100*time.Millisecond, 50*time.Millisecond, 4)},
			false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := cutOff(t, nil, tc.opts...)
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
	a, _ := streamsOn(t, lan.Port(), lan.Port(), netstack.UserTimeout(500*time.Millisecond))
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
		a, b := streamsOn(t, links[0], links[1])
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

func TestTCPOptionsRefused(t *testing.T) {
	for want, o := range map[string]netstack.Option{
		"keepalive after 1s, every 0s, 3 times": netstack.KeepAlive(time.Second, 0, 3),
		"keepalive after -1s":                   netstack.KeepAlive(-time.Second, time.Second, 3),
		"every 1s, 0 times":                     netstack.KeepAlive(time.Second, time.Second, 0),
		"user timeout 1ns":                      netstack.UserTimeout(1),
		"linger time -1s":                       netstack.Linger(-time.Second),
		"at most -1 TCP connections":            netstack.TimeWaits(-1),
		"TCP send buffer of 131071 bytes: want 131072 to 1073741824":  netstack.TCPBuffers(128<<10-1, 64<<10),
		"TCP send buffer of 1073741825 bytes":                         netstack.TCPBuffers(1<<30+1, 64<<10),
		"TCP receive buffer of 65535 bytes: want 65536 to 1073741824": netstack.TCPBuffers(128<<10, 64<<10-1),
		"TCP receive buffer of 1073741825 bytes":                      netstack.TCPBuffers(128<<10, 1<<30+1),
		"TCP memory of 196607 bytes: want at least the 196608":        netstack.TCPMemory(192<<10 - 1),
		"TCP memory of -1 bytes":                                      netstack.TCPMemory(-1),
	} {
		h, err := netstack.New(new(pipe.Switch).Port(), o)
		if err == nil {
			h.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
