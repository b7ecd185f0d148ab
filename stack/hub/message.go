package hub

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"net"
	"net/netip"
	"syscall"

	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/stack"
)

// Messages between a client and a hub, on a SOCK_SEQPACKET unix socket. Numbers are in network byte
// order.
//
// The client begins with a hello, with the descriptor of the ring that it will receive from:
//
//	 0  "SRNIChub"
//	 8  version, 4                     4 bytes
//	12  size of the ring               4 bytes
//	16  secret of the lease, or zeros  16 bytes
//	32  slots of QPNs, as a power of two 1 byte
//
// The hub answers with a welcome:
//
//	 0  "SRNIChub"
//	 8  version, 4                     4 bytes
//	12  error number, or 0             4 bytes
//	16  secret of the lease            16 bytes
//	32  first slot of QPNs             4 bytes
//	36  slot of communication IDs      4 bytes
//	40  slots of QPNs, as a power of two 1 byte
//	41  text of the error
//
// From then on the client makes requests:
//
//	 0  kind                           4 bytes
//	 4  number, for the answer         4 bytes
//	 8  IP address, IPv4 mapped, or 0  16 bytes
//	24  service ID                     8 bytes
//	32  mask of the service ID         8 bytes
//	40  name of the interface, padded with zeros, 16 bytes
//	56  QPN, or of a service what its address means, 4 bytes
//	60  number of a pair of rings; for addAddr 1 if the client takes a socket, 4 bytes
//	64  IP address of the client's     16 bytes
//
// The hub sends answers:
//
//	 0  0                              4 bytes
//	 4  number of the request          4 bytes
//	 8  error number, or 0             4 bytes
//	12  text of the error
//
// and tells the client which other client it has rings with, and between which addresses:
//
//	 0  1                              4 bytes
//	 4  number of the pair             4 bytes
//	 8  first slot of the other's QPNs 4 bytes
//	12  slots, as a power of two       4 bytes
//	16  IP address of the other        16 bytes
//	32  IP address of this one         16 bytes
//
// The first message about a pair has a descriptor: one end of a connection between the two clients
// (see package ring). On it, each sends the other a hello with the ring that it will receive from.
// Messages without a descriptor add more addresses.
//
// After addAddr, or later, the hub may send a socket that receives at an address. The client
// confirms with a request that it uses it:
//
//	0  2                              4 bytes
//	4  0                              4 bytes
//	8  IP address                     16 bytes
//
// Finally there are wakeups, of one byte, for a client that sleeps with records in its ring.
const (
	magic          = "SRNIChub"
	version        = 4
	helloLen       = 33
	welcomeLen     = 41
	requestLen     = 80
	answerLen      = 12
	pairMessageLen = 48
	socketLen      = 24
	textLen        = 400
	maxMessage     = welcomeLen + textLen
)

type kind uint32

// Kinds of requests.
const (
	addAddr  kind = iota + 1 // receive at an address
	dropAddr                 // stop that
	serve                    // stack.Shared.Serve
	endServe
	addSourceSocket // register a socket to send from, whose descriptor comes with the request
	pair            // get rings with the client that has a QPN
	unpair          // stop that
	keepPair        // restore rings of an earlier hub, whose connection comes with the request
	useSocket       // the client receives from the socket of the hub's at an address
	mixedFlow       // datagrams from an address and port (qpn) came in one superframe with those for other clients

	lastKind = mixedFlow
)

type hello struct {
	ring   int
	bits   uint8
	secret secret
}

// secret proves the ownership of a lease: the hub has chosen it at random, and only the client
// knows it.
type secret [16]byte

func (h *hello) encode() []byte {
	b := append(make([]byte, 0, helloLen), magic...)
	b = binary.BigEndian.AppendUint32(b, version)
	b = binary.BigEndian.AppendUint32(b, uint32(h.ring))
	b = append(b, h.secret[:]...)
	return append(b, h.bits)
}

