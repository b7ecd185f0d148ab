//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"cmp"
	"encoding/binary"
	"net"
	"net/netip"
	"syscall"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

// noAddr is the address of a NULL pointer.
var noAddr netip.AddrPort

// sockaddr returns the address in a struct sockaddr_in or sockaddr_in6, and noAddr for NULL. For
// another family the error wraps EAFNOSUPPORT.
func sockaddr(p *C.struct_sr_cm_addr) (netip.AddrPort, error) {
	if p == nil {
		return noAddr, nil
	}
	b := (*[28]byte)(unsafe.Pointer(p))
	port := binary.BigEndian.Uint16(b[2:])
	switch family := binary.NativeEndian.Uint16(b[:]); family {
	case syscall.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[4:8])), port), nil
	case syscall.AF_INET6:
		a := netip.AddrFrom16([16]byte(b[8:24]))
		if scope := binary.NativeEndian.Uint32(b[24:]); scope != 0 && a.IsLinkLocalUnicast() {
			if ifce, err := net.InterfaceByIndex(int(scope)); err == nil {
				a = a.WithZone(ifce.Name)
			}
		}
		return netip.AddrPortFrom(a, port), nil
	default:
		return noAddr, verbs.Errorf(syscall.EAFNOSUPPORT, "read address", "family %d is neither AF_INET nor AF_INET6", family)
	}
}

// setSockaddr writes an address, or zeros if it is not valid.
func setSockaddr(p *C.struct_sr_cm_addr, a netip.AddrPort) {
	b := (*[28]byte)(unsafe.Pointer(p))
	clear(b[:])
	switch addr := a.Addr(); {
	case addr.Is4():
		binary.NativeEndian.PutUint16(b[:], syscall.AF_INET)
		copy(b[4:8], addr.AsSlice())
	case addr.Is6():
		binary.NativeEndian.PutUint16(b[:], syscall.AF_INET6)
		copy(b[8:24], addr.AsSlice())
		binary.NativeEndian.PutUint32(b[24:], ifindex(addr.Zone()))
	default:
		return
	}
	binary.BigEndian.PutUint16(b[2:], a.Port())
}

func setGID(to *[16]C.uint8_t, gid verbs.GID) { *(*verbs.GID)(unsafe.Pointer(to)) = gid }

// replaceLoopback replaces a loopback address by the device's first address of its family. If a
// program is told to use "localhost", the user means this machine. The first result of getaddrinfo
// is then ::1. If the device has only IPv4 addresses, the first one replaces it, in IPv6's form. A
// device with loopback addresses of the family, on a link of 127.0.0.0/8, keeps them.
func (s *state) replaceLoopback(a netip.AddrPort) netip.AddrPort {
	if !a.Addr().IsLoopback() {
		return a
	}
	var first, mapped netip.Addr
	for addr := range s.addrs() {
		switch same := addr.Is4() == a.Addr().Unmap().Is4(); {
		case same && addr.IsLoopback():
			return a
		case addr.IsLinkLocalUnicast():
		case same:
			first = cmp.Or(first, addr)
		case addr.Is4():
			mapped = cmp.Or(mapped, netip.AddrFrom16(addr.As16()))
		}
	}
	return netip.AddrPortFrom(cmp.Or(first, mapped, a.Addr()), a.Port())
}

// replaceLoopbackOrAny is replaceLoopback for a destination. For a destination, the unspecified
// address is a loopback address too.
func (s *state) replaceLoopbackOrAny(a netip.AddrPort) netip.AddrPort {
	if a.IsValid() && a.Addr().IsUnspecified() {
		loopback := netip.IPv6Loopback()
		if a.Addr().Is4() {
			loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		a = netip.AddrPortFrom(loopback, a.Port())
	}
	return s.replaceLoopback(a)
}
