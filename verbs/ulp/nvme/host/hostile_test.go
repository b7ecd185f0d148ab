package host_test

import (
	"bytes"
	"context"
	"errors"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"
)

// bubble runs a test over both transports. Over RoCE time is virtual, and no goroutine may be left
// at the end. Over iWARP it is not: the TCP of package netstack does not wait as testing/synctest
// requires. Times are then short, and bounded below only.
func bubble(t *testing.T, f func(t *testing.T, r *rogue)) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		if transport == verbs.IWARP {
			f(t, newRogue(t, transport))
			return
		}
		synctest.Test(t, func(t *testing.T) { f(t, newRogue(t, transport)) })
	})
}

// brief returns how long a test lets something last.
func (r *rogue) brief() time.Duration {
	if r.transport == verbs.IWARP {
		return 100 * time.Millisecond
	}
	return 250 * time.Millisecond
}

// lasts checks that something that began at a time has lasted as long as brief says.
func (r *rogue) lasts(t *testing.T, began time.Time) {
	t.Helper()
	brief := r.brief()
	if took := time.Since(began); took < brief || r.transport != verbs.IWARP && took > brief+brief/2 {
		t.Errorf("after %v, want %v", took, brief)
	}
}

// guarded is memory of the application between memory that no command names, in one array.
type guarded struct {
	all []byte
	m   *host.Memory
}

const (
	guardSize = 4096 // bytes before the command's memory, that memory, and after it
	guardByte = 0x5a
)

// newGuarded registers the middle of an array, or the whole.
func newGuarded(t *testing.T, c *host.Controller, whole bool) (g *guarded, at int) {
	t.Helper()
	g = &guarded{all: bytes.Repeat([]byte{guardByte}, 3*guardSize)}
	part := g.all[guardSize : 2*guardSize]
	if whole {
		part, at = g.all, guardSize
	}
	g.m = must(c.Register(part))(t)
	return g, at
}

// intact checks that nothing was written around the command's memory.
func (g *guarded) intact(t *testing.T) {
	t.Helper()
	want := bytes.Repeat([]byte{guardByte}, guardSize)
	if !bytes.Equal(g.all[:guardSize], want) || !bytes.Equal(g.all[2*guardSize:], want) {
		t.Error("memory that no command names has changed")
	}
}

// recovers checks that the controller is lost, for a reason unless that is nil, and that Reset
// makes it work again when the target behaves.
func (r *rogue) recovers(t *testing.T, c *host.Controller, ns *host.Namespace, err, reason error) {
	t.Helper()
	var lost *host.LostError
	if !errors.As(err, &lost) || reason != nil && !errors.Is(err, reason) {
		t.Fatalf("the error is %v, want a LostError of %v", err, reason)
	}
	<-c.Done()
	p := make([]byte, 512)
	if _, err := ns.ReadAt(p, 0); !errors.As(err, &lost) {
		t.Errorf("the next command: %v", err)
	}
	r.handle(nil)
	ok(t, c.Reset(t.Context()))
	if _, err := ns.ReadAt(p, 0); err != nil || !bytes.Equal(p, bytes.Repeat([]byte{roguePattern}, 512)) {
		t.Errorf("after Reset: %v, %x", err, p[:8])
	}
}

