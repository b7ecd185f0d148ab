package rsocket_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/rsocket"
)

// rogue is a peer whose messages the test chooses, with or without protocol violations.
type rogue struct {
	t    *testing.T
	conn *rdmacm.Conn
	mr   *verbs.MR
	list [2]uint64 // of the victim: address and key
	data [2]uint64
}

// privateOffset is the offset of the rogue's memory that the victim does not know.
const privateOffset = 128 << 10

// victimIomaps is the Config.Iomaps of the victim.
const victimIomaps = 2

// hello returns valid private data.
func hello(list, data *verbs.MR) []byte {
	b := make([]byte, 40)
	b[0], b[2] = 1, 1 // 256 credits
	for i, mr := range []*verbs.MR{list, data} {
		at := b[8+16*i:]
		binary.BigEndian.PutUint64(at, mr.Addr())
		binary.BigEndian.PutUint32(at[8:], mr.RKey())
		binary.BigEndian.PutUint32(at[12:], []uint32{2, 64 << 10}[i])
	}
	return b
}

// attack connects a rogue on one device to a victim on another. change, if not nil, modifies its
// private data.
func attack(t *testing.T, from, to *verbs.Device, at netip.Addr, transport verbs.Transport,
	change func([]byte) []byte) (*rogue, *rsocket.Conn, error) {
	t.Helper()
	l, err := rsocket.Listen(to, netip.AddrPortFrom(at, 0).String(), &rsocket.Config{Transport: transport, Iomaps: victimIomaps})
	ok(t, err)
	t.Cleanup(func() { l.Close() })
	pd, err := from.AllocPD()
	ok(t, err)
	mr, err := pd.RegMR(make([]byte, 256<<10), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	ok(t, err)
	private := hello(mr, mr)
	if change != nil {
		private = change(private)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r := &rogue{t: t, mr: mr}
	r.conn, err = rdmacm.Dial(ctx, from, l.Addr().String(), &rdmacm.Config{Transport: transport, PD: pd, PrivateData: private,
		Cap: verbs.QPCap{MaxSendWR: 1024, MaxRecvWR: 64, MaxSendSGE: 1, MaxRecvSGE: 1, MaxInlineData: 16},
		Prepare: func(c *rdmacm.Conn) error {
			for range 64 {
				if err := c.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(privateOffset+1024, 64)}}); err != nil {
					return err
				}
			}
			return nil
		}})
	if err != nil {
		return nil, nil, err
	}
	t.Cleanup(func() { r.conn.Close() })
	b := r.conn.Peer().PrivateData
	r.list = [2]uint64{binary.BigEndian.Uint64(b[8:]), uint64(binary.BigEndian.Uint32(b[16:]))}
	r.data = [2]uint64{binary.BigEndian.Uint64(b[24:]), uint64(binary.BigEndian.Uint32(b[32:]))}
	victim, err := l.AcceptContext(ctx)
	ok(t, err)
	t.Cleanup(func() { victim.Close() })
	return r, victim, nil
}

// send places n bytes at an offset of to, and sends a message with them.
func (r *rogue) send(to [2]uint64, offset, n int, message uint32) {
	r.t.Helper()
	write := verbs.SendWR{Opcode: verbs.RDMAWriteWithImm, ImmData: message, RemoteAddr: to[0] + uint64(offset), RKey: uint32(to[1])}
	if n > 0 {
		write.SGList = []verbs.SGE{r.mr.SGE(privateOffset, n)}
	}
	if r.conn.Transport() != verbs.IWARP {
		ok(r.t, r.conn.QP().PostSend(&write))
		return
	}
	if n > 0 {
		write.Opcode = verbs.RDMAWrite
		ok(r.t, r.conn.QP().PostSend(&write))
	}
	b := binary.LittleEndian.AppendUint32(nil, message)
	ok(r.t, r.conn.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline, InlineData: b}))
}

// iomap sends an iomap of n bytes to the victim. For an index beyond the list it places nothing,
// because over iWARP the WRITE would fail first.
func (r *rogue) iomap(index int, offset, addr uint64, n uint32) {
	b := r.mr.Buf()[privateOffset:]
	binary.LittleEndian.PutUint64(b, offset)
	binary.LittleEndian.PutUint64(b[8:], addr)
	binary.LittleEndian.PutUint32(b[16:], r.mr.RKey())
	binary.LittleEndian.PutUint32(b[20:], n)
	at, placed := 2*16+24*index, 24
	if index >= victimIomaps {
		at, placed = 0, 0
	}
	r.send(r.list, at, placed, 6<<29+uint32(index))
}

