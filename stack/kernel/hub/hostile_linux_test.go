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

// everything is a classifier by which a datagram is for the client whose QPN range its first byte names. The second says what it is.
type everything struct{}

// What a datagram is, by its second byte.
const (
	plain   = iota
	counted // by [Victim]
	claim   // that its sender has the QPN range which the third byte names
)

// right is the last byte of a datagram that it says is as it was sent.
const right = 0x17

func (everything) Leased(stack.Numbers) {}
func (everything) Died(stack.Numbers)   {}
func (everything) Classify(b []byte, _ *stack.Datagram) stack.Target {
	return stack.Target{Kind: stack.TargetQPN, Number: uint32(b[0]) << slotBits}
}
func (everything) Verify(b []byte, _ *stack.Datagram) bool        { return b[len(b)-1] == right }
func (everything) Refuse([]byte, *stack.Datagram, stack.SendFunc) {}
func (everything) Permits(b []byte, own stack.Numbers) bool {
	return len(b) < 3 || b[1] != claim || own.QPNs.Contains(uint32(b[2])<<slotBits)
}
func (everything) Speak(int64, stack.SendFunc) int64 { return 0 }

// hostileAddr is where all clients of TestHostile are.
const hostileAddr = "127.31.1.1"

// TestHostile: processes that say nonsense to the hub, flood it with descriptors and requests, change the size of their memory, write
// at random into their rings while these are in use, and claim what is another's, do not disturb another: see [Victim].
func TestHostile(t *testing.T) {
	var work sync.WaitGroup
	dir, end := hubHere(t, &work)
	defer end()
	x := &attack{t: t, r: rand.New(rand.NewPCG(13, 5)), dir: dir, victim: startVictim(t, dir)}
	var err error
	at := net.UDPAddr{IP: net.ParseIP(hostileAddr), Port: stack.RoCEPort}
	for _, c := range []**net.UDPConn{&x.out, &x.stranger} {
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
			t.Errorf("%s: the hub let nobody in", a.name)
		}
	}
	x.victim.end()
	awaitTrue(t, "the hub keeps no descriptors", func() bool { return descriptors(t) <= before+2 })
}

// TestSilentConnections: a process that connects and says nothing has few of the hub's connections, and has them again when it has hung
// up. Else it would keep all others from joining.
func TestSilentConnections(t *testing.T) {
	s := &server{cfg: Config{Log: slog.New(slog.DiscardHandler)}, conns: map[*net.UnixConn]bool{}, silent: map[int32]int{}}
	for range 2 {
		var peers []*silentHub
		for range maxSilent + 1 {
			h := newSilentHub(t)
			peers = append(peers, h)
			s.accept(h.conn)
		}
		s.mu.Lock()
		if n := len(s.conns); n != maxSilent {
			t.Errorf("one process has %d connections, want %d", n, maxSilent)
		}
		s.mu.Unlock()
		for _, h := range peers {
			_ = unix.Shutdown(h.fd, unix.SHUT_RDWR)
		}
		s.work.Wait()
		if len(s.silent) != 0 || len(s.conns) != 0 {
			t.Errorf("when all have hung up, there are %v, of which %v are silent", s.conns, s.silent)
		}
	}
}

// descriptors is how many this process has, and so the hub in it.
func descriptors(t *testing.T) int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// hubHere is a hub in this process. end ends it, and waits for work.
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

// client joins a hub. It is closed before work is waited for.
func client(t testing.TB, work *sync.WaitGroup, dir, addr string, deliver func(*Arrival)) *Client {
	t.Helper()
	c, err := Join(ClientConfig{Directory: dir, Receiver: func() func(*Arrival, bool) { return func(a *Arrival, _ bool) { deliver(a) } }, Changed: func(bool) {}})
	if err != nil {
		t.Fatal(err)
	}
	work.Go(c.Run)
	err = c.AddAddr(netip.MustParseAddr(addr), "lo")
	for give := time.Now().Add(20 * time.Second); errors.Is(err, unix.EADDRINUSE) && time.Now().Before(give); time.Sleep(50 * time.Millisecond) {
		err = c.AddAddr(netip.MustParseAddr(addr), "lo") // another package's tests have ::1
	}
	if err != nil {
		c.Close()
		t.Fatal(err)
	}
	return c
}

// FuzzMessages: any bytes are a message or an error, and what is a message is the same when it is sent on.
func FuzzMessages(f *testing.F) {
	h := hello{ring: ring.MinLen, secret: secret{1}}
	w := welcome{secret: secret{2}, span: span{4, 4, 2}}
	refused := welcome{err: unix.EAGAIN}
	q := request{kind: serve, number: 5, service: stack.Service{Addr: netip.MustParseAddr("10.0.0.1"), ID: 6, Mask: 7}, zone: "lo"}
	a := answer{8, unix.EADDRINUSE}
	m := meeting{9, qpns(4, 2), ends{netip.MustParseAddr("::1"), netip.MustParseAddr("::2")}}
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
			if again, err := decodeRequest(q.encode()); err != nil || again.service != q.service || again.kind != q.kind || again.zone != q.zone {
				t.Errorf("request %+v, %+v, %v", q, again, err)
			}
		}
		if m, ok := decodeMeeting(b); ok {
			if again, ok := decodeMeeting(m.encode()); !ok || again != m {
				t.Errorf("meeting %+v, %+v", m, again)
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
