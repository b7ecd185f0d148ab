// Package access decides which hosts may reach a device.
package access

import (
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
)

// Control is the access control of a device, which its engines share. A nil Control allows all
// hosts.
type Control struct {
	// Allow reports whether a host may reach the device.
	Allow func(netip.Addr) bool

	denied atomic.Uint64
}

// Allows reports whether a host may reach the device.
func (c *Control) Allows(host netip.Addr) bool {
	return c == nil || c.Allow(host.Unmap().WithZone(""))
}

// Admits is Allows for a request or datagram of the host. It counts those that are not allowed.
func (c *Control) Admits(host netip.Addr) bool {
	if c.Allows(host) {
		return true
	}
	c.denied.Add(1)
	return false
}

// Check returns an error, EACCES, if a host may not reach the device. A group is not a host.
func (c *Control) Check(host netip.Addr) error {
	if host.IsMulticast() || c.Allows(host) {
		return nil
	}
	return fmt.Errorf("the device's access control does not allow %v: %w", host, syscall.EACCES)
}

// Denied returns the number of requests and datagrams that were not allowed.
func (c *Control) Denied() uint64 {
	if c == nil {
		return 0
	}
	return c.denied.Load()
}