func decodeHello(b []byte) (h hello, err error) {
	if err := checkMagic(b); err != nil {
		return h, err
	}
	if len(b) != helloLen {
		return h, fmt.Errorf("hello of %d bytes, want %d", len(b), helloLen)
	}
	n := binary.BigEndian.Uint32(b[12:])
	if n < ring.MinLen || n > ring.MaxLen || n&(n-1) != 0 {
		return h, fmt.Errorf("a ring of %d bytes", n)
	}
	if b[32] > maxLeaseBits {
		return h, fmt.Errorf("a lease of 2^%d slots, at most 2^%d: %w", b[32], maxLeaseBits, syscall.EINVAL)
	}
	return hello{ring: int(n), bits: b[32], secret: secret(b[16:32])}, nil
}

func checkMagic(b []byte) error {
	if len(b) < 12 || string(b[:len(magic)]) != magic {
		return errors.New("the other side uses another protocol")
	}
	if v := binary.BigEndian.Uint32(b[8:]); v != version {
		return fmt.Errorf("the other side has protocol version %d, want %d: end the older process", v, version)
	}
	return nil
}

type welcome struct {
	err    error
	secret secret
	span
}

func (w *welcome) encode() []byte {
	b := append(make([]byte, 0, maxMessage), magic...)
	b = binary.BigEndian.AppendUint32(b, version)
	b = binary.BigEndian.AppendUint32(b, errno(w.err))
	b = append(b, w.secret[:]...)
	b = binary.BigEndian.AppendUint32(b, w.qpnSlot)
	b = binary.BigEndian.AppendUint32(b, w.commSlot)
	b = append(b, w.bits)
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
	w.span = span{binary.BigEndian.Uint32(b[32:]), binary.BigEndian.Uint32(b[36:]), b[40]}
	if !w.isValid() {
		return w, fmt.Errorf("a lease of the slots %+v", w.span)
	}
	return w, nil
}

type request struct {
	kind    kind
	number  uint32
	addr    netip.Addr // the zero Addr means all
	service stack.Service
	zone    string
	socket  syscall.RawConn // for addSourceSocket and keepPair
	qpn     uint32
	serial  uint32     // for unpair and keepPair
	own     netip.Addr // for pair and mixedFlow

	takesSocket bool // for addAddr

	on *net.UnixConn // the only connection that the request may use; nil: any

	more []request // requests that are sent with it, before its answer
}

// ends reports whether the request only ends something. The client does not need the answer to such
// a request.
func (r *request) ends() bool { return r.kind == dropAddr || r.kind == endServe || r.kind == unpair }

// hasSocket reports whether a descriptor comes with the request.
func (r *request) hasSocket() bool { return r.kind == addSourceSocket || r.kind == keepPair }

// bothFamilies is the value for stack.Service.BothFamilies; 4 and 6 are those of all addresses of
// one family.
const bothFamilies = 1

func (r *request) encode() []byte {
	b := make([]byte, requestLen)
	binary.BigEndian.PutUint32(b, uint32(r.kind))
	binary.BigEndian.PutUint32(b[4:], r.number)
	addr := r.addr
	if r.kind == serve || r.kind == endServe {
		addr = r.service.Addr
	}
	putAddr(b[8:], addr)
	binary.BigEndian.PutUint64(b[24:], r.service.ID)
	binary.BigEndian.PutUint64(b[32:], r.service.Mask)
	copy(b[40:55], r.zone)
	qpn := r.qpn
	switch {
	case addr.IsUnspecified(): // of one family: the zero Addr is zeros too
		qpn = map[bool]uint32{true: 4, false: 6}[addr.Is4()]
	case r.service.BothFamilies:
		qpn = bothFamilies
	}
	binary.BigEndian.PutUint32(b[56:], qpn)
	binary.BigEndian.PutUint32(b[60:], r.serial)
	if r.takesSocket {
		b[63] = 1
	}
	putAddr(b[64:], r.own)
	return b
}