// await waits for n messages of the victim.
func (r *rogue) await(n int) {
	r.t.Helper()
	var wcs [1]verbs.WC
	for until := time.Now().Add(20 * time.Second); n > 0; {
		got, err := r.conn.RecvCQ().Poll(wcs[:])
		ok(r.t, err)
		if n -= got; got == 0 {
			if time.Now().After(until) {
				r.t.Fatal("no message from the victim")
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// A connection request with invalid private data is rejected.
func TestHostilePrivateData(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		for name, change := range map[string]func([]byte) []byte{
			"none":         func([]byte) []byte { return nil },
			"short":        func(b []byte) []byte { return b[:20] },
			"version":      func(b []byte) []byte { b[0] = 2; return b },
			"no credits":   func(b []byte) []byte { b[2], b[3] = 0, 0; return b },
			"no entries":   func(b []byte) []byte { clear(b[20:24]); return b },
			"many entries": func(b []byte) []byte { b[20] = 0xff; return b },
			"no room":      func(b []byte) []byte { clear(b[36:40]); return b },
			"list past the end of memory": func(b []byte) []byte {
				binary.BigEndian.PutUint64(b[8:], ^uint64(0)-8)
				return b
			},
			"room past the end of memory": func(b []byte) []byte {
				binary.BigEndian.PutUint64(b[24:], ^uint64(0)-8)
				return b
			},
		} {
			if _, _, err := attack(t, from, to, at, transport, change); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
	})
}

// A later protocol violation ends the peer's connection, and no invalid data is read.
func TestHostileMessages(t *testing.T) {
	const op = 1 << 29
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		for name, act := range map[string]func(*rogue){
			"no data":                        func(r *rogue) { r.send(r.data, 0, 0, 0) },
			"too much data":                  func(r *rogue) { r.send(r.data, 0, 8, 64<<10+1) },
			"far too much data":              func(r *rogue) { r.send(r.data, 0, 8, op-1) },
			"unknown operation":              func(r *rogue) { r.send(r.data, 0, 0, 1*op) },
			"one iomap too many":             func(r *rogue) { r.iomap(victimIomaps, 0, r.mr.Addr(), 100) },
			"iomap index too large":          func(r *rogue) { r.send(r.list, 0, 0, 7*op-1) },
			"iomap beyond the address space": func(r *rogue) { r.iomap(0, 0, ^uint64(0)-8, 100) },
			"iomap offset too large":         func(r *rogue) { r.iomap(1, ^uint64(0)-8, r.mr.Addr(), 100) },
			"unknown control":                func(r *rogue) { r.send(r.data, 0, 0, 7*op+3) },
			"too many credits":               func(r *rogue) { r.send(r.list, 0, 0, 4*op+0x8000) },
			"credits revoked":                func(r *rogue) { r.send(r.list, 0, 0, 4*op+10) },
			"after shutdown":                 func(r *rogue) { r.send(r.data, 0, 0, 7*op+2); r.send(r.data, 0, 8, 8) },
			"credits exceeded": func(r *rogue) {
				for i := range 385 {
					r.send(r.data, i, 1, 1)
				}
			},
			"too many targets": func(r *rogue) {
				binary.LittleEndian.PutUint64(r.mr.Buf()[privateOffset:], r.mr.Addr())
				binary.LittleEndian.PutUint32(r.mr.Buf()[privateOffset+12:], 100)
				// Different entries: the race detector would report a write during a read.
				for _, entry := range []int{1, 0} {
					r.send(r.list, 16*entry, 16, 4*op+256)
				}
			},
			"beyond the buffer": func(r *rogue) { r.send(r.data, 128<<10, 8, 8) },
			"before the list":   func(r *rogue) { r.send(r.list, -16, 16, 4*op+256) },
			"wrong key":         func(r *rogue) { r.data[1]++; r.send(r.data, 0, 8, 8) },
			"a SEND": func(r *rogue) {
				ok(r.t, r.conn.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{r.mr.SGE(0, 3)}}))
			},
			"a READ": func(r *rogue) {
				ok(r.t, r.conn.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMARead, SGList: []verbs.SGE{r.mr.SGE(0, 8)},
					RemoteAddr: r.data[0], RKey: uint32(r.data[1])}))
			},
		} {
			t.Run(name, func(t *testing.T) {
				r, victim, err := attack(t, from, to, at, transport, nil)
				ok(t, err)
				act(r)
				ok(t, victim.SetDeadline(time.Now().Add(20*time.Second)))
				// The victim reads only after all messages have arrived.
				if name == "credits exceeded" {
					for victim.QP().State() == verbs.StateRTS {
						time.Sleep(time.Millisecond)
					}
				}
				var got bytes.Buffer
				_, err = got.ReadFrom(victim)
				if name == "after shutdown" { // the reader got a valid EOF
					for err == nil {
						_, err = victim.Write([]byte("x"))
					}
				}
				if !errors.Is(err, syscall.EPROTO) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("Read: %v", err)
				}
				if got.Len() > 0 && name != "credits exceeded" {
					t.Errorf("%d bytes were read", got.Len())
				}
			})
		}
	})
}

