package rsocket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// FuzzConnData: what is accepted of a peer's introduction is within bounds, and means the same when it is encoded again.
func FuzzConnData(f *testing.F) {
	own := connData{credits: 384, list: sge{0x1000, 7, entries}, data: sge{0x2000, 8, 64 << 10}}
	f.Add(own.bytes())
	own.bigEndian, own.iomaps = true, 4
	f.Add(append(own.bytes(), 0, 0, 0))
	f.Add([]byte{version})
	f.Fuzz(func(t *testing.T, b []byte) {
		d, err := parseConnData(b)
		if err != nil {
			if !errors.Is(err, syscall.EPROTO) {
				t.Error(err)
			}
			return
		}
		if d.credits < minQueue/2 || d.list.length < entries || d.list.length > 1<<16 || d.data.length == 0 {
			t.Errorf("accepted: %+v", d)
		}
		again := d.bytes()
		const lists = 8 // before them there are the scale of the iomaps, and reserved bytes
		if !bytes.Equal(again[2:4], b[2:4]) || !bytes.Equal(again[lists:], b[lists:connDataLen]) || again[1]&flagBigEndian != b[1]&flagBigEndian {
			t.Errorf("%x means %x", b, again)
		}
		if same, err := parseConnData(again); err != nil || same != d {
			t.Errorf("%x means %+v, and again %+v, %v", b, d, same, err)
		}
	})
}

// FuzzMessages: whatever a peer says and writes to the entry list, in between which this side sends, reads and gives room, the accounts
// of both buffers stay right, or it is refused with EPROTO. The first byte says which transport and byte order the peer has; the rest
// are steps of 21 bytes: what is done, 4 bytes of message or number, 16 of an entry.
func FuzzMessages(f *testing.F) {
	const step = 21
	seed := func(first byte, steps ...[]byte) { f.Add(append([]byte{first}, bytes.Join(steps, nil)...)) }
	say := func(what byte, n uint32, entry sge) []byte {
		b := make([]byte, step)
		b[0] = what
		binary.LittleEndian.PutUint32(b[1:], n)
		entry.put(b[5:], leOrder)
		return b
	}
	data, credits := uint32(newMessage(opData, 100)), uint32(newMessage(opCredits, 20))
	for first := range byte(4) {
		seed(first, say(0, data, sge{}), say(2, 60, sge{}), say(0, data, sge{}), say(2, 140, sge{}), say(3, 0, sge{}))
		seed(first, say(1, credits, sge{0x5000, 3, 2048}), say(4, 4096, sge{}), say(1, credits+4, sge{0x6000, 3, 2048}))
		seed(first, say(0, uint32(newMessage(opControl, ctrlShutdown)), sge{}), say(0, data, sge{}))
		seed(first, say(0, uint32(newMessage(opIomap, 1)), sge{}), say(0, uint32(newMessage(opControl, ctrlDisconnect)), sge{}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		c := &Conn{iwarp: b[0]&1 != 0, peer: connData{bigEndian: b[0]&2 != 0, credits: 16, list: sge{0x1000, 1, entries}, data: sge{0x2000, 2, 2048}}}
		c.cfg.SQSize, c.cfg.RQSize = 64, 16
		c.in.begin(make([]byte, minBuffer), c.cfg.RQSize)
		c.in.messages = make([]byte, messageLen)
		c.out.list = make([]byte, entries*sgeLen)
		c.out.begin(c)
		for b = b[1:]; len(b) >= step; b = b[step:] {
			n := binary.LittleEndian.Uint32(b[1:])
			switch b[0] % 5 {
			case 0, 1: // the peer sends a message, and perhaps has written an entry
				placed := message(n).data()
				if b[0]%5 == 1 {
					placed = sgeLen
					copy(c.out.list[c.out.takeAt*sgeLen:], b[5:step])
				} else if message(n).op() != opData {
					placed = 0
				}
				wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ImmData: n, ByteLen: placed, WRID: receiveID}
				if c.iwarp {
					wc.Opcode, wc.Flags, wc.ByteLen = verbs.WCRecv, 0, messageLen
					c.peer.order().PutUint32(c.in.messages, n)
				}
				if err := c.receive(&wc); err != nil {
					if !errors.Is(err, syscall.EPROTO) {
						t.Error(err)
					}
					return
				}
			case 2: // the reader reads
				k := int(n % uint32(c.in.unread+1))
				if got := c.in.next(k); len(got) > k {
					t.Fatalf("%d bytes instead of %d", len(got), k)
				}
				c.in.consume(k)
			case 3:
				if c.in.free >= c.in.half() {
					c.in.give()
				}
				c.in.announced = c.in.read
			case 4: // the writer sends
				if c.out.ready(c) {
					c.out.placed(int(min(n%maxTransfer+1, c.out.rooms[0].length)))
				}
			}
			checkAccounts(t, c)
		}
	})
}

// checkAccounts looks whether the buffers add up.
func checkAccounts(t *testing.T, c *Conn) {
	r, s := &c.in, &c.out
	sum := 0
	for i := range r.count {
		sum += int(r.lengths[(r.first+i)%len(r.lengths)])
	}
	switch {
	case r.unread < 0 || r.given < 0 || r.free < 0 || r.unread+r.given+r.free != len(r.buf):
		t.Fatalf("%d bytes unread, %d given and %d free, of %d", r.unread, r.given, r.free, len(r.buf))
	case sum != r.unread:
		t.Fatalf("messages of %d bytes, and %d bytes unread", sum, r.unread)
	case (r.readAt+r.unread)%len(r.buf) != r.writeAt:
		t.Fatalf("%d bytes are read from %d and written to %d", r.unread, r.readAt, r.writeAt)
	case s.limit-s.sent > c.peer.credits:
		t.Fatalf("%d credits of %d", s.limit-s.sent, c.peer.credits)
	case len(s.rooms) > entries || s.takeAt >= entries:
		t.Fatalf("%d rooms, the next entry is %d", len(s.rooms), s.takeAt)
	}
	for _, room := range s.rooms {
		if room.length == 0 || room.addr+uint64(room.length) < room.addr {
			t.Fatalf("room of %d bytes at %#x", room.length, room.addr)
		}
	}
}