// TestHostileResponses: a response that is not that of an outstanding command ends the controller.
func TestHostileResponses(t *testing.T) {
	b := make([]byte, 512)
	for name, attack := range map[string]struct {
		f      func(q *rogueQueue, c *nvme.Command)
		reason error // of the LostError; nil: any
	}{
		"CID without a slot":        {func(q *rogueQueue, c *nvme.Command) { q.send(response(c.CID|0x3ff, 0, 0)) }, syscall.EPROTO},
		"CID of a free slot":        {func(q *rogueQueue, c *nvme.Command) { q.send(response(c.CID^1, 0, 0)) }, syscall.EPROTO},
		"CID of an older command":   {func(q *rogueQueue, c *nvme.Command) { q.send(response(c.CID-1<<10, 0, 0)) }, syscall.EPROTO},
		"CID of a later command":    {func(q *rogueQueue, c *nvme.Command) { q.send(response(c.CID+1<<10, 0, 0)) }, syscall.EPROTO},
		"two responses":             {func(q *rogueQueue, c *nvme.Command) { q.respond(c, 0, 0); q.respond(c, 0, 0) }, syscall.EPROTO},
		"shorter":                   {func(q *rogueQueue, c *nvme.Command) { q.send(response(c.CID, 0, 0)[:15]) }, syscall.EPROTO},
		"empty":                     {func(q *rogueQueue, c *nvme.Command) { q.send(nil) }, syscall.EPROTO},
		"longer than the buffer":    {func(q *rogueQueue, c *nvme.Command) { q.send(append(response(c.CID, 0, 0), 0)) }, nil},
		"much longer":               {func(q *rogueQueue, c *nvme.Command) { q.send(make([]byte, rogueSlot)) }, nil},
		"invalidates no key":        {func(q *rogueQueue, c *nvme.Command) { q.invalidate(response(c.CID, 0, 0), 0x12345678) }, nil},
		"invalidates a region":      {func(q *rogueQueue, c *nvme.Command) { q.invalidate(response(c.CID, 0, 0), c.SGL.Key) }, nil},
		"WRITE without a region":    {func(q *rogueQueue, c *nvme.Command) { q.write(c.SGL.Addr+1<<40, c.SGL.Key, b) }, syscall.ECONNRESET},
		"WRITE with another key":    {func(q *rogueQueue, c *nvme.Command) { q.write(c.SGL.Addr, c.SGL.Key^0x100, b) }, syscall.ECONNRESET},
		"the end of the connection": {func(q *rogueQueue, _ *nvme.Command) { q.closed = true }, syscall.ECONNRESET},
		"many responses": {func(q *rogueQueue, c *nvme.Command) {
			for range 100 {
				q.respond(c, 0, 0)
			}
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rogue) {
				c := must(r.dial(t.Context(), nil))(t)
				defer c.Close()
				ns := must(c.Namespace(t.Context(), 1))(t)
				p := bytes.Repeat([]byte{guardByte}, 4096)
				_, err := ns.ReadAt(p, 0)
				ok(t, err)
				r.handle(onIO(attack.f))
				for range 3 { // the first may succeed
					if _, err = ns.ReadAt(p, 0); err != nil {
						break
					}
				}
				r.recovers(t, c, ns, err, attack.reason)
			})
		})
	}
}

// TestHostileImmediate: a WRITE with immediate is no response, although it uses a receive request,
// and its memory has the response of an earlier command with the same CID.
func TestHostileImmediate(t *testing.T) {
	bubble(t, func(t *testing.T, r *rogue) {
		const depth = 63 // a CID and the memory of its response return after 64 commands
		c := must(r.dial(t.Context(), &host.Config{IOQueues: 1, QueueDepth: depth}))(t)
		defer c.Close()
		ns := must(c.Namespace(t.Context(), 1))(t)
		p := make([]byte, 512)
		for range 2 * (depth + 1) {
			_, err := ns.ReadAt(p, 0)
			ok(t, err)
		}
		r.handle(onIO(func(q *rogueQueue, c *nvme.Command) {
			q.post(&verbs.SendWR{Opcode: verbs.RDMAWriteWithImm, ImmData: 1, RemoteAddr: c.SGL.Addr, RKey: c.SGL.Key,
				SGList: q.stage(make([]byte, nvme.CompletionLen))})
		}))
		_, err := ns.ReadAt(p, 0)
		r.recovers(t, c, ns, err, nil)
	})
}

