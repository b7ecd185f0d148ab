// Package station checks the settings that links share: the Ethernet address of the host (the
// station, in IEEE 802's terms), how the link waits for frames, and the number of its queues.
package station

import (
	"crypto/rand"
	"fmt"
	"net"

	"github.com/softrnic/softrnic/link"
)

// MaxQueues is the largest number of queues.
const MaxQueues = 16

// CheckWait returns an error for an unknown way to wait for frames.
func CheckWait(w link.Wait) error {
	if w > link.WaitPoll {
		return fmt.Errorf("field Wait %d: must be link.WaitAdaptive, WaitEvent or WaitPoll", w)
	}
	return nil
}

// CheckQueues returns an error unless n is 0 (which means 1) to MaxQueues.
func CheckQueues(n int) error {
	if n < 0 || n > MaxQueues {
		return fmt.Errorf("field Queues %d: must be 1 to %d, or 0 for 1", n, MaxQueues)
	}
	return nil
}

// CheckMTU returns an error unless n is 0 (which means a default) or link.MinMTU to most.
func CheckMTU(n, most int) error {
	if n != 0 && (n < link.MinMTU || n > most) {
		return fmt.Errorf("MTU %d: must be %d to %d (1500 for a RoCE path MTU of 1024, 4200 for 4096)", n, link.MinMTU, most)
	}
	return nil
}

// CheckMAC returns an error unless mac is nil (which means a random address) or a single host's
// address.
func CheckMAC(mac net.HardwareAddr) error {
	if mac != nil && (len(mac) != 6 || mac[0]&1 != 0 || [6]byte(mac) == [6]byte{}) {
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
