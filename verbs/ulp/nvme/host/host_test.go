package host_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

const (
	subsystem = "nqn.2014-08.org.example:disk"
	hostNQN   = "nqn.2014-08.org.example:host"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		ok(t, err)
		return v
	}
}

// open opens a device on a network. It is closed at the end of the test.
func open(t testing.TB, lan *pipe.Switch, addr string) *verbs.Device {
	t.Helper()
	n, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}})
	ok(t, err)
	dev, err := rdmatransport.Open(n, nil)
	ok(t, err)
	t.Cleanup(func() {
		dev.Close()
		n.Close()
	})
	return dev
}

// lab is a target, and a device for hosts.
type lab struct {
	t         testing.TB
	target    *target.Target
	to, from  *verbs.Device
	at        netip.AddrPort
	transport verbs.Transport
}

// newLab starts a target. Its default is a subsystem with 16 MiB of memory.
func newLab(t testing.TB, transport verbs.Transport, cfg *target.Config) *lab {
	t.Helper()
	lan := new(pipe.Switch)
	l := &lab{t: t, to: open(t, lan, "10.0.0.1/24"), from: open(t, lan, "10.0.0.2/24"), transport: transport}
	var full target.Config
	if cfg != nil {
		full = *cfg
	}
	full.NQN, full.Transports = subsystem, []verbs.Transport{transport}
	if full.Namespaces == nil {
		full.Namespaces = []target.Namespace{{Backend: target.NewMemory(16 << 20)}}
	}
	l.target = must(target.Listen(l.to, "10.0.0.1:0", &full))(t)
	l.at = netip.AddrPortFrom(netip.MustParseAddr("10.0.0.1"), l.target.Addr().Port())
	t.Cleanup(func() {
		l.target.Close()
		for _, dev := range []*verbs.Device{l.from, l.to} {
			if r := dev.Resources(); r.QP != 0 || r.CQ != 0 || r.MR != 0 || r.MW != 0 || r.PD > 1 {
				t.Errorf("there is left %+v", r)
			}
		}
	})
	return l
}

// dial connects a controller. At the end of the test it is closed.
func (l *lab) dial(cfg *host.Config) *host.Controller {
	l.t.Helper()
	var full host.Config
	if cfg != nil {
		full = *cfg
	}
	full.NQN, full.HostNQN, full.Transport = subsystem, hostNQN, l.transport
	c := must(host.Dial(l.t.Context(), l.from, l.at.String(), &full))(l.t)
	l.t.Cleanup(func() { c.Close() })
	return c
}

func (l *lab) namespace(c *host.Controller, nsid uint32) *host.Namespace {
	l.t.Helper()
	return must(c.Namespace(l.t.Context(), nsid))(l.t)
}

// both runs a test over both transports.
func both(t *testing.T, f func(t *testing.T, transport verbs.Transport)) {
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
		t.Run(transport.String(), func(t *testing.T) { f(t, transport) })
	}
}

// random returns n random bytes.
func random(n int) []byte {
	b := make([]byte, n)
	_, _ = rand.NewChaCha8([32]byte{byte(n), byte(n >> 8)}).Read(b) // never fails
	return b
}

// What is written is read, in all sizes: in capsules, in slots, through the pool and in several
// commands.
func TestReadWrite(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		l := newLab(t, transport, nil)
		ns := l.namespace(l.dial(nil), 1)
		if ns.Size() != 16<<20 || ns.BlockSize() != 512 || ns.ReadOnly() {
			t.Fatal(ns)
		}
		off := int64(0)
		for _, n := range []int{512, 4096, 8192, 8704, 64 << 10, 128 << 10, 128<<10 + 512, 5 << 20} {
			want, got := random(n), make([]byte, n)
			if k, err := ns.WriteAt(want, off); err != nil || k != n {
				t.Fatalf("write %d: %d, %v", n, k, err)
			}
			if k, err := ns.ReadAt(got, off); err != nil || k != n || !bytes.Equal(got, want) {
				t.Fatalf("read %d: %d, %v, equal %v", n, k, err, bytes.Equal(got, want))
			}
			ok(t, ns.Compare(t.Context(), want, off))
			off += int64(n)
		}
		other := random(4096)
		other[100]++
		var status *nvme.StatusError
		_, err := ns.WriteAt(random(4096), 0)
		ok(t, err)
		if err := ns.Compare(t.Context(), other, 0); !errors.As(err, &status) || status.Status.Code() != nvme.CompareFailure {
			t.Error(err)
		}
		ok(t, ns.WriteZeroes(t.Context(), 512, 8<<20, false))
		got := make([]byte, 1<<20)
		_, err = ns.ReadAt(got, 512)
		ok(t, err)
		if !bytes.Equal(got, make([]byte, 1<<20)) {
			t.Error("WriteZeroes leaves something else")
		}
		ok(t, ns.Discard(t.Context(), 0, 1<<20))
		ok(t, ns.Flush(t.Context()))
	})
}

