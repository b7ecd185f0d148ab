package rdmatransport_test

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// overShared runs a test over a network stack of its own, and over the kernel's sockets, which join
// datagrams of several QPs.
func overShared(t *testing.T, f func(t *testing.T, a1, a2, b *station, s *sharing)) {
	t.Parallel()
	for _, m := range stacktest.Media {
		if m.Name == "pipe" || m.Name == "kernel" {
			t.Run(m.Name, func(t *testing.T) {
				t.Parallel()
				a1, a2, b, s := medium{m}.shared(t)
				f(t, a1, a2, b, s)
			})
		}
	}
}

// bothWays sends a message in each direction.
func bothWays(t *testing.T, on ...*rdmacm.Conn) {
	t.Helper()
	for i, c := range on {
		peer := on[i^1]
		in, out := must(peer.PD().RegMR(make([]byte, 100_000), verbs.AccessLocalWrite))(t), must(c.PD().RegMR(make([]byte, 100_000), 0))(t)
		for j := range out.Buf() {
			out.Buf()[j] = byte(j * (i + 3) >> 3)
		}
		ok(t, peer.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{in.SGE(0, len(in.Buf()))}}))
		ok(t, c.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled,
			SGList: []verbs.SGE{out.SGE(0, len(out.Buf()))}}))
		for _, cq := range []*verbs.CQ{c.QP().SendCQ(), peer.QP().RecvCQ()} {
			if wc := poll(t, cq); wc.Status != verbs.WCSuccess {
				t.Fatalf("%v", wc.Status)
			}
		}
		settle(t, peer.QP())
		if !bytes.Equal(in.Buf(), out.Buf()) {
			t.Fatal("the received data differs")
		}
		ok(t, in.Close())
		ok(t, out.Close())
	}
}

// Two devices at one address connect to a peer and to each other, and accept connections.
func TestSharedAddress(t *testing.T) {
	overShared(t, func(t *testing.T, a1, a2, b *station, s *sharing) {
		both(t, func(t *testing.T, transport verbs.Transport) {
			for _, pair := range [][2]*station{{a1, b}, {a2, b}, {b, a1}, {b, a2}, {a1, a2}, {a2, a1}, {a1, a1}} {
				x, y := dial(pair[0], pair[1], transport, nil)
				bothWays(t, x, y)
				for i, c := range []*rdmacm.Conn{x, y} {
					if h, shared := pair[i].network.(*sharer); shared && !h.numbers.QPNs.Contains(c.QP().Num()) {
						t.Errorf("QPN %#x is not one of %+v", c.QP().Num(), h.numbers.QPNs)
					}
				}
				ok(t, x.Close())
				<-y.Done()
				ok(t, y.Close())
			}
		})
	})
}

// bound creates an ID in a port space and binds it.
func (s *station) bound(space rdmacm.PortSpace, addr string) (*rdmacm.SyncID, error) {
	s.t.Helper()
	id := must(rdmacm.CreateSyncID(space, s.dev))(s.t)
	s.t.Cleanup(func() { _ = id.Close() })
	ok(s.t, id.SetTransports(verbs.RoCEv2))
	return id, id.Bind(netip.MustParseAddrPort(addr))
}