func decodeRequest(b []byte) (r request, err error) {
	if len(b) != requestLen {
		return r, fmt.Errorf("a request of %d bytes, want %d", len(b), requestLen)
	}
	r.kind, r.number = kind(binary.BigEndian.Uint32(b)), binary.BigEndian.Uint32(b[4:])
	if r.kind < addAddr || r.kind > lastKind {
		return r, fmt.Errorf("a request of kind %d", r.kind)
	}
	r.addr, r.own = readAddr(b[8:]), readAddr(b[64:])
	r.qpn, r.serial = binary.BigEndian.Uint32(b[56:])&(1<<24-1), binary.BigEndian.Uint32(b[60:])
	r.takesSocket = r.kind == addAddr && r.serial == 1
	both := false
	if r.kind == serve || r.kind == endServe {
		switch r.qpn {
		case bothFamilies:
			both = true
		case 4:
			r.addr = netip.IPv4Unspecified()
		case 6:
			r.addr = netip.IPv6Unspecified()
		}
		r.qpn = 0
	}
	r.service = stack.Service{Addr: r.addr, ID: binary.BigEndian.Uint64(b[24:]), Mask: binary.BigEndian.Uint64(b[32:]), BothFamilies: both}
	zone, rest, ended := bytes.Cut(b[40:56], []byte{0})
	if !ended || len(bytes.Trim(rest, "\x00")) > 0 || bytes.ContainsAny(zone, "/% \n") {
		return r, errors.New("a request with a wrong interface name")
	}
	r.zone = string(zone)
	return r, nil
}

// putAddr writes an address, or zeros for the zero Addr.
func putAddr(b []byte, a netip.Addr) {
	if a.IsValid() {
		wide := a.As16()
		copy(b, wide[:])
	}
}

func readAddr(b []byte) netip.Addr {
	if a := netip.AddrFrom16([16]byte(b)).Unmap(); !a.IsUnspecified() {
		return a
	}
	return netip.Addr{}
}

// pairMessage tells a client that it has rings with another client, and between which addresses
// they are used.
type pairMessage struct {
	serial uint32
	qpns   stack.Range // of the other client
	ends
}

// ends are the addresses of the other client and of the client that gets the message.
type ends struct{ theirs, own netip.Addr }

func (e ends) swapped() ends { return ends{e.own, e.theirs} }

func (m *pairMessage) encode() []byte {
	b := make([]byte, pairMessageLen)
	binary.BigEndian.PutUint32(b, 1)
	binary.BigEndian.PutUint32(b[4:], m.serial)
	binary.BigEndian.PutUint32(b[8:], m.qpns.Base>>slotBits)
	binary.BigEndian.PutUint32(b[12:], uint32(bits.Len32(m.qpns.Mask)-slotBits))
	putAddr(b[16:], m.theirs)
	putAddr(b[32:], m.own)
	return b
}

// decodePairMessage decodes a pairMessage; ok is false if b is not one.
func decodePairMessage(b []byte) (m pairMessage, ok bool) {
	if len(b) != pairMessageLen || binary.BigEndian.Uint32(b) != 1 {
		return m, false
	}
	s := span{qpnSlot: binary.BigEndian.Uint32(b[8:]), commSlot: 1, bits: uint8(min(binary.BigEndian.Uint32(b[12:]), maxLeaseBits+1))}
	m = pairMessage{binary.BigEndian.Uint32(b[4:]), qpns(s.qpnSlot, s.bits), ends{readAddr(b[16:]), readAddr(b[32:])}}
	return m, s.isValid() && m.theirs.IsValid() && m.own.IsValid()
}

// socketMessage brings a client a socket that receives at an address.
type socketMessage struct{ addr netip.Addr }

func (m *socketMessage) encode() []byte {
	b := make([]byte, socketLen)
	binary.BigEndian.PutUint32(b, 2)
	putAddr(b[8:], m.addr)
	return b
}

// decodeSocketMessage decodes a socketMessage; ok is false if b is not one.
func decodeSocketMessage(b []byte) (m socketMessage, ok bool) {
	if len(b) != socketLen || binary.BigEndian.Uint32(b) != 2 {
		return m, false
	}
	m.addr = readAddr(b[8:])
	return m, m.addr.IsValid()
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

// errno returns the number of an error in messages. Callers compare Linux's numbers.
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
