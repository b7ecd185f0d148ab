package rdmatransport_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// setting describes two ends of a connection.
type setting struct {
	transport verbs.Transport
	devices   int // 1: both ends are on one device

	wrap func(link.Link) link.Link     // around each device's link, or nil
	lan  *pipe.Switch                  // nil: a new one
	conn func(i int, c *rdmacm.Config) // changes how an end is connected, or nil
	devs []*device                     // nil: new ones
	cfg  *rdmatransport.Config         // of new devices
}

// device is an open device with its network.
type device struct {
	*verbs.Device
	handles *handles
	addr    string
}

// handles is a provider that records the handles of its QPs. A test locks a QP with its handle to
// determine the order of others.
type handles struct {
	rdmatransport.Provider
	made sync.Map // QP number → verbs.QPHandle
}

func (h *handles) CreateQP(qp verbs.QPHandle, attr *verbs.QPInitAttr) (verbs.ProviderQP, uint32, error) {
	p, num, err := h.Provider.CreateQP(qp, attr)
	if err == nil {
		h.made.Store(num, qp)
	}
	return p, num, err
}

// of returns the handle of a QP.
func (h *handles) of(qp *verbs.QP) verbs.QPHandle {
	v, _ := h.made.Load(qp.Num())
	return v.(verbs.QPHandle)
}

// ends are the two sides of a connection within the process.
type ends struct {
	side [2]end
	devs []*device
}

type end struct {
	*rdmacm.Conn
	*device
	cq  *verbs.CQ
	mr  *verbs.MR
	wcs [16]verbs.WC
}

// newDevice opens a device, which is closed at the end of the test.
func newDevice(t testing.TB, l link.Link, addr string, cfg *rdmatransport.Config) *device {
	t.Helper()
	host, err := netstack.New(l, &netstack.Config{Addrs: []string{addr + "/24"}})
	if err != nil {
		t.Fatal(err)
	}
	d := &device{addr: addr, handles: new(handles)}
	if d.handles.Provider, err = rdmatransport.NewProvider(host, cfg); err != nil {
		t.Fatal(err)
	}
	if d.Device, err = verbs.Open(d.handles); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		host.Close()
	})
	return d
}

// newEnds connects two QPs, each with a region of its own.
func newEnds(t testing.TB, s setting, size int) *ends {
	t.Helper()
	if s.lan == nil {
		s.lan = new(pipe.Switch)
	}
	e := &ends{devs: s.devs}
	for i := len(e.devs); i < s.devices; i++ {
		var l link.Link = s.lan.Port()
		if s.wrap != nil {
			l = s.wrap(l)
		}
		e.devs = append(e.devs, newDevice(t, l, fmt.Sprintf("10.0.0.%d", i+1), s.cfg))
	}
	config := func(i int) *rdmacm.Config {
		dev := e.devs[i%s.devices]
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		e.side[i].device = dev
		if e.side[i].mr, err = pd.RegMR(touched(size), iwarpAccess); err != nil {
			t.Fatal(err)
		}
		if e.side[i].cq, err = dev.CreateCQ(512, nil); err != nil {
			t.Fatal(err)
		}
		c := &rdmacm.Config{
			Transport: s.transport, PD: pd, SendCQ: e.side[i].cq, RecvCQ: e.side[i].cq,
			Cap: verbs.QPCap{MaxSendWR: 128, MaxRecvWR: 128, MaxSendSGE: 3, MaxRecvSGE: 3, MaxInlineData: 64},
		}
		if s.conn != nil {
			s.conn(i, c)
		}
		return c
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	server := e.devs[s.devices-1]
	l, err := rdmacm.Listen(server.Device, server.addr+":0", config(1))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		c, err := l.Accept(ctx)
		e.side[1].Conn = c
		accepted <- err
	}()
	if e.side[0].Conn, err = rdmacm.Dial(ctx, e.devs[0].Device, l.Addr().String(), config(0)); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for i := range e.side {
			e.side[i].Conn.Close()
		}
		for i := range e.side {
			s := &e.side[i]
			pd := s.mr.PD()
			for _, f := range []func() error{s.cq.Close, s.mr.Close, pd.Close} {
				if err := f(); err != nil {
					t.Error(err)
				}
			}
		}
	})
	return e
}

// touched returns memory whose pages are all backed. Pages that were never written all map to one
// page of zeros, which is always in the cache.
func touched(n int) []byte { return bytes.Repeat([]byte{1}, n) }

// poll returns the available completions.
func (e *end) poll(t testing.TB) int {
	n, err := e.cq.Poll(e.wcs[:])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// take polls until there is a completion, and returns the number of completions. All must be
// successful.
func (e *end) take(t testing.TB) int {
	for spins := 1; ; spins++ {
		n := e.poll(t)
		for i := range e.wcs[:n] {
			if s := e.wcs[i].Status; s != verbs.WCSuccess {
				t.Fatal(s)
			}
		}
		if n > 0 {
			return n
		}
		if spins%64 == 0 {
			runtime.Gosched()
		}
	}
}

// next returns the next completion. While there is none for long, it yields the processor and lets
// virtual time advance.
func (e *end) next(t testing.TB) verbs.WC {
	t.Helper()
	var wc [1]verbs.WC
	for tries, deadline := 0, time.Now().Add(time.Minute); ; tries++ {
		n, err := e.cq.Poll(wc[:])
		switch {
		case err != nil:
			t.Fatal(err)
		case n == 1:
			return wc[0]
		case time.Now().After(deadline):
			t.Fatalf("QP %#x: no completion", e.QP().Num())
		}
		if tries < 1000 {
			runtime.Gosched()
		} else {
			time.Sleep(100 * time.Microsecond)
		}
	}
}

func (e *end) post(t testing.TB, wr *verbs.SendWR) {
	if err := e.QP().PostSend(wr); err != nil {
		t.Fatal(err)
	}
}
