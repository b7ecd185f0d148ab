package fabric_test

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/auth"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

const (
	diskNQN  = "nqn.2014-08.org.example:disk"
	hostNQN  = "nqn.2014-08.org.example:host"
	diskSize = 8 << 20
	pieces   = 24       // of each host
	piece    = 20 << 10 // bytes: commands with RDMA READs and WRITEs, of several packets
)

// storage is a target at the first host, with a namespace in memory and one in a file, and hosts
// that write to both.
type storage struct {
	t      *testing.T
	f      *fabric.Fabric
	nodes  []*node
	target *target.Target
	file   *target.File
	disks  []*disk
}

func newStorage(t *testing.T, cfg fabric.Config, open func(testing.TB, *fabric.Fabric, *fabric.Host, roce.Config) *node) *storage {
	cfg.Topology = fabric.LeafSpine(2, 2, 1)
	s := &storage{t: t, f: newFabric(t, &cfg)}
	for _, h := range s.f.Hosts() {
		s.nodes = append(s.nodes, open(t, s.f, h, roce.Config{}))
	}
	s.file = must(target.OpenFile(filepath.Join(t.TempDir(), "disk"), &target.FileConfig{Size: diskSize}))(t)
	s.target = must(target.Listen(s.nodes[0].dev, ":4420", &target.Config{NQN: diskNQN, Transports: []verbs.Transport{verbs.RoCEv2},
		Namespaces: []target.Namespace{{Backend: target.NewMemory(diskSize)}, {Backend: s.file}}}))(t)
	for i, n := range s.nodes[1:] {
		d := &disk{storage: s, n: n, nsid: uint32(1 + i%2), at: int64(i * pieces * piece)}
		s.disks = append(s.disks, d)
	}
	return s
}

// disk is what one host has of a namespace.
type disk struct {
	*storage
	n    *node
	nsid uint32
	at   int64
	c    *host.Controller
	ns   *host.Namespace
	has  [pieces]byte // the version of each piece that the target has acknowledged
	may  [pieces]byte // that it may have instead
	lost int          // writes that have failed
}

// content is a version of a piece.
func (d *disk) content(i int, version byte) []byte {
	return bytes.Repeat([]byte{version, byte(i), byte(d.at >> 12), 0x5a}, piece/4)
}

func (d *disk) dial(ctx context.Context) {
	var err error
	d.c, err = host.Dial(ctx, d.n.dev, d.f.Hosts()[0].Addr().String()+":4420",
		&host.Config{NQN: diskNQN, IOQueues: 2, QueueDepth: 4, KeepAlive: keepAlive, Timeout: keepAlive})
	if err == nil {
		d.ns, err = d.c.Namespace(ctx, d.nsid)
	}
	if err != nil {
		d.t.Errorf("%s: %v", d.n.h.Name(), err)
		runtime.Goexit()
	}
}

// write writes a version of all pieces, by several processes, and flushes them.
func (d *disk) write(ctx context.Context, p *fabric.Process, version byte) {
	const writers = 6 // more than a queue has commands
	running := writers
	for w := range writers {
		d.n.h.Go(func(*fabric.Process) {
			for i := w; i < pieces; i += writers {
				d.may[i] = version
				_, err := d.ns.Write(ctx, d.content(i, version), d.at+int64(i*piece))
				if err == nil {
					d.has[i] = version
				} else if d.lost++; !errors.As(err, new(*host.LostError)) {
					d.t.Errorf("%s: %v", d.n.h.Name(), err)
				}
			}
			running--
		})
	}
	p.Until(func() bool { return running == 0 })
	if d.lost == 0 {
		if err := d.ns.Flush(ctx); err != nil {
			d.t.Errorf("%s: %v", d.n.h.Name(), err)
		}
	}
}

