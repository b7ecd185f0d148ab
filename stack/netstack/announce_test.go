package netstack_test

import (
	"bytes"
	"context"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack/netstack"
)

// TestAddressesAreAnnounced checks that a host announces new addresses to its neighbours.
func TestAddressesAreAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		var arp, na []netip.Addr
		watch := lan.Port()
		defer watch.Close()
		watch.Attach(func(frames []link.Frame) {
			for _, f := range frames {
				switch b := f.Data[14:]; {
				case header.Ethernet(f.Data).Type() == header.ARPProtocolNumber:
					if p := header.ARP(b); p.Op() == header.ARPReply && bytes.Equal(p.HardwareAddressSender(), f.Data[6:12]) {
						arp = append(arp, netip.AddrFrom4([4]byte(p.ProtocolAddressSender())))
					}
				case b[0]>>4 == 6 && b[6] == uint8(header.ICMPv6ProtocolNumber) && b[40] == uint8(header.ICMPv6NeighborAdvert):
					na = append(na, netip.AddrFrom16([16]byte(b[48:64])))
				}
			}
		})
		h, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24", "fd00::2/64"}})
		if err != nil {
			t.Fatal(err)
		}
		defer h.Close()
		synctest.Wait()
		gids := h.NICs()[0].GIDs()
		if want := gids[1:2]; !slices.Equal(arp, want) {
			t.Errorf("announced by ARP: %v, want %v", arp, want)
		}
		if want := []netip.Addr{gids[0], gids[2]}; !slices.Equal(na, want) {
			t.Errorf("advertised: %v, want %v", na, want)
		}
	})
}

// TestTakeover checks that a host that takes over an address, with another MAC, is reached at once
// by neighbours that knew the previous host.
func TestTakeover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		open := func(addr string) *netstack.Host {
			h, err := netstack.New(lan.Port(), &netstack.Config{Addrs: []string{addr}})
			if err != nil {
				t.Fatal(err)
			}
			return h
		}
		a := open("fd00::1/64")
		defer a.Close()
		for range 2 {
			b := open("fd00::2/64")
			synctest.Wait()
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			if _, err := a.Ping(ctx, netip.MustParseAddr("fd00::2")); err != nil {
				t.Error(err)
			}
			cancel()
			b.Close()
		}
	})
}
