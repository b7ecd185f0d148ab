package hub

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/stack/kernel/internal/inlet"
)

// relaying makes a hub of one client, without sockets, and returns what hands it a superframe of 60 KiB, and takes it from the
// client's ring.
func relaying(t testing.TB) (once func(), size int) {
	fd, memory, err := ring.NewMemory(DefaultRing)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	dst := netip.MustParseAddr("10.0.0.1")
	m := &member{lease: &lease{qpnSlot: 3, commSlot: 4}, addrs: map[netip.Addr]bool{dst: true}}
	m.frame.Data, m.frame.More = m.record[:], m.more[:]
	if m.ring, err = ring.NewProducer(memory); err != nil {
		t.Fatal(err)
	}
	consumer, err := ring.NewConsumer(memory)
	if err != nil {
		t.Fatal(err)
	}
	r := newRelay(everything{})
	r.add(m)
	in := &arrivals{relay: r, dst: dst}
	a := &inlet.Arrival{Payload: make([]byte, 60<<10), From: netip.MustParseAddrPort("10.0.0.2:50000"), Segment: 1 << 10}
	for i := 0; i < len(a.Payload); i += a.Segment {
		a.Payload[i] = 3
	}
	var arena [ring.MaxFrame]byte
	return func() {
		in.Deliver(a, false)
		if n, err := consumer.Next(); n != recordLen+len(a.Payload) || err != nil {
			t.Fatal(n, err)
		}
		got := readRecord(consumer.Take(arena[:]).Data)
		consumer.Release()
		if got.Segment != a.Segment || got.From != a.From {
			t.Fatalf("%+v came", got)
		}
	}, len(a.Payload)
}

// TestRelayAllocates: nothing is allocated for what passes the hub.
func TestRelayAllocates(t *testing.T) {
	once, _ := relaying(t)
	if n := testing.AllocsPerRun(1000, once); n != 0 {
		t.Errorf("%v allocations for a superframe", n)
	}
}

func BenchmarkRelay(b *testing.B) {
	once, size := relaying(b)
	b.SetBytes(int64(size))
	b.ReportAllocs()
	for b.Loop() {
		once()
	}
}