// verify reads all pieces, several at a time, and compares them with what the target must have.
func (d *disk) verify(ctx context.Context) {
	const depth = 8
	err := func() error {
		q, err := d.c.OpenQueue(ctx, depth)
		if err != nil {
			return err
		}
		m, err := d.c.Register(make([]byte, pieces*piece))
		if err != nil {
			return err
		}
		var done [depth]*host.Op
		for posted, finished := 0, 0; finished < pieces; {
			for ; posted < pieces && posted-finished < depth; posted++ {
				if err := q.Post(&host.Op{Opcode: nvme.Read, Namespace: d.ns, Offset: d.at + int64(posted*piece), Len: piece, Memory: m,
					At: posted * piece}); err != nil {
					return err
				}
			}
			n, err := q.Wait(ctx, done[:])
			if err != nil {
				return err
			}
			for _, op := range done[:n] {
				if op.Err != nil {
					return op.Err
				}
			}
			finished += n
		}
		for i := range pieces {
			got := m.Bytes()[i*piece:][:piece]
			if !bytes.Equal(got, d.content(i, d.has[i])) && !bytes.Equal(got, d.content(i, d.may[i])) {
				d.t.Errorf("%s: piece %d begins with % x: its version must be %d or %d", d.n.h.Name(), i, got[:4], d.has[i], d.may[i])
			}
			d.has[i], d.may[i] = got[0], got[0]
		}
		return errors.Join(q.Close(), m.Close())
	}()
	if err != nil {
		d.t.Errorf("%s: %v", d.n.h.Name(), err)
	}
}

// reset connects again, after the host has lost the target.
func (d *disk) reset(ctx context.Context, p *fabric.Process) {
	for {
		short, cancel := p.WithTimeout(ctx, 2*time.Second)
		err := d.c.Reset(short)
		cancel()
		if err == nil {
			return
		}
		p.Sleep(500 * time.Millisecond)
	}
}

// Times of what happens to a storage. A command may need a QP's timeout of a second for each of its
// messages, if no probe is answered.
const (
	keepAlive = 5 * time.Second
	shortCut  = 20 * time.Millisecond // for a millisecond: packets are repeated
	longCut   = 10 * time.Second      // for ten seconds: the last host loses the target
	allBack   = 30 * time.Second
)

// life is a host's process.
func (d *disk) life(p *fabric.Process) {
	ctx := context.Background()
	d.dial(ctx)
	d.write(ctx, p, 1)
	d.verify(ctx)
	p.Sleep(shortCut - 100*time.Microsecond - p.Now())
	d.write(ctx, p, 2)
	d.verify(ctx)
	if d.lost > 0 {
		d.t.Errorf("%s: %d writes are lost by a cut of a millisecond", d.n.h.Name(), d.lost)
	}
	p.Sleep(longCut - 100*time.Microsecond - p.Now())
	d.write(ctx, p, 3)
	if d.lost > 0 {
		d.reset(ctx, p)
		d.lost = -d.lost
	}
	p.Sleep(allBack - p.Now())
	d.verify(ctx)
	d.write(ctx, p, 4)
	d.verify(ctx)
	closed := 0
	for range 2 { // the second one waits for the first
		d.n.h.Go(func(*fabric.Process) {
			if err := d.c.Close(); err != nil {
				d.t.Errorf("%s: %v", d.n.h.Name(), err)
			}
			closed++
		})
	}
	p.Until(func() bool { return closed == 2 })
}

