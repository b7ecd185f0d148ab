package hub

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/stack"
)

// everything is a classifier for which a datagram's first byte names the QPN range of its
// destination, and the second its kind.
type everything struct{}

// Kinds of datagrams, in the second byte.
const (
	plain   = iota
	counted // by [Victim]
	claim   // its sender claims the QPN range that the third byte names
)

// right is the last byte of a datagram whose ICRC is valid.
const right = 0x17

func (everything) Leased(stack.Numbers) {}
func (everything) Died(stack.Numbers)   {}
func (everything) Classify(b []byte, _ *stack.Datagram) Target {
	return Target{Kind: TargetQPN, Number: uint32(b[0]) << slotBits}
}
func (everything) Verify(b []byte, _ *stack.Datagram) bool  { return b[len(b)-1] == right }
func (everything) Refuse([]byte, *stack.Datagram, SendFunc) {}
func (everything) Permits(b []byte, own stack.Numbers) bool {
	return len(b) < 3 || b[1] != claim || own.QPNs.Contains(uint32(b[2])<<slotBits)
}
func (everything) SendDue(int64, SendFunc) int64 { return 0 }

// hostileAddr is the address of all clients of TestHostile.
const hostileAddr = "127.31.1.1"

// TestHostile checks that hostile processes do not disturb another client: see [Victim]. They send
// garbage to the hub, and flood it with descriptors and requests. They resize their memory, write
// randomly into their rings while these are in use, and claim another's numbers.
func TestHostile(t *testing.T) {
	var work sync.WaitGroup
	dir, end := hubHere(t, &work)
	defer end()
	attackFor(t, dir, startVictim(t, dir))
}

// TestHostileUser checks the same of the processes of another user, at the hub of the machine.
func TestHostileUser(t *testing.T) {
	dir := systemHub(t)
	victim := startVictim(t, dir)
	as(t, bob, func() { attackFor(t, dir, victim) })
}

// attackFor attacks a hub and another client for a while.
func attackFor(t *testing.T, dir string, victim *victimProcess) {
	x := &attack{t: t, r: rand.New(rand.NewPCG(13, 5)), dir: dir, victim: victim}
	var err error
	at := net.UDPAddr{IP: net.ParseIP(hostileAddr), Port: stack.RoCEPort}
	for _, c := range []**net.UDPConn{&x.out, &x.unknown} {
		if *c, err = net.DialUDP("udp", &net.UDPAddr{IP: at.IP}, &at); err != nil {
			t.Fatal(err)
		}
		defer (*c).Close()
	}
	before := descriptors(t)

	duration := 200 * time.Millisecond
	switch {
	case os.Getenv("SOFTRNIC_LONG") != "":
		duration = time.Minute
	case os.Getenv("SOFTRNIC_SYSTEM") != "":
		duration = 2 * time.Second
	}
	acts := []struct {
		name string
		do   func() (done bool)
		n    int
	}{
		{"nonsense for a hello", x.nonsense, 0}, {"writing into the ring", x.scribble, 0}, {"requests without end", x.requests, 0},
		{"descriptors", x.descriptors, 0}, {"memory of another size", x.truncate, 0}, {"what is another's", x.claim, 0},
	}
	for end, round := time.Now().Add(duration), 0; time.Now().Before(end) || round < 4*len(acts); round++ {
		a := &acts[round%len(acts)]
		if a.do() {
			a.n++
		}
		if !x.victim.isAlive() {
			break
		}
	}
	for _, a := range acts {
		if t.Logf("%s: %d times", a.name, a.n); a.n == 0 {
			t.Errorf("%s: no attack was accepted", a.name)
		}
	}
	x.victim.end()
	awaitTrue(t, "the hub keeps no descriptors", func() bool { return descriptors(t) <= before+2 })
}

