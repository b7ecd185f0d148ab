package rsocket_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

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

// attack connects a rogue to a victim, with private data that change may spoil.
func attack(t *testing.T, m stacktest.Medium, transport verbs.Transport, change func([]byte) []byte) (*rogue, *rsocket.Conn, error) {
	t.Helper()
	to, from, at := devices(t, m)
	l, err := rsocket.Listen(to, netip.AddrPortFrom(at, 0).String(), &rsocket.Config{Transport: transport})
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

// A peer that does not introduce itself as it should is refused.
func TestHostileIntroduction(t *testing.T) {
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		for name, change := range map[string]func([]byte) []byte{
			"none":         func([]byte) []byte { return nil },
			"short":        func(b []byte) []byte { return b[:20] },
			"version":      func(b []byte) []byte { b[0] = 2; return b },
			"no credits":   func(b []byte) []byte { b[2], b[3] = 0, 0; return b },
			"no entries":   func(b []byte) []byte { clear(b[20:24]); return b },
			"many entries": func(b []byte) []byte { b[20] = 0xff; return b },
			"no room":      func(b []byte) []byte { clear(b[36:40]); return b },
		} {
			if _, _, err := attack(t, m, transport, change); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
	})
}

// A peer that breaks the protocol later loses its connection; nothing is read that is not in order.
func TestHostileMessages(t *testing.T) {
	const op = 1 << 29
	overAll(t, func(t *testing.T, m stacktest.Medium, transport verbs.Transport) {
		for name, does := range map[string]func(*rogue){
			"no data":             func(r *rogue) { r.say(r.data, 0, 0, 0) },
			"too much data":       func(r *rogue) { r.say(r.data, 0, 8, 64<<10+1) },
			"far too much data":   func(r *rogue) { r.say(r.data, 0, 8, op-1) },
			"unknown operation":   func(r *rogue) { r.say(r.data, 0, 0, 1*op) },
			"iomap":               func(r *rogue) { r.say(r.list, 0, 16, 6*op) },
			"unknown control":     func(r *rogue) { r.say(r.data, 0, 0, 7*op+3) },
			"credits beyond":      func(r *rogue) { r.say(r.list, 0, 0, 4*op+0x8000) },
			"credits taken back":  func(r *rogue) { r.say(r.list, 0, 0, 4*op+10) },
			"data after shutdown": func(r *rogue) { r.say(r.data, 0, 0, 7*op+2); r.say(r.data, 0, 8, 8) },
			"more than its credit": func(r *rogue) {
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
				r, victim, err := attack(t, m, transport, nil)
				ok(t, err)
				does(r)
				ok(t, victim.SetDeadline(time.Now().Add(20*time.Second)))
				if name == "more than its credit" { // the victim does not read before all has come
					for victim.QP().State() == verbs.StateRTS {
						time.Sleep(time.Millisecond)
					}
				}
				var got bytes.Buffer
				_, err = got.ReadFrom(victim)
				if name == "data after shutdown" { // the reader's end was in order
					for err == nil {
						_, err = victim.Write([]byte("x"))
					}
				}
				if !errors.Is(err, syscall.EPROTO) && !errors.Is(err, syscall.ECONNRESET) {
					t.Errorf("Read: %v", err)
				}
				if got.Len() > 0 && name != "more than its credit" {
					t.Errorf("%d bytes were read", got.Len())
				}
			})
		}
	})
}
