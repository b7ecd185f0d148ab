package rsocket

import (
	"io"
	"net"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

const (
	maxTransfer   = 64 << 10 // bytes of one message
	firstTransfer = 4 << 10  // of the first of many, which so are copied while others are sent
	lowWater      = 2 << 10  // a writer waits for that much room in the send buffer
	controlSlots  = 4        // of the send queue, and of the peer's receive queue, are for messages that are no data
)

// The IDs of work requests: what they are, or the number of bytes of the send buffer that they hold.
const (
	receiveID = 1 << 63
	controlID = 1 << 62 // counts against controlSlots
)

// sender is the send buffer, a ring, and what the peer gave: room to place bytes, and credits for messages.
type sender struct {
	buf      []byte
	mr       *verbs.MR
	at, used int

	list   []byte // the SGEs that the peer writes
	listMR *verbs.MR
	takeAt int // the entry of list that the peer writes next
	rooms  []sge
	giveAt uint32 // the entry of the peer's list that this side writes next

	sent, limit uint16 // messages of data; limit is how far they may go
	slots       int    // of the send queue
	size        int
	controlling int // of controlSlots

	controls     []message // to be sent
	disconnected bool      // the last of them, sent or not, is ctrlDisconnect

	waited bool // a writer has, since the last Write began
}

func (s *sender) register(c *Conn) (err error) {
	s.buf, s.list = make([]byte, c.cfg.SendBuffer), make([]byte, entries*sgeLen+c.cfg.Iomaps*iomapLen)
	c.maps.peers = make([]iomap, c.cfg.Iomaps)
	if s.mr, err = c.pd.RegMR(s.buf, 0); err != nil {
		return err
	}
	s.listMR, err = c.pd.RegMR(s.list, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	return err
}

// begin takes over what the peer has said when it connected.
func (s *sender) begin(c *Conn) {
	s.rooms = append(make([]sge, 0, entries), c.peer.data)
	s.takeAt, s.giveAt = 1, 1
	s.limit = c.peer.credits
	s.slots, s.size = c.cfg.SQSize, c.cfg.SQSize
}

// idle tells whether all has been sent and acknowledged.
func (s *sender) idle() bool { return s.slots == s.size && len(s.controls) == 0 }

// credited takes in a message of credits. entry tells whether an SGE was written with it; unknown, that the peer's librdmacm over iWARP
// does not say that. Then the entry is looked at after each message, also while the SGE of the next is placed: its halves of 8 bytes are
// taken together only if both are there.
func (s *sender) credited(c *Conn, limit uint16, entry, unknown bool) error {
	const op = "receive"
	// No more than the peer's queue holds may be under way, and no credit is taken back.
	if limit-s.sent > c.peer.credits || limit-s.limit > c.peer.credits {
		return verbs.Errorf(errProtocol, op, "credits up to message %d, after %d messages and credits up to %d; at most %d at a time",
			limit, s.sent, s.limit, c.peer.credits)
	}
	s.limit = limit
	if !entry && !unknown {
		return nil
	}
	b := s.list[s.takeAt*sgeLen:][:sgeLen]
	room := getSGE(b, leOrder)
	switch {
	case room.length == 0 && unknown:
		return nil
	case room.length == 0:
		return verbs.Errorf(errProtocol, op, "entry %d of the list was written, but gives no room", s.takeAt)
	case room.addr == 0 && unknown: // only a part of it was placed: its message is yet to come
		return nil
	case room.addr+uint64(room.length) < room.addr:
		return verbs.Errorf(errProtocol, op, "room of %d bytes at %#x, past the end of memory", room.length, room.addr)
	case len(s.rooms) == entries:
		return verbs.Errorf(errProtocol, op, "room was given %d times, while none of it is used up", entries+1)
	}
	clear(b)
	s.rooms = append(s.rooms, room)
	s.takeAt = (s.takeAt + 1) % entries
	return nil
}

// ready tells whether a message of data can be sent.
func (s *sender) ready(c *Conn) bool {
	return len(s.rooms) > 0 && len(c.maps.pending) == 0 && s.credit(c)
}

// credit tells whether a message that takes a credit can be sent.
func (s *sender) credit(c *Conn) bool {
	credits := uint16(0)
	if c.iwarp { // The peer's receive queue must have room for control messages too, as nothing makes them wait.
		credits = min(controlSlots, c.peer.credits/4)
	}
	return s.slotted(c) && s.limit-s.sent > credits
}

// slotted tells whether the send queue has room for what is no control message. Over iWARP a message is two requests.
func (s *sender) slotted(c *Conn) bool {
	if c.iwarp {
		return s.slots >= 2+2*controlSlots
	}
	return s.slots >= 1+controlSlots
}

// room is the free part of the send buffer that is in one piece.
func (s *sender) room() []byte {
	if s.used == 0 {
		s.at = 0
	}
	return s.buf[s.at:][:min(len(s.buf)-s.used, len(s.buf)-s.at)]
}

// post posts requests. mu is held.
func (c *Conn) post(wrs ...*verbs.SendWR) {
	if err := c.qp.PostSend(wrs...); err != nil {
		c.fail(err)
		return
	}
	c.out.slots -= len(wrs)
}

// postMessage places data at an address of the peer's, and tells it with a message. id is that of what holds the data.
func (c *Conn) postMessage(m message, data verbs.SendWR, to sge, id uint64) {
	data.RemoteAddr, data.RKey = to.addr, to.key
	if !c.iwarp {
		data.ID, data.Opcode, data.ImmData = id, verbs.RDMAWriteWithImm, uint32(m)
		c.post(&data)
		return
	}
	var b [messageLen]byte
	c.peer.order().PutUint32(b[:], uint32(m))
	send := verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline, InlineData: b[:]}
	if len(data.SGList) == 0 && len(data.InlineData) == 0 {
		send.ID = id
		c.post(&send)
		return
	}
	data.ID, data.Opcode = id&^controlID, verbs.RDMAWrite
	send.ID = id & controlID
	c.post(&data, &send)
}

// postData sends bytes as one message: the first n of the send buffer's room, or inline ones.
func (c *Conn) postData(n int, inline []byte) {
	s := &c.out
	to := &s.rooms[0]
	var wr verbs.SendWR
	id := uint64(0)
	if inline != nil {
		wr.Flags, wr.InlineData = verbs.SendInline, inline
	} else {
		sges := [1]verbs.SGE{s.mr.SGE(s.at, n)}
		wr.SGList = sges[:]
		id = uint64(n)
		s.used += n
		s.at = (s.at + n) % len(s.buf)
	}
	c.postMessage(newMessage(opData, uint32(n)), wr, *to, id)
	s.placed(n)
}

// placed counts a message of n bytes, which has gone to the first room.
func (s *sender) placed(n int) {
	s.sent++
	to := &s.rooms[0]
	to.addr += uint64(n)
	if to.length -= uint32(n); to.length == 0 {
		s.rooms = append(s.rooms[:0], s.rooms[1:]...)
	}
}

// grant gives the peer room and credits, if it is time. mu is held.
func (c *Conn) grant() {
	s, r := &c.out, &c.in
	for r.due() && s.slots >= 2 && s.controlling < controlSlots && !s.disconnected && !c.over() {
		var wr verbs.SendWR
		var to sge
		var b [sgeLen]byte
		if r.free >= r.half() {
			own := sge{r.mr.Addr() + uint64(r.give()), r.mr.RKey(), uint32(r.half())}
			own.put(b[:], c.peer.order())
			wr.Flags, wr.InlineData = verbs.SendInline, b[:]
			to = sge{addr: c.peer.list.addr + uint64(s.giveAt)*sgeLen, key: c.peer.list.key}
			s.giveAt = (s.giveAt + 1) % c.peer.list.length
		}
		r.announced = r.read
		credits := uint32(r.read + uint16(c.cfg.RQSize))
		if c.iwarp {
			if credits |= creditsTell; wr.InlineData != nil {
				credits |= creditsRoom
			}
		}
		s.controlling++
		c.postMessage(newMessage(opCredits, credits), wr, to, controlID)
	}
}

// flushControls sends what control messages there is room for. mu is held.
func (c *Conn) flushControls() {
	s := &c.out
	for len(s.controls) > 0 && s.slots > 0 && s.controlling < controlSlots && !c.failed {
		s.controlling++
		c.postMessage(s.controls[0], verbs.SendWR{}, sge{}, controlID)
		s.controls = s.controls[1:]
	}
}

// postKeepalive sends a WRITE of no bytes.
func (s *sender) postKeepalive(c *Conn) {
	c.post(&verbs.SendWR{Opcode: verbs.RDMAWrite})
}

// completed takes in the completion of a request. mu is held.
func (s *sender) completed(id uint64) {
	s.slots++
	if id&controlID != 0 {
		s.controlling--
		return
	}
	s.used -= int(id)
}

// until waits for a state of the sender. mu is held.
func (c *Conn) until(ready func() bool) (err error) {
	c.waitFor(&c.writable, func() (over bool) {
		switch {
		case c.closed:
			err = net.ErrClosed
		case c.writeBy.past:
			err = errTimeout
		case c.failed:
			err = c.err
		case c.writeShut || c.peerGone:
			err = syscall.EPIPE
		default:
			over = ready()
			c.out.waited = c.out.waited || !over
			return over
		}
		return true
	})
	return err
}

// push sends the first n bytes of the send buffer's room, and returns how many it has sent.
func (c *Conn) push(n int) (sent int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for sent < n {
		if err := c.until(func() bool { return c.out.ready(c) }); err != nil {
			return sent, err
		}
		k := min(n-sent, maxTransfer, int(min(c.out.rooms[0].length, maxTransfer)))
		c.postData(k, nil)
		sent += k
	}
	return sent, nil
}

// space waits for room in the send buffer for want bytes, or lowWater if that is less, and returns what is in one piece. busy tells
// whether a large message is being sent meanwhile, so that small ones would not begin earlier.
func (c *Conn) space(want int) (room []byte, busy bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.until(func() bool { return len(c.out.buf)-c.out.used >= min(want, lowWater) })
	if err != nil {
		return nil, false, err
	}
	return c.out.room(), c.out.used >= maxTransfer/2, nil
}

// firstPiece is how much of a Write goes in its first message. If the last Write had to wait, the peer has enough to read meanwhile.
func (c *Conn) firstPiece() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	waited := c.out.waited
	if c.out.waited = false; waited {
		return maxTransfer
	}
	return firstTransfer
}

