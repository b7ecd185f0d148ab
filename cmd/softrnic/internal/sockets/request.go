//go:build linux

package sockets

import (
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// A request is one packet on a new connection, and carries the socket that it concerns. The answer
// is one packet too, and may carry a socket. cmd/dropin/libsockets has the same definitions in C.
// Integers are in host byte order, addresses and ports in network byte order.
//
//	request: token [16], operation uint32, name
//	answer:  status int32, name
//	name:    family uint8 (4, 6, or 0 for none), 0, port uint16, address [16], scope uint32
const (
	tokenLen   = 16
	nameLen    = 24
	requestLen = tokenLen + 4 + nameLen
	answerLen  = 4 + nameLen
)

type operation uint32

const (
	opConnect operation = iota + 1
	opBind
	opListen
	opPeer
	opLocal
	opFailure
	// Of direct connections. The answers to opTake, opOptions and opConnect may carry a socket: the
	// end of a pair that replaces the program's, or the socket that has its options.
	opTake    // the program has accepted the socket; otherwise as opPeer
	opOptions // for options that a Unix socket has not
	opAborts  // from now on, the end of the stream is a reset
	opEnds    // from now on, it is not
	opEnd     // the stream has ended: the answer is ECONNRESET if that was a reset
)

// Statuses of an answer other than an errno.
const (
	done     = 0
	declined = -1 // proceed without RDMA
)

type request struct {
	op     operation
	name   netip.AddrPort // of opConnect and opBind
	socket int            // a descriptor
}

// readRequest reads the request of a connection, whose socket the caller closes.
func readRequest(c *net.UnixConn, token [tokenLen]byte) (r request, err error) {
	var b [requestLen + 1]byte
	// Room for several descriptors, which are an error and must be closed.
	oob := make([]byte, unix.CmsgSpace(4*4))
	n, oobn, _, _, err := c.ReadMsgUnix(b[:], oob)
	if err != nil {
		return r, err
	}
	sockets, err := descriptors(oob[:oobn])
	switch {
	case err != nil:
	case n != requestLen:
		err = errors.New("it is of another length")
	case subtle.ConstantTimeCompare(b[:tokenLen], token[:]) != 1:
		err = errors.New("its token is wrong")
	case len(sockets) != 1:
		err = errors.New("it has not one socket")
	}
	if err != nil {
		closeAll(sockets...)
		return r, err
	}
	return request{operation(binary.NativeEndian.Uint32(b[tokenLen:])), getName(b[tokenLen+4:]), sockets[0]}, nil
}

// answer encodes an answer: done, declined or an errno.
func answer(status int32, name netip.AddrPort) []byte {
	b := make([]byte, answerLen)
	binary.NativeEndian.PutUint32(b, uint32(status))
	putName(b[4:], name)
	return b
}

func getName(b []byte) netip.AddrPort {
	port := binary.BigEndian.Uint16(b[2:])
	switch b[0] {
	case 4:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:])), port)
	case 6:
		return addrPort(&unix.SockaddrInet6{Port: int(port), ZoneId: binary.NativeEndian.Uint32(b[20:]), Addr: [16]byte(b[4:])})
	}
	return netip.AddrPort{}
}

func putName(b []byte, a netip.AddrPort) {
	binary.BigEndian.PutUint16(b[2:], a.Port())
	switch addr := a.Addr().Unmap(); {
	case addr.Is4():
		b[0] = 4
		copy(b[4:], addr.AsSlice())
	case addr.Is6():
		b[0] = 6
		copy(b[4:], addr.AsSlice())
		if ifce, err := net.InterfaceByName(addr.Zone()); err == nil {
			binary.NativeEndian.PutUint32(b[20:], uint32(ifce.Index))
		}
	}
}

// addrPort returns the address in a sockaddr, with a mapped IPv4 address as IPv4. It is not valid
// for other families.
func addrPort(sa unix.Sockaddr) netip.AddrPort {
	switch sa := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), uint16(sa.Port))
	case *unix.SockaddrInet6:
		a := netip.AddrFrom16(sa.Addr).Unmap()
		if sa.ZoneId != 0 && a.IsLinkLocalUnicast() {
			if ifce, err := net.InterfaceByIndex(int(sa.ZoneId)); err == nil {
				a = a.WithZone(ifce.Name)
			}
		}
		return netip.AddrPortFrom(a, uint16(sa.Port))
	}
	return netip.AddrPort{}
}

// localOf and peerOf return the addresses of a socket, or an invalid address if there is none.
func localOf(socket int) netip.AddrPort {
	sa, err := unix.Getsockname(socket)
	if err != nil {
		return netip.AddrPort{}
	}
	return addrPort(sa)
}

func peerOf(socket int) netip.AddrPort {
	sa, err := unix.Getpeername(socket)
	if err != nil {
		return netip.AddrPort{}
	}
	return addrPort(sa)
}

// errnoOf returns the errno that an error wraps, or else otherwise.
func errnoOf(err error, otherwise syscall.Errno) int32 {
	var errno syscall.Errno
	if errors.As(err, &errno) && errno != 0 {
		return int32(errno)
	}
	return int32(otherwise)
}
