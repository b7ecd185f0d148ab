package trace

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
)

// gopacket reads pcapng too, but takes a resolution of 2⁻ⁿ s for the nearest whole number of
// nanoseconds or ticks, and one of whole seconds for microseconds. Its reader cannot be corrected
// afterwards, as it returns only converted times. It also reads a packet's flags as little-endian.
// The format is draft-ietf-opsawg-pcapng.

// Types of blocks.
const (
	blockSection    = 0x0a0d0d0a
	blockInterface  = 1
	blockPacket     = 2 // obsolete
	blockSimple     = 3
	blockStatistics = 5
	blockEnhanced   = 6
)

// Codes of options.
const (
	optionFlags      = 2 // of an enhanced packet
	optionLost       = 4 // packets lost since the one before
	optionResolution = 9
	optionOffset     = 14
	optionByIntf     = 5 // of statistics: packets that the interface has dropped since the beginning
	optionBySystem   = 7 // and the capturing system
)

const (
	// maxBlock is the longest block that is read, in bytes. Others are skipped, whatever their
	// length.
	maxBlock = maxRecord + 1<<16
	// maxInterfaces is the most interfaces of a section.
	maxInterfaces = 1 << 12
)

// ngInterface is an interface of a section.
type ngInterface struct {
	link       layers.LinkType
	snap       uint32
	resolution uint8     // if_tsresol: a power of 10, or with the upper bit of 2
	offset     int64     // seconds
	lost       [2]uint64 // by statistics: dropped by the interface, and by the system
}

// ngSource reads the packets of a pcapng file.
type ngSource struct {
	r          *bufio.Reader
	l          *leash
	order      binary.ByteOrder
	interfaces []ngInterface
	body       []byte
	direction  uint8 // of the last packet: 1 inbound, 2 outbound, 0 not known
	unit       time.Duration
	// Dropped by the capture up to here, as its packets and as its statistics say, which may count
	// the same ones; each is at most maxLost.
	lost  [2]uint64
	told  uint64 // by dropped
	ahead uint64 // dropped, as was read before
}

func newNgSource(r *bufio.Reader, l *leash) (*ngSource, error) {
	s := &ngSource{r: r, l: l, order: binary.LittleEndian}
	if t, err := s.block(); err != nil || t != blockSection {
		return nil, errors.Join(errors.New("no section header at the beginning"), err)
	}
	return s, nil
}

// block reads a block into s.body, without its type and lengths. A block of another type than those
// above is skipped.
func (s *ngSource) block() (t uint32, err error) {
	var head [12]byte
	if _, err := io.ReadFull(s.r, head[:8]); err != nil {
		return 0, err // io.EOF before a block is the end of the file
	}
	rest := head[8:8]
	if t = s.order.Uint32(head[:]); t == blockSection { // the same in both byte orders
		rest = head[8:12]
		if _, err := io.ReadFull(s.r, rest); err != nil {
			return 0, unexpected(err)
		}
		switch uint32(0x1a2b3c4d) {
		case binary.LittleEndian.Uint32(rest):
			s.order = binary.LittleEndian
		case binary.BigEndian.Uint32(rest):
			s.order = binary.BigEndian
		default:
			return 0, fmt.Errorf("a section header with byte order %#x, which is not known", rest)
		}
	}
	n := s.order.Uint32(head[4:])
	if n < uint32(12+len(rest)) || n%4 != 0 {
		return 0, fmt.Errorf("a block of type %#x and %d bytes: no multiple of 4, or too few", t, n)
	}
	s.body = append(s.body[:0], rest...)
	size := int64(n) - 12 - int64(len(rest))
	switch t {
	case blockSection, blockInterface, blockPacket, blockSimple, blockStatistics, blockEnhanced:
		if size > maxBlock {
			return 0, fmt.Errorf("a block of type %#x and %d bytes; the limit is %d", t, n, maxBlock)
		}
		at := len(s.body)
		s.body = slices.Grow(s.body, int(size))[:at+int(size)]
		_, err = io.ReadFull(s.r, s.body[at:])
	default:
		_, err = io.CopyN(io.Discard, s.r, size)
	}
	if err == nil {
		_, err = io.ReadFull(s.r, head[:4])
	}
	if err != nil {
		return 0, unexpected(err)
	}
	if end := s.order.Uint32(head[:]); end != n {
		return 0, fmt.Errorf("a block of type %#x has length %d at its beginning, and %d at its end", t, n, end)
	}
	if t == blockSection {
		err = s.section()
	}
	return t, err
}

