package rpcrdma

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net/netip"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/admission"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
)

// server is the server's side of a connection.
type server struct {
	*conn
	l        *Listener
	admitted *admission.Place[netip.Addr]
	handler  Handler
	ctx      context.Context // ends with the connection
	cancel   context.CancelFunc
	calls    wakeup.Group

	local, peer netip.AddrPort
	backward    *calls // calls to the client
}

// received handles a message. Its receive request is posted again when it is answered, but not
// before there is a buffer for the answer: so a client that respects its credits always finds one,
// and one that takes no answers cannot have more calls served.
func (s *server) received(buffer, length int, _ *verbs.WC) {
	b := s.recv.bytes(buffer)[:length]
	h, n, err := ParseHeader(b)
	kind, plain := direction(h, b[n:])
	if reply := plain && kind == rpcReply; err == nil && (reply || h.Type == Error) {
		if err := s.backward.answered(nil, h, bytes.Clone(b[n:])); err != nil {
			s.fail(err)
		}
		s.repost(buffer)
		return
	}
	if length < fixedLen || h.Type == Done || h.Type == Error {
		// The header cannot be answered, or must not be (RFC 8166 §4.2.4, §4.5).
		s.repost(buffer)
		return
	}
	s.calls.Go(s.clock, func() {
		switch {
		case h.Version != Version:
			s.sendError(buffer, h, ErrVers)
		case err != nil:
			s.sendError(buffer, h, ErrChunk)
		default:
			s.serve(buffer, h, b[n:])
		}
	})
}

func (s *server) repost(buffer int) {
	if err := s.postReceive(buffer); err != nil {
		s.fail(err)
	}
}

// serve serves one call. inline is the part of it in the receive buffer.
func (s *server) serve(buffer int, h *Header, inline []byte) {
	need, ok := s.need(h)
	if !ok {
		s.sendError(buffer, h, ErrChunk)
		return
	}
	taken, err := s.l.memory.take(s.ctx, s.peer.Addr(), need)
	if err != nil {
		return
	}
	put := func() { s.l.memory.put(s.peer.Addr(), taken) }
	call, err := s.fetch(h, inline)
	if err == nil {
		s.l.stats.calls.Add(1)
		s.l.stats.received.Add(uint64(len(call)))
		reply := s.handler.HandleRPC(s.ctx, &Call{Message: call, Room: s.room(h), LocalAddr: s.local, PeerAddr: s.peer})
		if reply == nil {
			put()
			s.repost(buffer)
			return
		}
		s.admitted.Prove() // the handler knows what this is
		if err = s.sendReply(buffer, h, call, reply, put); err == nil {
			return
		}
	}
	if !errors.Is(err, errChunk) {
		s.fail(err)
		return
	}
	put()
	s.sendError(buffer, h, ErrChunk)
}

// need returns the number of bytes for the Read chunks of a call, and for a reply that uses all of
// its other chunks. ok is false if the call is too long.
func (s *server) need(h *Header) (n int, ok bool) {
	read, rest := uint64(0), length(h.Reply)
	for _, seg := range h.Read {
		read += uint64(seg.Length)
	}
	for _, chunk := range h.Write {
		rest += length(chunk)
	}
	return int(min(read+rest, uint64(2*s.cfg.MaxMessage))), read <= uint64(s.cfg.MaxMessage)
}

// room returns the length of the longest reply that a call has room for, or a little more: the
// padding of data items is not sent.
func (s *server) room(h *Header) int {
	n := uint64(s.sendMax) + length(h.Reply)
	for _, chunk := range h.Write {
		n += length(chunk) + 3
	}
	return int(min(n, uint64(s.cfg.MaxMessage)))
}

// errChunk is the error of a call for which the client gets ERR_CHUNK.
var errChunk = errors.New("chunks do not fit the message")