// TestHostileAccess: a target does not reach memory around the memory that the application has
// registered, or with windows around that of the command. The attempt ends the controller.
func TestHostileAccess(t *testing.T) {
	b := bytes.Repeat([]byte{1}, guardSize)
	for name, attack := range map[string]func(q *rogueQueue, c *nvme.Command){
		"WRITE before": func(q *rogueQueue, c *nvme.Command) { q.write(c.SGL.Addr-guardSize, c.SGL.Key, b) },
		"WRITE after":  func(q *rogueQueue, c *nvme.Command) { q.write(c.SGL.Addr+guardSize, c.SGL.Key, b) },
		"WRITE across the end": func(q *rogueQueue, c *nvme.Command) {
			q.write(c.SGL.Addr+1, c.SGL.Key, b)
		},
		"WRITE across the start": func(q *rogueQueue, c *nvme.Command) { q.write(c.SGL.Addr-1, c.SGL.Key, b[:2]) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rogue) {
				for _, windows := range []bool{false, true} {
					c := must(r.dial(t.Context(), &host.Config{IOQueues: 1, QueueDepth: 8, Windows: windows}))(t)
					ns := must(c.Namespace(t.Context(), 1))(t)
					g, at := newGuarded(t, c, windows)
					r.handle(onIO(func(q *rogueQueue, c *nvme.Command) {
						attack(q, c)
						q.respond(c, nvme.Success, 0)
					}))
					_, err := ns.ReadMemory(t.Context(), g.m, at, guardSize, 0)
					g.intact(t)
					r.recovers(t, c, ns, err, nil)
					_, err = ns.ReadMemory(t.Context(), g.m, at, guardSize, 0)
					ok(t, err)
					g.intact(t)
					if g.all[guardSize] != roguePattern || g.all[2*guardSize-1] != roguePattern {
						t.Error("read something else after Reset")
					}
					ok(t, g.m.Close())
					ok(t, c.Close())
				}
			})
		})
	}
}

// TestHostileWindow: with windows, a target reaches memory only while a command uses it, in the
// command's direction, and must not invalidate another command's window.
func TestHostileWindow(t *testing.T) {
	bubble(t, func(t *testing.T, r *rogue) {
		c := must(r.dial(t.Context(), &host.Config{IOQueues: 1, QueueDepth: 8, Windows: true}))(t)
		defer c.Close()
		ns := must(c.Namespace(t.Context(), 1))(t)
		g, at := newGuarded(t, c, true)
		defer g.m.Close()

		var last nvme.Command
		r.handle(onIO(func(q *rogueQueue, c *nvme.Command) {
			if last.CID != 0 { // after the response of that command
				q.write(last.SGL.Addr, last.SGL.Key, make([]byte, 512))
			} else {
				q.send(response(c.CID, 0, 0)) // without invalidation, which is allowed
			}
			last = *c
		}))
		clear(g.all[guardSize : 2*guardSize])
		_, err := ns.WriteMemory(t.Context(), g.m, at, guardSize, 0)
		ok(t, err)
		_, err = ns.ReadMemory(t.Context(), g.m, at, guardSize, 0)
		r.recovers(t, c, ns, err, nil)

		r.handle(onIO(func(q *rogueQueue, c *nvme.Command) { q.write(c.SGL.Addr, c.SGL.Key, bytes.Repeat([]byte{1}, 512)) }))
		_, err = ns.WriteMemory(t.Context(), g.m, at, guardSize, 0) // the target may only read
		if !bytes.Equal(g.all[guardSize:2*guardSize], make([]byte, guardSize)) {
			t.Error("the data of a Write has changed")
		}
		r.recovers(t, c, ns, err, nil)

		r.handle(onIO(func(q *rogueQueue, c *nvme.Command) {
			q.post(&verbs.SendWR{Opcode: verbs.RDMARead, SGList: []verbs.SGE{q.out.SGE(0, 512)}, RemoteAddr: c.SGL.Addr, RKey: c.SGL.Key})
		}))
		_, err = ns.ReadMemory(t.Context(), g.m, at, guardSize, 0) // it may only write
		r.recovers(t, c, ns, err, nil)

		r.queues.Store(2)
		ok(t, c.Reset(t.Context()))
		q := must(c.OpenQueue(t.Context(), 2))(t)
		var first nvme.Command
		r.handle(onIO(func(q *rogueQueue, c *nvme.Command) {
			if first.CID == 0 {
				first = *c
				return
			}
			q.invalidate(response(c.CID, 0, 0), first.SGL.Key)
		}))
		ops := [2]host.Op{}
		for i := range ops {
			ops[i] = host.Op{Opcode: nvme.Read, Namespace: ns, Len: 512, Memory: g.m, At: at + i*512}
			ok(t, q.Post(&ops[i]))
		}
		var done [2]*host.Op
		for n := 0; n < 2; {
			k, err := q.Wait(t.Context(), done[n:])
			ok(t, err)
			n += k
		}
		for _, op := range done {
			if !errors.Is(op.Err, syscall.EPROTO) {
				t.Errorf("another command's window: %v", op.Err)
			}
		}
		_, err = q.Wait(t.Context(), done[:])
		r.recovers(t, c, ns, err, syscall.EPROTO)
		ok(t, q.Close())
		g.intact(t)
	})
}

