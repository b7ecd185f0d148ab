package netstack_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

func TestGateway(t *testing.T) {
	for name, attr := range map[string]stack.PathAttr{
		"IPv4": {Src: a4, Dst: netip.MustParseAddr("192.0.2.9")},
		"IPv6": {Src: a6, Dst: netip.MustParseAddr("2001:db8:1::9")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lan := new(pipe.Switch)
				out := &spy{Link: lan.Port()}
				a := newHost(t, out, &netstack.Config{Addrs: []string{"10.0.0.1/24", "2001:db8::1/64"},
					Gateways: []string{"10.0.0.254", "2001:db8::fe"}})
				router := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.254/24", "2001:db8::fe/64"}})
				send(t, a, newPath(t, a, attr), 20)
				synctest.Wait()
				frames := out.roce()
				if len(frames) != 1 || !slices.Equal(frames[0].Data[:6], router.NICs()[0].MAC()) {
					t.Fatalf("sent %d frames %v, want one to %v", len(frames), frames, router.NICs()[0].MAC())
				}
			})
		})
	}
}

func TestMulticastPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		out := &spy{Link: new(pipe.Switch).Port()}
		h := newHost(t, out, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
		send(t, h, newPath(t, h, stack.PathAttr{Src: a4, Dst: netip.MustParseAddr("239.129.2.3")}), 20)
		send(t, h, newPath(t, h, stack.PathAttr{Src: h.NICs()[0].GIDs()[0], Dst: netip.MustParseAddr("ff0e::1:2:3")}), 20)
		frames := out.roce()
		if len(frames) != 2 || string(frames[0].Data[:6]) != "\x01\x00\x5e\x01\x02\x03" ||
			string(frames[1].Data[:6]) != "\x33\x33\x00\x02\x00\x03" {
			t.Fatalf("sent %v", frames)
		}
	})
}

// TestUnresolvedNeighbour sends to an address without a host. A bounded number of frames waits, and
// is lost when resolution fails. The path works as soon as a host answers.
func TestUnresolvedNeighbour(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		out := &spy{Link: lan.Port()}
		a := newHost(t, out, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
		attr := stack.PathAttr{Src: a4, Dst: b4}
		p := newPath(t, a, attr)
		lost := func() uint64 { return a.Interfaces()[0].Counters().TxNoRoute }
		for range 1200 {
			send(t, a, p, 1040)
		}
		if n := lost(); n != 1200-(1<<20)/1082 {
			t.Errorf("%d of 1200 frames of 1082 bytes lost at once, want those beyond 1 MiB", n)
		}
		time.Sleep(10 * time.Second)
		if n := lost(); n != 1200 {
			t.Errorf("%d of 1200 frames lost, want all", n)
		}
		if n := len(out.roce()); n != 0 {
			t.Errorf("%d frames went out", n)
		}

		b := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24"}})
		in := collect(b)
		headers := send(t, a, p, 100, 1040, 1040)
		synctest.Wait()
		checkArrived(t, in, attr, headers, 100, 1040, 1040)
	})
}

// TestMACChange moves an address to another host: a path in use follows without a notification.
func TestMACChange(t *testing.T) {
	for name, attr := range map[string]stack.PathAttr{
		"IPv4": {Src: a4, Dst: b4},
		"IPv6": {Src: a6, Dst: b6},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lan := new(pipe.Switch)
				a := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.1/24", "2001:db8::1/64"}})
				old := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24", "2001:db8::2/64"}})
				in := collect(old)
				p := newPath(t, a, attr)
				send(t, a, p, 20)
				synctest.Wait()
				if len(in.packets) != 1 {
					t.Fatal("nothing arrived before the change")
				}
				old.Close()
				b := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24", "2001:db8::2/64"}})
				in = collect(b)
				for range 240 {
					send(t, a, p, 20)
					time.Sleep(250 * time.Millisecond)
				}
				synctest.Wait()
				if len(in.packets) == 0 {
					t.Error("nothing arrived at the new host within a minute")
				}
			})
		})
	}
}

func TestPathErrors(t *testing.T) {
	h := newHost(t, newWire(), &netstack.Config{Addrs: []string{"10.0.0.1/24", "2001:db8::1/64"}})
	far := netip.MustParseAddr("10.9.9.9")
	for _, tc := range []struct {
		attr stack.PathAttr
		want string
	}{
		{stack.PathAttr{Src: a4, Dst: far}, "no route to 10.9.9.9 from wire (10.0.0.1/24)"},
		{stack.PathAttr{Src: a6, Dst: netip.MustParseAddr("2001:db9::1")}, "no route to 2001:db9::1 from wire ("},
		{stack.PathAttr{Src: b4, Dst: a4}, "wire has no such address"},
		{stack.PathAttr{Dst: a4}, "wire has no such address"},
		{stack.PathAttr{Src: a4, Dst: b6}, "different IP versions"},
		{stack.PathAttr{Src: a4}, "different IP versions"},
		{stack.PathAttr{Src: a6}, "want the address of a host"},
		{stack.PathAttr{Src: a4, Dst: netip.MustParseAddr("255.255.255.255")}, "want the address of a host"},
		{stack.PathAttr{Src: a4, Dst: netip.MustParseAddr("127.0.0.1")}, "want the address of a host"},
		{stack.PathAttr{Src: a6, Dst: b6, FlowLabel: 1 << 20}, "flow label 0x100000 does not fit in 20 bits"},
	} {
		p, err := h.NICs()[0].Datagrams().Path(tc.attr)
		if err == nil || !strings.Contains(err.Error(), tc.want) || p != nil {
			t.Errorf("%+v: path %v, error %v; want %q", tc.attr, p, err, tc.want)
		}
	}
}
