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
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/rsocket"
)

// rogue is a peer that speaks the protocol by hand, or something else.
type rogue struct {
	t    *testing.T
	conn *rdmacm.Conn
	mr   *verbs.MR
	list [2]uint64 // of the victim: address and key
	data [2]uint64
}

// mine is where a rogue's memory begins that the victim knows nothing of.
const mine = 128 << 10

// victimIomaps is how many the victim has.
const victimIomaps = 2

// hello is private data that is in order.
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

// attack connects a rogue on one device to a victim on another, with private data that change may spoil.
func attack(t *testing.T, from, to *verbs.Device, at netip.Addr, transport verbs.Transport, change func([]byte) []byte) (*rogue, *rsocket.Conn, error) {
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
				if err := c.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{mr.SGE(mine+1024, 64)}}); err != nil {
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

// say places n bytes at an offset of what to is, and tells it with a message.
func (r *rogue) say(to [2]uint64, offset, n int, message uint32) {
	r.t.Helper()
	write := verbs.SendWR{Opcode: verbs.RDMAWriteWithImm, ImmData: message, RemoteAddr: to[0] + uint64(offset), RKey: uint32(to[1])}
	if n > 0 {
		write.SGList = []verbs.SGE{r.mr.SGE(mine, n)}
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

// iomap tells the victim of an iomap of n bytes. Where the index is beyond its list, nothing is placed over iWARP, whose WRITE would fail
// before.
func (r *rogue) iomap(index int, offset, addr uint64, n uint32) {
	b := r.mr.Buf()[mine:]
	binary.LittleEndian.PutUint64(b, offset)
	binary.LittleEndian.PutUint64(b[8:], addr)
	binary.LittleEndian.PutUint32(b[16:], r.mr.RKey())
	binary.LittleEndian.PutUint32(b[20:], n)
	at, placed := 2*16+24*index, 24
	if index >= victimIomaps {
		at, placed = 0, 0
	}
	r.say(r.list, at, placed, 6<<29+uint32(index))
}

// await waits for the victim's n-th message, and returns what was placed with it.
func (r *rogue) await(n int) {
	r.t.Helper()
	var wcs [1]verbs.WC
	for until := time.Now().Add(20 * time.Second); n > 0; {
		got, err := r.conn.RecvCQ().Poll(wcs[:])
		ok(r.t, err)
		if n -= got; got == 0 {
			if time.Now().After(until) {
				r.t.Fatal("no message of the victim's")
			}
			time.Sleep(time.Millisecond)
		}
	}
}

// A peer that does not introduce itself as it should is refused.
func TestHostileIntroduction(t *testing.T) {
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

// A peer that breaks the protocol later loses its connection; nothing is read that is not in order.
func TestHostileMessages(t *testing.T) {
	const op = 1 << 29
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		for name, does := range map[string]func(*rogue){
			"no data":           func(r *rogue) { r.say(r.data, 0, 0, 0) },
			"too much data":     func(r *rogue) { r.say(r.data, 0, 8, 64<<10+1) },
			"far too much data": func(r *rogue) { r.say(r.data, 0, 8, op-1) },
			"unknown operation": func(r *rogue) { r.say(r.data, 0, 0, 1*op) },
			"an iomap too many": func(r *rogue) { r.iomap(victimIomaps, 0, r.mr.Addr(), 100) },
			"an iomap beyond":   func(r *rogue) { r.say(r.list, 0, 0, 7*op-1) },
			"an iomap too high": func(r *rogue) { r.iomap(0, 0, ^uint64(0)-8, 100) },
			"an iomap too far":  func(r *rogue) { r.iomap(1, ^uint64(0)-8, r.mr.Addr(), 100) },
			"unknown control":   func(r *rogue) { r.say(r.data, 0, 0, 7*op+3) },
			"credits beyond":    func(r *rogue) { r.say(r.list, 0, 0, 4*op+0x8000) },
			"credits back":      func(r *rogue) { r.say(r.list, 0, 0, 4*op+10) },
			"after shutdown":    func(r *rogue) { r.say(r.data, 0, 0, 7*op+2); r.say(r.data, 0, 8, 8) },
			"beyond credit": func(r *rogue) {
				for i := range 385 {
					r.say(r.data, i, 1, 1)
				}
			},
			"endless room": func(r *rogue) {
				binary.LittleEndian.PutUint64(r.mr.Buf()[mine:], r.mr.Addr())
				binary.LittleEndian.PutUint32(r.mr.Buf()[mine+12:], 100)
				for _, entry := range []int{1, 0} { // not one twice: Go calls a write while the victim reads a race
					r.say(r.list, 16*entry, 16, 4*op+256)
				}
			},
			"beyond the buffer": func(r *rogue) { r.say(r.data, 128<<10, 8, 8) },
			"before the list":   func(r *rogue) { r.say(r.list, -16, 16, 4*op+256) },
			"a key too many":    func(r *rogue) { r.data[1]++; r.say(r.data, 0, 8, 8) },
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
				does(r)
				ok(t, victim.SetDeadline(time.Now().Add(20*time.Second)))
				if name == "beyond credit" { // the victim does not read before all has come
					for victim.QP().State() == verbs.StateRTS {
						time.Sleep(time.Millisecond)
					}
				}
				var got bytes.Buffer
				_, err = got.ReadFrom(victim)
				if name == "after shutdown" { // the reader's end was in order
					for err == nil {
						_, err = victim.Write([]byte("x"))
					}
				}
				if !errors.Is(err, syscall.EPROTO) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("Read: %v", err)
				}
				if got.Len() > 0 && name != "beyond credit" {
					t.Errorf("%d bytes were read", got.Len())
				}
			})
		}
	})
}

