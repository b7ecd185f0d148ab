package station

import (
	"net"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link"
)

// TestBounds checks that values within their bounds are accepted, and others refused with an error
// that names the field and the value.
func TestBounds(t *testing.T) {
	own := net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for _, err := range []error{CheckMAC(own), CheckMAC(nil), CheckWait(link.WaitPoll), CheckQueues(0), CheckQueues(MaxQueues),
		CheckMTU(0, 1500), CheckMTU(1500, 1500), CheckMTU(link.MinMTU, 1500)} {
		if err != nil {
			t.Error(err)
		}
	}
	for _, mac := range []net.HardwareAddr{{}, {2, 0, 0, 0, 0}, {2, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0}, {3, 0, 0, 0, 0, 1},
		{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}} {
		if CheckMAC(mac) == nil {
			t.Errorf("MAC %v is accepted", mac)
		}
	}
	for want, err := range map[string]error{
		"field Wait 3: ": CheckWait(link.WaitPoll + 1), "field Queues -1: ": CheckQueues(-1), "field Queues 17: ": CheckQueues(MaxQueues + 1),
		"MTU -1: ": CheckMTU(-1, 1500), "MTU 1: ": CheckMTU(1, 1500), "MTU 1501: ": CheckMTU(1501, 1500),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
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
