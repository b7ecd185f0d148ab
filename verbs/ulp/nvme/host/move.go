package host

import (
	"context"

	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// buffer is the application's memory of a transfer: registered, or p.
type buffer struct {
	p  []byte
	m  *Memory
	at int // in m
}

// piece is a command of a transfer that needs several.
type piece struct {
	s     *slot
	at, n int // in the buffer
}

// window is the number of commands that a transfer has outstanding.
const window = 8

// move executes Read, Write or Compare for n bytes, with as many commands as are needed. It returns
// the number of bytes before the first command that has failed.
func (ns *Namespace) move(ctx context.Context, op nvme.Opcode, b *buffer, off int64, n int) (done int, err error) {
	if n == 0 {
		return 0, nil
	}
	q, err := ns.c.queue()
	if err != nil {
		return 0, ns.wrap(verb(op), err)
	}
	most := max(q.s.maxTransfer(), ns.BlockSize()) // less than maxBlocks
	if b.m == nil {
		most = min(most, chunkSize)
	}
	var pieces [window]piece
	first, count := 0, 0
	for at := 0; at < n && err == nil || count > 0; {
		if at < n && err == nil && count < window {
			p := &pieces[(first+count)%window]
			p.at, p.n = at, min(most, n-at)
			var ok bool
			if ok, err = ns.begin(ctx, q, op, b, p, off, count == 0); ok {
				at += p.n
				count++
				continue
			}
			if count == 0 {
				break
			}
		}
		p := &pieces[first]
		if e := ns.end(ctx, q, op, b, p); e == nil && err == nil {
			done = p.at + p.n
		} else if err == nil {
			err = e
		}
		first, count = (first+1)%window, count-1
	}
	return done, ns.wrap(verb(op), err)
}

// begin sends the command of a piece. If there is no memory in the pool, or no slot, it waits, or
// without wait returns false.
func (ns *Namespace) begin(ctx context.Context, q *queue, op nvme.Opcode, b *buffer, p *piece, off int64, wait bool) (bool, error) {
	d := transfer{way: toHost, n: p.n}
	if op != nvme.Read {
		d.way = fromHost
	}
	var c *chunk
	switch {
	case b.m != nil:
		d.mr, d.off, d.application = b.m.mr, b.at+p.at, true
	case p.n > slotData:
		var err error
		if c, err = q.s.c.pool.get(ctx, wait); c == nil {
			return false, err
		}
		d.mr, d.off = c.mr, c.off
	}
	s, err := q.acquire(ctx, wait)
	if s == nil {
		if c != nil {
			q.s.c.pool.put(c)
		}
		return false, err
	}
	s.chunk, s.endless = c, false
	if d.way == fromHost && b.m == nil {
		copy(s.memory(q, p.n), b.p[p.at:p.at+p.n])
	}
	p.s = s
	cmd := nvme.Command{Opcode: op, NSID: ns.id}
	cmd.SetRange(uint64(off+int64(p.at))>>ns.shift, uint32(p.n>>ns.shift))
	if err := q.submit(s, &cmd, &d); err != nil {
		return false, err
	}
	return true, nil
}

// memory returns the first n bytes of the memory that data of a slot's command moves through.
func (s *slot) memory(q *queue, n int) []byte {
	if s.chunk != nil {
		return s.chunk.bytes(n)
	}
	return q.bytes(s, n)
}

// end waits for the response of a piece.
func (ns *Namespace) end(ctx context.Context, q *queue, op nvme.Opcode, b *buffer, p *piece) error {
	s := p.s
	_, had, err := q.finish(ctx, s, b.m != nil)
	if !had {
		return err
	}
	if err == nil && op == nvme.Read && b.m == nil {
		copy(b.p[p.at:p.at+p.n], s.memory(q, p.n))
	}
	q.put(s)
	return err
}