// run runs the hosts, and returns the digest.
func (s *storage) run() string {
	for _, d := range s.disks {
		d.n.h.Go(d.life)
	}
	last := s.disks[len(s.disks)-1]
	cut := func(port *fabric.Port, at, length time.Duration) {
		s.f.Run(at - s.f.Now())
		before := s.f.Counters().Lost
		port.SetDown(true)
		s.f.Run(length)
		port.SetDown(false)
		if s.f.Counters().Lost == before {
			s.t.Errorf("no packet is lost by the cut at %v", at)
		}
	}
	cut(s.f.Port("leaf1", "spine0"), shortCut, time.Millisecond)
	if n := s.target.Stats().Controllers; n != len(s.disks) {
		s.t.Errorf("%d controllers", n)
	}
	cut(last.n.h.Port(), longCut, 2*keepAlive)
	if n := s.target.Stats().Controllers; n != len(s.disks)-1 {
		s.t.Errorf("%d controllers after keep alive has expired", n)
	}
	ok(s.t, s.f.Wait(time.Minute))
	if last.lost >= 0 {
		s.t.Error("the last host has lost no write")
	}
	ok(s.t, s.target.Close())
	ok(s.t, s.file.Close())
	return s.f.Digest()
}

// TestNVMe: hosts write to a target, flush, read it back, and connect again after they have lost
// it. What the target has acknowledged is there, and the same seed gives the same packets, also
// with workers.
func TestNVMe(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for _, c := range stacks {
		t.Run(c.name, func(t *testing.T) {
			var first string
			for i, cfg := range []fabric.Config{{Seed: 7}, {Seed: 7}, {Seed: 7, Workers: 2}, {Seed: 8}} {
				runtime.GOMAXPROCS(1 + i%3)
				before := runtime.NumGoroutine()
				var digest string
				t.Run("run", func(t *testing.T) { digest = newStorage(t, cfg, c.open).run() })
				noneLeft(t, before)
				switch {
				case i == 0:
					first = digest
				case (digest == first) != (cfg.Seed == 7):
					t.Errorf("seed %d, %d workers: digest %s, and the first %s", cfg.Seed, cfg.Workers, digest, first)
				}
			}
		})
	}
}

// TestNVMeClose: Close ends a fabric in the midst of connecting, writing and disconnecting. No
// goroutine is left.
func TestNVMeClose(t *testing.T) {
	for at := time.Duration(0); at < allBack+2*time.Second; at = at*3/2 + 7*time.Microsecond {
		before := runtime.NumGoroutine()
		t.Run(at.String(), func(t *testing.T) {
			s := newStorage(t, fabric.Config{}, onStatic)
			for _, d := range s.disks {
				d.n.h.Go(func(p *fabric.Process) {
					defer func() {
						if d.c != nil {
							_ = d.c.Close()
						}
					}()
					d.life(p)
				})
			}
			s.f.Hosts()[0].Go(func(p *fabric.Process) {
				defer func() { _ = s.target.Close() }()
				ok(t, s.target.Wait())
			})
			s.f.Run(at)
			s.f.Close()
			ok(t, s.file.Close())
		})
		noneLeft(t, before)
	}
}

// TestNVMeReset: a queue that is opened while the controller is reset is one of the new connection,
// or its error says that the earlier one has ended.
func TestNVMeReset(t *testing.T) {
	for at := range 12 {
		s := newStorage(t, fabric.Config{}, onStatic)
		d := s.disks[0]
		d.n.h.Go(func(p *fabric.Process) {
			ctx := context.Background()
			d.dial(ctx)
			for range 2 {
				d.n.h.Go(func(*fabric.Process) {
					q, err := d.c.OpenQueue(ctx, 8)
					if err == nil {
						err = q.Close()
					}
					if err != nil && !errors.As(err, new(*host.LostError)) {
						t.Error(err)
					}
				})
			}
			p.Sleep(time.Duration(at) * time.Microsecond)
			ok(t, d.c.Reset(ctx))
			d.write(ctx, p, 1)
			d.verify(ctx)
			ok(t, d.c.Close())
		})
		ok(t, s.f.Wait(time.Minute))
		ok(t, s.target.Close())
		ok(t, s.file.Close())
	}
}

