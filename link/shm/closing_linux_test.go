package shm

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

// TestCloseDuringHandshake checks that Close ends connections in the handshake, accepted or not.
func TestCloseDuringHandshake(t *testing.T) {
	t.Parallel()
	dir := directory(t)
	for range 100 {
		l, err := Open("x", &Config{Directory: dir})
		if err != nil {
			t.Fatal(err)
		}
		sockets, err := filepath.Glob(filepath.Join(dir, "shm-x", "*"))
		if err != nil {
			t.Fatal(err)
		}
		var dialing sync.WaitGroup
		var begun sync.WaitGroup
		begun.Add(1)
		once := sync.OnceFunc(begun.Done)
		dialing.Go(func() {
			defer once()
			for {
				var conns []net.Conn
				for _, name := range sockets {
					if c, err := net.Dial("unixpacket", name); err == nil {
						conns = append(conns, c)
					}
				}
				once()
				if len(conns) == 0 {
					return // it has left
				}
				defer func() {
					for _, c := range conns {
						_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
						if _, err := c.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
							t.Error("a connection is still open after Close")
						}
						_ = c.Close()
					}
				}()
			}
		})
		begun.Wait()
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		dialing.Wait()
	}
}
