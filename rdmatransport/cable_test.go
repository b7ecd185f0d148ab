package rdmatransport_test

import (
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/link/stream"
	"github.com/softrnic/softrnic/verbs"
)

// cutCable forwards the connections to one unix socket to another, until it is cut.
type cutCable struct {
	mu    sync.Mutex
	ends  []net.Conn
	ended sync.WaitGroup
}

func (c *cutCable) connect(near net.Conn, to string) {
	far, err := net.Dial("unix", to)
	if err != nil {
		_ = near.Close()
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ends = append(c.ends, near, far)
	for from, to := range map[net.Conn]net.Conn{near: far, far: near} {
		c.ended.Go(func() { _, _ = io.Copy(to, from); _ = to.Close() })
	}
}

func (c *cutCable) cut() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.ends {
		_ = e.Close()
	}
	c.ends = nil
}

// TestCableIsCut: over link/stream, the end of the connection is a cable that is unplugged, not a
// host that has left. Programs are told that the port is down, and their connections go on once the
// cable is back.
func TestCableIsCut(t *testing.T) {
	t.Parallel()
	both(t, func(t *testing.T, transport verbs.Transport) {
		t.Parallel()
		dir := t.TempDir()
		here, there := filepath.Join(dir, "here"), filepath.Join(dir, "there")
		l := must(net.Listen("unix", here))(t)
		lan := new(cutCable)
		t.Cleanup(func() { l.Close(); lan.cut(); lan.ended.Wait() })
		lan.ended.Go(func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				lan.connect(c, there)
			}
		})
		a := newStationOn(t, must(stream.Open(there, &stream.Config{Listening: true}))(t), "10.0.0.1/24", nil)
		b := newStationOn(t, must(stream.Open(here, nil))(t), "10.0.0.2/24", nil)
		x, y := dial(b, a, transport, nil)
		bothWays(t, x, y)
		lan.cut()
		for _, want := range []verbs.AsyncEventType{verbs.EventPortErr, verbs.EventPortActive} {
			for _, s := range []*station{a, b} {
				for s.event().Type != want { // the port of a has become active before
				}
			}
		}
		bothWays(t, x, y)
	})
}