// fetch returns the RPC message of a call. It fetches Read chunks by RDMA READ and inserts each at
// its position in the message (RFC 8166 §3.4.5). A message in a chunk at position 0 has no inline
// part (§3.5.2), and may have chunks at other positions.
func (s *server) fetch(h *Header, inline []byte) ([]byte, error) {
	read := h.Read
	whole := 0 // number of segments at position 0
	for whole < len(read) && read[whole].Position == 0 {
		whole++
	}
	if (whole > 0) != (h.Type == NoMsg) || whole > 0 && len(inline) > 0 {
		return nil, errChunk
	}
	if whole > 0 {
		l := &layout{}
		l.place(read[:whole])
		inline = make([]byte, l.length)
		if err := s.read(read[:whole], inline, l); err != nil {
			return nil, err
		}
		read = read[whole:]
	}
	call := inline
	if len(read) > 0 {
		l, err := newLayout(read, len(inline))
		if err != nil {
			return nil, err
		}
		call = make([]byte, l.length)
		if err := s.read(read, call, l); err != nil {
			return nil, err
		}
		for _, p := range l.inline {
			copy(call[p.to:p.to+p.n], inline[p.from:])
		}
	}
	if len(call) < 4 || binary.BigEndian.Uint32(call) != h.XID {
		return nil, errChunk
	}
	return call, nil
}

// read fetches segments to their places in a message.
func (s *server) read(segments []ReadSegment, message []byte, l *layout) error {
	mr, err := s.pd.RegMR(message, verbs.AccessLocalWrite)
	if err != nil {
		return err
	}
	var wrs []*verbs.SendWR
	for i, seg := range segments {
		if seg.Length == 0 {
			continue
		}
		s.l.stats.byRead.Add(uint64(seg.Length))
		wrs = append(wrs, &verbs.SendWR{
			Opcode: verbs.RDMARead, RemoteAddr: seg.Offset, RKey: seg.Handle,
			SGList: []verbs.SGE{{Addr: mr.Addr() + uint64(l.offsets[i]), Length: seg.Length, LKey: mr.LKey()}},
		})
	}
	if len(wrs) > 0 {
		var op *operation
		if op, err = s.post(nil, wrs...); err == nil {
			wakeup.Receive(s.clock, op.done)
			err = op.err
		}
	}
	return errors.Join(err, mr.Close())
}

// layout has the positions of a call's parts in its message.
type layout struct {
	length  int
	offsets []int // of the segments of the Read list
	inline  []part
}

// part is a part of the inline message, and its place in the whole.
type part struct{ from, to, n int }

// newLayout returns the layout of a call with Read chunks and n bytes of inline message. Chunks are
// in the order of their positions, which count the bytes of earlier chunks.
func newLayout(read []ReadSegment, n int) (*layout, error) {
	l := &layout{}
	from := 0
	for len(read) > 0 {
		position := read[0].Position
		before := int64(position) - int64(l.length)
		if before < 0 || before > int64(n-from) || position%4 != 0 {
			return nil, errChunk
		}
		l.inline = append(l.inline, part{from, l.length, int(before)})
		from, l.length = from+int(before), int(position)
		segments := 1
		for segments < len(read) && read[segments].Position == position {
			segments++
		}
		l.place(read[:segments])
		l.length += pad(l.length) // which may be part of the chunk or not (RFC 8166 §3.4.5.2)
		read = read[segments:]
	}
	l.inline = append(l.inline, part{from, l.length, n - from})
	l.length += n - from
	return l, nil
}

// place places the segments of a chunk one after the other.
func (l *layout) place(chunk []ReadSegment) {
	for _, seg := range chunk {
		l.offsets = append(l.offsets, l.length)
		l.length += int(seg.Length)
	}
}

// sendError sends an error message in place of a reply (RFC 8166 §4.5).
func (s *server) sendError(buffer int, call *Header, code ErrCode) {
	s.l.stats.errors.Add(1)
	h := &Header{XID: call.XID, Version: Version, Credits: s.grant(call), Type: Error, Err: code, Low: Version, High: Version}
	_ = s.transmit(&outgoing{header: h, ready: func() { s.repost(buffer) }, done: func() {}}) // its error has ended the connection
}

// grant returns the credits to grant in the reply to a call: those that it requests, within
// Config.Credits (RFC 8166 §3.3.1).
func (s *server) grant(call *Header) uint32 {
	return max(1, min(call.Credits, uint32(s.cfg.Credits)))
}