// TestNVMeCloseWhileOpening: Close frees all, although a queue is being opened, which then fails.
func TestNVMeCloseWhileOpening(t *testing.T) {
	opened, lost := 0, 0
	for at := range 40 {
		s := newStorage(t, fabric.Config{}, onStatic)
		d := s.disks[0]
		d.n.h.Go(func(p *fabric.Process) {
			ctx := context.Background()
			before := d.n.dev.Resources()
			d.dial(ctx)
			left := 2
			for range left { // the second one waits for the first
				d.n.h.Go(func(*fabric.Process) {
					_, err := d.c.OpenQueue(ctx, 8)
					switch {
					case err == nil:
						opened++
					case errors.As(err, new(*host.LostError)):
						lost++
					default:
						t.Errorf("closed after %d µs: %v", at, err)
					}
					left--
				})
			}
			p.Sleep(time.Duration(at) * time.Microsecond)
			ok(t, d.c.Close())
			p.Until(func() bool { return left == 0 })
			if after := d.n.dev.Resources(); after != before {
				t.Errorf("closed after %d µs: %+v remain, of before %+v", at, after, before)
			}
		})
		ok(t, s.f.Wait(time.Minute))
		ok(t, s.target.Close())
		ok(t, s.file.Close())
	}
	if opened == 0 || lost == 0 {
		t.Errorf("%d queues are opened, %d are not", opened, lost)
	}
}

// slowDisk is a Backend whose operations take a millisecond each, any number at a time.
type slowDisk struct {
	memory *target.Memory
	clock  verbs.Clock
}

func (d *slowDisk) wait() {
	passed, _ := d.clock.NewTimer(time.Millisecond)
	d.clock.Park(func() bool { return len(passed) > 0 })
}

func (d *slowDisk) ReadAt(p []byte, off int64) (int, error) {
	d.wait()
	return d.memory.ReadAt(p, off)
}

func (d *slowDisk) WriteAt(p []byte, off int64) (int, error) {
	d.wait()
	return d.memory.WriteAt(p, off)
}

func (d *slowDisk) Sync() error {
	d.wait()
	return nil
}

func (d *slowDisk) Size() int64 { return d.memory.Size() }

// TestNVMeSlowDisk: a backend may wait in virtual time, in several commands at once.
func TestNVMeSlowDisk(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	to, from := onStatic(t, f, f.Hosts()[0], roce.Config{}), onStatic(t, f, f.Hosts()[1], roce.Config{})
	tgt := must(target.Listen(to.dev, ":4420", &target.Config{NQN: diskNQN, Transports: []verbs.Transport{verbs.RoCEv2},
		Namespaces: []target.Namespace{{Backend: &slowDisk{target.NewMemory(diskSize), to.dev.Clock()}}}}))(t)
	c := must(host.Dial(t.Context(), from.dev, to.h.Addr().String()+":4420", &host.Config{NQN: diskNQN}))(t)
	ns := must(c.Namespace(t.Context(), 1))(t)
	began, written := f.Now(), bytes.Repeat([]byte("disk"), 256<<10)
	must(ns.WriteAt(written, 0))(t) // 8 commands of 2 parts each
	got := make([]byte, len(written))
	must(ns.ReadAt(got, 0))(t)
	ok(t, ns.Flush(t.Context()))
	if took := f.Now() - began; took < 3*time.Millisecond || took > 4*time.Millisecond {
		t.Errorf("a write, a read and a flush take %v, want 3 ms and the network's time", took)
	}
	if !bytes.Equal(got, written) {
		t.Error("what is read is not what was written")
	}
	ok(t, c.Close())
	ok(t, tgt.Close())
}

