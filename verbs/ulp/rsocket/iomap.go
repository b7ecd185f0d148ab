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

// iomap is a memory range to which the other side writes by its offset. It is an entry of the list
// after the SGEs.
type iomap struct {
	offset uint64
	memory sge
}

const iomapLen = 8 + sgeLen

// maxIomaps is the largest number that the private data can encode.
const maxIomaps = 127 << 8

// encodeIomapCount rounds a number of iomaps up to one that the private data can encode, and
// returns its encoding.
func encodeIomapCount(n int) (count int, scaled byte) {
	if n = min(max(n, 0), maxIomaps); n <= 128 {
		return n, byte(n)
	}
	n = (n + 255) &^ 255
	return n, 0x80 | byte(n>>8)
}

// decodeIomapCount returns the number of iomaps in the private data.
func decodeIomapCount(b byte) int {
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

// Offset returns the offset of the first byte in the peer's WriteAt.
func (m *Mapping) Offset() int64 { return int64(m.offset) }

// iomaps has the iomaps of a connection. The Conn's mu protects it.
type iomaps struct {
	peers   []iomap    // the peer's mappings, the targets of WriteAt; unused ones have length 0
	own     []*Mapping // by index
	pending []*Mapping // not yet sent to the peer
}

// Map allows the peer to write to b at the given offset; −1 means the address of b. The peer can
// use the mapping when it has received data that is written after Map. The error wraps ENOMEM if
// the peer's Config.Iomaps does not allow another mapping. b must not be freed or moved before
// Close of the Mapping or the Conn. If the peer writes to a page of b that does not exist, the
// connection ends with an error.
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
		err = verbs.Errorf(syscall.ENOMEM, op, "the peer supports %d mappings", c.peer.iomaps)
	default:
		m.mr, err = c.pd.RegMREx(&verbs.MRInitAttr{
			Buf: b, Mapped: true, Access: verbs.AccessLocalWrite | verbs.AccessRemoteWrite,
		})
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

// Close ends the mapping (riounmap). The peer gets no message. If it still writes to the mapping,
// the connection fails. Close returns net.ErrClosed after the first Close, or after Close of the
// Conn.
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
			c.wake() // WriteAt waits while mappings are pending
			break
		}
	}
	return m.mr.Close()
}

// release ends the remaining mappings. mu is held.
func (maps *iomaps) release() error {
	var errs []error
	for _, m := range maps.own {
		if m != nil {
			m.closed = true
			errs = append(errs, m.mr.Close())
		}
	}
	maps.own, maps.pending = nil, nil
	return errors.Join(errs...)
}

// flushIomaps sends as many pending mappings to the peer as credits allow. mu is held.
func (c *Conn) flushIomaps() {
	for len(c.maps.pending) > 0 && c.out.hasCredit(c) && !c.failed && !c.peerGone && !c.writeShut {
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

// handleIomap handles an iomap message. The message uses a credit, which is returned immediately.
// mu is held.
func (c *Conn) handleIomap(index, placed uint32) error {
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
		return verbs.Errorf(errProtocol, op, "an iomap of %d bytes at %#x exceeds the address space", m.memory.length, m.memory.addr)
	}
	c.maps.peers[index] = m
	c.in.read++
	return nil
}

// find returns the peer's memory from an offset to the end of its iomap. mu is held.
func (maps *iomaps) find(offset uint64) (sge, bool) {
	for _, m := range maps.peers {
		if at := offset - m.offset; offset >= m.offset && at < uint64(m.memory.length) {
			return sge{m.memory.addr + at, m.memory.key, m.memory.length - uint32(at)}, true
		}
	}
	return sge{}, false
}

// WriteAt writes b to the memory that the peer has mapped at off (riowrite). The peer's reader gets
// no notification. The memory has the bytes of b when the peer has received data that is written
// after WriteAt. The error wraps EINVAL if off is not mapped.
func (c *Conn) WriteAt(b []byte, off int64) (total int, err error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	for total < len(b) {
		n, err := c.tryWriteAt(b[total:], off+int64(total))
		total += n
		if errors.Is(err, verbs.ErrAgain) {
			c.mu.Lock()
			err = c.waitSender(needWriteAt, len(b)-total)
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

// TryWriteAt is like WriteAt but does not wait, as TryWrite is like Write.
func (c *Conn) TryWriteAt(b []byte, off int64) (int, error) {
	if !c.writing.TryLock() {
		return 0, errAgain
	}
	defer c.writing.Unlock()
	return c.tryWriteAt(b, off)
}

// canWriteAt reports whether some of n bytes can be written to the peer's memory. It returns true
// whenever the Conn is Writable, so a caller can wait for Writable. mu is held.
func (c *Conn) canWriteAt(n int) bool {
	return len(c.maps.pending) == 0 && c.out.hasSlot(c) && c.out.hasSpace(min(n, lowWater))
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
			err = verbs.Errorf(syscall.EINVAL, "write", "the peer has no mapping at %d", off+int64(total))
		case !c.canWriteAt(len(b) - total):
			if total == 0 {
				err = errAgain
			}
			return total, err
		}
		if err != nil {
			return total, c.opError("write", err)
		}
		room := c.out.freeSpace()
		n := min(len(b)-total, int(min(to.length, maxTransfer)), len(room))
		c.copyUnlocked(room[:n], b[total:])
		if c.writeEnded() || !c.canWriteAt(len(b)-total) {
			continue // Map may have used the last slot meanwhile
		}
		c.out.posting.add(0, verbs.SendWR{
			WRID: uint64(n), Opcode: verbs.RDMAWrite, SGList: c.out.take(0, n), RemoteAddr: to.addr, RKey: to.key,
		})
		c.post(1)
		total += n
	}
	return total, nil
}
