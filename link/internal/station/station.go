// Package station has the settings that links share: the Ethernet address of the host (the station,
// in IEEE 802's terms), how the link waits for frames, and the number of its queues.
package station

import (
	"crypto/rand"
	"fmt"
	"net"

	"github.com/softrnic/softrnic/link"
)

// MaxQueues is the largest number of queues.
const MaxQueues = 16

// Config is the settings. Its methods refuse values out of bounds, with an error for the link's
// user.
type Config struct {
	MAC    net.HardwareAddr // nil: not set
	Wait   link.Wait
	Queues int
}

// SetMAC sets the address of the host.
func (c *Config) SetMAC(mac net.HardwareAddr) error {
	if err := CheckMAC(mac); err != nil {
		return err
	}
	c.MAC = mac
	return nil
}

// SetWait sets how the link's own goroutine waits for frames.
func (c *Config) SetWait(w link.Wait) error {
	if w > link.WaitPoll {
		return fmt.Errorf("wait %d: must be link.WaitAdaptive, WaitEvent or WaitPoll", w)
	}
	c.Wait = w
	return nil
}

// SetQueues sets the number of queues, 1 to MaxQueues.
func (c *Config) SetQueues(n int) error {
	if n < 1 || n > MaxQueues {
		return fmt.Errorf("%d queues: must be 1 to %d", n, MaxQueues)
	}
	c.Queues = n
	return nil
}

// CheckMTU refuses an MTU outside of link.MinMTU to most.
func CheckMTU(n, most int) error {
	if n < link.MinMTU || n > most {
		return fmt.Errorf("MTU %d: must be %d to %d (1500 for a RoCE path MTU of 1024, 4200 for 4096)", n, link.MinMTU, most)
	}
	return nil
}

// CheckMAC refuses an address unless it is a single host's.
func CheckMAC(mac net.HardwareAddr) error {
	if len(mac) != 6 || mac[0]&1 != 0 || [6]byte(mac) == [6]byte{} {
		return fmt.Errorf("MAC %q is not a unicast Ethernet address: must be six bytes, the first one even", mac)
	}
	return nil
}

// RandomMAC returns a random locally administered unicast address.
func RandomMAC() net.HardwareAddr {
	mac := make(net.HardwareAddr, 6)
	_, _ = rand.Read(mac) // never fails
	mac[0] = mac[0]&^1 | 2
	return mac
}
