package rxsocket

import (
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/idle"
	"github.com/softrnic/softrnic/stack"
)

// counter is a Receiver that counts.
type counter struct{ got chan int }

func (counter) Polling() bool                { return false }
func (c counter) Deliver(a *Arrival, _ bool) { c.got <- len(a.Payload) }

// runDirectWait receives on sockets at addresses until the test ends, and returns sockets that send
// to them.
func runDirectWait(t testing.TB, addrs ...string) (got chan int, to []*net.UDPConn) {
	t.Helper()
	e := &idle.DirectWait{}
	got = make(chan int, 64)
	for _, a := range addrs {
		s, err := Open(netip.MustParseAddr(a), "", counter{got})
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan struct{})
		go func() { s.RunDirectWait(e); close(ended) }()
		c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(netip.AddrPortFrom(s.Addr(), stack.RoCEPort)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close(); s.Close(); <-ended })
		to = append(to, c)
	}
	return got, to
}

// TestDirectWait checks that each of several sockets receives with one P, at any time, and that
// other goroutines run.
func TestDirectWait(t *testing.T) {
	for _, procs := range []int{1, 2} {
		for _, addrs := range [][]string{{"127.14.9.2"}, {"127.14.9.2", "127.14.9.3", "127.14.9.4"}} {
			t.Run(fmt.Sprintf("%d processors, %d sockets", procs, len(addrs)), func(t *testing.T) {
				old := runtime.GOMAXPROCS(procs)
				t.Cleanup(func() { runtime.GOMAXPROCS(old) })
				got, to := runDirectWait(t, addrs...)
				for i := range 60 {
					n := 1 + i
					if _, err := to[i%len(to)].Write(make([]byte, n)); err != nil {
						t.Fatal(err)
					}
					select {
					case m := <-got:
						if m != n {
							t.Errorf("%d bytes arrived, want %d", m, n)
						}
					case <-time.After(20 * time.Second):
						t.Fatalf("datagram %d did not arrive", i)
					}
					if i%20 == 19 {
						time.Sleep(2 * idle.DirectWaitTime) // the scheduler waits for the next one
					}
				}
			})
		}
	}
}

// BenchmarkDirectWait measures a datagram through a waiting socket.
func BenchmarkDirectWait(b *testing.B) {
	got, to := runDirectWait(b, "127.14.9.5")
	payload := make([]byte, 64)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := to[0].Write(payload); err != nil {
			b.Fatal(err)
		}
		<-got
	}
}
