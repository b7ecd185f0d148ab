package rdmatransport_test

import (
	"context"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// heapInUse returns the bytes in use on the heap after garbage collection.
func heapInUse() int {
	for range 3 { // pools release their memory gradually
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// Many unknown peers cost an iWARP listener little, whatever they send. They do not keep other
// peers out, unless their requests fill the backlog. When they have left, in order or not, nothing
// of them remains. In the long run there are a thousand.
func TestUnansweredRequests(t *testing.T) {
	const mostEach, mostLeft = 64 << 10, 8 << 20 // heap, in bytes
	peers := stacktest.Size(200, 200, 1000)
	f := mpa.Frame{CRC: true, Revision: 2, HasEnhanced: true, Enhanced: mpa.Enhanced{IRD: 16, ORD: 16}}
	request := make([]byte, f.Len())
	must(f.Encode(request))(t)
	for _, c := range []struct {
		name string
		sent []byte
		more []byte // data that the peer then tries to send
		full bool   // the backlog is full
	}{
		{name: "half a request", sent: request[:18]},
		{name: "request", sent: request, full: true},
		{name: "request and data", sent: request, more: make([]byte, 1<<20)},
	} {
		t.Run(c.name, func(t *testing.T) {
			lan := new(pipe.Switch)
			a, b := newStation(t, lan, "10.0.0.1/24"), newStation(t, lan, "10.0.0.2/24")
			l := must(rdmacm.Listen(b.dev, ":7471", &rdmacm.Config{Transport: verbs.IWARP, Backlog: peers}))(t)
			defer l.Close()
			// reach dials, and expects its request to be the first that the application gets.
			reach := func() {
				t.Helper()
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				done := make(chan error, 1)
				go func() {
					cfg := &rdmacm.Config{Transport: verbs.IWARP, Param: rdmacm.DefaultConnParam()}
					cfg.Param.PrivateData = []byte("me")
					conn, err := rdmacm.Dial(ctx, a.dev, "10.0.0.2:7471", cfg)
					if err == nil {
						err = conn.Close()
					}
					done <- err
				}()
				r := must(l.Request(ctx))(t)
				if got := r.Peer().PrivateData; string(got) != "me" {
					t.Errorf("request with private data %q", got)
				}
				conn := must(r.Accept(ctx, nil))(t)
				<-conn.Done()
				conn.Close()
				if err := <-done; err != nil {
					t.Error(err)
				}
			}
			reach() // allocates what is allocated once

			goroutines, before := runtime.NumGoroutine(), heapInUse()
			streams := make([]stack.Stream, peers)
			var wg sync.WaitGroup
			for k := range 8 {
				wg.Go(func() {
					for i := k; i < peers; i += 8 {
						s, err := a.host.DialStream(t.Context(), netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.2:7471"))
						if err != nil {
							t.Error(err)
							return
						}
						streams[i] = s
						_, _ = s.Write(c.sent)
						_, _ = s.Write(c.more) // unsent data remains in the test's send buffer
					}
				})
			}
			wg.Wait()
			if t.Failed() {
				return
			}
			if grown := heapInUse() - before; grown > peers*mostEach {
				t.Errorf("the heap has grown by %d MB", grown>>20)
			}
			if !c.full {
				reach()
			}

			for i, s := range streams {
				if i%2 == 0 {
					s.Abort()
				} else {
					s.Close()
				}
			}
			clear(streams)
			for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
			if n := runtime.NumGoroutine(); n > goroutines {
				t.Errorf("%d goroutines, %d before", n, goroutines)
			}
			if left := heapInUse() - before; left > mostLeft {

				t.Errorf("%d MB are left", left>>20)
			}
			reach()
		})
	}
}