// ReadAt and WriteAt are those of io.ReaderAt and io.WriterAt at the end and with wrong arguments.
func TestRange(t *testing.T) {
	l := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{{Backend: target.NewMemory(1 << 20), BlockSize: 4096}}})
	ns := l.namespace(l.dial(nil), 1)
	b := make([]byte, 1<<20+4096)
	for _, c := range []struct {
		n    int
		off  int64
		want int
	}{{4096, 1 << 20, 0}, {4096, 1 << 40, 0}, {8192, 1<<20 - 4096, 4096}, {len(b), 0, 1 << 20}} {
		if n, err := ns.ReadAt(b[:c.n], c.off); n != c.want || err != io.EOF {
			t.Errorf("read %d bytes at %d: %d, %v", c.n, c.off, n, err)
		}
		if n, err := ns.WriteAt(b[:c.n], c.off); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("write %d bytes at %d: %d, %v", c.n, c.off, n, err)
		}
	}
	for _, c := range []struct {
		n   int
		off int64
	}{{512, 0}, {4096, 512}, {4096, -4096}, {1, 0}} {
		if n, err := ns.ReadAt(b[:c.n], c.off); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("read %d bytes at %d: %d, %v", c.n, c.off, n, err)
		}
		if n, err := ns.WriteAt(b[:c.n], c.off); n != 0 || !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("write %d bytes at %d: %d, %v", c.n, c.off, n, err)
		}
	}
	if n, err := ns.ReadAt(nil, 0); n != 0 || err != nil {
		t.Errorf("read nothing: %d, %v", n, err)
	}
	var status *nvme.StatusError
	if _, err := l.dial(nil).Namespace(t.Context(), 2); !errors.As(err, &status) {
		t.Errorf("namespace 2: %v", err)
	}
}

// Many goroutines share few queues of little depth.
func TestConcurrent(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		for _, depth := range []int{1, 15} {
			l := newLab(t, transport, nil)
			c := l.dial(&host.Config{IOQueues: 2, QueueDepth: depth, Memory: 1 << 20})
			ns := l.namespace(c, 1)
			var all sync.WaitGroup
			const part = 512 << 10
			for i := range 32 {
				all.Go(func() {
					r := rand.New(rand.NewPCG(uint64(i), 2))
					own := make([]byte, part)
					for range 12 {
						at := r.IntN(part/512) * 512
						n := min((1+r.IntN(64))*512<<r.IntN(4), part-at)
						copy(own[at:], random(n))
						if _, err := ns.WriteAt(own[at:at+n], int64(i*part+at)); err != nil {
							t.Errorf("%d: write: %v", i, err)
							return
						}
						got := make([]byte, n)
						if _, err := ns.ReadAt(got, int64(i*part+at)); err != nil || !bytes.Equal(got, own[at:at+n]) {
							t.Errorf("%d: read: %v", i, err)
							return
						}
					}
				})
			}
			all.Wait()
		}
	})
}

