package fabric_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/stack/static"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// TestProcesses: processes wait in virtual time, each at its own, and one runs at a time.
func TestProcesses(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(3)})
	var order []string
	flag := false
	for i, h := range f.Hosts() {
		h.Go(func(p *fabric.Process) {
			p.Sleep(time.Duration(3-i) * time.Millisecond)
			order = append(order, fmt.Sprint(p.Host().Index(), " ", p.Now()))
			if i == 0 {
				flag = true
				return
			}
			p.Until(func() bool { return flag })
			ctx, cancel := p.WithTimeout(context.Background(), time.Second)
			defer cancel()
			p.Until(func() bool { return ctx.Err() != nil })
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				t.Error(ctx.Err())
			}
		})
	}
	if err := f.Wait(time.Second); err == nil {
		t.Error("two processes wait for longer than a second")
	}
	ok(t, f.Wait(time.Second))
	if got, want := fmt.Sprint(order), "[2 1ms 1 2ms 0 3ms]"; got != want || f.Now() < time.Second || f.Now() > 1010*time.Millisecond {
		t.Errorf("%s at %v, want %s", got, f.Now(), want)
	}
}

// TestClose: Close ends processes that wait, with their deferred functions.
func TestClose(t *testing.T) {
	f := must(fabric.New(&fabric.Config{Topology: fabric.Star(1)}))(t)
	ended := 0
	for range 2 {
		f.Hosts()[0].Go(func(p *fabric.Process) {
			defer func() { ended++ }()
			defer p.Sleep(time.Hour)
			p.Until(func() bool { return false })
			t.Error("it goes on")
		})
	}
	f.Run(time.Second)
	f.Close()
	if ended != 2 {
		t.Errorf("%d of 2 processes have ended", ended)
	}
}

// TestClosedByTwo: processes that close the same connection or listener wait for the one that does
// so first, and the time goes on.
func TestClosedByTwo(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	a, b := onStatic(t, f, f.Hosts()[0], roce.Config{}), onStatic(t, f, f.Hosts()[1], roce.Config{})
	closed := ""
	twice := func(what string, p *fabric.Process, c io.Closer) {
		left, began := 2, p.Now()
		for range 2 {
			p.Host().Go(func(p *fabric.Process) {
				err := c.Close()
				if left--; left == 0 && p.Now() == began {
					t.Errorf("%s: nobody has waited", what)
				}
				closed += fmt.Sprintln(what, err)
			})
		}
		p.Until(func() bool { return left == 0 })
	}
	l := must(rsocket.Listen(a.dev, ":7000", nil))(t)
	b.h.Go(func(p *fabric.Process) {
		var conns []*rsocket.Conn
		for range 3 { // of which the listener keeps two for Accept
			conns = append(conns, must(rsocket.Dial(context.Background(), b.dev, a.h.Addr().String()+":7000", nil))(t))
		}
		twice("socket", p, conns[0])
	})
	a.h.Go(func(p *fabric.Process) {
		_ = must(l.AcceptContext(context.Background()))(t)
		p.Sleep(time.Millisecond)
		twice("listener", p, l)
	})
	a.h.Go(func(p *fabric.Process) {
		p.Sleep(2 * time.Millisecond)
		serve(t, a, p)
	})
	b.h.Go(func(p *fabric.Process) {
		p.Sleep(3 * time.Millisecond)
		twice("connection", p, must(rdmacm.Dial(context.Background(), b.dev, a.h.Addr().String()+":7471", nil))(t))
	})
	ok(t, f.Wait(time.Second))
	if n := strings.Count(closed, "<nil>"); n != 4 || strings.Count(closed, net.ErrClosed.Error()) != 2 {
		t.Errorf("%s", closed)
	}
}

