package rsocket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// FuzzConnData: accepted private data of a peer is within bounds, and encoding and parsing it again
// gives the same values.
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
		const lists = 8 // reserved bytes and the number of iomaps are before them
		sameFlags := again[1]&flagBigEndian == b[1]&flagBigEndian
		if !bytes.Equal(again[2:4], b[2:4]) || !bytes.Equal(again[lists:], b[lists:connDataLen]) || !sameFlags {
			t.Errorf("%x is encoded as %x", b, again)
		}
		if same, err := parseConnData(again); err != nil || same != d {
			t.Errorf("%x is parsed as %+v, and again as %+v, %v", b, d, same, err)
		}
	})
}

// FuzzMessages: a peer sends arbitrary messages and writes arbitrary entries to the list, while
// this side sends, reads and grants space. The state of both buffers stays consistent, or the peer
// gets EPROTO. The first byte selects the peer's transport and byte order. The rest are steps of 21
// bytes: a byte for the action, 4 bytes for a message or number, and 16 bytes for an entry.
func FuzzMessages(f *testing.F) {
	const step = 21
	seed := func(first byte, steps ...[]byte) { f.Add(append([]byte{first}, bytes.Join(steps, nil)...)) }
	action := func(kind byte, n uint32, entry sge) []byte {
		b := make([]byte, step)
		b[0] = kind
		binary.LittleEndian.PutUint32(b[1:], n)
		entry.put(b[5:], leOrder)
		return b
	}
	data, credits := uint32(newMessage(opData, 100)), uint32(newMessage(opCredits, 20))
	for first := range byte(4) {
		seed(first, action(0, data, sge{}), action(2, 60, sge{}), action(0, data, sge{}), action(2, 140, sge{}), action(3, 0, sge{}))
		seed(first, action(1, credits, sge{0x5000, 3, 2048}), action(4, 4096, sge{}), action(1, credits+4, sge{0x6000, 3, 2048}))
		seed(first, action(0, uint32(newMessage(opControl, ctrlShutdown)), sge{}), action(0, data, sge{}))
		seed(first, action(0, uint32(newMessage(opIomap, 1)), sge{}), action(0, uint32(newMessage(opControl, ctrlDisconnect)), sge{}))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		peer := connData{bigEndian: b[0]&2 != 0, credits: 16, list: sge{0x1000, 1, entries}, data: sge{0x2000, 2, 2048}}
		c := &Conn{iwarp: b[0]&1 != 0, peer: peer}
		c.cfg.SQSize, c.cfg.RQSize = 64, 16
		c.in.init(make([]byte, minBuffer), c.cfg.RQSize)
		c.in.messages = make([]byte, messageLen)
		c.out.list = make([]byte, entries*sgeLen)
		c.out.start(c)
		for b = b[1:]; len(b) >= step; b = b[step:] {
			n := binary.LittleEndian.Uint32(b[1:])
			switch b[0] % 5 {
			case 0, 1: // the peer sends a message; in case 1 it has written an entry before
				placed := message(n).data()
				if b[0]%5 == 1 {
					placed = sgeLen
					copy(c.out.list[c.out.listAt*sgeLen:], b[5:step])
				} else if message(n).op() != opData {
					placed = 0
				}
				wc := verbs.WC{Opcode: verbs.WCRecvRDMAWithImm, Flags: verbs.WCWithImm, ImmData: n, ByteLen: placed, WRID: receiveID}
				if c.iwarp {
					wc.Opcode, wc.Flags, wc.ByteLen = verbs.WCRecv, 0, messageLen
					c.peer.order().PutUint32(c.in.messages, n)
				}
				if err := c.handleMessage(&wc); err != nil {
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
					c.in.grantHalf()
				}
				c.in.announced = c.in.read
			case 4: // the writer sends
				if c.out.ready(c) {
					c.out.advance(int(min(n%maxTransfer+1, c.out.targets[0].length)))
				}
			}
			checkState(t, c)
		}
	})
}

// checkState checks that the state of the buffers is consistent.
func checkState(t *testing.T, c *Conn) {
	r, s := &c.in, &c.out
	sum := 0
	for i := range r.count {
		sum += int(r.lengths[(r.first+i)%len(r.lengths)])
	}
	switch {
	case r.unread < 0 || r.granted < 0 || r.free < 0 || r.unread+r.granted+r.free != len(r.buf):
		t.Fatalf("%d bytes unread, %d granted and %d free, of %d", r.unread, r.granted, r.free, len(r.buf))
	case sum != r.unread:
		t.Fatalf("messages of %d bytes, and %d bytes unread", sum, r.unread)
	case (r.readAt+r.unread)%len(r.buf) != r.writeAt:
		t.Fatalf("%d bytes are read from %d and written to %d", r.unread, r.readAt, r.writeAt)
	case s.limit-s.sent > c.peer.credits:
		t.Fatalf("%d credits of %d", s.limit-s.sent, c.peer.credits)
	case len(s.targets) > entries || s.listAt >= entries:
		t.Fatalf("%d targets, the next entry is %d", len(s.targets), s.listAt)
	}
	for _, target := range s.targets {
		if target.length == 0 || target.addr+uint64(target.length) < target.addr {
			t.Fatalf("target of %d bytes at %#x", target.length, target.addr)
		}
	}
}
