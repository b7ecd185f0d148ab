package fabric_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// echo is an RPC program and its binding. A call has the number of bytes to reply with, and data of
// any length. The length comes before the data, in replies too.
type echo struct {
	clock verbs.Clock
	takes time.Duration // for each call

	calls, most int // at a time
}

const (
	callHeader  = 48 // of a call, up to its data
	replyHeader = 28
)

func words(list ...int) (b []byte) {
	for _, w := range list {
		b = binary.BigEndian.AppendUint32(b, uint32(w))
	}
	return b
}

// pattern has n bytes that differ from those of others.
func pattern(n int, of uint32) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(uint32(i)*7 ^ uint32(i)>>8 ^ of*0x9d)
	}
	return b
}

func echoCall(xid uint32, sends, wants int) []byte {
	return append(words(int(xid), 0, 2, 0x20000000, 1, 1, 0, 0, 0, 0, wants, sends), pattern(sends, xid)...)
}

func (echo) CallItems(call []byte) []rpcrdma.Item {
	if len(call) < callHeader {
		return nil
	}
	return []rpcrdma.Item{{Offset: callHeader, Length: int(binary.BigEndian.Uint32(call[callHeader-4:]))}}
}

func (echo) ReplyItems(_, reply []byte) []rpcrdma.Item {
	if len(reply) < replyHeader {
		return nil
	}
	return []rpcrdma.Item{{Offset: replyHeader, Length: int(binary.BigEndian.Uint32(reply[replyHeader-4:]))}}
}

func (echo) ReplySize(call []byte) (item, rest int) {
	return int(binary.BigEndian.Uint32(call[callHeader-8:])), replyHeader
}

// HandleRPC returns a reply, or none if the data of the call is wrong.
func (e *echo) HandleRPC(ctx context.Context, c *rpcrdma.Call) []byte { return e.answer(ctx, c, nil) }

// answer is HandleRPC, and calls the client meanwhile by back, unless that is nil.
func (e *echo) answer(ctx context.Context, c *rpcrdma.Call, back func(context.Context, []byte) ([]byte, error)) []byte {
	e.calls++
	e.most = max(e.most, e.calls)
	defer func() { e.calls-- }()
	passed, timer := e.clock.NewTimer(e.takes)
	defer timer.Stop()
	e.clock.Park(func() bool { return len(passed) > 0 || ctx.Err() != nil })
	xid := binary.BigEndian.Uint32(c.Message)
	wants, data := int(binary.BigEndian.Uint32(c.Message[callHeader-8:])), c.Message[callHeader:]
	if !bytes.Equal(data, pattern(len(data), xid)) {
		return nil
	}
	if back != nil {
		if reply, err := back(ctx, echoCall(xid, 100, 200)); err != nil || checkEcho(reply, xid, 200) != nil {
			return nil
		}
	}
	return append(words(int(xid), 1, 0, 0, 0, 0, wants), pattern(wants, ^xid)...)
}

// checkEcho returns what is wrong with the reply to a call.
func checkEcho(reply []byte, xid uint32, wants int) error {
	if want := append(words(int(xid), 1, 0, 0, 0, 0, wants), pattern(wants, ^xid)...); !bytes.Equal(reply, want) {
		return fmt.Errorf("call %d: a reply of %d bytes is wrong: it has %d", xid, len(want), len(reply))
	}
	return nil
}

