//go:build !linux

package inlet

import (
	"errors"
	"net"
	"net/netip"
)

// listenGroup is for Linux only: elsewhere a group's socket shares the port with those of addresses, and package net has no way
// to bind it to the group.
func listenGroup(netip.Addr, int) (*net.UDPConn, error) { return nil, errors.ErrUnsupported }