// TestCloseDevices: Close ends processes in the midst of rdma_cm and rsocket, and devices can be
// closed afterwards. No goroutine is left.
func TestCloseDevices(t *testing.T) {
	before := runtime.NumGoroutine()
	f := must(fabric.New(&fabric.Config{Topology: fabric.Star(3)}))(t)
	var nodes []*node
	closed := 0
	for i, h := range f.Hosts() {
		s := must(static.New(h, &static.Config{Addr: h.Addr(), Neighbour: f.Neighbour}))(t)
		n := &node{t: t, h: h, dev: must(rdmatransport.Open(s, nil))(t)}
		nodes = append(nodes, n)
		h.Go(func(p *fabric.Process) {
			defer func() { closed++ }()
			l, err := rsocket.Listen(n.dev, ":7000", nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer l.Close()
			for {
				c, err := l.AcceptContext(context.Background())
				if err != nil {
					return
				}
				_, _ = c.Write([]byte("hello"))
				h.Go(func(p *fabric.Process) {
					defer c.Close()
					_, _ = c.Read(make([]byte, 1))
				})
			}
		})
		h.Go(func(p *fabric.Process) {
			defer func() { closed++ }()
			p.Sleep(time.Microsecond)
			to := f.Hosts()[(i+1)%3].Addr().String()
			c, err := rsocket.Dial(context.Background(), n.dev, to+":7000", nil)
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_, _ = io.ReadFull(c, make([]byte, 5))
			_, _ = rdmacm.Dial(context.Background(), n.dev, "10.9.9.9:1", nil)
			_, _ = c.Read(make([]byte, 1))
			t.Error("a byte that nobody has sent")
		})
	}
	f.Run(time.Second)
	f.Close()
	if closed != 6 {
		t.Errorf("%d of 6 processes have ended", closed)
	}
	for _, n := range nodes {
		ok(t, n.dev.Provider().Close())
	}
	noneLeft(t, before)
}

// noneLeft waits until there are no more goroutines than before: some of gVisor's, and of contexts
// that have ended, end a little later.
func noneLeft(t *testing.T, before int) {
	t.Helper()
	for i := 0; runtime.NumGoroutine() > before; i++ {
		if i == 1000 {
			b := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, and %d before\n%s", runtime.NumGoroutine(), before, b[:runtime.Stack(b, true)])
		}
		time.Sleep(time.Millisecond)
	}
}

// TestOneTaken: two processes wait for the same, and what comes is enough for one.
func TestOneTaken(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(1)})
	h := f.Hosts()[0]
	n, got := 0, ""
	for range 2 {
		h.Go(func(p *fabric.Process) {
			p.Until(func() bool { return n > 0 })
			n--
			got += fmt.Sprint(p.Now(), " ")
		})
	}
	for i := range 2 {
		h.Clock().AfterFunc(time.Duration(1+i)*time.Millisecond, func() { n++ })
	}
	ok(t, f.Wait(time.Second))
	if want := "1ms 2ms "; got != want {
		t.Errorf("they go on at %s, want %s", got, want)
	}
}

// TestCallbackWaits: an event's function must not wait, and is told so.
func TestCallbackWaits(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(1)})
	h := f.Hosts()[0]
	var said any
	h.Clock().AfterFunc(0, func() {
		defer func() { said = recover() }()
		h.Clock().Park(func() bool { return false })
	})
	f.Run(time.Second)
	if said == nil {
		t.Error("nothing")
	}
}

// ring has a server and a client at each host: each sends a message to the next one, whose answer
// it waits for. It returns the digest.
func ring(t *testing.T, open func(testing.TB, *fabric.Fabric, *fabric.Host, roce.Config) *node, hosts int) string {
	f := newFabric(t, &fabric.Config{Topology: fabric.LeafSpine(2, hosts/2, 2), Seed: 7})
	rounds := 0
	for i, h := range f.Hosts() {
		n := open(t, f, h, roce.Config{})
		h.Go(func(p *fabric.Process) { serve(t, n, p) })
		h.Go(func(p *fabric.Process) {
			p.Sleep(time.Millisecond) // the peer listens
			ctx, cancel := p.WithTimeout(context.Background(), time.Second)
			defer cancel()
			next := f.Hosts()[(i+1)%hosts]
			c, err := rdmacm.Dial(ctx, n.dev, next.Addr().String()+":7471", &rdmacm.Config{Transport: verbs.RoCEv2, PD: n.pd})
			if err != nil {
				t.Errorf("host %d: %v", i, err)
				return
			}
			defer c.Close()
			for k := range 5 {
				ok(t, c.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{n.mr.SGE(4096, 100)}}))
				ok(t, c.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{n.mr.SGE(0, 100)}}))
				var wcs [1]verbs.WC
				if _, err := c.RecvCQ().Wait(ctx, wcs[:]); err != nil || wcs[0].Err() != nil {
					t.Errorf("host %d: %v, %v", i, err, wcs[0].Err())
				}
				rounds++
				p.Sleep(time.Duration(k) * 10 * time.Microsecond)
			}
		})
	}
	ok(t, f.Wait(5*time.Second))
	if rounds != 5*hosts {
		t.Errorf("%d rounds", rounds)
	}
	return f.Digest()
}