// TestNVMeEvents: a host that must authenticate itself finds a subsystem, and learns of a new size
// while a process waits for it.
func TestNVMeEvents(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	to, from := onNetstack(t, f, f.Hosts()[0], roce.Config{}), onNetstack(t, f, f.Hosts()[1], roce.Config{})
	key := must(auth.NewKey(32, 0))(t)
	memory := target.NewMemory(1 << 20)
	tgt := must(target.Listen(to.dev, ":4420", &target.Config{NQN: diskNQN, Transports: []verbs.Transport{verbs.RoCEv2},
		Keys: map[string]target.HostKeys{hostNQN: {Host: key}}, Namespaces: []target.Namespace{{Backend: memory}}}))(t)
	resized := false
	from.h.Go(func(p *fabric.Process) {
		ctx, cfg := context.Background(), &host.Config{NQN: diskNQN, HostNQN: hostNQN, Key: key}
		at := f.Hosts()[0].Addr().String() + ":4420"
		found := must(host.Discover(ctx, from.dev, at, cfg))(t)
		if len(found) != 1 || found[0].SubsystemNQN != diskNQN {
			t.Errorf("found %+v", found)
		}
		c := must(host.Dial(ctx, from.dev, at, cfg))(t)
		ns := must(c.Namespace(ctx, 1))(t)
		from.h.Go(func(p *fabric.Process) {
			p.Sleep(time.Minute)
			memory.Resize(2 << 20)
		})
		if e := must(c.Event(ctx))(t); e != nvme.AsyncNamespaceChanged || p.Now() < time.Minute {
			t.Errorf("event %v at %v", e, p.Now())
		}
		ok(t, ns.Refresh(ctx))
		resized = ns.Size() == 2<<20
		short, cancel := p.WithTimeout(ctx, time.Second)
		defer cancel()
		if _, err := c.Event(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		ok(t, c.Close())
	})
	ok(t, f.Wait(2*time.Minute))
	if !resized {
		t.Error("the host has not seen the new size")
	}
	ok(t, tgt.Close())
}

// lateDisk is a Backend whose reads take as many milliseconds as there are blocks of 4 KiB before
// them.
type lateDisk struct {
	*target.Memory
	clock verbs.Clock
}

func (d *lateDisk) ReadAt(p []byte, off int64) (int, error) {
	passed, _ := d.clock.NewTimer(time.Duration(off>>12) * time.Millisecond)
	d.clock.Park(func() bool { return len(passed) > 0 })
	return d.Memory.ReadAt(p, off)
}

// TestNVMeGivenUp: the process that takes the completions of a queue gives up. Another one, whose
// command is slower, takes them from then on.
func TestNVMeGivenUp(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	to, from := onStatic(t, f, f.Hosts()[0], roce.Config{}), onStatic(t, f, f.Hosts()[1], roce.Config{})
	tgt := must(target.Listen(to.dev, ":4420", &target.Config{NQN: diskNQN, Transports: []verbs.Transport{verbs.RoCEv2},
		Namespaces: []target.Namespace{{Backend: &lateDisk{target.NewMemory(diskSize), to.dev.Clock()}}}}))(t)
	c := must(host.Dial(t.Context(), from.dev, to.h.Addr().String()+":4420", &host.Config{NQN: diskNQN, IOQueues: 1}))(t)
	ns := must(c.Namespace(t.Context(), 1))(t)
	const ms = time.Millisecond
	began := f.Now()
	// The first one takes the completions until its own, and then the last one, until it gives up.
	for i, r := range []struct{ takes, within, ends time.Duration }{
		{ms, time.Second, ms}, {20 * ms, time.Second, 20 * ms}, {30 * ms, 5 * ms, 5 * ms},
	} {
		from.h.Go(func(p *fabric.Process) {
			p.Sleep(time.Duration(i) * time.Microsecond)
			ctx, cancel := p.WithTimeout(context.Background(), r.within)
			defer cancel()
			_, err := ns.Read(ctx, make([]byte, 4096), int64(r.takes/ms)<<12)
			if took := p.Now() - began; took < r.ends || took > r.ends+ms || (err == nil) != (r.takes < r.within) {
				t.Errorf("read %d: %v after %v, want %v", i, err, took, r.ends)
			}
		})
	}
	ok(t, f.Wait(time.Minute))
	ok(t, c.Close())
	ok(t, tgt.Close())
}