// TestStatus: a status is the error of the command alone, also when data came before.
func TestStatus(t *testing.T) {
	bubble(t, func(t *testing.T, r *rogue) {
		c := must(r.dial(t.Context(), nil))(t)
		defer c.Close()
		ns := must(c.Namespace(t.Context(), 1))(t)
		p := bytes.Repeat([]byte{guardByte}, 4096)
		for _, status := range []nvme.Status{nvme.UnrecoveredReadError, nvme.ConnectRestart, 0x7ff, 1<<14 | nvme.InternalError} {
			r.handle(onIO(func(q *rogueQueue, c *nvme.Command) {
				q.write(c.SGL.Addr, c.SGL.Key, make([]byte, 4096))
				q.respond(c, status, 1<<64-1)
			}))
			var e *nvme.StatusError
			if n, err := ns.ReadAt(p, 0); n != 0 || !errors.As(err, &e) || e.Status != status {
				t.Errorf("%v: %d, %v", status, n, err)
			}
			if !bytes.Equal(p, bytes.Repeat([]byte{guardByte}, 4096)) {
				t.Errorf("%v: data of a command that has failed", status)
			}
		}
		ok(t, c.Err())
		r.handle(nil)
		_, err := ns.ReadAt(p, 0)
		ok(t, err)
	})
}

// TestTimeout: a command without a response ends the controller after Config.Timeout, also while it
// is connected, and on the Admin queue.
func TestTimeout(t *testing.T) {
	bubble(t, func(t *testing.T, r *rogue) {
		c := must(r.dial(t.Context(), &host.Config{IOQueues: 1, QueueDepth: 8, Timeout: r.brief()}))(t)
		defer c.Close()
		ns := must(c.Namespace(t.Context(), 1))(t)
		r.handle(onIO(func(*rogueQueue, *nvme.Command) {}))
		began := time.Now()
		_, err := ns.ReadAt(make([]byte, 4096), 0)
		r.lasts(t, began)
		r.recovers(t, c, ns, err, syscall.ETIMEDOUT)

		r.handle(func(*rogueQueue, *nvme.Command) bool { return true })
		began = time.Now()
		_, err = c.SMART(t.Context())
		r.lasts(t, began)
		r.recovers(t, c, ns, err, syscall.ETIMEDOUT)
	})
	for name, silent := range map[string]func(q *rogueQueue, c *nvme.Command) bool{
		"Connect":     func(q *rogueQueue, c *nvme.Command) bool { return true },
		"CAP":         func(q *rogueQueue, c *nvme.Command) bool { return c.FabricsType() == nvme.PropertyGet },
		"Identify":    func(q *rogueQueue, c *nvme.Command) bool { return c.Opcode == nvme.Identify },
		"I/O Connect": func(q *rogueQueue, c *nvme.Command) bool { return q.id > 0 },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rogue) {
				r.handle(silent)
				began := time.Now()
				_, err := r.dial(context.Background(), &host.Config{Timeout: r.brief()})
				r.lasts(t, began)
				if !errors.Is(err, syscall.ETIMEDOUT) {
					t.Error(err)
				}
			})
		})
	}
}