// Write sends b. It returns when the send buffer has taken the last of it, or with an error and the number of bytes that were
// sent.
func (c *Conn) Write(b []byte) (n int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if n, err = c.write(b); err != nil {
		err = c.opError("write", err)
	}
	return n, err
}

func (c *Conn) write(b []byte) (total int, err error) {
	if len(b) > 0 && len(b) <= c.cfg.Inline {
		c.mu.Lock()
		defer c.mu.Unlock()
		for total < len(b) {
			if err := c.until(func() bool { return c.out.ready(c) }); err != nil {
				return total, err
			}
			k := int(min(uint32(len(b)-total), c.out.rooms[0].length))
			c.postData(k, b[total:][:k])
			total += k
		}
		return total, nil
	}
	if len(b) == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return 0, c.until(func() bool { return true })
	}
	for piece := c.firstPiece(); total < len(b); piece = min(2*piece, maxTransfer) {
		room, busy, err := c.space(len(b) - total)
		if err != nil {
			return total, err
		}
		if busy {
			piece = maxTransfer
		}
		n := copy(room[:min(piece, len(room))], b[total:])
		n, err = c.push(n)
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// ReadFrom sends what it reads from r until EOF, which r reads straight into the send buffer (io.ReaderFrom). Meanwhile Write waits.
func (c *Conn) ReadFrom(r io.Reader) (total int64, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for idle := 0; ; {
		room, _, err := c.space(lowWater)
		if err != nil {
			return total, c.opError("write", err)
		}
		n, readErr := r.Read(room[:min(len(room), maxTransfer)])
		if n < 0 || n > len(room) {
			return total, io.ErrNoProgress
		}
		if n > 0 {
			idle = 0
			n, err = c.push(n)
			total += int64(n)
			if err != nil {
				return total, c.opError("write", err)
			}
		} else if idle++; idle > 100 && readErr == nil {
			return total, io.ErrNoProgress
		}
		if readErr == io.EOF {
			return total, nil
		} else if readErr != nil {
			return total, readErr
		}
	}
}
