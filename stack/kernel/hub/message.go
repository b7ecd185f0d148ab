package hub

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/stack"
)

// The messages of a connection between a client and a hub, a SOCK_SEQPACKET unix socket. All numbers are in network byte order.
//
// The client begins with a hello, which has the descriptor of the memory of the ring that it will receive from:
//
//	 0  "SRNIChub"
//	 8  version, 1                     4 bytes
//	12  size of the ring               4 bytes
//	16  secret of the lease, or zeros  16 bytes
//
// The hub answers with a welcome:
//
//	 0  "SRNIChub"
//	 8  version, 1                     4 bytes
//	12  error number, or 0             4 bytes
//	16  secret of the lease            16 bytes
//	32  number of the QPNs' range      4 bytes
//	36  number of the IDs' range       4 bytes
//	40  text of the error
//
// From then on the client makes requests:
//
//	 0  kind                           4 bytes
//	 4  number, for the answer         4 bytes
//	 8  IP address, IPv4 mapped, or 0  16 bytes
//	24  service ID                     8 bytes
//	32  mask of the service ID         8 bytes
//	40  name of the interface, with zeros behind it, 16 bytes
//
// The hub sends answers:
//
//	 0  0                              4 bytes
//	 4  number of the request          4 bytes
//	 8  error number, or 0             4 bytes
//	12  text of the error
//
// and bells, which are one byte: there is something in the ring of a client that sleeps.
const (
	magic      = "SRNIChub"
	version    = 1
	helloLen   = 32
	welcomeLen = 40
	requestLen = 56
	answerLen  = 12
	textLen    = 400
	maxMessage = welcomeLen + textLen
)

type kind uint32

// Kinds of requests.
const (
	addAddr  kind = iota + 1 // receive what comes to an address
	dropAddr                 // no longer
	serve                    // stack.Shared.Serve
	endServe
	addOutlet // what leaves from this socket, whose descriptor comes with the request, is the client's
)

type hello struct {
	ring   int
	secret secret
}

// secret proves that a lease is a client's: the hub has drawn it, and nobody else knows it.
type secret [16]byte

func (h *hello) encode() []byte {
	b := append(make([]byte, 0, helloLen), magic...)
	b = binary.BigEndian.AppendUint32(b, version)
	b = binary.BigEndian.AppendUint32(b, uint32(h.ring))
	return append(b, h.secret[:]...)
}

func decodeHello(b []byte) (h hello, err error) {
	if err := checkMagic(b); err != nil {
		return h, err
	}
	if len(b) != helloLen {
		return h, fmt.Errorf("a hello of %d bytes, want %d", len(b), helloLen)
	}
	n := binary.BigEndian.Uint32(b[12:])
	if n < ring.MinLen || n > ring.MaxLen || n&(n-1) != 0 {
		return h, fmt.Errorf("a ring of %d bytes", n)
	}
	return hello{ring: int(n), secret: secret(b[16:])}, nil
}

func checkMagic(b []byte) error {
	if len(b) < 12 || string(b[:len(magic)]) != magic {
		return errors.New("the other side speaks another protocol")
	}
	if v := binary.BigEndian.Uint32(b[8:]); v != version {
		return fmt.Errorf("the other side has version %d of the protocol, and this is %d: end the older one", v, version)
	}
	return nil
}

type welcome struct {
	err               error
	secret            secret
	qpnSlot, commSlot uint32
}

func (w *welcome) encode() []byte {
	b := append(make([]byte, 0, maxMessage), magic...)
	b = binary.BigEndian.AppendUint32(b, version)
	b = binary.BigEndian.AppendUint32(b, errno(w.err))
	b = append(b, w.secret[:]...)
	b = binary.BigEndian.AppendUint32(b, w.qpnSlot)
	b = binary.BigEndian.AppendUint32(b, w.commSlot)
	return appendText(b, w.err)
}

