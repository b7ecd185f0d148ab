package rdmatransport_test

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// fastLink is a link to another fastLink that costs next to nothing. What remains is the cost of
// all layers above.
type fastLink struct {
	mac    net.HardwareAddr
	other  *fastLink
	polled atomic.Bool // only Poll receives
	recv   link.Receiver
	quit   chan struct{}
	done   chan struct{}

	receiving sync.Mutex
	mu        sync.Mutex
	queue     [64][]byte // received frames: n from at on
	kinds     [64]link.Frame
	at, n     int
	frames    [1]link.Frame
}

func newFastLinks() (a, b *fastLink) {
	a = &fastLink{mac: net.HardwareAddr{2, 0, 0, 0, 0, 1}, quit: make(chan struct{}), done: make(chan struct{})}
	b = &fastLink{mac: net.HardwareAddr{2, 0, 0, 0, 0, 2}, quit: make(chan struct{}), done: make(chan struct{})}
	a.other, b.other = b, a
	return a, b
}

func (w *fastLink) Name() string            { return "wire" }
func (w *fastLink) MAC() net.HardwareAddr   { return w.mac }
func (w *fastLink) MTU() int                { return 1500 }
func (w *fastLink) Offloads() link.Offloads { return link.Offloads{USO: true, Checksum: true} }
func (w *fastLink) EndPoll()                {}

func (w *fastLink) Attach(recv link.Receiver) {
	w.recv = recv
	go func() {
		defer close(w.done)
		for {
			select {
			case <-w.quit:
				return
			case <-time.After(time.Millisecond):
				if !w.polled.Load() {
					w.receive(false)
				}
			}
		}
	}()
}

func (w *fastLink) Close() error {
	close(w.quit)
	<-w.done
	return nil
}

func (w *fastLink) Write(frames []link.Frame) (int, error) {
	o := w.other
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range frames {
		f := frames[i]
		if o.n == len(o.queue) {
			break
		}
		at := (o.at + o.n) % len(o.queue)
		o.queue[at] = append(o.queue[at][:0], f.Data...)
		for _, m := range f.More {
			o.queue[at] = append(o.queue[at], m...)
		}
		f.Data, f.More = o.queue[at], nil
		o.kinds[at] = f
		o.n++
	}
	return len(frames), nil
}

func (w *fastLink) Poll() bool {
	w.polled.Store(true)
	return w.receive(true)
}

func (w *fastLink) receive(polled bool) bool {
	if !w.receiving.TryLock() {
		return false
	}
	defer w.receiving.Unlock()
	w.mu.Lock()
	if w.n == 0 {
		w.mu.Unlock()
		return false
	}
	w.frames[0] = w.kinds[w.at]
	w.frames[0].Polled = polled
	w.mu.Unlock()
	w.recv(w.frames[:])
	w.mu.Lock()
	w.at, w.n = (w.at+1)%len(w.queue), w.n-1
	w.mu.Unlock()
	return true
}

// BenchmarkPolledPingPong exchanges 8 bytes by SEND in both directions, over RoCE and a link
// without cost. One goroutine polls both sides. An op is two messages, whose frames carry each
// other's acknowledgement. 0 allocs/op.
func BenchmarkPolledPingPong(b *testing.B) {
	var dev [2]*verbs.Device
	var qp [2]*verbs.QP
	var cq [2]*verbs.CQ
	var mr [2]*verbs.MR
	var links [2]*fastLink
	links[0], links[1] = newFastLinks()
	var cfg [2]*rdmacm.Config
	for i := range dev {
		host, err := netstack.New(links[i], &netstack.Config{Addrs: []string{[]string{"10.0.0.1/24", "10.0.0.2/24"}[i]}})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { host.Close() })
		if dev[i], err = rdmatransport.Open(host, nil); err != nil {
			b.Fatal(err)
		}
		pd, err := dev[i].AllocPD()
		if err != nil {
			b.Fatal(err)
		}
		if mr[i], err = pd.RegMR(make([]byte, 64), everyAccess); err != nil {
			b.Fatal(err)
		}
		if cq[i], err = dev[i].CreateCQ(64, &verbs.CQInitAttr{Wait: verbs.WaitPoll}); err != nil {
			b.Fatal(err)
		}
		cfg[i] = &rdmacm.Config{Transport: verbs.RoCEv2, PD: pd, SendCQ: cq[i], RecvCQ: cq[i],
			Cap: verbs.QPCap{MaxSendWR: 8, MaxRecvWR: 8, MaxSendSGE: 1, MaxRecvSGE: 1}}
	}
	l, err := rdmacm.Listen(dev[1], ":7471", cfg[1])
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		c, err := l.Accept(b.Context())
		if err != nil {
			b.Error(err)
		}
		accepted <- c
	}()
	c0, err := rdmacm.Dial(b.Context(), dev[0], "10.0.0.2:7471", cfg[0])
	if err != nil {
		b.Fatal(err)
	}
	c1 := <-accepted
	defer c0.Close()
	defer c1.Close()
	qp[0], qp[1] = c0.QP(), c1.QP()
	var wcs [4]verbs.WC
	var recv [2]verbs.RecvWR
	var send [2]verbs.SendWR
	post := func(i int) {
		if err := qp[i].PostSend(&send[i]); err != nil {
			b.Fatal(err)
		}
	}
	await := func(i, n int) {
		for n > 0 {
			k, err := cq[i].Poll(wcs[:])
			if err != nil {
				b.Fatal(err)
			}
			for _, wc := range wcs[:k] {
				if wc.Status != verbs.WCSuccess {
					b.Fatal(wc)
				}
				if wc.Opcode == verbs.WCRecv {
					if err := qp[i].PostRecv(&recv[i]); err != nil {
						b.Fatal(err)
					}
				}
			}
			n -= k
		}
	}
	for i := range qp {
		send[i] = verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mr[i].SGE(0, 8)}}
		recv[i].SGList = []verbs.SGE{mr[i].SGE(8, 8)}
		for range 4 {
			if err := qp[i].PostRecv(&recv[i]); err != nil {
				b.Fatal(err)
			}
		}
	}
	b.ReportAllocs()
	post(0)
	await(1, 1)
	for b.Loop() {
		post(1)
		await(0, 2)
		post(0)
		await(1, 2)
	}
}