func unexpected(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

func (s *ngSource) section() error {
	if len(s.body) < 16 {
		return errors.New("a section header is too short")
	}
	if major := s.order.Uint16(s.body[4:]); major != 1 {
		return fmt.Errorf("version %d of pcapng, and only 1 is known", major)
	}
	s.interfaces = s.interfaces[:0]
	return nil
}

// options calls f with each option.
func (s *ngSource) options(b []byte, f func(code uint16, value []byte)) {
	for len(b) >= 4 {
		code, n := s.order.Uint16(b), int(s.order.Uint16(b[2:]))
		if code == 0 || 4+n > len(b) {
			return
		}
		f(code, b[4:4+n])
		b = b[min(4+(n+3)/4*4, len(b)):]
	}
}

func (s *ngSource) addInterface() error {
	if len(s.body) < 8 {
		return errors.New("an interface description is too short")
	}
	if len(s.interfaces) == maxInterfaces {
		return fmt.Errorf("more than %d interfaces", maxInterfaces)
	}
	i := ngInterface{link: layers.LinkType(s.order.Uint16(s.body)), snap: s.order.Uint32(s.body[4:]), resolution: 6}
	s.options(s.body[8:], func(code uint16, value []byte) {
		switch {
		case code == optionResolution && len(value) == 1:
			i.resolution = value[0]
		case code == optionOffset && len(value) == 8:
			i.offset = int64(s.order.Uint64(value))
		}
	})
	if i.resolution&0x80 == 0 && i.resolution > 19 || i.resolution&0x7f > 63 {
		return fmt.Errorf("an interface has times of resolution %#02x: finer than 10^-19 or 2^-63 s", i.resolution)
	}
	s.interfaces = append(s.interfaces, i)
	return nil
}

// statistics reads what was dropped on an interface. A file may say it more than once.
func (s *ngSource) statistics() error {
	if len(s.body) < 12 {
		return errors.New("the statistics of an interface are too short")
	}
	n := s.order.Uint32(s.body)
	if int64(n) >= int64(len(s.interfaces)) {
		return fmt.Errorf("statistics of interface %d, and the section has %d", n, len(s.interfaces))
	}
	i := &s.interfaces[n]
	s.options(s.body[12:], func(code uint16, value []byte) {
		if (code == optionByIntf || code == optionBySystem) && len(value) == 8 {
			by := &i.lost[min(code-optionByIntf, 1)]
			n := max(*by, s.order.Uint64(value))
			s.lose(&s.lost[1], n-*by)
			*by = n
		}
	})
	return nil
}

// maxLost is the most packets that the capture may say that it has dropped.
const maxLost = 1 << 30

// lose adds n to a number of packets that the capture has dropped.
func (s *ngSource) lose(lost *uint64, n uint64) { *lost = min(*lost+min(n, maxLost), maxLost) }

// dropped returns the number of packets that the capture has dropped since the last call.
func (s *ngSource) dropped() int {
	n := max(s.lost[0], s.lost[1], s.ahead) - s.told
	s.told += n
	return int(n)
}

// why implements lossy.
func (*ngSource) why() string { return "the capture says that it has dropped %d" }

// foretold reads a pcapng file to its end, and returns a source that knows at once what the capture
// has dropped. The statistics are at the end. It reads until ctx is done.
func foretold(ctx context.Context, src source, f io.ReadSeeker) (source, error) {
	s, ok := src.(*ngSource)
	if !ok {
		return src, nil
	}
	for ctx.Err() == nil {
		if _, _, _, err := s.next(); err != nil {
			break // the second reading tells
		}
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return nil, err // a pipe has lost its bytes
	}
	again, err := open(f)
	if err == nil {
		again.(*ngSource).ahead = max(s.lost[0], s.lost[1])
	}
	return again, err
}

// ticks returns the number of units in a second.
func (i *ngInterface) ticks() uint64 {
	if i.resolution&0x80 != 0 {
		return 1 << (i.resolution & 0x7f)
	}
	n := uint64(1)
	for range i.resolution {
		n *= 10
	}
	return n
}

// time converts a packet's time.
func (i *ngInterface) time(ts uint64) time.Time {
	ticks := i.ticks()
	high, low := bits.Mul64(ts%ticks, 1e9)
	ns, _ := bits.Div64(high, low, ticks)
	return time.Unix(int64(ts/ticks)+i.offset, int64(ns))
}

func (s *ngSource) next() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
	var info gopacket.CaptureInfo
	for {
		t, err := s.block()
		if err != nil {
			return nil, info, 0, err
		}
		header := 20
		switch t {
		case blockInterface:
			if err := s.addInterface(); err != nil {
				return nil, info, 0, err
			}
			continue
		case blockStatistics:
			if err := s.statistics(); err != nil {
				return nil, info, 0, err
			}
			continue
		case blockSimple:
			header = 4
		case blockPacket, blockEnhanced:
		default:
			continue
		}
		b := s.body
		if len(b) < header {
			return nil, info, 0, errors.New("the block of a packet is too short")
		}
		switch t {
		case blockEnhanced:
			info.InterfaceIndex = int(s.order.Uint32(b))
		case blockPacket:
			info.InterfaceIndex = int(s.order.Uint16(b))
			if n := s.order.Uint16(b[2:]); n != math.MaxUint16 { // that means that it is not known
				s.lose(&s.lost[0], uint64(n))
			}
		}
		if info.InterfaceIndex >= len(s.interfaces) {
			return nil, info, 0, fmt.Errorf("a packet of interface %d, and the section has %d", info.InterfaceIndex, len(s.interfaces))
		}
		i := &s.interfaces[info.InterfaceIndex]
		s.direction, s.unit = 0, 0
		if t == blockSimple { // it has neither a time nor its captured length
			info.Length = int(s.order.Uint32(b))
			if info.CaptureLength = info.Length; i.snap != 0 {
				info.CaptureLength = min(info.Length, int(i.snap))
			}
		} else {
			info.Timestamp = i.time(uint64(s.order.Uint32(b[4:]))<<32 | uint64(s.order.Uint32(b[8:])))
			s.unit = max(time.Second/time.Duration(min(i.ticks(), 1e9)), 1)
			info.CaptureLength, info.Length = int(s.order.Uint32(b[12:])), int(s.order.Uint32(b[16:]))
		}
		b = b[header:]
		if info.CaptureLength > len(b) || info.CaptureLength > maxRecord || info.CaptureLength < 0 {
			return nil, info, 0, fmt.Errorf("a packet of %d bytes in a block that has %d; the limit is %d", info.CaptureLength, len(b), maxRecord)
		}
		if options := (info.CaptureLength + 3) / 4 * 4; t == blockEnhanced && options < len(b) {
			s.options(b[options:], func(code uint16, value []byte) {
				if code == optionFlags && len(value) == 4 {
					s.direction = uint8(s.order.Uint32(value) & 3)
				}
				if code == optionLost && len(value) == 8 {
					s.lose(&s.lost[0], s.order.Uint64(value))
				}
			})
		}
		s.l.left = maxBetween
		return b[:info.CaptureLength], info, i.link, nil
	}
}