// Memory of the application is read and written, with and without windows.
func TestMemory(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		for _, windows := range []bool{false, true} {
			l := newLab(t, transport, nil)
			c := l.dial(&host.Config{Windows: windows, IOQueues: 1, QueueDepth: 4})
			ns := l.namespace(c, 1)
			const n = 3<<20 + 512
			m := must(c.Register(random(2 * n)))(t)
			for i := range 6 {
				copy(m.Bytes(), random(n + i)[:n])
				if k, err := ns.WriteMemory(t.Context(), m, 0, n, 512); err != nil || k != n {
					t.Fatalf("%d, %v", k, err)
				}
				clear(m.Bytes()[n:])
				if k, err := ns.ReadMemory(t.Context(), m, n, n, 512); err != nil || k != n {
					t.Fatalf("%d, %v", k, err)
				}
				if !bytes.Equal(m.Bytes()[:n], m.Bytes()[n:]) {
					t.Fatal("read something else")
				}
			}
			if _, err := ns.ReadMemory(t.Context(), m, n+1, n, 0); !errors.Is(err, verbs.ErrInvalid) {
				t.Error(err)
			}
			ok(t, m.Close())
		}
	})
}

// A Queue keeps commands outstanding.
func TestQueue(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		l := newLab(t, transport, nil)
		c := l.dial(&host.Config{IOQueues: 1})
		ns := l.namespace(c, 1)
		q := must(c.OpenQueue(t.Context(), 8))(t)
		if q.Depth() != 8 {
			t.Error(q.Depth())
		}
		const n, blocks = 4096, 64
		m := must(c.Register(random(n * blocks)))(t)
		want := bytes.Clone(m.Bytes())
		run := func(opcode nvme.Opcode) {
			ops := make([]host.Op, blocks)
			done := make([]*host.Op, 3)
			posted, finished := 0, 0
			for finished < blocks {
				for posted < blocks {
					ops[posted] = host.Op{Opcode: opcode, Namespace: ns, Offset: int64(posted * n), Len: n, Memory: m, At: posted * n,
						ID: uint64(posted)}
					err := q.Post(&ops[posted])
					if errors.Is(err, verbs.ErrQueueFull) && posted-finished >= 8 {
						break
					}
					ok(t, err)
					posted++
				}
				k, err := q.Wait(t.Context(), done)
				ok(t, err)
				for _, op := range done[:k] {
					ok(t, op.Err)
					if op != &ops[op.ID] {
						t.Errorf("op %d is another one", op.ID)
					}
				}
				finished += k
			}
		}
		run(nvme.Write)
		clear(m.Bytes())
		run(nvme.Read)
		if !bytes.Equal(m.Bytes(), want) {
			t.Error("read something else")
		}
		run(nvme.Compare)
		ok(t, q.Close())
		ok(t, q.Close())
		q = must(c.OpenQueue(t.Context(), 1))(t)
		ok(t, c.Reset(t.Context()))
		var lost *host.LostError
		if err := q.Post(&host.Op{Opcode: nvme.Flush, Namespace: ns}); !errors.As(err, &lost) || !errors.Is(err, verbs.ErrClosed) {
			t.Errorf("after Reset: %v", err)
		}
		ok(t, q.Close())
		ok(t, m.Close())
	})
}

func TestAdmin(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		l := newLab(t, transport, &target.Config{Serial: "S1", Namespaces: []target.Namespace{{Backend: target.NewMemory(1 << 20)},
			{Backend: target.NewMemory(2 << 20), ReadOnly: true}}})
		c := l.dial(&host.Config{IOQueues: 3})
		ctx := t.Context()
		if i := c.Identity(); i.Serial != "S1" || i.SubsystemNQN != subsystem || i.CNTLID != c.ID() {
			t.Errorf("%+v", i)
		}
		if n, depth := c.Queues(); n != 3 || depth != 127 {
			t.Errorf("%d queues of %d", n, depth)
		}
		if list := must(c.Namespaces(ctx))(t); len(list) != 2 || list[1] != 2 {
			t.Errorf("%v", list)
		}
		ns := l.namespace(c, 2)
		if d := must(ns.Descriptors(ctx))(t); !ns.ReadOnly() || d.UUID == [16]byte{} {
			t.Errorf("%+v", d)
		}
		var status *nvme.StatusError
		if _, err := ns.WriteAt(make([]byte, 512), 0); !errors.As(err, &status) || status.Status.Code() != nvme.WriteProtected {
			t.Error(err)
		}
		_, err := ns.ReadAt(make([]byte, 4096), 0)
		ok(t, err)
		if s := must(c.SMART(ctx))(t); s.Reads != 1 || s.ErrorLogEntries != 1 {
			t.Errorf("%+v", s)
		}
		if log := must(c.ErrorLog(ctx))(t); len(log) != 1 || log[0].NSID != 2 || log[0].Status.Code() != nvme.WriteProtected {
			t.Errorf("%+v", log)
		}
		if v := must(c.GetFeature(ctx, nvme.FeatureVolatileCache))(t); v != 1 {
			t.Error(v)
		}
		must(c.SetFeature(ctx, nvme.FeatureVolatileCache, 0))(t)
		if v := must(c.GetFeature(ctx, nvme.FeatureVolatileCache))(t); v != 0 {
			t.Error(v)
		}
	})
}

