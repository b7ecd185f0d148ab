package rpcrdma

import (
	"github.com/softrnic/softrnic/verbs"
)

// sendReply sends the reply to a call. Its data items go to the Write chunks of the call, in order
// (RFC 8166 §3.4.6), and the rest is sent inline, or goes to the Reply chunk if it is too long for
// that (§3.5.3). The error is errChunk if the reply does not fit. Otherwise put is called when the
// reply's memory is no longer in use.
func (s *server) sendReply(buffer int, call *Header, message, reply []byte, put func()) error {
	h := &Header{XID: call.XID, Version: Version, Credits: s.grant(call), Type: Msg}
	var items []Item
	if s.cfg.Binding != nil && len(call.Write) > 0 {
		items = s.cfg.Binding.ReplyItems(message, reply)
	}
	w := &writer{reply: reply}
	var moved []Item
	for i, chunk := range call.Write {
		var item Item
		if i < len(items) && len(chunk) > 0 { // the item of an empty chunk stays inline (RFC 8267 §5.4.2)
			item = items[i]
			moved = append(moved, item)
		}
		written, ok := w.write(chunk, item.Offset, item.Length)
		if !ok {
			return errChunk
		}
		h.Write = append(h.Write, written)
	}
	rest := without(len(reply), moved)
	n := 0
	for _, p := range rest {
		n += p.n
	}
	if h.Len()+n > s.sendMax {
		if call.Reply == nil {
			return errChunk
		}
		h.Type = NoMsg
		var ok bool
		if h.Reply, ok = w.writeParts(call.Reply, rest); !ok {
			return errChunk
		}
		rest, n = nil, 0
	}
	if h.Len()+n > s.sendMax {
		return errChunk
	}
	return s.place(buffer, call, h, w, rest, put)
}

// place sends a reply, after RDMA WRITEs.
func (s *server) place(buffer int, call, h *Header, w *writer, rest []part, put func()) (err error) {
	mr := (*verbs.MR)(nil)
	if len(w.wrs) > 0 {
		if mr, err = s.pd.RegMR(w.reply, 0); err != nil {
			return err
		}
	}
	for _, wr := range w.wrs {
		wr.SGList[0].Addr += mr.Addr()
		wr.SGList[0].LKey = mr.LKey()
		s.l.stats.byWrite.Add(uint64(wr.SGList[0].Length))
	}
	done := func() {
		if mr != nil {
			_ = mr.Close() // no window is bound to it
		}
		put()
	}
	s.l.stats.replies.Add(1)
	s.l.stats.sent.Add(uint64(len(w.reply)))
	return s.transmit(&outgoing{header: h, message: w.reply, inline: rest, before: w.wrs, invalidate: s.invalid(call),
		ready: func() { s.repost(buffer) }, done: done})
}

// invalid returns the key of a call's chunks that the reply invalidates, if the client accepts that
// (RFC 8797 §4.1.1), or 0. Like Linux's server, it invalidates a key only if the call has no other.
func (s *server) invalid(call *Header) (key uint32) {
	if !s.invalidate {
		return 0
	}
	var keys []uint32
	for _, seg := range call.Read {
		keys = append(keys, seg.Handle)
	}
	for _, chunk := range append([][]Segment{call.Reply}, call.Write...) {
		for _, seg := range chunk {
			keys = append(keys, seg.Handle)
		}
	}
	for _, k := range keys {
		if k != keys[0] {
			return 0
		}
		key = k
	}
	return key
}

// without returns the parts of a message of n bytes that are in no item.
func without(n int, items []Item) (rest []part) {
	from := 0
	for _, item := range items {
		rest = append(rest, part{from: from, n: item.Offset - from})
		from = item.end(n)
	}
	return append(rest, part{from: from, n: n - from})
}

// writer makes RDMA WRITEs from a reply. The addresses in their SGEs are offsets.
type writer struct {
	reply []byte
	wrs   []*verbs.SendWR
}

// write writes n bytes of the reply to a chunk. It returns the chunk with the lengths written.
func (w *writer) write(chunk []Segment, offset, n int) (written []Segment, ok bool) {
	return w.writeParts(chunk, []part{{from: offset, n: n}})
}

// writeParts writes parts of the reply to a chunk, one after the other. ok is false if the chunk is
// too short.
func (w *writer) writeParts(chunk []Segment, parts []part) (written []Segment, ok bool) {
	written = make([]Segment, len(chunk))
	at, used := 0, uint32(0) // the current segment
	for i, seg := range chunk {
		written[i] = Segment{Handle: seg.Handle, Offset: seg.Offset}
	}
	for _, p := range parts {
		for p.n > 0 {
			for at < len(chunk) && used == chunk[at].Length {
				at, used = at+1, 0
			}
			if at == len(chunk) {
				return nil, false
			}
			seg := chunk[at]
			n := min(uint64(p.n), uint64(seg.Length-used))
			w.wrs = append(w.wrs, &verbs.SendWR{
				Opcode: verbs.RDMAWrite, RemoteAddr: seg.Offset + uint64(used), RKey: seg.Handle,
				SGList: []verbs.SGE{{Addr: uint64(p.from), Length: uint32(n)}},
			})
			used += uint32(n)
			written[at].Length = used
			p.from, p.n = p.from+int(n), p.n-int(n)
		}
	}
	return written, true
}