// rpc has a server at one host, and two clients at another one, whose cable is cut for a while. It
// returns the digest.
func rpc(t *testing.T, open func(testing.TB, *fabric.Fabric, *fabric.Host, roce.Config) *node, seed uint64) string {
	f := newFabric(t, &fabric.Config{Topology: fabric.LeafSpine(2, 2, 2), Seed: seed})
	a, b := open(t, f, f.Hosts()[0], roce.Config{}), open(t, f, f.Hosts()[3], roce.Config{})
	const callers, calls, backward = 4, 6, 2
	server := &echo{clock: a.dev.Clock(), takes: 10 * time.Microsecond}
	l := must(rpcrdma.Listen(a.dev, ":20049", &rpcrdma.Config{Binding: server, Memory: 3 << 20, BackwardCredits: backward}))(t)
	a.h.Go(func(p *fabric.Process) {
		ok(t, l.ServeConns(func(_ context.Context, c *rpcrdma.Conn) (rpcrdma.Handler, error) {
			return rpcrdma.HandlerFunc(func(ctx context.Context, call *rpcrdma.Call) []byte {
				return server.answer(ctx, call, c.Call)
			}), nil
		}))
	})
	clients, replies := 2, 0
	for i, binding := range []rpcrdma.Binding{echo{}, nil} {
		b.h.Go(func(p *fabric.Process) {
			own := &echo{clock: b.dev.Clock(), takes: time.Microsecond}
			c := must(rpcrdma.Dial(context.Background(), b.dev, a.h.Addr().String()+":20049",
				&rpcrdma.Config{Binding: binding, Credits: []int{0, 2}[i], BackwardCredits: backward, Backward: own}))(t)
			left := callers
			for caller := range callers {
				b.h.Go(func(p *fabric.Process) {
					for k := range calls {
						xid := uint32(i<<16 | caller<<8 | k)
						sends, wants := []int{0, 4000, 200_000}[k%3], []int{0, 300_000}[(k+caller)%2]
						reply := must(c.Call(context.Background(), echoCall(xid, sends, wants)))(t)
						ok(t, checkEcho(reply, xid, wants))
						replies++
					}
					left--
				})
			}
			p.Until(func() bool { return left == 0 })
			b.h.Go(func(*fabric.Process) { ok(t, c.Close()) }) // at the same time
			ok(t, c.Close())
			if clients--; own.most > backward {
				t.Errorf("%d calls in the backward direction at a time", own.most)
			}
		})
	}
	f.Hosts()[1].Go(func(p *fabric.Process) {
		p.Sleep(100 * time.Microsecond)
		b.h.Port().SetDown(true)
		p.Sleep(5 * time.Microsecond)
		b.h.Port().SetDown(false)
	})
	a.h.Go(func(p *fabric.Process) {
		p.Until(func() bool { return clients == 0 })
		ok(t, l.Close())
	})
	ok(t, f.Wait(time.Second))
	s := l.Stats()
	if n := uint64(2 * callers * calls); uint64(replies) != n || s.Calls != n || s.Replies != n || s.Errors != 0 || s.Connections != 0 {
		t.Errorf("%d replies of %d, %+v", replies, n, s)
	}
	if s.ByRead < 2*2*callers*200_000 || s.ByWrite < 2*3*callers*300_000 || s.Waited == 0 {
		t.Errorf("by chunks, and waits for memory: %+v", s)
	}
	if server.most < callers {
		t.Errorf("%d calls at a time, of %d callers at two clients", server.most, callers)
	}
	if lost := f.Counters().Lost; lost == 0 {
		t.Error("no packet is lost")
	}
	return f.Digest()
}

// TestRPC: RPC over RDMA waits in virtual time, on both stacks, with the same frames each time:
// calls in both directions, short and with chunks, for credits and for memory, also while packets
// are lost. No goroutine is left.
func TestRPC(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	before := runtime.NumGoroutine()
	for name, open := range map[string]func(testing.TB, *fabric.Fabric, *fabric.Host, roce.Config) *node{
		"static": onStatic, "netstack": onNetstack,
	} {
		var digests []string
		for i, seed := range []uint64{1, 1, 1, 2} {
			runtime.GOMAXPROCS(1 + i%3)
			t.Run(fmt.Sprint(name, " ", i), func(t *testing.T) { digests = append(digests, rpc(t, open, seed)) })
		}
		if len(digests) != 4 || digests[0] != digests[1] || digests[0] != digests[2] || digests[0] == digests[3] {
			t.Errorf("%s: digests %s", name, digests)
		}
	}
	noneLeft(t, before)
}

// TestCloseRPC: Close ends servers and clients in the midst of calls. Their devices can be closed
// afterwards, and no goroutine is left.
func TestCloseRPC(t *testing.T) {
	before := runtime.NumGoroutine()
	t.Run("run", func(t *testing.T) {
		f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
		a, b := onStatic(t, f, f.Hosts()[0], roce.Config{}), onStatic(t, f, f.Hosts()[1], roce.Config{})
		ended := 0
		a.h.Go(func(p *fabric.Process) {
			defer func() { ended++ }()
			l := must(rpcrdma.Listen(a.dev, ":20049", nil))(t)
			defer l.Close()
			_ = l.Serve(&echo{clock: a.dev.Clock(), takes: time.Hour})
			t.Error("Serve has returned")
		})
		b.h.Go(func(p *fabric.Process) {
			defer func() { ended++ }()
			p.Sleep(time.Microsecond)
			c := must(rpcrdma.Dial(context.Background(), b.dev, a.h.Addr().String()+":20049", nil))(t)
			defer c.Close()
			for k := range uint32(2) { // the second one waits for a credit
				b.h.Go(func(p *fabric.Process) {
					defer func() { ended++ }()
					_, err := c.Call(context.Background(), echoCall(k, 100_000, 0))
					t.Error("the call has ended: ", err)
				})
			}
			p.Until(func() bool { return false })
		})
		f.Run(time.Millisecond)
		f.Close()
		if ended != 4 {
			t.Errorf("%d of 4 processes have ended", ended)
		}
	})
	noneLeft(t, before)
}