// A peer sends private data, a target or an iomap with memory that it does not have or has not
// registered. Its connection ends when the victim writes there.
func TestHostileAddresses(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		for name, change := range map[string]func([]byte) []byte{
			"invalid target":          func(b []byte) []byte { binary.BigEndian.PutUint64(b[24:], 4096); return b },
			"invalid key":             func(b []byte) []byte { binary.BigEndian.PutUint32(b[32:], 0xdead<<8); return b },
			"invalid list":            func(b []byte) []byte { binary.BigEndian.PutUint64(b[8:], 4096); return b },
			"invalid key of the list": func(b []byte) []byte { binary.BigEndian.PutUint32(b[16:], 0xdead<<8); return b },
			"invalid iomap":           nil,
		} {
			t.Run(name, func(t *testing.T) {
				r, victim, err := attack(t, from, to, at, transport, change)
				ok(t, err)
				ok(t, victim.SetDeadline(time.Now().Add(20*time.Second)))
				write := func() error { _, err := victim.Write(make([]byte, 1000)); return err }
				if change == nil {
					r.iomap(0, 0, 4096, 100)
					r.send(r.data, 0, 8, 8)
					_, err := victim.Read(make([]byte, 8))
					ok(t, err)
					write = func() error { _, err := victim.WriteAt(make([]byte, 100), 0); return err }
				}
				for err == nil {
					err = write()
				}
				if !errors.Is(err, syscall.ECONNRESET) && !errors.Is(err, syscall.EPROTO) {
					t.Errorf("Write: %v", err)
				}
			})
		}
	})
}

// A peer can write only within the mapping. Its keys give no access to other memory of the device,
// such as buffers of other connections or memory of the program.
func TestHostileWrites(t *testing.T) {
	const page, canary = 4096, 0xa5
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		for name, act := range map[string]func(r *rogue, mapping, other [2]uint64){
			"before the mapping": func(r *rogue, m, _ [2]uint64) { r.send(m, -1, 1, 1) },
			"across its start":   func(r *rogue, m, _ [2]uint64) { r.send(m, -8, 16, 16) },
			"across its end":     func(r *rogue, m, _ [2]uint64) { r.send(m, page-8, 16, 16) },
			"after its end":      func(r *rogue, m, _ [2]uint64) { r.send(m, page, 1, 1) },
			"address overflow":   func(r *rogue, m, _ [2]uint64) { r.send([2]uint64{^uint64(0) - 7, m[1]}, 0, 16, 16) },
			"other memory":       func(r *rogue, _, o [2]uint64) { r.send(o, 0, 16, 16) },
			"our key":            func(r *rogue, m, o [2]uint64) { r.send([2]uint64{o[0], m[1]}, 0, 16, 16) },
			"the buffer's key":   func(r *rogue, m, _ [2]uint64) { r.send([2]uint64{m[0], r.data[1]}, 0, 16, 16) },
		} {
			t.Run(name, func(t *testing.T) {
				pd, err := to.AllocPD()
				ok(t, err)
				own := bytes.Repeat([]byte{canary}, page)
				other, err := pd.RegMR(own, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
				ok(t, err)
				r, victim, err := attack(t, from, to, at, transport, func(b []byte) []byte {
					b[1], b[7] = 2, 1 // it supports one iomap
					return b
				})
				ok(t, err)
				memory := bytes.Repeat([]byte{canary}, 3*page)
				_, err = victim.Map(memory[page:2*page], 0)
				ok(t, err)
				r.await(2) // the second half of the buffer, and the mapping
				b := r.mr.Buf()[2*16:]
				mapping := [2]uint64{binary.LittleEndian.Uint64(b[8:]), uint64(binary.LittleEndian.Uint32(b[16:]))}
				if n := binary.LittleEndian.Uint32(b[20:]); n != page {
					t.Fatalf("a mapping of %d bytes", n)
				}
				act(r, mapping, [2]uint64{other.Addr(), uint64(other.RKey())})
				ok(t, victim.SetDeadline(time.Now().Add(20*time.Second)))
				if _, err := victim.Read(make([]byte, 1)); !errors.Is(err, syscall.EPROTO) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("Read: %v", err)
				}
				for name, b := range map[string][]byte{"the mapping or its surroundings": memory, "the program's memory": own} {
					if !bytes.Equal(b, bytes.Repeat([]byte{canary}, len(b))) {
						t.Errorf("%s: bytes have changed", name)
					}
				}
			})
		}
	})
}

