package rdmatransport_test

import (
	"context"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// calledBack counts the calls of each kind of callback. In each call it does what an application
// might do. If the library holds a lock during a callback, the test hangs.
type calledBack struct {
	mu    sync.Mutex
	does  []func()
	calls map[string]*atomic.Int32
}

// add makes all callbacks call f too.
func (c *calledBack) add(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.does = append(c.does, f)
}

// call is the body of a callback of this kind.
func (c *calledBack) call(kind string) {
	c.mu.Lock()
	does, n := c.does, c.calls[kind]
	if n == nil {
		n = new(atomic.Int32)
		c.calls[kind] = n
	}
	c.mu.Unlock()
	n.Add(1)
	for _, f := range does {
		f()
	}
}

// useID and useDevice make all callbacks call the methods of a device, or of an ID and its objects.
// They use methods that change nothing on which the test depends.
func (c *calledBack) useID(id *rdmacm.ID) {
	c.add(func() {
		id.SetContext(id.Context())
		_, _, _, _ = id.LocalAddr(), id.PeerAddr(), id.Route(), id.Channel()
		_ = id.SetTOS(0)
		_ = id.Notify()
		qp := id.QP()
		if qp == nil {
			return
		}
		_, _, _ = qp.Query()
		_ = qp.State()
		_ = qp.Modify(&verbs.QPAttr{QPState: verbs.StateInit}, verbs.QPAttrState) // is refused
		_ = qp.PostSend(&verbs.SendWR{WRID: 99, Opcode: verbs.RDMAWrite})
		_ = qp.PostRecv(&verbs.RecvWR{WRID: 99})
	})
}

func (c *calledBack) useDevice(d *verbs.Device) {
	c.add(func() {
		_, _ = d.QueryPort(1)
		_, _ = d.GIDTable(1)
		_, _ = d.HWCounters()
		_ = d.Resources()
		if pd, err := d.AllocPD(); err == nil {
			if mr, err := pd.RegMR(make([]byte, 8), verbs.AccessLocalWrite); err == nil {
				_ = mr.Close()
			}
			_ = pd.Close()
		}
	})
}

// TestCallbacks checks that the library holds no lock when it calls functions of the application.
// They call the objects of the callback, and others. The test runs over both protocols, with
// packets and in memory. It establishes connections, ends them, and removes the device.
func TestCallbacks(t *testing.T) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		for name, sniffed := range map[string]bool{"in memory": false, "packets": true} {
			t.Run(transport.String()+", "+name, func(t *testing.T) {
				done := make(chan struct{})
				go func() {
					defer close(done)
					callBack(t, transport, sniffed)
				}()
				select {
				case <-done:
				case <-time.After(time.Minute):
					panic("a callback hangs")
				}
			})
		}
	}
}

