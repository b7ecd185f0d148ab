package hub

import (
	"context"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/stack"
)

// everything is a classifier by which a datagram is for the client whose QPN range its first byte names.
type everything struct{}

// right is the last byte of a datagram that it says is as it was sent.
const right = 0x17

func (everything) Leased(stack.Numbers) {}
func (everything) Died(stack.Numbers)   {}
func (everything) Classify(b []byte, _ *stack.Datagram) stack.Target {
	return stack.Target{Kind: stack.TargetQPN, Number: uint32(b[0]) << slotBits}
}
func (everything) Verify(b []byte, _ *stack.Datagram) bool        { return b[len(b)-1] == right }
func (everything) Refuse([]byte, *stack.Datagram, stack.SendFunc) {}
func (everything) Permits([]byte, stack.Numbers) bool             { return true }
func (everything) Speak(int64, stack.SendFunc) int64              { return 0 }

// hostileAddr is where all clients of TestHostile are.
const hostileAddr = "127.31.1.1"

// TestHostile: a process that says nonsense to the hub, floods it with descriptors and requests, and writes at random into its
// ring, while that is in use, does not disturb another.
func TestHostile(t *testing.T) {
	var work sync.WaitGroup
	dir, end := hubHere(t, &work)
	defer end()
	const addr = hostileAddr
	var came atomic.Int64
	victim := client(t, &work, dir, addr, func(a *Arrival) {
		if a.Payload[1] != 1 {
			t.Errorf("%x came", a.Payload)
		}
		came.Add(1)
	})
	defer victim.Close()
	out, err := net.DialUDP("udp", &net.UDPAddr{IP: net.ParseIP(addr)}, &net.UDPAddr{IP: net.ParseIP(addr), Port: stack.RoCEPort})
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	raw, err := out.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := victim.AddOutlet(victimAddr(victim), raw); err != nil {
		t.Fatal(err)
	}
	slot := func(c *Client) byte { return byte(c.Numbers().QPNs.Base >> slotBits) }

	duration := time.Second
	if os.Getenv("SOFTRNIC_LONG") != "" {
		duration = time.Minute
	}
	r := rand.New(rand.NewPCG(13, 5))
	for end := time.Now().Add(duration); time.Now().Before(end); {
		switch r.IntN(3) {
		case 0:
			nonsense(r, dir)
		case 1:
			if h := greeted(t, dir); h != nil {
				scribble(r, h.memory, func() { _, _ = out.Write([]byte{byte(h.qpnSlot), 0}) })
				h.close()
			}
		case 2: // requests without end, whose answers are not read
			if h := greeted(t, dir); h != nil {
				_ = h.conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
				for i := range 2000 {
					q := request{kind: kind(r.IntN(int(keepPair)) + 1), number: uint32(i), service: stack.Service{ID: r.Uint64(), Mask: r.Uint64()}}
					if _, err := h.conn.Write(q.encode()); err != nil {
						break
					}
				}
				h.close()
			}
		}
		before := came.Load()
		if _, err := out.Write([]byte{slot(victim), 1}); err != nil {
			t.Fatal(err)
		}
		for give := time.Now().Add(10 * time.Second); came.Load() == before; time.Sleep(100 * time.Microsecond) {
			if time.Now().After(give) {
				t.Fatal("the other client receives nothing")
			}
		}
	}
}

// hubHere is a hub in this process. end ends it, and waits for work.
func hubHere(t testing.TB, work *sync.WaitGroup) (dir string, end func()) {
	t.Helper()
	dir, err := os.MkdirTemp("", "h")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	dir = filepath.Join(dir, "hub")
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

// victimAddr is the one address of a client.
func victimAddr(c *Client) (a netip.Addr) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for a = range c.addrs {
	}
	return a
}

// client joins a hub. It is closed before work is waited for.
func client(t testing.TB, work *sync.WaitGroup, dir, addr string, deliver func(*Arrival)) *Client {
	t.Helper()
	c, err := Join(ClientConfig{Directory: dir, Receiver: func() func(*Arrival, bool) { return func(a *Arrival, _ bool) { deliver(a) } }, Changed: func(bool) {}})
	if err != nil {
		t.Fatal(err)
	}
	work.Go(c.Run)
	if err := c.AddAddr(netip.MustParseAddr(addr), "lo"); err != nil {
		c.Close()
		t.Fatal(err)
	}
	return c
}

// nonsense says something to the hub that is no hello, with descriptors.
func nonsense(r *rand.Rand, dir string) {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(dir, socketName), Net: "unixpacket"})
	if err != nil {
		return
	}
	defer conn.Close()
	fd, memory, err := ring.NewMemory(ring.MinLen)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	defer unix.Munmap(memory)
	h := hello{ring: ring.MinLen}
	b := h.encode()
	for range r.IntN(3) {
		b[r.IntN(len(b))] = byte(r.Uint32())
	}
	fds := make([]int, r.IntN(200))
	for i := range fds {
		fds[i] = fd
	}
	_, _, _ = conn.WriteMsgUnix(b[:r.IntN(len(b)+1)], unix.UnixRights(fds...), nil)
}

// hostile is a client that keeps to no rules.
type hostile struct {
	conn   *net.UnixConn
	memory []byte // of the ring that the hub puts records into
	span
}

func (h *hostile) close() { _, _ = h.conn.Close(), unix.Munmap(h.memory) }

// greeted is one that has said hello to the hub, and receives at an address; nil if the hub does not want it.
func greeted(t testing.TB, dir string) *hostile {
	t.Helper()
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(dir, socketName), Net: "unixpacket"})
	if err != nil {
		return nil
	}
	fd, memory, err := ring.NewMemory(ring.MinLen)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	x := &hostile{conn: conn, memory: memory}
	h := hello{ring: ring.MinLen}
	_ = ring.Send(conn, h.encode(), fd)
	b := make([]byte, maxMessage)
	n, err := conn.Read(b)
	w, wrong := decodeWelcome(b[:n])
	if err != nil || wrong != nil || w.err != nil {
		x.close()
		return nil
	}
	x.span = w.span
	q := request{kind: addAddr, addr: netip.MustParseAddr(hostileAddr), zone: "lo"}
	_, _ = conn.Write(q.encode())
	_, _ = conn.Read(b)
	return x
}

// scribble writes at random into the memory of a ring, indices and records, while send has the other side put something there.
func scribble(r *rand.Rand, memory []byte, send func()) {
	for range 50 {
		for range 20 {
			at := r.IntN(len(memory))
			if r.IntN(2) == 0 {
				at = r.IntN(512) // indices
			}
			memory[at] = byte(r.Uint32())
		}
		send()
	}
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
