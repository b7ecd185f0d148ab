//go:build !linux

package tap

import (
	"errors"
	"fmt"
	"net"
	"runtime"

	"github.com/songgao/water"

	"github.com/softrnic/softrnic/link"
)

func open(c *config) (*Link, error) {
	if c.Queues > 1 || c.Wait == link.WaitPoll {
		return nil, fmt.Errorf("tap %s: Queues %d, Wait %d: %s has one queue, without WaitPoll", c.name, c.Queues, c.Wait, runtime.GOOS)
	}
	if c.Bridge != "" {
		return nil, fmt.Errorf("tap %s: bridge %s: on %s put the interface into it with the system's own tools",
			c.name, c.Bridge, runtime.GOOS)
	}
	ifce, err := water.New(water.Config{DeviceType: water.TAP, PlatformSpecificParams: platform(c.name)})
	if err != nil {
		return nil, fmt.Errorf("tap %s: %w: %s", c.name, err, advice)
	}
	mtu := 1500
	if own, err := net.InterfaceByName(ifce.Name()); err == nil {
		mtu = own.MTU
		if own.HardwareAddr.String() == c.MAC.String() {
			err := fmt.Errorf("tap %s: MAC %v is the interface's own: the host behind it needs another", c.name, c.MAC)
			return nil, errors.Join(err, ifce.Close())
		}
	}
	if c.MTU != 0 && c.MTU != mtu {
		err := fmt.Errorf("tap %s: MTU is %d, asked for %d: set it with the system's own tools", c.name, mtu, c.MTU)
		return nil, errors.Join(err, ifce.Close())
	}
	p := newPlain(ifce, mtu)
	return &Link{medium: p, carrier: &p.carrier, name: ifce.Name(), mac: c.MAC}, nil
}
