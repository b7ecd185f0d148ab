package hub

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/ring"
)

// TestCloseWhileRejoining: a client that is closed while it connects to the next hub keeps nothing of that.
func TestCloseWhileRejoining(t *testing.T) {
	dir, err := os.MkdirTemp("", "h") // the path of a socket is short
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
	go func() { // a hub that lets in whoever comes, and says no more
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
	c, err := Join(ClientConfig{Directory: dir, Receiver: func() func(*Arrival, bool) { return func(*Arrival, bool) {} }, Changed: func(bool) {}})
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
	c.closed = true // Close goes on when the client is in
	c.mu.Unlock()
	if c.rejoin() {
		t.Error("a client that is closed goes on")
	}
	c.mu.Lock()
	left := c.hub
	c.closed = false
	c.mu.Unlock()
	if left != nil {
		left.Close()
		t.Error("the ring of the next hub is left")
	}
}