// A peer whose introduction, room or iomap is of memory that it does not have, or has not given, ends its own connection when the victim
// writes there.
func TestHostileAddresses(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		for name, change := range map[string]func([]byte) []byte{
			"room elsewhere":   func(b []byte) []byte { binary.BigEndian.PutUint64(b[24:], 4096); return b },
			"a key of nothing": func(b []byte) []byte { binary.BigEndian.PutUint32(b[32:], 0xdead<<8); return b },
			"list elsewhere":   func(b []byte) []byte { binary.BigEndian.PutUint64(b[8:], 4096); return b },
			"the list's key":   func(b []byte) []byte { binary.BigEndian.PutUint32(b[16:], 0xdead<<8); return b },
			"an iomap's key":   nil,
		} {
			t.Run(name, func(t *testing.T) {
				r, victim, err := attack(t, from, to, at, transport, change)
				ok(t, err)
				ok(t, victim.SetDeadline(time.Now().Add(20*time.Second)))
				write := func() error { _, err := victim.Write(make([]byte, 1000)); return err }
				if change == nil {
					r.iomap(0, 0, 4096, 100)
					r.say(r.data, 0, 8, 8)
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

// What a peer may write to ends where the mapping does, and its keys open nothing else that the device has: not the buffers of another
// connection, nor memory of the program's own.
func TestHostileWrites(t *testing.T) {
	const page, canary = 4096, 0xa5
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		to, from, at := devices(t, m)
		for name, does := range map[string]func(r *rogue, mapping, other [2]uint64){
			"before the mapping": func(r *rogue, m, _ [2]uint64) { r.say(m, -1, 1, 1) },
			"across the start":   func(r *rogue, m, _ [2]uint64) { r.say(m, -8, 16, 16) },
			"across its end":     func(r *rogue, m, _ [2]uint64) { r.say(m, page-8, 16, 16) },
			"behind it":          func(r *rogue, m, _ [2]uint64) { r.say(m, page, 1, 1) },
			"round the end":      func(r *rogue, m, _ [2]uint64) { r.say([2]uint64{^uint64(0) - 7, m[1]}, 0, 16, 16) },
			"other memory":       func(r *rogue, _, o [2]uint64) { r.say(o, 0, 16, 16) },
			"our key":            func(r *rogue, m, o [2]uint64) { r.say([2]uint64{o[0], m[1]}, 0, 16, 16) },
			"the buffer's key":   func(r *rogue, m, _ [2]uint64) { r.say([2]uint64{m[0], r.data[1]}, 0, 16, 16) },
		} {
			t.Run(name, func(t *testing.T) {
				pd, err := to.AllocPD()
				ok(t, err)
				own := bytes.Repeat([]byte{canary}, page)
				other, err := pd.RegMR(own, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead)
				ok(t, err)
				r, victim, err := attack(t, from, to, at, transport, func(b []byte) []byte {
					b[1], b[7] = 2, 1 // it has room for an iomap
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
				does(r, mapping, [2]uint64{other.Addr(), uint64(other.RKey())})
				ok(t, victim.SetDeadline(time.Now().Add(20*time.Second)))
				if _, err := victim.Read(make([]byte, 1)); !errors.Is(err, syscall.EPROTO) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("Read: %v", err)
				}
				for what, b := range map[string][]byte{"the mapping, or what is round it,": memory, "the program's memory": own} {
					if !bytes.Equal(b, bytes.Repeat([]byte{canary}, len(b))) {
						t.Errorf("%s has moved", what)
					}
				}
			})
		}
	})
}

// Connections that nobody accepts take no more than twice the backlog's, however many are asked for.
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
				t.Fatalf("%d are connected", connected.Load())
			}
		}
		if n := to.Resources().QP; n > 2*backlog+1 { // that of rdma_cm
			t.Errorf("%d QPs for a backlog of %d", n, backlog)
		}
		// A connection's heap is 167 KiB and its two buffers, and each of those that ask has less.
		const each = 512 << 10
		if heap, most := usage().heap-before.heap, float64(2*backlog*each+many*64<<10); heap > most {
			t.Errorf("%.0f KiB of heap, more than %.0f", heap/1024, most/1024)
		}
		cancel()
		asking.Wait()
	})
}
