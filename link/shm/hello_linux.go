package shm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/ring"
)

// hello is the first message on a connection, in each direction. It carries the descriptor of the
// ring from which its sender takes frames. In network byte order:
//
//	 0  "SRNICshm"
//	 8  version, 1         4 bytes
//	12  size of the ring   4 bytes
//	16  Ethernet address   6 bytes
//	22  name of the socket 16 bytes
//	38  flags              1 byte: 1, it is a switch
type hello struct {
	ring     int
	mac      [6]byte
	id       id
	isSwitch bool // it is a switch
}

// id is the name of a process's socket.
type id [16]byte

const (
	magic    = "SRNICshm"
	version  = 1
	helloLen = 39
)

// helloTimeout limits the time until a peer has sent its hello.
const helloTimeout = time.Second

func (h *hello) encode() []byte {
	b := append(make([]byte, 0, helloLen), magic...)
	b = binary.BigEndian.AppendUint32(b, version)
	b = binary.BigEndian.AppendUint32(b, uint32(h.ring))
	b = append(b, h.mac[:]...)
	b = append(b, h.id[:]...)
	if h.isSwitch {
		return append(b, 1)
	}
	return append(b, 0)
}

func decodeHello(b []byte) (h hello, err error) {
	if len(b) != helloLen || string(b[:len(magic)]) != magic {
		return h, fmt.Errorf("the peer's message of %d bytes is not a hello", len(b))
	}
	if v := binary.BigEndian.Uint32(b[8:]); v != version {
		return h, fmt.Errorf("the peer has protocol version %d, want %d", v, version)
	}
	n := binary.BigEndian.Uint32(b[12:])
	if n < ring.MinLen || n > ring.MaxLen || n&(n-1) != 0 {
		return h, fmt.Errorf("the peer has a ring of %d bytes", n)
	}
	h.ring, h.mac, h.id, h.isSwitch = int(n), [6]byte(b[16:]), id(b[22:]), b[38]&1 != 0
	if h.mac[0]&1 != 0 || h.mac == [6]byte{} {
		return h, fmt.Errorf("the peer has Ethernet address %x, which is not a unicast address", h.mac)
	}
	return h, nil
}

// peer is another process on the segment.
type peer struct {
	*ring.Pair
	mac      [6]byte
	id       id
	isSwitch bool // it is a switch
	dialed   bool // this process opened the connection
}

// handshake exchanges hellos on a connection and returns the peer. On success the peer owns the
// mappings and the connection.
func (s *segment) handshake(conn *net.UnixConn, from *process) (*peer, error) {
	var theirs hello
	in, out, err := ring.Handshake(conn, helloTimeout, s.own.encode(), s.own.ring, func(b []byte) (n int, err error) {
		theirs, err = decodeHello(b)
		return theirs.ring, err
	})
	if err != nil {
		return nil, err
	}
	p := &peer{mac: theirs.mac, id: theirs.id, isSwitch: theirs.isSwitch}
	if p.Pair, err = ring.NewPair(s.Group, &from.queue, conn, in, out); err != nil {
		return nil, errors.Join(err, unix.Munmap(in), unix.Munmap(out))
	}
	return p, nil
}

var (
	errAddressInUse = errors.New("another peer has this Ethernet address")
	errDuplicate    = errors.New("the process is a peer already, over another connection")
)
