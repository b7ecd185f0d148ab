package rsocket_test

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// Many connections between two devices, 10,000 in the long run. Each works before and after all
// have been idle, and they leak nothing. The memory and goroutines of an idle connection, for both
// ends together, are bounded and logged.
func TestManyConnections(t *testing.T) {
	conns := stacktest.Size(100, 100, 10_000)
	both(t, func(t *testing.T, transport verbs.Transport) {
		for name, cfg := range map[string]*rsocket.Config{
			"default": {Transport: transport, Backlog: 1024},
			"small":   {Transport: transport, Backlog: 1024, SQSize: 16, RQSize: 16, SendBuffer: 4096, RecvBuffer: 4096},
		} {
			t.Run(name, func(t *testing.T) { many(t, cfg, conns) })
		}
	})
}

func many(t *testing.T, cfg *rsocket.Config, conns int) {
	lan := new(pipe.Switch)
	room := netstack.TCPConfig{Memory: int64(max(conns, 1000)) * 512 << 10} // for iWARP
	to := openWith(t, lan.Port(), &netstack.Config{Addrs: []string{server}, TCP: room})
	from := openWith(t, lan.Port(), &netstack.Config{Addrs: []string{client}, TCP: room})
	before := usage()
	l, err := rsocket.Listen(to, "10.0.0.1:7", cfg)
	ok(t, err)
	var serving sync.WaitGroup
	for range conns {
		serving.Go(func() {
			c, err := l.AcceptContext(t.Context())
			if err != nil {
				t.Error(err)
				return
			}
			serving.Go(func() {
				b := make([]byte, 64)
				n, err := c.Read(b)
				for ; err == nil; n, err = c.Read(b) {
					if _, err := c.Write(b[:n]); err != nil {
						t.Error(err)
					}
				}
				if err != io.EOF {
					t.Error(err)
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
	clients := make([]*rsocket.Conn, conns)
	each := func(f func(i int) error) {
		t.Helper()
		var working sync.WaitGroup
		next := make(chan int)
		for range 32 {
			working.Go(func() {
				for i := range next {
					if err := f(i); err != nil {
						t.Errorf("connection %d: %v", i, err)
					}
				}
			})
		}
		for i := range conns {
			next <- i
		}
		close(next)
		working.Wait()
		if t.Failed() {
			t.FailNow()
		}
	}
	began := time.Now()
	each(func(i int) (err error) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		clients[i], err = rsocket.Dial(ctx, from, "10.0.0.1:7", cfg)
		return err
	})
	took := time.Since(began)
	echo := func(i int) error { return checkEcho(clients[i], []byte{byte(i), byte(i >> 8), 3}) }
	each(echo)
	// A quarter more than the values in tests/bench/README.md for each end. One goroutine is the
	// test's, and some are the devices'.
	most := 2 * 220.0 * 1024
	if cfg.SQSize != 0 {
		most = 2 * 28 * 1024
	}
	n, buffers := float64(conns), float64(2*(bufferSize(cfg.SendBuffer)+bufferSize(cfg.RecvBuffer)))
	var rest, stacks, goroutines float64
	// A connection is not idle immediately: acknowledgements are in flight, and iWARP frees a
	// receiver's memory after a second or two.
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(100 * time.Millisecond) {
		idle := usage()
		rest, stacks = (idle.heap-before.heap)/n-buffers, (idle.stacks-before.stacks)/n
		goroutines = (idle.goroutines - before.goroutines) / n
		if rest <= most && stacks <= 32<<10 && goroutines <= 3.5 {
			break
		}
		if time.Now().After(deadline) {
			t.Errorf("an idle connection uses more than %.0f KiB in addition to its buffers, 32 KiB of stacks or 3.5 goroutines", most/1024)
			break
		}
	}
	t.Logf("result: %d connections in %v; each %.1f KiB of heap, of which %.1f KiB are no buffers, %.1f KiB of stacks and %.1f goroutines",
		conns, took.Round(time.Millisecond), (rest+buffers)/1024, rest/1024, stacks/1024, goroutines)
	each(echo)
	each(func(i int) error { return clients[i].Close() })
	serving.Wait()
	ok(t, l.Close())
	for _, dev := range []*verbs.Device{to, from} {
		if r := dev.Resources(); r.QP != 0 || r.CQ != 0 || r.MR != 0 || r.PD > 1 {
			t.Errorf("leaked: %+v", r)
		}
	}
}

// bufferSize returns the size of a buffer of which the Config has n.
func bufferSize(n int) int {
	if n == 0 {
		return 128 << 10
	}
	return n
}

// checkEcho sends bytes and compares the answer.
func checkEcho(c net.Conn, b []byte) error {
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := c.Write(b); err != nil {
		return err
	}
	got := make([]byte, len(b))
	if _, err := io.ReadFull(c, got); err != nil {
		return err
	}
	if string(got) != string(b) {
		return errors.New("the answer has different bytes")
	}
	return c.SetDeadline(time.Time{})
}

type used struct{ heap, stacks, goroutines float64 }

// usage returns the current memory use of the process in bytes, and its goroutines.
func usage() used {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return used{float64(m.HeapAlloc), float64(m.StackInuse), float64(runtime.NumGoroutine())}
}
