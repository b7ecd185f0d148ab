package dropin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/verbs"
)

// TestCards: each card is complete, and its rate is one that a port can have.
func TestCards(t *testing.T) {
	for name, c := range cards {
		if c.Vendor == 0 || c.Device == 0 || c.VendorID == 0 || c.Driver == "" || c.Board == "" || c.HCA == "" || c.FWVer == "" || c.PCIe == 0 {
			t.Errorf("%s lacks a value: %+v", name, c)
		}
		if err := new(verbs.PortAttr).SetRate(c.rate.Gbps, c.rate.Lanes); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		var v uint32
		if _, err := fmt.Sscan(c.HWRev, &v); err != nil || v != c.HWVer() {
			t.Errorf("%s: hw_rev %q is %d in ibv_query_device (%v)", name, c.HWRev, c.HWVer(), err)
		}
	}
}

// TestCardFromEnv: the card names the devices and sets their rate, unless other variables do.
func TestCardFromEnv(t *testing.T) {
	for _, c := range []struct {
		env  []string
		want string // the devices of each rail, with the part ID of their cards, and the rate
	}{
		{nil, "softrnic0 0 softrnic0_iw 0 0; "},
		{[]string{"SOFTRNIC_CARD=connectx7"}, "mlx5_0 0x1021  0 400; "},
		{[]string{"SOFTRNIC_CARD=connectx7", "SOFTRNIC_DEVICE=a,b", "SOFTRNIC_SPEED=100"}, "a 0x1021 b 0 100; "},
		{[]string{"SOFTRNIC_CARD=e810", "SOFTRNIC_DEVICE=a,b"}, "a 0x1592 b 0x1592 100; "},
		{[]string{"SOFTRNIC_CARD=connectx5", "SOFTRNIC_RAIL_2=link=shm:a", "SOFTRNIC_RAIL_4=link=shm:b"},
			"mlx5_0 0x1017  0 100; mlx5_1 0x1017  0 100; "},
		{[]string{"SOFTRNIC_CARD=connectx5", "SOFTRNIC_RAIL_2=link=shm:a;device=x,", "SOFTRNIC_RAIL_4=link=shm:b"},
			"x 0x1017  0 100; mlx5_0 0x1017  0 100; "},
		{[]string{"SOFTRNIC_CARD=connectx5", "SOFTRNIC_LINK=shm:a;shm:b"}, "mlx5_0 0x1017  0 100; mlx5_1 0x1017  0 100; "},
		{[]string{"SOFTRNIC_CARD=connectx8;bcm57508;;bluefield3", "SOFTRNIC_LINK=pipe"},
			"mlx5_0 0x1023  0 800; bnxt_re0 0x1750  0 100; softrnic2 0 softrnic2_iw 0 0; mlx5_1 0xa2dc  0 400; "},
	} {
		got, err := fromEnv(t, c.env...)
		if err != nil {
			t.Errorf("%v: %v", c.env, err)
		}
		text := ""
		for _, r := range got.Rails {
			var parts [2]uint16
			for i, iwarp := range []bool{false, true} {
				if card := r.OfDevice(iwarp); card != nil && (!iwarp || r.IWARP != "") {
					parts[i] = card.Device
				}
			}
			text += strings.ReplaceAll(fmt.Sprintf("%s %#x %s %#x %g; ", r.RoCE, parts[0], r.IWARP, parts[1], r.Flags.Rate.Gbps), "0x0", "0")
		}
		if text != c.want {
			t.Errorf("%v:\n%s\nwant\n%s", c.env, text, c.want)
		}
	}
	for env, reason := range map[string]string{
		"SOFTRNIC_CARD=efa": "SRD", "SOFTRNIC_CARD=connectx1": "connectx7", "SOFTRNIC_CARD=connectx7;connectx7": "cards for 2 of 3 rails",
	} {
		if _, err := fromEnv(t, env, "SOFTRNIC_LINK=shm:a;shm:b;shm:c"); err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("%s: %v, which does not say %q", env, err, reason)
		}
	}
	if got, err := fromEnv(t, "SOFTRNIC_SPEED=40"); err != nil || got.Rails[0].Flags.Rate != (node.Rate{Gbps: 40}) {
		t.Errorf("without a card: %+v, %v", got.Rails, err)
	}
}
