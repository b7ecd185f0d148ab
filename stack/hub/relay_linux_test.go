package hub

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/stack/internal/rxsocket"
)

// newRinged returns a client at an address, without a connection, and the other end of its ring.
func newRinged(t testing.TB, at netip.Addr, slot uint32) (*member, *ring.Consumer) {
	fd, memory, err := ring.NewMemory(defaultRing)
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.Close(fd)
	t.Cleanup(func() { _ = unix.Munmap(memory) })
	m := &member{lease: &lease{span: span{qpnSlot: slot, commSlot: slot}}, addrs: map[netip.Addr]bool{at: true}}
	m.numbers = m.lease.numbers()
	m.frame.Data, m.frame.More = m.record[:], m.more[:]
	if m.ring, err = ring.NewProducer(memory); err != nil {
		t.Fatal(err)
	}
	consumer, err := ring.NewConsumer(memory)
	if err != nil {
		t.Fatal(err)
	}
	return m, consumer
}

// TestSenderThatLeft checks datagrams of a client that left before the hub read them, for example
// last acknowledgements. They are delivered, and the client's sockets are forgotten after a while.
func TestSenderThatLeft(t *testing.T) {
	at, from := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddrPort("10.0.0.1:50000")
	m, consumer := newRinged(t, at, 3)
	leaver, _ := newRinged(t, at, 4)
	r := newRelay(everything{}, new(Counters))
	r.setOwn(at, true)
	r.add(m)
	r.add(leaver)
	if err := r.addSender(leaver, from, -1); err != nil {
		t.Fatal(err)
	}
	arrives := func() bool {
		(&arrivals{relay: r, dst: at}).Deliver(&rxsocket.Arrival{Payload: []byte{3}, From: from}, false)
		n, err := consumer.Next()
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return false
		}
		var arena [ring.MaxFrame]byte
		got := readRecord(consumer.Take(arena[:]).Data)
		consumer.Release()
		if got.SrcQPNs != leaver.numbers.QPNs {
			t.Errorf("it is attributed to QPs %v, want %v", got.SrcQPNs, leaver.numbers.QPNs)
		}
		return true
	}
	if !arrives() {
		t.Error("the hub has lost what a client sent")
	}
	r.remove(leaver)
	r.forgetSenders(leaver.left.Add(senderTime - 1))
	if !arrives() {
		t.Error("the hub has lost what a client sent before it went")
	}
	r.forgetSenders(leaver.left.Add(senderTime))
	if arrives() {
		t.Error("the socket of a client that left long ago is trusted")
	}
}

// TestSenderOfDroppedAddress checks that a client's sockets at a dropped address are forgotten, and
// those at others are not. Otherwise the next owner of such a port could send as the client. The
// client could also run out of sockets after many address changes.
func TestSenderOfDroppedAddress(t *testing.T) {
	at, other := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
	m, _ := newRinged(t, other, 3)
	stays, _ := newRinged(t, at, 4)
	r := newRelay(everything{}, new(Counters))
	add := func(m *member, a netip.Addr, port int) {
		t.Helper()
		if err := r.addSender(m, netip.AddrPortFrom(a, uint16(port)), -1); err != nil {
			t.Fatal(err)
		}
	}
	add(stays, at, 1)
	add(m, other, 2)
	for port := 3; port < 3+2*maxSourceSockets; port++ {
		r.addAddr(m, at)
		add(m, at, port)
		r.dropAddr(m, at)
	}
	if len(r.senders) != 2 || r.senders[netip.AddrPortFrom(at, 1)] != stays || r.senders[netip.AddrPortFrom(other, 2)] != m {
		t.Errorf("the senders are %v", r.senders)
	}
}