// A changed size is announced.
func TestEvent(t *testing.T) {
	memory := target.NewMemory(1 << 20)
	l := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{{Backend: memory}}})
	c := l.dial(nil)
	ns := l.namespace(c, 1)
	for _, size := range []int{2 << 20, 3 << 20} {
		memory.Resize(size)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if e := must(c.Event(ctx))(t); e != nvme.AsyncNamespaceChanged {
			t.Fatalf("%#x", e)
		}
		if list := must(c.ChangedNamespaces(ctx))(t); len(list) != 1 || list[0] != 1 {
			t.Error(list)
		}
		ok(t, ns.Refresh(ctx))
		if ns.Size() != int64(size) {
			t.Error(ns)
		}
	}
}

func TestDiscover(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		l := newLab(t, transport, &target.Config{Hosts: []string{hostNQN}})
		cfg := &host.Config{HostNQN: hostNQN, Transport: transport}
		entries := must(host.Discover(t.Context(), l.from, l.at.String(), cfg))(t)
		if len(entries) != 1 || entries[0].SubsystemNQN != subsystem || entries[0].Addr != l.at {
			t.Errorf("%+v", entries)
		}
		cfg.HostNQN = hostNQN + "2"
		if entries := must(host.Discover(t.Context(), l.from, l.at.String(), cfg))(t); len(entries) != 0 {
			t.Errorf("%+v", entries)
		}
		cfg.NQN = subsystem
		var status *nvme.StatusError
		if _, err := host.Dial(t.Context(), l.from, l.at.String(), cfg); !errors.As(err, &status) || status.Status.Code() != nvme.ConnectHost {
			t.Error(err)
		}
		if r := l.from.Resources(); r.QP != 0 || r.CQ != 0 || r.MR != 0 || r.PD > 1 {
			t.Errorf("%+v are left", r)
		}
	})
}

// After the end of the target, commands fail. After Reset they succeed again.
func TestReset(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		l := newLab(t, transport, nil)
		c := l.dial(nil)
		ns := l.namespace(c, 1)
		want := random(256 << 10)
		_, err := ns.WriteAt(want, 0)
		ok(t, err)
		ok(t, c.Reset(t.Context()))
		got := make([]byte, len(want))
		_, err = ns.ReadAt(got, 0)
		ok(t, err)
		if !bytes.Equal(got, want) {
			t.Error("read something else")
		}
		if e := must(c.Event(t.Context()))(t); e != host.EventReset {
			t.Errorf("%#x", e)
		}
		ok(t, l.target.Close())
		<-c.Done()
		var lost *host.LostError
		if _, err := ns.ReadAt(got, 0); !errors.As(err, &lost) || c.Err() == nil {
			t.Errorf("%v, %v", err, c.Err())
		}
		if err := c.Reset(t.Context()); err == nil {
			t.Error("Reset without a target succeeds")
		}
		if _, err := ns.ReadAt(got, 0); !errors.As(err, &lost) {
			t.Error(err)
		}
		again := must(target.Listen(l.to, l.at.String(), &target.Config{NQN: subsystem, Transports: []verbs.Transport{transport},
			Namespaces: []target.Namespace{{Backend: target.NewMemory(16 << 20)}}}))(t)
		defer again.Close()
		ok(t, c.Reset(t.Context()))
		_, err = ns.ReadAt(got, 0)
		ok(t, err)
		ok(t, c.Close())
		if _, err := ns.ReadAt(got, 0); !errors.Is(err, verbs.ErrClosed) {
			t.Error(err)
		}
	})
}
