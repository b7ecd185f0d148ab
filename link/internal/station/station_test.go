package station

import (
	"net"
	"testing"

	"github.com/softrnic/softrnic/link"
)

// TestBounds checks that a value within its bounds is set, and that one outside is refused and
// changes nothing.
func TestBounds(t *testing.T) {
	own := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	c := Config{Queues: 1}
	for _, err := range []error{c.SetMAC(own), c.SetWait(link.WaitPoll), c.SetQueues(MaxQueues)} {
		if err != nil {
			t.Error(err)
		}
	}
	for _, mac := range []net.HardwareAddr{nil, {}, {2, 0, 0, 0, 0}, {2, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, {3, 0, 0, 0, 0, 1},
		{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
		if c.SetMAC(mac) == nil {
			t.Errorf("MAC %v is accepted", mac)
		}
	}
	if c.SetWait(link.WaitPoll+1) == nil {
		t.Error("an unknown Wait is accepted")
	}
	for _, n := range []int{-1, 0, MaxQueues + 1} {
		if c.SetQueues(n) == nil {
			t.Errorf("%d queues are accepted", n)
		}
	}
	if c.MAC.String() != own.String() || c.Wait != link.WaitPoll || c.Queues != MaxQueues {
		t.Errorf("after refusals: %+v", c)
	}
}

// TestRandomMAC checks that the addresses are valid for a host, and differ.
func TestRandomMAC(t *testing.T) {
	seen := map[string]bool{}
	for range 100 {
		mac := RandomMAC()
		if err := CheckMAC(mac); err != nil {
			t.Error(err)
		}
		if mac[0]&2 == 0 {
			t.Errorf("%v is not locally administered", mac)
		}
		if seen[mac.String()] {
			t.Errorf("%v was drawn twice", mac)
		}
		seen[mac.String()] = true
	}
}
