package impair

import (
	"bytes"
	"testing"
	"testing/synctest"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
)

// ipv4 and ipv6 return frames of n bytes with this traffic class.
func ipv4(tos uint8, n int) []byte {
	b := make([]byte, n)
	b[12] = 8
	h := header.IPv4(b[14:])
	h.Encode(&header.IPv4Fields{TOS: tos, TotalLength: uint16(n - 14), ID: 0xfffe, TTL: 64, Protocol: 17,
		SrcAddr: tcpip.AddrFrom4([4]byte{10, 0, 0, 1}), DstAddr: tcpip.AddrFrom4([4]byte{10, 0, 0, 2})})
	h.SetChecksum(^h.CalculateChecksum())
	return b
}

func ipv6(class uint8, n int) []byte {
	b := make([]byte, n)
	b[12], b[13] = 0x86, 0xdd
	header.IPv6(b[14:]).Encode(&header.IPv6Fields{TrafficClass: class, FlowLabel: 0xabcde, PayloadLength: uint16(n - 54),
		TransportProtocol: 17, HopLimit: 64})
	return b
}

// TestMark checks that ECN-capable packets are marked, with a correct checksum and no other change,
// and that other packets are not.
func TestMark(t *testing.T) {
	for class := range 256 {
		want := uint8(class)
		if want&3 != 0 {
			want |= 3
		}
		for _, make := range []func(uint8, int) []byte{ipv4, ipv6} {
			f := make(uint8(class), 100)
			if mark(f) != (class&3 != 0) || !bytes.Equal(f, make(want, 100)) {
				t.Errorf("class %#x: % x, want % x", class, f[:54], make(want, 100)[:54])
			}
		}
	}
	arp := append(make([]byte, 12), 8, 6, 2, 2, 2)
	if mark(arp) {
		t.Error("ARP was marked")
	}
}

// FuzzMark checks that mark handles any frame, and changes only the two bits and the checksum.
func FuzzMark(f *testing.F) {
	f.Add(ipv4(2, 40))
	f.Add(ipv6(1, 60))
	tagged := link.Frame{Data: ipv4(1, 60)}
	f.Add(tagged.AppendTagged(nil, 60, 7))
	f.Fuzz(func(t *testing.T, b []byte) {
		got := bytes.Clone(b)
		marked := mark(got)
		if !marked && !bytes.Equal(got, b) {
			t.Errorf("% x became % x", b, got)
		}
		if !marked {
			return
		}
		if again := bytes.Clone(got); !mark(again) || !bytes.Equal(again, got) {
			t.Errorf("% x changed when marked again: % x", got, again)
		}
		n := link.NetworkOffset(b)
		for i := range b {
			if b[i] != got[i] && i != n+1 && i != n+10 && i != n+11 {
				t.Errorf("byte %d changed", i)
			}
		}
	})
}

// TestQueue sends at 8 Mbit/s, a byte per microsecond. Packets that do not fit are lost. Packets
// that find enough bytes queued are marked; between the two bounds, only a share of them.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestNet(t, parse(t, "out.rate=8mbit,out.queue=10kb,out.ecn=4kb,seed=1"))
		send := func(tos uint8, n int) (out Counters) {
			l.t.Helper()
			_, was := l.a.Counters()
			for range n {
				p := ipv4(tos, 1000)
				l.a.out.mu.Lock()
				l.a.out.packet(link.Frame{Data: p})
				l.a.out.mu.Unlock()
			}
			_, out = l.a.Counters()
			return Counters{Overflowed: out.Overflowed - was.Overflowed, Marked: out.Marked - was.Marked, LongestQueue: out.LongestQueue}
		}
		// Of the 12 packets, 4 find less than 4 kB in the queue, and 2 find it full.
		if got, want := send(2, 12), (Counters{Overflowed: 2, Marked: 6, LongestQueue: 10000}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
		time.Sleep(5 * time.Millisecond)
		if got, want := send(0, 6), (Counters{Overflowed: 1, LongestQueue: 10000}); got != want {
			t.Errorf("packets without ECN: %+v, want %+v", got, want)
		}
		time.Sleep(time.Second)
		if got, want := send(1, 1), (Counters{LongestQueue: 10000}); got != want {
			t.Errorf("an empty queue: %+v, want %+v", got, want)
		}
		l.close()

		l = newTestNet(t, parse(t, "out.rate=8mbit,out.ecn=0kb/100kb,seed=1"))
		if got := send(2, 100); got.Marked < 40 || got.Marked > 60 {
			t.Errorf("%d of 100 marked while the queue grew from Min to Max", got.Marked)
		}
		l.close()
	})
}