// A port belongs to one process from Bind on. An ephemeral port that is in use is replaced by
// another.
func TestSharedPorts(t *testing.T) {
	overShared(t, func(t *testing.T, a1, a2, b *station, s *sharing) {
		here := a1.at(7471)
		for _, space := range []rdmacm.PortSpace{rdmacm.TCP, rdmacm.UDP} {
			first := must(a1.bound(space, here))(t)
			for there, want := range map[string]error{here: syscall.EADDRINUSE, "0.0.0.0:7471": syscall.EADDRNOTAVAIL,
				"[::]:7471": syscall.EADDRNOTAVAIL} {
				if _, err := a2.bound(space, there); !errors.Is(err, want) {
					t.Errorf("%v %s, which another process has bound: %v, want %v", space, there, err, want)
				}
			}
			must(a2.bound(space, a2.at(7472)))(t)
			ok(t, first.Close())
			second := must(a2.bound(space, here))(t)
			ok(t, second.Listen(0))
			if _, err := a1.bound(space, "0.0.0.0:7471"); !errors.Is(err, syscall.EADDRNOTAVAIL) {
				t.Errorf("%v: a port that another process listens on: %v, want EADDRNOTAVAIL", space, err)
			}
			ok(t, second.Close())
		}
		// A port with SetReuseAddr is in use once there is a listener.
		var ids []*rdmacm.SyncID
		for _, a := range []*station{a1, a2} {
			id := must(rdmacm.CreateSyncID(rdmacm.TCP, a.dev))(t)
			defer id.Close()
			ok(t, id.SetTransports(verbs.RoCEv2))
			ok(t, id.SetReuseAddr(true))
			ok(t, id.Bind(netip.MustParseAddrPort(here)))
			ids = append(ids, id)
		}
		ok(t, ids[0].Listen(0))
		if err := ids[1].Listen(0); !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("a reused port that another process listens on: %v, want EADDRINUSE", err)
		}

		s.mu.Lock()
		s.busy = 5
		s.mu.Unlock()
		id := must(a1.bound(rdmacm.TCP, a1.at(0)))(t)
		ok(t, id.Listen(0))
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.busy != 0 || id.LocalAddr().Port() < 32768 {
			t.Errorf("%d ports were not tried; bound to %v", s.busy, id.LocalAddr())
		}
		s.busy = 1000
		s.mu.Unlock()
		_, err := a1.bound(rdmacm.TCP, a1.at(0))
		s.mu.Lock()
		if s.busy = 0; !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("every port is in use: %v, want EADDRINUSE", err)
		}
	})
}

// A program has two devices at one address, and listens at all addresses. The first gets the
// requests, and both connect.
func TestSharedByRails(t *testing.T) {
	overShared(t, func(t *testing.T, a1, a2, b *station, s *sharing) {
		both(t, func(t *testing.T, transport verbs.Transport) {
			for _, all := range []string{"0.0.0.0:7473", "[::]:7473"} {
				l := must(rdmacm.CreateSyncID(rdmacm.TCP, a1.dev, a2.dev))(t)
				ok(t, l.SetTransports(transport))
				ok(t, l.Bind(netip.MustParseAddrPort(all)))
				ok(t, l.Listen(0))
				for _, from := range []*station{b, a2} {
					dialed := make(chan error, 1)
					go func() {
						c, err := rdmacm.Dial(within(t), from.dev, a1.at(7473), &rdmacm.Config{Transport: transport, PD: from.pd})
						if err == nil {
							err = c.Close()
						}
						dialed <- err
					}()
					id := must(l.GetRequest(within(t)))(t)
					if id.Device() != a1.dev {
						t.Errorf("%s, from %v: the request is for the second device", all, from.addr)
					}
					ok(t, id.Reject(nil))
					if err := <-dialed; !errors.Is(err, syscall.ECONNREFUSED) {
						t.Errorf("%v: want a rejection", err)
					}
					ok(t, id.Close())
				}
				ok(t, l.Close())
			}
		})
	})
}

// Two processes listen, and each gets its own requests. Without a listener, a request is rejected
// at once.
func TestSharedListeners(t *testing.T) {
	overShared(t, func(t *testing.T, a1, a2, b *station, s *sharing) {
		ctx := within(t)
		for _, to := range []string{b.at(1), a1.at(1)} {
			for _, from := range []*station{b, a1} {
				_, err := rdmacm.Dial(ctx, from.dev, to, &rdmacm.Config{Transport: verbs.RoCEv2, PD: from.pd})
				if !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("%v to %s: %v, want a rejection", from.addr, to, err)
				}
			}
		}
		for range 3 {
			for _, a := range []*station{a1, a2} {
				c, onA := dial(b, a, verbs.RoCEv2, nil)
				port := onA.LocalAddr().Port()
				ok(t, c.Close())
				<-onA.Done()
				_, err := rdmacm.Dial(ctx, b.dev, a.at(port), &rdmacm.Config{Transport: verbs.RoCEv2, PD: b.pd})
				if !errors.Is(err, syscall.ECONNREFUSED) {
					t.Errorf("to a closed listener: %v, want a rejection", err)
				}
			}
		}
	})
}

