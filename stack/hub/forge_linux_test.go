package hub

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/ring"
)

// TestHostileNeighbour checks that records in a client's ring are attributed to that client,
// whatever they contain. A client that writes or sends garbage does not disturb other rings: each
// datagram of a well-behaved client arrives once, unmodified and in order.
func TestHostileNeighbour(t *testing.T) {
	var work sync.WaitGroup
	dir, end := hubHere(t, &work)
	defer end()
	own := netip.MustParseAddr(hostileAddr)
	var good, forged atomic.Int64
	var friendly atomic.Uint32 // the first QPN of the well-behaved client
	victim := client(t, &work, dir, hostileAddr, func(a *Arrival) {
		switch {
		case len(a.Payload) == 0:
			forged.Add(1)
		case a.SrcQPNs.Base == friendly.Load():
			if !bytes.Equal(a.Payload, datagram(nil, 0, uint64(good.Load()))) {
				t.Errorf("%x arrived, want datagram %d", a.Payload, good.Load())
			}
			good.Add(1)
		}
	})
	defer victim.Close()
	friend := client(t, &work, dir, hostileAddr, func(*Arrival) {})
	defer friend.Close()
	friendly.Store(friend.Numbers().QPNs.Base)
	to, from := friend.Route(own, own, victim.Numbers().QPNs.Base), victim.Route(own, own, friend.Numbers().QPNs.Base)
	defer to.Leave()
	defer from.Leave()
	awaitTrue(t, "rings with the friend", func() bool { return to.HasRings() && from.HasRings() })

	var w Writer
	a := Arrival{From: netip.AddrPortFrom(own, 1), Dst: own}
	for _, n := range []int{2, 2000} { // short ones are copied; of long ones only the header is
		h := neighbourOf(t, dir, victim)
		forge := func(change func(a *Arrival)) {
			a := a
			a.Payload = make([]byte, n)
			change(&a)
			h.put(t, &a)
		}
		was := forged.Load()
		forge(func(a *Arrival) { a.From = netip.MustParseAddrPort("127.31.1.2:1") })
		forge(func(a *Arrival) { a.Dst = netip.MustParseAddr("127.31.1.3") })
		awaitTrue(t, "forged addresses are refused", func() bool { return forged.Load() == was+2 })
		h.close()
	}

	duration := 200 * time.Millisecond
	switch {
	case os.Getenv("SOFTRNIC_LONG") != "":
		duration = time.Minute
	case os.Getenv("SOFTRNIC_SYSTEM") != "":
		duration = 2 * time.Second
	}
	r := rand.New(rand.NewPCG(13, 6))
	for end := time.Now().Add(duration); time.Now().Before(end); {
		if h := neighbourOf(t, dir, victim); h != nil {
			switch r.IntN(2) {
			case 0:
				scribble(r, h.in, func() { _, _ = h.conn.Write([]byte{1}) })
			case 1:
				scribble(r, h.out, func() { _, _ = h.conn.Write([]byte{1}) })
			}
			h.close()
		}
		before := good.Load()
		a.Payload = datagram(nil, 0, uint64(before))
		if !to.Send(&a, &w) {
			t.Fatal("the rings with the friend have ended")
		}
		awaitTrue(t, "the friend's datagram arrives", func() bool { return good.Load() == before+1 })
	}
}

func awaitTrue(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for give := time.Now().Add(20 * time.Second); !ok(); time.Sleep(100 * time.Microsecond) {
		if time.Now().After(give) {
			t.Fatalf("timeout: %s", what)
		}
	}
}

// hostileNeighbour is one end of rings with a victim.
type hostileNeighbour struct {
	*hostile
	conn     *net.UnixConn
	in, out  []byte
	producer *ring.Producer
}

func (h *hostileNeighbour) close() {
	_, _, _ = h.conn.Close(), unix.Munmap(h.in), unix.Munmap(h.out)
	h.hostile.close()
}

// put puts a record into the victim's ring.
func (h *hostileNeighbour) put(t *testing.T, a *Arrival) {
	t.Helper()
	var record [recordLen]byte
	putRecord(record[:], a)
	f := link.Frame{Data: record[:], More: [][]byte{a.Payload}, HeaderLen: recordLen, NoICRC: true}
	if ok, err := h.producer.Put(&f); !ok || err != nil {
		t.Fatal(ok, err)
	}
	h.producer.Publish()
	_, _ = h.conn.Write([]byte{1})
}

// neighbourOf creates a client that has rings with another.
func neighbourOf(t *testing.T, dir string, victim *Client) *hostileNeighbour {
	t.Helper()
	h := joinHostile(t, dir)
	if h == nil {
		t.Fatal("the hub refuses the client")
	}
	own := netip.MustParseAddr(hostileAddr)
	q := request{kind: pair, number: 1, addr: own, own: own, qpn: victim.Numbers().QPNs.Base}
	if _, err := h.conn.Write(q.encode()); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, maxMessage)
	n, fds, err := ring.Receive(h.conn, b)
	defer ring.CloseAll(fds)
	if m, ok := decodePairMessage(b[:n]); err != nil || !ok || len(fds) != 1 || m.qpns != victim.Numbers().QPNs {
		t.Fatalf("the hub arranges no rings: %x, %v", b[:n], err)
	}
	conn, err := connOf(fds[0])
	if err != nil {
		t.Fatal(err)
	}
	hello := binary.BigEndian.AppendUint32([]byte(magic), version)
	hello = binary.BigEndian.AppendUint32(hello, ring.MinLen)
	x := &hostileNeighbour{hostile: h, conn: conn}
	if x.in, x.out, err = ring.Handshake(conn, helloTimeout, hello, ring.MinLen, decodeNeighbourHello); err != nil {
		t.Fatal(err)
	}
	if x.producer, err = ring.NewProducer(x.out); err != nil {
		t.Fatal(err)
	}
	return x
}
