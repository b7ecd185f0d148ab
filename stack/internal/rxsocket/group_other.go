//go:build !linux

package rxsocket

import (
	"errors"
	"net"
	"net/netip"
)

// listenGroup works on Linux only: on other systems a group's socket shares the port with those of
// addresses, and package net cannot bind it to the group.
func listenGroup(netip.Addr, int) (*net.UDPConn, error) { return nil, errors.ErrUnsupported }