// TestCrowd: what may be from another user of the machine fills half of a client's ring. What is
// certainly from another machine, or from the same user, fills all of it.
func TestCrowd(t *testing.T) {
	at := netip.MustParseAddr("10.0.0.1")
	local, foreign := netip.MustParseAddrPort("10.0.0.1:50000"), netip.MustParseAddrPort("10.0.0.77:50000")
	alice, bob := &user{uid: 1}, &user{uid: 2}
	for _, c := range []struct {
		what   string
		of     *user // whose client sends; nil: no client
		remote bool
		half   bool
	}{
		{"the user's own client", alice, false, false},
		{"another user's client", bob, false, true},
		{"an address that is not the hub's", nil, false, true},
		{"another machine", nil, true, false},
	} {
		m, _ := newRinged(t, at, 3)
		m.user, m.memory = alice, make([]byte, defaultRing)
		r := newRelay(everything{}, new(Counters))
		r.system, r.turn = true, make(chan struct{}, 1)
		r.setOwn(at, true)
		r.add(m)
		from := foreign
		if c.of != nil {
			from = local
			sender, _ := newRinged(t, at, 4)
			sender.user = c.of
			r.add(sender)
			r.senders[from] = sender
		}
		payload := make([]byte, 1000)
		payload[0] = 3
		for range 2 * defaultRing / len(payload) {
			(&arrivals{relay: r, dst: at, remote: c.remote}).Deliver(&rxsocket.Arrival{Payload: payload, From: from}, false)
		}
		stored := (r.counters.Received.Load() - r.counters.Dropped.Load()) * uint64(len(payload))
		if most := uint64(defaultRing / 2); (stored <= most) != c.half || stored < most*3/4 {
			t.Errorf("%s: %d bytes of a ring of %d; want half of it: %t", c.what, stored, defaultRing, c.half)
		}
	}
}

// TestVerifiedInPlace checks a superframe with ICRCs that the hub has verified: its data stays in
// the ring. Other data is copied for the client to check.
func TestVerifiedInPlace(t *testing.T) {
	at := netip.MustParseAddr("10.0.0.1")
	const segment = 1200
	for _, c := range []struct {
		what     string
		segments int
		damaged  int // number of the damaged packet; -1: none
		inPlace  bool
		want     bool // NoICRC
	}{
		{"a superframe", 3, -1, true, true},
		{"one with a damaged packet", 3, 2, true, false},
		{"a packet", 1, -1, true, false},
		{"a superframe for a client without AllowInPlace", 3, -1, false, false},
	} {
		m, consumer := newRinged(t, at, 3)
		if c.inPlace {
			consumer.AllowInPlace()
		}
		r := newRelay(everything{}, new(Counters))
		r.add(m)
		a := &rxsocket.Arrival{Payload: make([]byte, c.segments*segment), From: netip.MustParseAddrPort("10.0.0.2:50000")}
		if c.segments > 1 {
			a.Segment = segment
		}
		for i := range c.segments {
			a.Payload[i*segment] = 3
			if i != c.damaged {
				a.Payload[(i+1)*segment-1] = right
			}
		}
		(&arrivals{relay: r, dst: at}).Deliver(a, false)
		if n, err := consumer.Next(); n != recordLen+len(a.Payload) || err != nil {
			t.Fatalf("%s: a record of %d bytes, %v", c.what, n, err)
		}
		var head [recordLen]byte
		var rest [1][]byte
		h := consumer.HeaderLen()
		f := consumer.TakeHeaders(head[:], recordLen, &rest)
		got := arrivalOf(&f)
		if (h == recordLen) != c.want || got.NoICRC != c.want || !got.InPlace || len(got.Payload) != len(a.Payload) {
			t.Errorf("%s: headers of %d bytes, NoICRC %t, %d bytes of payload; want them in place: %t",
				c.what, h, got.NoICRC, len(got.Payload), c.want)
		}
	}
}

// relaying creates a hub with one client, without sockets. once passes a superframe of 60 KiB
// through the hub, and takes it from the client's ring.
func relaying(t testing.TB) (once func(), size int) {
	dst := netip.MustParseAddr("10.0.0.1")
	m, consumer := newRinged(t, dst, 3)
	r := newRelay(everything{}, new(Counters))
	r.add(m)
	in := &arrivals{relay: r, dst: dst}
	a := &rxsocket.Arrival{Payload: make([]byte, 60<<10), From: netip.MustParseAddrPort("10.0.0.2:50000"), Segment: 1 << 10}
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
			t.Fatalf("%+v arrived", got)
		}
	}, len(a.Payload)
}

// TestRelayAllocates checks that relaying does not allocate.
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