// TestContext: when the ctx of a command ends first, its slot remains reserved until the response.
// If the command uses memory of the application, the controller ends, and a late WRITE does not
// reach that memory.
func TestContext(t *testing.T) {
	bubble(t, func(t *testing.T, r *rogue) {
		c := must(r.dial(t.Context(), &host.Config{IOQueues: 1, QueueDepth: 1}))(t)
		defer c.Close()
		ns := must(c.Namespace(t.Context(), 1))(t)
		release := make(chan struct{})
		r.handle(onIO(func(q *rogueQueue, c *nvme.Command) {
			<-release
			q.write(c.SGL.Addr, c.SGL.Key, bytes.Repeat([]byte{1}, int(c.SGL.Length)))
			q.respond(c, nvme.Success, 0)
		}))
		short := func() context.Context {
			ctx, cancel := context.WithTimeout(t.Context(), r.brief())
			t.Cleanup(cancel)
			return ctx
		}
		p := bytes.Repeat([]byte{guardByte}, 4096)
		for i := range 3 { // the first waits for the response, and the others for its slot
			if _, err := ns.Read(short(), p, 0); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%d: %v", i, err)
			}
		}
		ok(t, c.Err())
		release <- struct{}{}
		r.handle(nil)
		if _, err := ns.ReadAt(p, 0); err != nil || p[0] != roguePattern {
			t.Errorf("after the late response: %v, %x", err, p[0])
		}

		g, at := newGuarded(t, c, false)
		defer g.m.Close()
		clear(g.m.Bytes())
		r.handle(onIO(func(q *rogueQueue, c *nvme.Command) {
			<-release
			q.write(c.SGL.Addr, c.SGL.Key, bytes.Repeat([]byte{1}, int(c.SGL.Length)))
			release <- struct{}{}
		}))
		_, err := ns.ReadMemory(short(), g.m, at, guardSize, 0)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		if err := c.Err(); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("the controller: %v", err)
		}
		release <- struct{}{}
		<-release
		if !bytes.Equal(g.m.Bytes(), make([]byte, guardSize)) {
			t.Error("a late WRITE has reached the memory")
		}
		g.intact(t)
		r.recovers(t, c, ns, c.Err(), context.DeadlineExceeded)
	})
	for name, silent := range map[string]func(q *rogueQueue, c *nvme.Command) bool{
		"Connect":     func(q *rogueQueue, c *nvme.Command) bool { return true },
		"Identify":    func(q *rogueQueue, c *nvme.Command) bool { return c.Opcode == nvme.Identify },
		"I/O Connect": func(q *rogueQueue, c *nvme.Command) bool { return q.id > 0 },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, r *rogue) {
				r.handle(silent)
				ctx, cancel := context.WithTimeout(t.Context(), r.brief())
				defer cancel()
				if _, err := r.dial(ctx, nil); !errors.Is(err, context.DeadlineExceeded) {
					t.Error(err)
				}
			})
		})
	}
}

// A controller may end its I/O queues while it shuts down, as SPDK's does.
func TestShutdownEndsIOQueues(t *testing.T) {
	bubble(t, func(t *testing.T, r *rogue) {
		var io *rogueQueue
		busy := 3 // answers before the shutdown is complete
		r.handle(func(q *rogueQueue, c *nvme.Command) bool {
			if q.id > 0 {
				r.mu.Lock()
				defer r.mu.Unlock()
				io = q
				return false
			}
			if c.Opcode != nvme.Fabrics {
				return false
			}
			switch _, _, value := c.PropertyParams(); {
			case c.FabricsType() == nvme.PropertySet && value&nvme.CCShutdown != 0:
				r.mu.Lock()
				defer r.mu.Unlock()
				if err := io.conn.ID().Disconnect(); err != nil {
					t.Error(err)
				}
			case c.FabricsType() == nvme.PropertyGet && q.shut && busy > 0:
				busy--
				q.respond(c, nvme.Success, nvme.CSTSReady)
				return true
			}
			return false
		})
		c := must(r.dial(t.Context(), nil))(t)
		ok(t, c.Close())
		if busy > 0 {
			t.Error("the host has not waited for the shutdown")
		}
	})
}