// A process dies. The peers of its connections are notified at once, and other processes get no
// event. Its port becomes free.
func TestSharedDeath(t *testing.T) {
	overShared(t, func(t *testing.T, a1, a2, b *station, s *sharing) {
		ctx := within(t)
		active, onB1 := dial(a1, b, verbs.RoCEv2, nil)
		onB2, passive := dial(b, a1, verbs.RoCEv2, nil)
		neighbour, onA1 := dial(a2, a1, verbs.RoCEv2, nil)
		living, onB3 := dial(a2, b, verbs.RoCEv2, nil)
		bothWays(t, active, onB1)
		bothWays(t, passive, onB2)
		l := must(rdmacm.Listen(a1.dev, a1.at(7471), &rdmacm.Config{Transport: verbs.RoCEv2, PD: a1.pd}))(t)
		defer l.Close()
		dead := a1.network.(*sharer)
		dead.die()
		for what, c := range map[string]*rdmacm.Conn{"dialled by it": onB1, "accepted by it": onB2, "between sharers": neighbour} {
			select {
			case <-c.Done():
			case <-ctx.Done():
				t.Fatalf("the connection %s has not ended", what)
			}
		}
		bothWays(t, living, onB3)
		l2 := must(rdmacm.Listen(a2.dev, a2.at(7471), &rdmacm.Config{Transport: verbs.RoCEv2, PD: a2.pd}))(t)
		ok(t, l2.Close())
		_ = onA1
		// All messages have been answered, so nothing more is due.
		for {
			s.mu.Lock()
			again := s.classifier.SendDue(time.Since(began).Nanoseconds(), s.send)
			s.mu.Unlock()
			if again == 0 {
				break
			}
			if ctx.Err() != nil {
				t.Fatal("a DREQ is not answered")
			}
			time.Sleep(time.Millisecond)
		}
		fresh := stationOf(t, s.sharer(), a1.addr, nil)
		if n := fresh.network.(*sharer).numbers; n == dead.numbers {
			t.Errorf("numbers %+v were leased again", n)
		}
		x, y := dial(fresh, b, verbs.RoCEv2, nil)
		bothWays(t, x, y)
		// Otherwise its connections are closed in order, and the peers do not answer.
		ok(t, a1.dev.Provider().Close())
	})
}

// The QP of a port is resolved, and the datagram arrives there.
func TestSharedDatagrams(t *testing.T) {
	overShared(t, func(t *testing.T, a1, a2, b *station, s *sharing) {
		ctx := within(t)
		attr := &verbs.QPInitAttr{Type: verbs.UD, Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}
		for i, a := range []*station{a1, a2} {
			for _, from := range []*station{b, a1} {
				listener := must(a.bound(rdmacm.UDP, a.at(uint16(7471+i))))(t)
				ok(t, listener.Listen(0))
				client := must(rdmacm.CreateSyncID(rdmacm.UDP, from.dev))(t)
				ok(t, client.ResolveAddr(ctx, netip.AddrPort{}, netip.MustParseAddrPort(a.at(uint16(7471+i)))))
				ok(t, client.ResolveRoute(ctx))
				ok(t, client.CreateQP(from.pd, attr))
				served := make(chan error, 1)
				var server *rdmacm.SyncID
				go func() {
					var err error
					if server, err = listener.GetRequest(ctx); err == nil {
						if err = server.CreateQP(a.pd, attr); err == nil {
							err = server.Accept(ctx, nil)
						}
					}
					served <- err
				}()
				err := client.Connect(ctx, nil)
				ok(t, <-served)
				ok(t, err)
				to := client.Event().UD
				if to.QPNum != server.QP().Num() || !a.network.(*sharer).numbers.QPNs.Contains(to.QPNum) {
					t.Errorf("resolved QPN %#x, it is %#x", to.QPNum, server.QP().Num())
				}
				for _, id := range []*rdmacm.SyncID{client, server, listener} {
					ok(t, id.Close())
				}
			}
		}
	})
}