// TestRPCNewcomers: clients come while others have all places of a server. They get those of
// others, and wait in virtual time until the others' calls have returned.
func TestRPCNewcomers(t *testing.T) {
	const places, clients, takes = 4, 7, 200 * time.Microsecond
	run := func() string {
		f := newFabric(t, &fabric.Config{Topology: fabric.LeafSpine(2, 4, 2), Seed: 3})
		var nodes []*node
		for _, h := range f.Hosts() {
			nodes = append(nodes, onStatic(t, f, h, roce.Config{}))
		}
		to := nodes[0]
		server := &echo{clock: to.dev.Clock(), takes: takes}
		l := must(rpcrdma.Listen(to.dev, ":20049", &rpcrdma.Config{MaxConns: places}))(t)
		to.h.Go(func(p *fabric.Process) {
			ok(t, l.Serve(rpcrdma.HandlerFunc(func(_ context.Context, c *rpcrdma.Call) []byte {
				return server.HandleRPC(context.Background(), c) // although its connection ends
			})))
		})
		served, longest := 0, time.Duration(0)
		for i, n := range nodes[1:] {
			n.h.Go(func(p *fabric.Process) {
				if i >= places { // when the others' calls are being served
					p.Sleep(takes / 4)
				}
				for xid := uint32(i) << 8; ; xid++ {
					began := p.Now()
					c, err := rpcrdma.Dial(context.Background(), n.dev, to.h.Addr().String()+":20049", nil)
					if err != nil {
						continue // as many wait already as may
					}
					longest = max(longest, p.Now()-began)
					reply, err := c.Call(context.Background(), echoCall(xid, 10, 10))
					ok(t, c.Close())
					if err == nil {
						ok(t, checkEcho(reply, xid, 10))
						break
					}
				}
				if served++; served == clients {
					ok(t, l.Close())
				}
			})
		}
		ok(t, f.Wait(time.Second))
		if s := l.Stats().Admission; s.Displaced == 0 || s.Held != 0 {
			t.Errorf("%+v", s)
		}
		if longest < takes/2 {
			t.Errorf("nobody waits longer than %v", longest)
		}
		return f.Digest()
	}
	if first, second := run(), run(); second != first {
		t.Errorf("digest %s, then %s", first, second)
	}
}

// TestRPCWithWorkers: the frames are the same if several hosts run at the same time.
func TestRPCWithWorkers(t *testing.T) {
	var digests []string
	for _, workers := range []int{0, 2} {
		f := newFabric(t, &fabric.Config{Topology: fabric.LeafSpine(2, 2, 2), Seed: 5, Workers: workers})
		for i, h := range f.Hosts() {
			n := onStatic(t, f, h, roce.Config{})
			l := must(rpcrdma.Listen(n.dev, ":20049", &rpcrdma.Config{Binding: echo{}}))(t)
			h.Go(func(p *fabric.Process) {
				if err := l.Serve(&echo{clock: n.dev.Clock(), takes: time.Microsecond}); err != nil {
					t.Error(err)
				}
			})
			to := f.Hosts()[(i+2)%4].Addr().String() + ":20049"
			h.Go(func(p *fabric.Process) {
				c, err := rpcrdma.Dial(context.Background(), n.dev, to, &rpcrdma.Config{Binding: echo{}})
				if err != nil {
					t.Error(err)
					return
				}
				for xid := range uint32(5) {
					size := int(xid) * 30_000
					reply, err := c.Call(context.Background(), echoCall(xid, size, size))
					if err = errors.Join(err, checkEcho(reply, xid, size)); err != nil {
						t.Error(err)
					}
				}
				if err := c.Close(); err != nil {
					t.Error(err)
				}
				p.Sleep(time.Millisecond) // the other clients end
				if err := l.Close(); err != nil {
					t.Error(err)
				}
			})
		}
		ok(t, f.Wait(time.Second))
		digests = append(digests, f.Digest())
	}
	if digests[0] != digests[1] {
		t.Errorf("digests %s", digests)
	}
}
