package rsocket

import (
	"io"
	"net"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

const (
	maxTransfer = 64 << 10 // maximum bytes of a message
	// The size of the first message of a Write. It is small, so that copying overlaps with sending.
	firstTransfer = 4 << 10
	immediateLen  = 4       // bytes of immediate data in a message's last packet
	lowWater      = 2 << 10 // space in the send buffer for which a writer waits
	// Slots of the send queue, and of the peer's receive queue, for control messages.
	controlSlots = 4
)

// The IDs of work requests have a flag for their kind, or the number of bytes that they occupy in
// the send buffer.
const (
	receiveID = 1 << 63
	controlID = 1 << 62 // counts against controlSlots
)

// sender is the send buffer, a ring, and the peer's grants: targets for bytes, and credits for
// messages.
type sender struct {
	buf      []byte
	mr       *verbs.MR
	at, used int

	list       []byte // the SGEs that the peer writes
	listMR     *verbs.MR
	listAt     int    // the entry of list that the peer writes next
	targets    []sge  // granted parts of the peer's receive buffer
	peerListAt uint32 // the entry of the peer's list that this side writes next

	// Sequence numbers of data messages: sent, and allowed by the peer's credits.
	sent, limit      uint16
	slots            int // free slots of the send queue
	size             int // all slots of the send queue
	controlsInFlight int // at most controlSlots

	controls     []message // control messages to be sent
	disconnected bool      // the last control message, sent or queued, is ctrlDisconnect

	waited  bool // a writer has waited since the last Write started
	replied bool // the peer has sent data since the last Write started, or there was none

	need    need
	needed  int // bytes, for some values of need
	posting posting

	mtu int // the path MTU in bytes; 0 over iWARP
}

// posting is the memory of the requests that are posted together. Local variables would be
// allocated for each message.
type posting struct {
	wrs     [2]verbs.SendWR
	list    [2]*verbs.SendWR // of wrs
	sges    [2]verbs.SGE
	message [messageLen]byte
	entry   [sgeLen]byte
}

// add adds a request, the n-th of those posted together.
func (p *posting) add(n int, wr verbs.SendWR) {
	p.wrs[n] = wr
	p.list[n] = &p.wrs[n]
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

// start sets the state from the peer's private data.
func (s *sender) start(c *Conn) {
	s.targets = append(make([]sge, 0, entries), c.peer.data)
	s.listAt, s.peerListAt = 1, 1
	s.limit = c.peer.credits
	s.slots, s.size = c.cfg.SQSize, c.cfg.SQSize
	s.replied = true
}

// idle reports whether all requests are sent and acknowledged.
func (s *sender) idle() bool { return s.slots == s.size && len(s.controls) == 0 }

// handleCredits handles a credits message. entry means that an SGE was written with it. unknown
// means that this is not known, because the peer is librdmacm over iWARP. In this case the entry is
// read after each message, even while the SGE of the next message is being written. It is used only
// when both of its halves of 8 bytes are written.
func (s *sender) handleCredits(c *Conn, limit uint16, entry, unknown bool) error {
	const op = "receive"
	// The messages in flight must fit in the peer's queue, and credits cannot be revoked.
	if limit-s.sent > c.peer.credits || limit-s.limit > c.peer.credits {
		return verbs.Errorf(errProtocol, op, "credits up to message %d, after %d messages and credits up to %d; at most %d at a time",
			limit, s.sent, s.limit, c.peer.credits)
	}
	s.limit = limit
	if !entry && !unknown {
		return nil
	}
	b := s.list[s.listAt*sgeLen:][:sgeLen]
	target := getSGE(b, leOrder)
	switch {
	case target.length == 0 && unknown:
		return nil
	case target.length == 0:
		return verbs.Errorf(errProtocol, op, "entry %d of the list was written, but has length 0", s.listAt)
	case target.addr == 0 && unknown: // only a part is written, and its message follows
		return nil
	case target.addr+uint64(target.length) < target.addr:
		return verbs.Errorf(errProtocol, op, "a target of %d bytes at %#x exceeds the address space", target.length, target.addr)
	case len(s.targets) == entries:
		return verbs.Errorf(errProtocol, op, "%d unused targets, more than the list has entries", entries+1)
	}
	clear(b)
	s.targets = append(s.targets, target)
	s.listAt = (s.listAt + 1) % entries
	return nil
}

// ready reports whether a data message can be sent.
func (s *sender) ready(c *Conn) bool {
	return len(s.targets) > 0 && len(c.maps.pending) == 0 && s.hasCredit(c)
}

// hasCredit reports whether a message that uses a credit can be sent.
func (s *sender) hasCredit(c *Conn) bool {
	reserve := uint16(0)
	// iWARP has no RNR NAK: the peer's receive queue must have room for control messages too.
	if c.iwarp {
		reserve = min(controlSlots, c.peer.credits/4)
	}
	return s.hasSlot(c) && s.limit-s.sent > reserve
}

// hasSlot reports whether the send queue has space for a message other than a control message. Over
// iWARP, a message has two requests.
func (s *sender) hasSlot(c *Conn) bool {
	if c.iwarp {
		return s.slots >= 2+2*controlSlots
	}
	return s.slots >= 1+controlSlots
}

// freeSpace returns the contiguous free part of the send buffer.
func (s *sender) freeSpace() []byte {
	if s.used == 0 {
		s.at = 0
	}
	return s.buf[s.at:][:min(len(s.buf)-s.used, len(s.buf)-s.at)]
}

// post posts the first n requests of out.posting. mu is held.
func (c *Conn) post(n int) {
	p := &c.out.posting
	err := c.qp.PostSend(p.list[:n]...)
	p.wrs[0].InlineData = nil // it may be the caller's memory
	if err != nil {
		c.fail(err)
		return
	}
	c.out.slots -= n
}

// postMessage writes data to the peer's memory and sends a message. id is the ID of the request
// with the data.
func (c *Conn) postMessage(m message, data verbs.SendWR, to sge, id uint64) {
	p := &c.out.posting
	data.RemoteAddr, data.RKey = to.addr, to.key
	if !c.iwarp {
		data.WRID, data.Opcode, data.ImmData = id, verbs.RDMAWriteWithImm, uint32(m)
		p.add(0, data)
		c.post(1)
		return
	}
	c.peer.order().PutUint32(p.message[:], uint32(m))
	send := verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline, InlineData: p.message[:]}
	if len(data.SGList) == 0 && len(data.InlineData) == 0 {
		send.WRID = id
		p.add(0, send)
		c.post(1)
		return
	}
	data.WRID, data.Opcode = id&^controlID, verbs.RDMAWrite
	send.WRID = id & controlID
	p.add(0, data)
	p.add(1, send)
	c.post(2)
}

// postData sends n bytes from the free space of the send buffer or inline, as one data message, or
// as two if the peer's credits suffice for more.
func (c *Conn) postData(n int, inline []byte) {
	s := &c.out
	if tail := s.tail(n); tail > 0 && inline == nil && s.limit-s.sent > c.peer.credits/2 && s.slots >= 2+controlSlots {
		c.postParts(n-tail, tail)
		return
	}
	to := &s.targets[0]
	var wr verbs.SendWR
	id := uint64(0)
	if inline != nil {
		wr.Flags, wr.InlineData = verbs.SendInline, inline
	} else {
		wr.SGList = s.take(0, n)
		id = uint64(n)
	}
	c.postMessage(newMessage(opData, uint32(n)), wr, *to, id)
	s.advance(n)
}

// tail returns how many of the last bytes of n should be a message of their own; 0 if none. With
// its immediate data, a full last packet is longer than those before it, so that it needs another
// frame. A short packet with these bytes can be in the same superframe.
func (s *sender) tail(n int) int {
	if s.mtu == 0 || n <= 3*s.mtu {
		return 0 // in at most two frames
	}
	last := (n-1)%s.mtu + 1
	return max(last+immediateLen-s.mtu, 0)
}

// postParts sends the first bytes of the free space as two data messages that are posted together.
func (c *Conn) postParts(parts ...int) {
	s := &c.out
	p := &s.posting
	for i, n := range parts {
		to := &s.targets[0]
		p.add(i, verbs.SendWR{
			WRID: uint64(n), Opcode: verbs.RDMAWriteWithImm, ImmData: uint32(newMessage(opData, uint32(n))),
			SGList: s.take(i, n), RemoteAddr: to.addr, RKey: to.key,
		})
		s.advance(n)
	}
	c.post(len(parts))
}

// take takes n bytes of the free space, and returns their list, the i-th of those posted together.
func (s *sender) take(i, n int) []verbs.SGE {
	s.posting.sges[i] = s.mr.SGE(s.at, n)
	s.used += n
	s.at = (s.at + n) % len(s.buf)
	return s.posting.sges[i : i+1]
}

// advance counts a message of n bytes to the first target.
func (s *sender) advance(n int) {
	s.sent++
	to := &s.targets[0]
	to.addr += uint64(n)
	if to.length -= uint32(n); to.length == 0 {
		s.targets = append(s.targets[:0], s.targets[1:]...)
	}
}

// grant grants buffer space and credits to the peer when needed. mu is held.
func (c *Conn) grant() {
	s, r := &c.out, &c.in
	for r.needsGrant() && s.slots >= 2 && s.controlsInFlight < controlSlots && !s.disconnected && !c.ended() {
		var wr verbs.SendWR
		var to sge
		if r.free >= r.half() {
			own := sge{r.mr.Addr() + uint64(r.grantHalf()), r.mr.RKey(), uint32(r.half())}
			own.put(s.posting.entry[:], c.peer.order())
			wr.Flags, wr.InlineData = verbs.SendInline, s.posting.entry[:]
			to = sge{addr: c.peer.list.addr + uint64(s.peerListAt)*sgeLen, key: c.peer.list.key}
			s.peerListAt = (s.peerListAt + 1) % c.peer.list.length
		}
		r.announced = r.read
		credits := uint32(r.read + uint16(c.cfg.RQSize))
		if c.iwarp {
			if credits |= creditsHasFlags; wr.InlineData != nil {
				credits |= creditsTarget
			}
		}
		s.controlsInFlight++
		c.postMessage(newMessage(opCredits, credits), wr, to, controlID)
	}
}

// flushControls sends queued control messages while there are slots. mu is held.
func (c *Conn) flushControls() {
	s := &c.out
	for len(s.controls) > 0 && s.slots > 0 && s.controlsInFlight < controlSlots && !c.failed {
		s.controlsInFlight++
		c.postMessage(s.controls[0], verbs.SendWR{}, sge{}, controlID)
		s.controls = s.controls[1:]
	}
}

// postKeepalive posts a zero-length RDMA WRITE.
func (s *sender) postKeepalive(c *Conn) {
	s.posting.add(0, verbs.SendWR{Opcode: verbs.RDMAWrite})
	c.post(1)
}

// handleCompletion handles the completion of a send request. mu is held.
func (s *sender) handleCompletion(id uint64) {
	s.slots++
	if id&controlID != 0 {
		s.controlsInFlight--
		return
	}
	s.used -= int(id)
}

// need is what a writer waits for.
type need uint8

const (
	needOpen    need = iota // nothing
	needMessage             // a data message can be sent
	needSpace               // the send buffer has space
	needWriteAt             // WriteAt can make progress
)

// waitSender waits until there is what the writer needs, or until writing has ended. n is a number
// of bytes. mu and writing are held.
func (c *Conn) waitSender(what need, n int) error {
	c.out.need, c.out.needed = what, n
	c.waitFor(&c.writable, c.canSend)
	return c.sendError()
}

// sendError returns the reason why nothing can be written any more, or nil. mu is held.
func (c *Conn) sendError() error {
	switch {
	case c.closed:
		return net.ErrClosed
	case c.writeDeadline.expired:
		return errTimeout
	case c.failed:
		return c.err
	case c.writeShut || c.peerGone:
		return syscall.EPIPE
	}
	return nil
}

// tryToSend is waitSender without waiting. done is false if there is not yet what is needed.
func (c *Conn) tryToSend() (done bool) {
	s := &c.out
	switch {
	case c.sendError() != nil:
		return true
	case s.need == needMessage:
		done = s.ready(c)
	case s.need == needSpace:
		done = s.hasSpace(s.needed)
	case s.need == needWriteAt:
		done = c.canWriteAt(s.needed)
	default:
		done = true
	}
	s.waited = s.waited || !done
	return done
}

// sendBuffered sends the first n bytes of the send buffer's free space. The caller has copied data
// there. It returns the number of bytes sent.
func (c *Conn) sendBuffered(n int) (sent int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for sent < n {
		if err := c.waitSender(needMessage, 0); err != nil {
			return sent, err
		}
		k := min(n-sent, maxTransfer, int(min(c.out.targets[0].length, maxTransfer)))
		c.postData(k, nil)
		sent += k
	}
	return sent, nil
}

// waitSpace waits for min(want, lowWater) bytes of space in the send buffer, and returns its
// contiguous part. busy means that a large message is in flight. Smaller messages would then not
// start earlier.
func (c *Conn) waitSpace(want int) (room []byte, busy bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	err = c.waitSender(needSpace, min(want, lowWater))
	if err != nil {
		return nil, false, err
	}
	return c.out.freeSpace(), c.out.used >= maxTransfer/2, nil
}

// firstSize returns the size of the first message of a Write. If the last Write had to wait, the
// peer still has data to read. If the peer has sent nothing since, the application sends a stream,
// and does not wait for an answer. In both cases a small first message gains nothing. mu is held.
func (s *sender) firstSize() int {
	small := s.replied && !s.waited
	s.waited, s.replied = false, false
	if small {
		return firstTransfer
	}
	return maxTransfer
}

// Write sends b. It returns when the last byte is in the send buffer, or with an error and the
// number of bytes sent.
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
			if err := c.waitSender(needMessage, 0); err != nil {
				return total, err
			}
			k := int(min(uint32(len(b)-total), c.out.targets[0].length))
			c.postData(k, b[total:][:k])
			total += k
		}
		return total, nil
	}
	if len(b) == 0 {
		c.mu.Lock()
		defer c.mu.Unlock()
		return 0, c.waitSender(needOpen, 0)
	}
	c.mu.Lock()
	piece := c.out.firstSize()
	c.mu.Unlock()
	for ; total < len(b); piece = min(2*piece, maxTransfer) {
		room, busy, err := c.waitSpace(len(b) - total)
		if err != nil {
			return total, err
		}
		if busy {
			piece = maxTransfer
		}
		n := copy(room[:min(piece, len(room))], b[total:])
		n, err = c.sendBuffered(n)
		total += n
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// ReadFrom reads from r directly into the send buffer, and sends the data, until EOF
// (io.ReaderFrom). Concurrent calls of Write wait.
func (c *Conn) ReadFrom(r io.Reader) (total int64, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for idle := 0; ; {
		room, _, err := c.waitSpace(lowWater)
		if err != nil {
			return total, c.opError("write", err)
		}
		n, readErr := r.Read(room[:min(len(room), maxTransfer)])
		if n < 0 || n > len(room) {
			return total, io.ErrNoProgress
		}
		if n > 0 {
			idle = 0
			n, err = c.sendBuffered(n)
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
