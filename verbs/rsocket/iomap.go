package rsocket

import (
	"encoding/binary"
	"errors"
	"math"
	"net"
	"syscall"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

// iomap is a piece of memory that one side writes to by its offset: an entry of the list behind the SGEs.
type iomap struct {
	offset uint64
	memory sge
}

const iomapLen = 8 + sgeLen

// maxIomaps is the largest number that the introduction can say.
const maxIomaps = 127 << 8

// iomapCount rounds a number of iomaps up to one that the introduction can say, and returns how it says it.
func iomapCount(n int) (count int, scaled byte) {
	if n = min(max(n, 0), maxIomaps); n <= 128 {
		return n, byte(n)
	}
	n = (n + 255) &^ 255
	return n, 0x80 | byte(n>>8)
}

// unscaled is the number that the introduction says.
func unscaled(b byte) int {
	if b <= 128 {
		return int(b)
	}
	return int(b&0x7f) << 8
}

// Mapping is memory that the peer may write to (riomap).
type Mapping struct {
	c      *Conn
	mr     *verbs.MR
	offset uint64
	index  int // of the peer's list
	closed bool
}

// Offset is what the peer's WriteAt knows the first byte as.
func (m *Mapping) Offset() int64 { return int64(m.offset) }

// iomaps are those of a connection. The Conn's mu guards them.
type iomaps struct {
	peers   []iomap    // where WriteAt goes, as the peer has said; of length 0 are those that it has not
	own     []*Mapping // by index
	pending []*Mapping // of which the peer was not told
}

// Map lets the peer write to b, which it knows by offset; −1 stands for the address of b. The peer knows it when it has received what
// is written afterwards. The error wraps ENOMEM if the peer has no room for another (its Config.Iomaps). b must not be freed or
// moved before Close of the Mapping or the Conn; a write to a page of it that does not exist fails the connection.
func (c *Conn) Map(b []byte, offset int64) (*Mapping, error) {
	const op = "map"
	if len(b) == 0 || uint64(len(b)) > math.MaxUint32 || offset < -1 {
		return nil, c.opError(op, syscall.EINVAL)
	}
	m := &Mapping{c: c, offset: uint64(offset)}
	if offset == -1 {
		m.offset = uint64(uintptr(unsafe.Pointer(&b[0])))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	maps := &c.maps
	for m.index < len(maps.own) && maps.own[m.index] != nil {
		m.index++
	}
	switch {
	case c.closed:
		err = net.ErrClosed
	case m.index >= c.peer.iomaps:
		err = verbs.Errorf(syscall.ENOMEM, op, "the peer has room for %d mappings", c.peer.iomaps)
	default:
		m.mr, err = c.pd.RegMapping(b, verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	}
	if err != nil {
		return nil, c.opError(op, err)
	}
	if m.index == len(maps.own) {
		maps.own = append(maps.own, nil)
	}
	maps.own[m.index] = m
	maps.pending = append(maps.pending, m)
	c.flushIomaps()
	return m, nil
}

// Close ends the mapping. The peer is not told: if it still writes there, the connection fails.
func (m *Mapping) Close() error {
	c := m.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if m.closed {
		return c.opError("unmap", net.ErrClosed)
	}
	m.closed = true
	c.maps.own[m.index] = nil
	for i, p := range c.maps.pending {
		if p == m {
			c.maps.pending = append(c.maps.pending[:i], c.maps.pending[i+1:]...)
			c.wake() // WriteAt waits for none to be pending
			break
		}
	}
	return m.mr.Dereg()
}

// release ends those that are left. mu is held.
func (maps *iomaps) release() error {
	var errs []error
	for _, m := range maps.own {
		if m != nil {
			m.closed = true
			errs = append(errs, m.mr.Dereg())
		}
	}
	maps.own, maps.pending = nil, nil
	return errors.Join(errs...)
}

// flushIomaps tells the peer of what it does not know, as far as there are credits. mu is held.
func (c *Conn) flushIomaps() {
	for len(c.maps.pending) > 0 && c.out.credit(c) && !c.failed && !c.peerGone && !c.writeShut {
		m := c.maps.pending[0]
		c.maps.pending = c.maps.pending[1:]
		var b [iomapLen]byte
		order := c.peer.order()
		order.PutUint64(b[:], m.offset)
		sge{m.mr.Addr(), m.mr.RKey(), uint32(m.mr.Length())}.put(b[8:], order)
		list := c.peer.list
		to := sge{addr: list.addr + uint64(list.length)*sgeLen + uint64(m.index)*iomapLen, key: list.key}
		c.postMessage(newMessage(opIomap, uint32(m.index)), verbs.SendWR{Flags: verbs.SendInline, InlineData: b[:]}, to, 0)
		c.out.sent++
	}
}

// mapped takes in what the peer has said of an iomap. Such a message takes a credit, which is given back at once. mu is held.
func (c *Conn) mapped(index, placed uint32) error {
	const op = "receive"
	switch {
	case int(index) >= len(c.maps.peers):
		return verbs.Errorf(errProtocol, op, "iomap %d of %d", index, len(c.maps.peers))
	case !c.iwarp && placed != iomapLen:
		return verbs.Errorf(errProtocol, op, "%d bytes were placed with an iomap, not %d", placed, iomapLen)
	}
	b := c.out.list[entries*sgeLen+int(index)*iomapLen:]
	m := iomap{binary.LittleEndian.Uint64(b), getSGE(b[8:iomapLen], leOrder)}
	if end := m.memory.addr + uint64(m.memory.length); end < m.memory.addr || m.offset+uint64(m.memory.length) < m.offset {
		return verbs.Errorf(errProtocol, op, "an iomap of %d bytes at %#x, past the end of memory", m.memory.length, m.memory.addr)
	}
	c.maps.peers[index] = m
	c.in.read++
	return nil
}

// find returns the peer's memory from an offset on. mu is held.
func (maps *iomaps) find(offset uint64) (sge, bool) {
	for _, m := range maps.peers {
		if at := offset - m.offset; offset >= m.offset && at < uint64(m.memory.length) {
			return sge{m.memory.addr + at, m.memory.key, m.memory.length - uint32(at)}, true
		}
	}
	return sge{}, false
}

// WriteAt writes b to the peer's memory that it has mapped at off (riowrite). The peer's reader does not notice; it finds b there when
// it has received what is written afterwards. The error wraps EINVAL where nothing is mapped.
func (c *Conn) WriteAt(b []byte, off int64) (total int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for total < len(b) {
		n, err := c.tryWriteAt(b[total:], off+int64(total))
		total += n
		if errors.Is(err, verbs.ErrAgain) {
			c.mu.Lock()
			err = c.until(func() bool { return c.mayWriteAt(len(b) - total) })
			c.mu.Unlock()
			if err != nil {
				err = c.opError("write", err)
			}
		}
		if err != nil {
			return total, err
		}
	}
	return total, nil
}

// TryWriteAt is WriteAt that does not wait, as TryWrite is Write.
func (c *Conn) TryWriteAt(b []byte, off int64) (int, error) {
	if !c.writing.TryLock() {
		return 0, errAgain
	}
	defer c.writing.Unlock()
	return c.tryWriteAt(b, off)
}

// mayWriteAt tells whether some of n bytes can be written to the peer's memory. It is so whenever the Conn is Writable: who has to wait
// for the one waits for the other. mu is held.
func (c *Conn) mayWriteAt(n int) bool {
	return len(c.maps.pending) == 0 && c.out.slotted(c) && c.out.spacious(min(n, lowWater))
}

// tryWriteAt is TryWriteAt; writing is held.
func (c *Conn) tryWriteAt(b []byte, off int64) (total int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for total < len(b) {
		to, ok := c.maps.find(uint64(off) + uint64(total))
		switch {
		case c.closed:
			err = net.ErrClosed
		case c.failed:
			err = c.err
		case c.writeShut || c.peerGone:
			err = syscall.EPIPE
		case !ok:
			err = verbs.Errorf(syscall.EINVAL, "write", "the peer has nothing mapped at %d", off+int64(total))
		case !c.mayWriteAt(len(b) - total):
			if total == 0 {
				err = errAgain
			}
			return total, err
		}
		if err != nil {
			return total, c.opError("write", err)
		}
		room := c.out.room()
		n := min(len(b)-total, int(min(to.length, maxTransfer)), len(room))
		c.copyUnlocked(room[:n], b[total:])
		if c.writeOver() || !c.mayWriteAt(len(b)-total) {
			continue // meanwhile Map may have taken the last slot
		}
		s := &c.out
		sges := [1]verbs.SGE{s.mr.SGE(s.at, n)}
		s.used += n
		s.at = (s.at + n) % len(s.buf)
		c.post(&verbs.SendWR{ID: uint64(n), Opcode: verbs.RDMAWrite, SGList: sges[:], RemoteAddr: to.addr, RKey: to.key})
		total += n
	}
	return total, nil
}