func callBack(t *testing.T, transport verbs.Transport, packets bool) {
	c := &calledBack{calls: map[string]*atomic.Int32{}}
	lan, err := pipe.New(nil)
	ok(t, err)
	var hosts [2]*netstack.Host
	var devs [2]*verbs.Device
	for i, addr := range []string{"10.0.0.1/24", "10.0.0.2/24"} {
		var medium link.Link = lan.Port()
		if packets {
			// Hides that the link shares a medium with another link of this process.
			medium = struct{ link.Link }{medium}
		}
		hosts[i], err = netstack.New(medium, &netstack.Config{Addrs: []string{addr}})
		ok(t, err)
		devs[i], err = rdmatransport.Open(hosts[i], &rdmatransport.Config{Trace: func(trace.Event) { c.call("trace") }})
		ok(t, err)
		devs[i].OnAsyncEvent(func(int) { c.call("asynchronous event") })
		_, err = devs[i].Watch(func(verbs.AsyncEventType, uint8) { c.call("watch") })
		ok(t, err)
		c.useDevice(devs[i])
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
	defer cancel()

	// Two IDs whose QPs have their own CQs, with channels that call back.
	var chs [2]*rdmacm.EventChannel
	for i, d := range devs {
		chs[i], err = rdmacm.CreateEventChannel(d)
		ok(t, err)
		chs[i].OnEvent(func(int) { c.call("rdma_cm event") })
	}
	next := func(side int, want rdmacm.EventType) *rdmacm.Event {
		t.Helper()
		for {
			e, err := chs[side].GetEvent(ctx)
			ok(t, err)
			defer e.Ack()
			if e.Type == want {
				return e
			}
			ok(t, e.Err())
		}
	}
	withQP := func(side int, id *rdmacm.ID) (*verbs.CQ, *verbs.CompChannel) {
		t.Helper()
		ch, err := devs[side].CreateCompChannel()
		ok(t, err)
		cq, err := devs[side].CreateCQ(64, &verbs.CQInitAttr{Channel: ch})
		ok(t, err)
		ch.OnEvent(func(int) {
			c.call("completion event")
			if _, err := ch.TryGetEvent(); err == nil {
				ok(t, cq.AckEvents(1))
			}
			_ = cq.ReqNotify(false)
			_, _ = cq.Poll(make([]verbs.WC, 2))
		})
		ok(t, cq.ReqNotify(false))
		ok(t, id.CreateQP(nil, &verbs.QPInitAttr{SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendWR: 1024, MaxRecvWR: 1024, MaxSendSGE: 1, MaxRecvSGE: 1}}))
		return cq, ch
	}
	l, err := chs[0].CreateID(rdmacm.TCP, nil)
	ok(t, err)
	c.useID(l)
	ok(t, l.SetTransports(transport))
	ok(t, l.Bind(netip.MustParseAddrPort("10.0.0.1:7")))
	ok(t, l.Listen(8))
	from, err := chs[1].CreateID(rdmacm.TCP, nil)
	ok(t, err)
	c.useID(from)
	ok(t, from.SetTransports(transport))
	ok(t, from.ResolveAddr(netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.1:7"), time.Second))
	next(1, rdmacm.AddrResolved)
	ok(t, from.ResolveRoute())
	next(1, rdmacm.RouteResolved)
	withQP(1, from)
	ok(t, from.Connect(rdmacm.DefaultConnParam()))
	to := next(0, rdmacm.ConnectRequest).ID
	c.useID(to)
	withQP(0, to)
	for i := range 32 {
		until(ctx, t, func() bool { return to.QP().PostRecv(&verbs.RecvWR{WRID: uint64(i)}) == nil })
	}
	ok(t, to.Accept(rdmacm.DefaultConnParam()))
	next(1, rdmacm.Established)
	next(0, rdmacm.Established)
	for i := range 8 {
		// Requests that callbacks posted may fill the queue for a moment.
		until(ctx, t, func() bool {
			return from.QP().PostSend(&verbs.SendWR{WRID: uint64(i), Opcode: verbs.Send,
				Flags: verbs.SendSignaled | verbs.SendSolicited}) == nil
		})
	}
	until(ctx, t, func() bool { return c.count("completion event") > 0 })

	// Sockets.
	sl, err := rsocket.Listen(devs[0], "10.0.0.1:8", &rsocket.Config{Transport: transport})
	ok(t, err)
	s, err := rsocket.Dial(ctx, devs[1], "10.0.0.1:8", &rsocket.Config{Transport: transport, Linger: time.Millisecond})
	ok(t, err)
	accepted, err := sl.AcceptContext(ctx)
	ok(t, err)
	for _, conn := range []*rsocket.Conn{s, accepted} {
		conn.OnReady(func(rsocket.Ready) {
			c.call("socket ready")
			_, _, _ = conn.Ready(), conn.Err(), conn.LocalAddr()
			_, _ = conn.TryRead(make([]byte, 1))
			_, _ = conn.TryWrite(nil)
		})
	}
	_, err = s.Write(make([]byte, 100_000))
	ok(t, err)
	before := c.count("socket ready")
	_, err = accepted.Write([]byte("hello"))
	ok(t, err)
	until(ctx, t, func() bool { return c.count("socket ready") > before })
	ok(t, s.Close())
	ok(t, accepted.Close())
	ok(t, sl.Close())

	// One side's device is removed while requests are posted on it.
	before = c.count("rdma_cm event")
	ok(t, hosts[0].Close())
	next(0, rdmacm.DeviceRemoval)
	until(ctx, t, func() bool {
		return c.count("rdma_cm event") > before && c.count("watch") > 0 && c.count("asynchronous event") > 0
	})
	for _, id := range []*rdmacm.ID{from, to, l} {
		ok(t, id.Close())
	}
	for _, ch := range chs {
		ch.OnEvent(nil)
		ok(t, ch.Close())
	}
	for _, kind := range []string{"trace", "asynchronous event", "watch", "rdma_cm event", "completion event", "socket ready"} {
		if c.count(kind) == 0 {
			t.Errorf("%s: no callback was called", kind)
		}
	}
	_ = hosts[1].Close()
}

func (c *calledBack) count(kind string) int32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := c.calls[kind]; n != nil {
		return n.Load()
	}
	return 0
}

// until waits until the condition is true.
func until(ctx context.Context, t *testing.T, so func() bool) {
	t.Helper()
	for !so() {
		if ctx.Err() != nil {
			t.Fatal("timeout")
		}
		time.Sleep(time.Millisecond)
	}
}
