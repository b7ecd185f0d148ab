//go:build linux

package netns

import (
	"bytes"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestTags: frames arrive with their VLAN tags, in all ways in which the kernel handles these.
func TestTags(t *testing.T) {
	gate.System(t)
	for _, m := range media {
		if m.vlan {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			interfaces.Namespace(t)
			ls := m.open(t)
			defer ls[0].Close()
			defer ls[1].Close()
			arrived := make(chan []byte, 64)
			ls[1].Attach(func(frames []link.Frame) {
				for i := range frames {
					if f := &frames[i]; bytes.HasPrefix(f.Data, ls[1].MAC()) {
						arrived <- bytes.Clone(f.Data)
					}
				}
			})
			ls[0].Attach(func([]link.Frame) {})
			for _, tags := range [][]byte{
				{}, {0x81, 0, 0x60, 6}, {0x81, 0, 0x60, 0}, {0x88, 0xa8, 0, 6, 0x81, 0, 0xe0, 5}, {0x81, 0, 0, 6, 0x81, 0, 0, 5},
			} {
				// Of packet; one tag of 802.1Q is not counted in the MTU.
				for _, n := range []int{46, 300, mtu - len(tags)/8*8} {
					f := append(append(append(bytes.Clone(ls[1].MAC()), ls[0].MAC()...), tags...), 0x88, 0xb5)
					for i := range n {
						f = append(f, byte(i))
					}
					if k, err := ls[0].Write([]link.Frame{{Data: f}}); k != 1 || err != nil {
						t.Fatal(k, err)
					}
					if got := <-arrived; !bytes.Equal(got, f) {
						t.Errorf("% x… of %d bytes arrives as % x… of %d", f[:22], len(f), got[:22], len(got))
					}
				}
			}
		})
	}
}