func decodeWelcome(b []byte) (w welcome, err error) {
	if err := checkMagic(b); err != nil {
		return w, err
	}
	if len(b) < welcomeLen {
		return w, fmt.Errorf("a welcome of %d bytes", len(b))
	}
	if w.err = remoteError(binary.BigEndian.Uint32(b[12:]), b[welcomeLen:]); w.err != nil {
		return w, nil
	}
	w.secret = secret(b[16:])
	w.qpnSlot, w.commSlot = binary.BigEndian.Uint32(b[32:]), binary.BigEndian.Uint32(b[36:])
	if w.qpnSlot == 0 || w.qpnSlot >= qpnSlots-1 || w.commSlot == 0 || w.commSlot >= commSlots {
		return w, fmt.Errorf("a lease of ranges %d and %d", w.qpnSlot, w.commSlot)
	}
	return w, nil
}

type request struct {
	kind    kind
	number  uint32
	addr    netip.Addr // the zero Addr is all
	service stack.Service
	zone    string
	socket  syscall.RawConn // of addOutlet
}

func (r *request) encode() []byte {
	b := make([]byte, requestLen)
	binary.BigEndian.PutUint32(b, uint32(r.kind))
	binary.BigEndian.PutUint32(b[4:], r.number)
	addr := r.addr
	if r.kind == serve || r.kind == endServe {
		addr = r.service.Addr
	}
	if addr.IsValid() {
		a := addr.As16()
		copy(b[8:], a[:])
	}
	binary.BigEndian.PutUint64(b[24:], r.service.ID)
	binary.BigEndian.PutUint64(b[32:], r.service.Mask)
	copy(b[40:requestLen-1], r.zone)
	return b
}

func decodeRequest(b []byte) (r request, err error) {
	if len(b) != requestLen {
		return r, fmt.Errorf("a request of %d bytes, want %d", len(b), requestLen)
	}
	r.kind, r.number = kind(binary.BigEndian.Uint32(b)), binary.BigEndian.Uint32(b[4:])
	if r.kind < addAddr || r.kind > addOutlet {
		return r, fmt.Errorf("a request of kind %d", r.kind)
	}
	if a := netip.AddrFrom16([16]byte(b[8:])).Unmap(); !a.IsUnspecified() {
		r.addr = a
	}
	r.service = stack.Service{Addr: r.addr, ID: binary.BigEndian.Uint64(b[24:]), Mask: binary.BigEndian.Uint64(b[32:])}
	zone, rest, ended := bytes.Cut(b[40:], []byte{0})
	if !ended || len(bytes.Trim(rest, "\x00")) > 0 || bytes.ContainsAny(zone, "/% \n") {
		return r, errors.New("a request with a wrong interface name")
	}
	r.zone = string(zone)
	return r, nil
}

type answer struct {
	number uint32
	err    error
}

func (a *answer) encode() []byte {
	b := binary.BigEndian.AppendUint32(make([]byte, 0, maxMessage), 0)
	b = binary.BigEndian.AppendUint32(b, a.number)
	b = binary.BigEndian.AppendUint32(b, errno(a.err))
	return appendText(b, a.err)
}

func decodeAnswer(b []byte) (a answer, err error) {
	if len(b) < answerLen || binary.BigEndian.Uint32(b) != 0 {
		return a, fmt.Errorf("an answer of %d bytes", len(b))
	}
	return answer{binary.BigEndian.Uint32(b[4:]), remoteError(binary.BigEndian.Uint32(b[8:]), b[answerLen:])}, nil
}

var bell = []byte{1}

// errno is the number that an error has in messages. Those that callers look for are Linux's.
func errno(err error) uint32 {
	if err == nil {
		return 0
	}
	if no := syscall.Errno(0); errors.As(err, &no) && no != 0 {
		return uint32(no)
	}
	return uint32(syscall.EIO)
}

func appendText(b []byte, err error) []byte {
	if err == nil {
		return b
	}
	text := err.Error()
	return append(b, text[:min(len(text), textLen)]...)
}

// hubError is an error that the hub has sent.
type hubError struct {
	no   syscall.Errno
	text string
}

func remoteError(no uint32, text []byte) error {
	if no == 0 {
		return nil
	}
	return &hubError{syscall.Errno(no), string(text)}
}

func (e *hubError) Error() string { return "hub: " + e.text }
func (e *hubError) Unwrap() error { return e.no }
