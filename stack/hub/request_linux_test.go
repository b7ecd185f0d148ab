package hub

import (
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/stack"
)

// silentHub is the hub's end of a client's connection, driven by the test.
type silentHub struct {
	t    *testing.T
	fd   int
	conn *net.UnixConn // the client's end
}

func newSilentHub(t *testing.T) *silentHub {
	both, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := connOf(both[0])
	_ = unix.Close(both[0])
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = conn.Close(), unix.Close(both[1]) })
	return &silentHub{t, both[1], conn}
}

// kinds returns the kinds of the received requests.
func (h *silentHub) kinds() (all []kind) {
	b := make([]byte, requestLen+1)
	for {
		n, _, err := unix.Recvfrom(h.fd, b, unix.MSG_DONTWAIT)
		if err != nil {
			return all
		}
		r, err := decodeRequest(b[:n])
		if err != nil {
			h.t.Fatal(err)
		}
		all = append(all, r.kind)
	}
}

// clientOf returns a client of silent hubs, which receives nothing.
func clientOf(h *silentHub) *Client {
	c := &Client{cfg: ClientConfig{Log: slog.New(slog.DiscardHandler), Changed: func(bool) {}}, ended: make(chan struct{}),
		answerTime: answerTime,
		asking:     make(chan struct{}, 1), answers: make(chan answer,
			1), changed: make(chan struct{}), addrs: map[netip.Addr]string{}, services: map[stack.Service]int{}, conn: h.conn}
	c.neighbours.init()
	c.up.Store(true)
	return c
}

// answer answers the last request.
func (c *Client) answer() {
	c.mu.Lock()
	c.answers <- answer{c.number, nil}
	c.mu.Unlock()
}

// TestEndsWithoutAnswer checks requests that end something, and requests for rings. They fail if
// the hub does not answer, also while another request waits. The hub gets requests of the first
// kind later.
func TestEndsWithoutAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newSilentHub(t)
		c := clientOf(h)
		served := make(chan error, 1)
		go func() { served <- c.Serve(stack.Service{ID: 1}) }()
		synctest.Wait()
		givesUp := func(what string, do func()) {
			t.Helper()
			began := time.Now()
			if do(); time.Since(began) != answerTime {
				t.Errorf("%s takes %v", what, time.Since(began))
			}
		}
		rings := func() { _ = c.ask(&request{kind: pair}) }
		givesUp("the end of a service, while another is requested,", func() { c.EndServe(stack.Service{ID: 2}) })
		givesUp("requesting rings, while a service is requested,", rings)
		c.answer()
		if err := <-served; err != nil {
			t.Error(err)
		}
		givesUp("requesting rings", rings)
		if got, want := h.kinds(), []kind{serve, pair}; !slices.Equal(got, want) {
			t.Errorf("the hub was sent %v, want %v", got, want)
		}
		go c.askForRings()
		synctest.Wait()
		if got, want := h.kinds(), []kind{endServe}; !slices.Equal(got, want) {
			t.Errorf("then the hub is sent %v, want %v", got, want)
		}
		close(c.ended)
	})
}

// TestFullSocket stops the hub and fills its socket. Requests that end something fail as without an
// answer, and reach the hub when it reads again. Other requests wait.
func TestFullSocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newSilentHub(t)
		c := clientOf(h)
		raw, err := h.conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		full := request{kind: unpair}
		for err == nil {
			err = ring.TrySend(h.conn, full.encode(), nil)
		}
		if !errors.Is(err, unix.EAGAIN) {
			t.Fatal(err)
		}
		began := time.Now()
		for range 2 {
			c.EndServe(stack.Service{ID: 1})
		}
		if took := time.Since(began); took != 2*answerTime {
			t.Errorf("the ends of two services took %v", took)
		}
		served := make(chan error, 1)
		go func() { served <- c.AddSourceSockets(netip.Addr{}, raw) }()
		time.Sleep(3 * answerTime)
		got := h.kinds()
		time.Sleep(answerTime)
		got = slices.DeleteFunc(append(got, h.kinds()...), func(k kind) bool { return k == full.kind })
		if want := []kind{addSourceSocket}; !slices.Equal(got, want) {
			t.Errorf("when there is room, the hub is sent %v, want %v", got, want)
		}
		c.answer()
		if err := <-served; err != nil {
			t.Error(err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if len(c.owed) != 2 || c.owed[0].kind != endServe {
			t.Errorf("requests are still pending: %v", c.owed)
		}
		close(c.ended)
	})
}