// serve answers the messages of one connection.
func serve(t *testing.T, n *node, p *fabric.Process) {
	l, err := rdmacm.Listen(n.dev, ":7471", &rdmacm.Config{Transport: verbs.RoCEv2, PD: n.pd, Prepare: func(c *rdmacm.Conn) error {
		return c.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{n.mr.SGE(8192, 100)}})
	}})
	if err != nil {
		t.Error(err)
		return
	}
	c, err := l.Accept(context.Background())
	if err != nil {
		t.Error(err)
		return
	}
	for {
		var wcs [1]verbs.WC
		if _, err := c.RecvCQ().Wait(context.Background(), wcs[:]); err != nil || wcs[0].Status != verbs.WCSuccess {
			break
		}
		ok(t, c.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{n.mr.SGE(8192, 100)}}))
		ok(t, c.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{n.mr.SGE(8192, 100)}}))
	}
	ok(t, c.Close())
	ok(t, l.Close())
}

// TestConnections: rdma_cm's calls wait in virtual time, on both stacks, with the same frames each
// time.
func TestConnections(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, c := range stacks {
		t.Run(c.name, func(t *testing.T) {
			first := ring(t, c.open, 6)
			for i := range 4 {
				runtime.GOMAXPROCS(1 + i%3)
				if d := ring(t, c.open, 6); d != first {
					t.Errorf("digest %s, then %s", first, d)
				}
			}
		})
	}
}

// TestOutside: a goroutine that is no process may call what waits. The fabric runs meanwhile.
func TestOutside(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	a, b := onStatic(t, f, f.Hosts()[0], roce.Config{}), onStatic(t, f, f.Hosts()[1], roce.Config{})
	b.h.Go(func(p *fabric.Process) { serve(t, b, p) })
	f.Run(0)
	c := must(rdmacm.Dial(t.Context(), a.dev, b.h.Addr().String()+":7471", &rdmacm.Config{Transport: verbs.RoCEv2}))(t)
	if f.Now() < 4*time.Microsecond {
		t.Errorf("connected at %v", f.Now())
	}
	ok(t, c.Close())
	ok(t, f.Wait(time.Second))
}

// TestOwnHost: a host has connections to itself. The time goes on meanwhile.
func TestOwnHost(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	a := onStatic(t, f, f.Hosts()[0], roce.Config{})
	x, y := connect(a, a, verbs.MTU1024)
	s := x.write(y, 100e3, -1)
	f.Run(time.Millisecond)
	if s.bytes < 1e6 {
		t.Errorf("%d bytes of a QP to another one of its host are acknowledged", s.bytes)
	}
	s.left = 0
	a.h.Go(func(p *fabric.Process) { serve(t, a, p) })
	f.Run(0)
	c := must(rdmacm.Dial(t.Context(), a.dev, a.h.Addr().String()+":7471", &rdmacm.Config{Transport: verbs.RoCEv2}))(t)
	ok(t, c.Close())
	ok(t, f.Wait(time.Second))
	if n := f.Counters().Sent; n != 0 {
		t.Errorf("%d packets leave the host", n)
	}
}

// TestUnwound: a process or a function that panics, or that ends its goroutine as t.Fatal does,
// ends the call that runs the fabric. The fabric can be closed then.
func TestUnwound(t *testing.T) {
	for name, unwind := range map[string]func(){"Goexit": runtime.Goexit, "panic": func() { panic("on purpose") }} {
		for _, how := range []string{"process", "sleeper", "function", "deferred"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				f := must(fabric.New(&fabric.Config{Topology: fabric.Star(2)}))(t)
				h := f.Hosts()[1]
				went, ended, returned := false, 0, false
				for range 2 {
					h.Go(func(p *fabric.Process) {
						defer func() { ended++ }()
						p.Until(func() bool { return false })
					})
				}
				switch how {
				case "process":
					h.Go(func(*fabric.Process) { unwind() })
				case "sleeper":
					h.Go(func(p *fabric.Process) {
						p.Sleep(time.Millisecond)
						unwind()
					})
				case "function":
					h.Clock().AfterFunc(time.Millisecond, unwind)
				case "deferred":
					h.Go(func(p *fabric.Process) {
						defer unwind()
						p.Until(func() bool { return false })
					})
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					defer func() { _ = recover() }()
					defer f.Close()
					defer func() { went = true }()
					f.Run(time.Second)
					returned = true
				}()
				<-done
				if !went || returned != (how == "deferred") || ended != 2 {
					t.Errorf("Run has returned: %t; %d of 2 other processes have ended", returned, ended)
				}
				f.Close()
			})
		}
	}
}