// A process sends to a connection of two others. Its packets are dropped, although they have the
// right address, QPN and PSN.
func TestSharedForger(t *testing.T) {
	overShared(t, func(t *testing.T, a1, a2, b *station, s *sharing) {
		x, y := dial(a1, a2, verbs.RoCEv2, nil)
		buf := a2.reg(make([]byte, 64), verbs.AccessLocalWrite)
		ok(t, y.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{buf.SGE(0, 64)}}))
		misdirected := func() uint64 { return must(a2.dev.HWCounters())(t)["misdirected_packets"] }
		third := s.sharer().numbers.QPNs
		forged := func(*sharer) stack.Range { return third }
		s.from.Store(&forged)
		ok(t, x.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
		for misdirected() == 0 {
			time.Sleep(time.Millisecond)
		}
		var wc [1]verbs.WC
		if n := must(y.QP().RecvCQ().Poll(wc[:]))(t); n != 0 {
			t.Error("a third process's message was received")
		}
		right := func(to *sharer) stack.Range {
			if to == a2.network {
				return a1.network.(*sharer).numbers.QPNs
			}
			return a2.network.(*sharer).numbers.QPNs
		}
		s.from.Store(&right)
		if wc := poll(t, y.QP().RecvCQ()); wc.Status != verbs.WCSuccess {
			t.Errorf("the peer's message: %v", wc.Status)
		}
		if wc := poll(t, x.QP().SendCQ()); wc.Status != verbs.WCSuccess {
			t.Errorf("the peer's message: %v", wc.Status)
		}
		s.from.Store(nil)
	})
}

// numbered is a host with several interfaces with given numbers.
type numbered struct {
	stack.Network
	nics []stack.NIC
}

func (a *numbered) NICs() []stack.NIC { return a.nics }

func TestSharedNumbers(t *testing.T) {
	h := must(netstack.New(new(pipe.Switch).Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24"}}))(t)
	defer h.Close()
	open := func(numbers ...stack.Numbers) error {
		nics := []stack.NIC{h.NICs()[0]} // one that is not shared
		for _, n := range numbers {
			nics = append(nics, &sharedNIC{h.NICs()[0], &sharer{DatagramPort: h.NICs()[0].Datagrams(), numbers: n}})
		}
		dev, err := rdmatransport.Open(&numbered{h, nics}, nil)
		if err == nil {
			ok(t, dev.Close())
		}
		return err
	}
	one := stack.Numbers{QPNs: stack.Range{Base: 0x1000, Mask: 0xfff}, CommIDs: stack.Range{Base: 0x10000, Mask: 0xffff}}
	two := stack.Numbers{QPNs: stack.Range{Base: 0x2000, Mask: 0xfff}, CommIDs: stack.Range{Base: 0x20000, Mask: 0xffff}}
	ok(t, open(one))
	ok(t, open(one, one))
	for what, numbers := range map[string][]stack.Numbers{
		"different numbers": {one, two},
		"0x1000000":         {{QPNs: stack.Range{Base: 1 << 24, Mask: 0xfff}, CommIDs: one.CommIDs}},
		"0xff0":             {{QPNs: stack.Range{Base: 0x1000, Mask: 0xff0}, CommIDs: one.CommIDs}},
		"communication IDs": {{QPNs: one.QPNs, CommIDs: stack.Range{Base: 1, Mask: 0xfff}}},
		"at least 16":       {{QPNs: one.QPNs}},
	} {
		if err := open(numbers...); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), what) {
			t.Errorf("%+v: %v, want an error with %q", numbers, err, what)
		}
	}
	s := share(t, h)
	a := stationOf(t, s.sharer(), netip.MustParseAddr("10.0.0.1"), nil)
	var nums []uint32
	for range 100 {
		for _, x := range []struct {
			kind      verbs.QPType
			transport verbs.Transport
		}{{verbs.RC, verbs.RoCEv2}, {verbs.RC, verbs.IWARP}, {verbs.RawPacket, 0}} {
			cq := must(a.dev.CreateCQ(1, nil))(t)
			qp := must(a.pd.CreateQP(&verbs.QPInitAttr{Type: x.kind, Transport: x.transport, SendCQ: cq,
				RecvCQ: cq, Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1}}))(t)
			defer cq.Close()
			defer qp.Close()
			if n := qp.Num(); slices.Contains(nums, n) || !a.network.(*sharer).numbers.QPNs.Contains(n) {
				t.Fatalf("QPN %#x of %v over %v: it was used by another sharer, or is not leased", n, x.kind, x.transport)
			}
			nums = append(nums, qp.Num())
		}
	}
}