// TestTooManyInBatch checks a batch in whose middle Linux refuses to pass a descriptor. The request
// then fails as a whole. The next one does not take a late answer of the batch for its own.
func TestTooManyInBatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newSilentHub(t)
		c := clientOf(h)
		raw, err := h.conn.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		tries := 0
		defer func(old func(*net.UnixConn, []byte, int) error) { sendSocket = old }(sendSocket)
		sendSocket = func(*net.UnixConn, []byte, int) error {
			if tries++; tries == 5 {
				return unix.ETOOMANYREFS
			}
			return nil
		}
		err = c.AddSourceSockets(netip.Addr{}, slices.Repeat([]syscall.RawConn{raw}, 8)...)
		if !errors.Is(err, unix.ETOOMANYREFS) || tries != 5 || len(c.sourceSockets) != 0 {
			t.Errorf("%v after %d of 8, and %d sockets are repeated at a new hub", err, tries, len(c.sourceSockets))
		}
		late := answer{c.number - 7, unix.EPERM}
		c.answers <- late
		served := make(chan error, 1)
		go func() { served <- c.Serve(stack.Service{ID: 1}) }()
		synctest.Wait()
		if err := c.onMessage(late.encode(), nil); err != nil {
			t.Error(err)
		}
		c.answer()
		if err := <-served; err != nil {
			t.Error(err)
		}
		close(c.ended)
	})
}

// TestTooManyDescriptors checks that a request fails if Linux refuses to pass its descriptor, and
// that it is tried again at a new hub.
func TestTooManyDescriptors(t *testing.T) {
	c := clientOf(newSilentHub(t))
	socket, err := net.ListenUDP("udp", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	raw, err := socket.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	tries := 0
	defer func(old func(*net.UnixConn, []byte, int) error) { sendSocket = old }(sendSocket)
	sendSocket = func(*net.UnixConn, []byte, int) error {
		if tries++; tries == 4 {
			c.answer()
			return nil
		}
		return unix.ETOOMANYREFS
	}
	if err := c.AddSourceSockets(netip.Addr{}, raw); !errors.Is(err, unix.ETOOMANYREFS) {
		t.Error(err)
	}
	c.sourceSockets = []sourceSocket{{raw: raw}}
	c.repeat(c.conn, c.setConn(c.conn))
	if tries != 4 || !c.Up() {
		t.Errorf("%d tries, and the client is up: %t", tries, c.Up())
	}
}

// TestRepeatEndsWithItsHub checks that restoring registrations ends with its hub, and starts again
// at the next.
func TestRepeatEndsWithItsHub(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := newSilentHub(t), newSilentHub(t)
		c := clientOf(one)
		c.services[stack.Service{ID: 1}] = 2
		go c.repeat(one.conn, c.setConn(one.conn))
		synctest.Wait()
		c.setConn(two.conn)
		synctest.Wait()
		if got, want := one.kinds(), []kind{serve}; !slices.Equal(got, want) {
			t.Errorf("the first hub was sent %v, want %v", got, want)
		}
		if got := two.kinds(); got != nil || c.Up() {
			t.Errorf("the next hub was sent %v, and the client is up: %t", got, c.Up())
		}
		c.setConn(nil)
		c.EndServe(stack.Service{ID: 1}) // the next hub never learns of it
		go c.repeat(two.conn, c.setConn(two.conn))
		synctest.Wait()
		c.answer()
		synctest.Wait()
		if got, want := two.kinds(), []kind{serve}; !slices.Equal(got, want) || !c.Up() {
			t.Errorf("the next hub was sent %v, want %v, and the client is up: %t", got, want, c.Up())
		}
	})
}

// TestCloseWhileRejoining checks that a client closed while it connects to the next hub keeps no
// resources.
func TestCloseWhileRejoining(t *testing.T) {
	dir, err := os.MkdirTemp("", "h") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	dir = filepath.Join(dir, "hub")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(dir, socketName), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	own := secret{1}
	go func() { // a hub that accepts everybody, and says no more
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			defer conn.Close()
			memory, err := ring.ReceiveMemory(conn, func(b []byte) (int, error) {
				h, err := decodeHello(b)
				return h.ring, err
			})
			if err != nil {
				return
			}
			_ = unix.Munmap(memory)
			w := welcome{secret: own, span: span{qpnSlot: 1, commSlot: 1}}
			_, _ = conn.Write(w.encode())
		}
	}()
	c, err := Join(ClientConfig{Directory: dir, Receiver: func() func(*Arrival, bool) { return func(*Arrival, bool) {} },
		Changed: func(bool) {}})
	if err != nil {
		t.Fatal(err)
	}
	conn, hub := c.conn, c.hub
	defer func() {
		c.Close()
		hub.Close()
		_ = conn.Close()
	}()
	c.mu.Lock()
	c.closed = true // Close proceeds when the client has joined
	c.mu.Unlock()
	if c.rejoin() {
		t.Error("a closed client continues")
	}
	c.mu.Lock()
	left := c.hub
	c.closed = false
	c.mu.Unlock()
	if left != nil {
		left.Close()
		t.Error("the ring of the next hub is still mapped")
	}
}