// TestSilentConnections checks that a process which connects without a hello gets only a few of the
// hub's connections, and gets them again after disconnecting. Otherwise it could keep all others
// from joining.
func TestSilentConnections(t *testing.T) {
	s := &server{cfg: Config{Log: slog.New(slog.DiscardHandler), Counters: new(Counters)}, conns: map[*net.UnixConn]bool{},
		users: map[uint32]*user{}, silent: map[origin]int{}}
	for range 2 {
		var peers []*silentHub
		for range maxSilent + 1 {
			h := newSilentHub(t)
			peers = append(peers, h)
			s.accept(h.conn)
		}
		s.mu.Lock()
		if n := len(s.conns); n != maxSilent {
			t.Errorf("one process has %d silent connections, want %d", n, maxSilent)
		}
		s.mu.Unlock()
		for _, h := range peers {
			_ = unix.Shutdown(h.fd, unix.SHUT_RDWR)
		}
		s.work.Wait()
		if len(s.silent) != 0 || len(s.conns) != 0 {
			t.Errorf("after disconnecting there are %v, of which %v are silent", s.conns, s.silent)
		}
	}
	if n := s.cfg.Counters.Refused.Load(); n != 2 {
		t.Errorf("%d connections were refused", n)
	}
}

// descriptors returns the number of descriptors of this process, which includes the hub's.
func descriptors(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// hubHere runs a hub in this process. end ends it, and waits for work.
func hubHere(t testing.TB, work *sync.WaitGroup) (dir string, end func()) {
	t.Helper()
	own, err := os.MkdirTemp("", "h")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(own) })
	dir = filepath.Join(own, "hub")
	ctx, cancel := context.WithCancel(t.Context())
	work.Go(func() {
		if err := Serve(ctx, Config{Directory: dir, Classifier: everything{}, Quarantine: time.Nanosecond}); err != nil {
			t.Error(err)
		}
	})
	for !Running(dir) {
		time.Sleep(time.Millisecond)
	}
	return dir, func() { cancel(); work.Wait() }
}

// client joins a hub. It is closed before work is awaited.
func client(t testing.TB, work *sync.WaitGroup, dir, addr string, deliver func(*Arrival)) *Client {
	t.Helper()
	c, err := Join(ClientConfig{
		Directory: dir,
		Receiver:  func() func(*Arrival, bool) { return func(a *Arrival, _ bool) { deliver(a) } },
		Changed:   func(bool) {},
	})
	if err != nil {
		t.Fatal(err)
	}
	work.Go(c.Run)
	err = c.AddAddr(netip.MustParseAddr(addr), "lo")
	for give := time.Now().Add(20 * time.Second); errors.Is(err, unix.EADDRINUSE) && time.Now().Before(give); {
		time.Sleep(50 * time.Millisecond)
		err = c.AddAddr(netip.MustParseAddr(addr), "lo") // another package's tests use ::1
	}
	if err != nil {
		c.Close()
		t.Fatal(err)
	}
	return c
}

// FuzzMessages checks that any bytes decode to a message or an error, and that encoding a message
// restores the bytes.
func FuzzMessages(f *testing.F) {
	h := hello{ring: ring.MinLen, secret: secret{1}}
	w := welcome{secret: secret{2}, span: span{4, 4, 2}}
	refused := welcome{err: unix.EAGAIN}
	q := request{kind: serve, number: 5, service: stack.Service{Addr: netip.MustParseAddr("10.0.0.1"), ID: 6, Mask: 7}, zone: "lo"}
	a := answer{8, unix.EADDRINUSE}
	m := pairMessage{9, qpns(4, 2), ends{netip.MustParseAddr("::1"), netip.MustParseAddr("::2")}}
	for _, b := range [][]byte{h.encode(), w.encode(), refused.encode(), q.encode(), a.encode(), m.encode(), {1}, nil} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if h, err := decodeHello(b); err == nil && string(h.encode()) != string(b) {
			t.Errorf("hello %+v", h)
		}
		if w, err := decodeWelcome(b); err == nil && w.err == nil {
			if again, err := decodeWelcome(w.encode()); err != nil || again != w {
				t.Errorf("welcome %+v, %+v, %v", w, again, err)
			}
		}
		if q, err := decodeRequest(b); err == nil {
			if again, err := decodeRequest(q.encode()); err != nil || again.service != q.service || again.kind != q.kind ||
				again.zone != q.zone {
				t.Errorf("request %+v, %+v, %v", q, again, err)
			}
		}
		if m, ok := decodePairMessage(b); ok {
			if again, ok := decodePairMessage(m.encode()); !ok || again != m {
				t.Errorf("pairMessage %+v, %+v", m, again)
			}
		}
		_, _ = decodeAnswer(b)
		if r := readRecord(b); len(r.Payload) > 0 {
			var again [recordLen]byte
			putRecord(again[:], &r)
			if readRecord(append(again[:], r.Payload...)).From != r.From {
				t.Errorf("record %+v", r)
			}
		}
	})
}