// Connections that are not accepted use at most twice the resources of the backlog, regardless of
// the number of requests.
func TestHostileBacklog(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		const backlog, many = 8, 200
		lan := new(pipe.Switch)
		to, from := open(t, lan.Port(), server), open(t, lan.Port(), client)
		cfg := &rsocket.Config{Transport: transport, Backlog: backlog}
		small := &rsocket.Config{Transport: transport, SQSize: 16, RQSize: 16, SendBuffer: 4096, RecvBuffer: 4096, Linger: time.Millisecond}
		l, err := rsocket.Listen(to, "10.0.0.1:7", cfg)
		ok(t, err)
		defer l.Close()
		before := usage()
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		var connected atomic.Int32
		for range many {
			asking.Go(func() {
				if c, err := rsocket.Dial(ctx, from, "10.0.0.1:7", small); err == nil {
					connected.Add(1)
					<-ctx.Done()
					_ = c.Close()
				}
			})
		}
		for until := time.Now().Add(20 * time.Second); connected.Load() < backlog; time.Sleep(10 * time.Millisecond) {
			if time.Now().After(until) {
				t.Fatalf("%d connections are established", connected.Load())
			}
		}
		if n := to.Resources().QP; n > 2*backlog+1 { // one is rdma_cm's
			t.Errorf("%d QPs for a backlog of %d", n, backlog)
		}
		// A connection uses 167 KiB of heap and its two buffers. The clients have small buffers, and
		// packets in flight.
		const each = 512 << 10
		if heap, most := usage().heap-before.heap, float64(2*backlog*each+many*128<<10); heap > most {
			t.Errorf("%.0f KiB of heap, more than %.0f", heap/1024, most/1024)
		}
		cancel()
		asking.Wait()
	})
}

// TestHalfOpen: a peer that completes none of its connections does not keep a listener from another
// peer. Time is virtual.
func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const backlog = 4
		lan := new(pipe.Switch)
		to, hostile, good := open(t, lan.Port(), server), open(t, lan.Port(), client), open(t, lan.Port(), "10.0.0.3/24")
		l, err := rsocket.Listen(to, "10.0.0.1:7", &rsocket.Config{Backlog: backlog})
		ok(t, err)
		defer l.Close()
		pd, err := hostile.AllocPD()
		ok(t, err)
		mr, err := pd.RegMR(make([]byte, 4096), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
		ok(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		var asking sync.WaitGroup
		for i := range 4 * backlog {
			asking.Go(func() {
				for ctx.Err() == nil {
					id, err := rdmacm.CreateSyncID(rdmacm.TCP, hostile)
					ok(t, err)
					if err = id.ResolveAddr(ctx, netip.AddrPort{}, netip.MustParseAddrPort("10.0.0.1:7")); err == nil {
						err = id.ResolveRoute(ctx)
					}
					if err == nil { // the answer never gets one
						err = id.Connect(ctx, &rdmacm.ConnParam{QPNum: uint32(100 + i), PrivateData: hello(mr, mr)})
					}
					if err == nil {
						sleep(ctx, time.Minute)
					}
					_ = id.Close()
					sleep(ctx, 100*time.Millisecond)
				}
			})
		}
		time.Sleep(time.Second)
		for range 5 {
			dialing, end := context.WithTimeout(ctx, 20*time.Second)
			began := time.Now()
			c, err := rsocket.Dial(dialing, good, "10.0.0.1:7", nil)
			end()
			if err != nil {
				t.Errorf("after %v: %v", time.Since(began), err)
				break
			}
			accepted, err := l.Accept()
			ok(t, err)
			ok(t, c.Close())
			ok(t, accepted.Close())
		}
		cancel()
		asking.Wait()
		ok(t, mr.Close())
		ok(t, pd.Close())
	})
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
