package netstack_test

import (
	"bytes"
	"errors"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

// TestRoCEv1 sends packets of RoCE v1 between two hosts. Each is a frame of its own in the
// specified layout, whatever the offloads. The neighbour's MAC comes from its link-local address,
// or from resolution.
func TestRoCEv1(t *testing.T) {
	for _, tc := range []struct {
		name     string
		src, dst func(a, b *netstack.Host) netip.Addr
	}{
		{"link-local", gid(0, 0), gid(1, 0)},
		{"IPv4", gid(0, 1), gid(1, 1)},
		{"IPv6", gid(0, 2), gid(1, 2)},
		{"to itself", gid(0, 1), gid(0, 1)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lan := new(pipe.Switch)
				watch := &spy{Link: lan.Port()}
				a := newHost(t, watch, &netstack.Config{Addrs: []string{"10.0.0.1/24", "2001:db8::1/64"}})
				b := newHost(t, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24", "2001:db8::2/64"}})
				in := map[bool]*inbox{false: collect(b), true: collect(a)}[tc.name == "to itself"]
				synctest.Wait()
				attr := stack.PathAttr{Src: tc.src(a, b), Dst: tc.dst(a, b), V1: true, TrafficClass: 0xa5, FlowLabel: 0x12345, HopLimit: 7}
				p := newPath(t, a, attr)
				if got, want := p.MTU(), lan.Port().MTU()-40; got != want {
					t.Errorf("MTU %d, want %d", got, want)
				}
				if n := p.Batch(100); n != 1 {
					t.Errorf("%d packets a frame", n)
				}
				sizes := []int{4, 100, 100, 100, p.MTU()}
				headers := send(t, a, p, sizes...)
				synctest.Wait()
				if len(in.packets) != len(sizes) {
					t.Fatalf("%d packets arrived, want %d", len(in.packets), len(sizes))
				}
				for i, got := range in.packets {
					mac := b.NICs()[0].MAC()
					if tc.name == "to itself" {
						mac = a.NICs()[0].MAC()
					}
					want := frameV1(attr.Src, attr.Dst, mac, sizes[i])[14:54]
					copy(want, []byte{0x6a, 0x51, 0x23, 0x45}) // version 6, class, label
					want[7] = 7
					if !bytes.Equal(headers[i], want) || !bytes.Equal(got.header, want) {
						t.Errorf("packet %d: header\n% x arrived,\n% x was returned, want\n% x", i, got.header, headers[i], want)
					}
					if got.src != attr.Src || got.dst != attr.Dst || got.tc != 0xa5 || got.hop != 7 || got.frame != i ||
						len(got.payload) != sizes[i] {
						t.Errorf("packet %d: %+v", i, got)
					}
				}
				if tc.name == "to itself" {
					return
				}
				v1 := 0
				for _, f := range watch.sent {
					if f.Data[12] == 0x89 && f.Data[13] == 0x15 {
						v1++
						if f.Segmentation != link.NoSegmentation || f.NeedsChecksum || !bytes.Equal(f.Data[:6], b.NICs()[0].MAC()) {
							t.Errorf("sent %+v", f)
						}
					}
				}
				if v1 != len(sizes) {
					t.Errorf("%d frames for %d packets", v1, len(sizes))
				}
			})
		})
	}
}

// gid returns a GID of the first or second host.
func gid(host, index int) func(a, b *netstack.Host) netip.Addr {
	return func(a, b *netstack.Host) netip.Addr {
		return []*netstack.Host{a, b}[host].NICs()[0].GIDs()[index]
	}
}

// TestRoCEv1Paths checks that no path leads through a router, and that a group's MAC follows from
// its address. A link-local address that was not made from a MAC is resolved.
func TestRoCEv1Paths(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		watch := &spy{Link: lan.Port()}
		h := newHost(t, watch, &netstack.Config{Addrs: []string{"10.0.0.1/24", "2001:db8::1/64"}, Gateways: []string{"10.0.0.254"}})
		dp := h.NICs()[0].Datagrams()
		far := stack.PathAttr{Src: a4, Dst: netip.MustParseAddr("192.0.2.1"), V1: true}
		if _, err := dp.Path(far); !errors.Is(err, syscall.ENETUNREACH) {
			t.Errorf("over a router: %v", err)
		}
		far.V1 = false
		if _, err := dp.Path(far); err != nil {
			t.Errorf("RoCEv2 over a router: %v", err)
		}
		linkLocal := h.NICs()[0].GIDs()[0]
		for dst, mac := range map[string][]byte{
			"239.1.2.3":        {1, 0, 0x5e, 1, 2, 3},
			"ff05::1:2:3":      {0x33, 0x33, 0, 2, 0, 3},
			"fe80::ff:fe00:99": {2, 0, 0, 0, 0, 0x99},
			"fe80::99":         nil, // no answer
		} {
			watch.mu.Lock()
			watch.sent = nil
			watch.mu.Unlock()
			a := stack.PathAttr{Src: linkLocal, Dst: netip.MustParseAddr(dst), V1: true}
			if a.Dst.Is4() {
				a.Src = a4
			}
			send(t, h, newPath(t, h, a), 20)
			synctest.Wait()
			var got []byte
			watch.mu.Lock()
			for _, f := range watch.sent {
				if f.Data[12] == 0x89 {
					got = f.Data[:6]
				}
			}
			watch.mu.Unlock()
			if !bytes.Equal(got, mac) {
				t.Errorf("%s is sent to MAC %x, want %x", dst, got, mac)
			}
		}
	})
}

// TestRoCEv1Priority checks that the TCI of a datagram is that of its own tag.
func TestRoCEv1Priority(t *testing.T) {
	w := newWire()
	h := newHost(t, w, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	var got []uint16
	h.NICs()[0].Datagrams().Receive(func(d *stack.Datagram) { got = append(got, d.TCI) })
	tags := []uint16{5 << link.PriorityShift, 0, 3<<link.PriorityShift | 7}
	for _, tci := range tags {
		w.arrive(link.Frame{Data: frameV1(b4, a4, w.mac, 4), TCI: tci})
	}
	if !slices.Equal(got, tags) {
		t.Errorf("tags %#x, want %#x", got, tags)
	}
}

// TestRoCEv1Padding checks that Ethernet's padding of short frames is removed.
func TestRoCEv1Padding(t *testing.T) {
	w := newWire()
	h := newHost(t, w, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	in := collect(h)
	w.arrive(link.Frame{Data: append(frameV1(b4, a4, w.mac, 4), 1, 2)})
	if len(in.packets) != 1 || len(in.packets[0].payload) != 4 || in.packets[0].src != b4 || in.packets[0].dst != a4 {
		t.Fatalf("got %+v, want one packet of 4 bytes", in.packets)
	}
}
