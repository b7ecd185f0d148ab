package netstack_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

// TestSteeringOfTags checks that tagged frames are shown with their tags, and that RoCE with a
// priority tag still belongs to the host.
func TestSteeringOfTags(t *testing.T) {
	w := newWire()
	h := newHost(t, w, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
	in := collect(h)
	var sniffed, offered [][]byte
	h.NICs()[0].Frames().Steer(&stack.Steering{
		Sniff: func(b []byte) { sniffed = append(sniffed, bytes.Clone(b)) },
		Take:  func(b []byte) bool { offered = append(offered, bytes.Clone(b)); return false },
	})
	tagged := func(tci byte) []byte {
		b := frame4(b4, a4, w.mac, 20)
		return slices.Concat(b[:12], []byte{0x81, 0, 0x60, tci}, b[12:])
	}
	plain := frame4(b4, a4, w.mac, 20)
	for _, b := range [][]byte{tagged(0), tagged(5), plain} {
		w.arrive(link.Frame{Data: bytes.Clone(b)})
	}
	if want := [][]byte{tagged(0), tagged(5), plain}; !slices.EqualFunc(sniffed, want, bytes.Equal) {
		t.Errorf("sniffed % x, want % x", sniffed, want)
	}
	if want := [][]byte{tagged(5)}; !slices.EqualFunc(offered, want, bytes.Equal) {
		t.Errorf("offered % x, want % x", offered, want)
	}
	if len(in.packets) != 2 {
		t.Errorf("%d datagrams arrived, want 2", len(in.packets))
	}
}
