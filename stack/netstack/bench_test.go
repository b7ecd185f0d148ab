package netstack_test

import (
	"sync/atomic"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/netstack"
)

func BenchmarkSend(b *testing.B) {
	for _, bb := range []struct {
		name         string
		size, number int
		attr         stack.PathAttr
	}{
		{"single", 16, 1, stack.PathAttr{Src: a4, Dst: b4}},
		{"single6", 16, 1, stack.PathAttr{Src: a6, Dst: b6}},
		{"superframe", 1040, 62, stack.PathAttr{Src: a4, Dst: b4}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			lan := new(pipe.Switch)
			out := &mutable{Link: lan.Port()}
			h := newHost(b, out, &netstack.Config{Addrs: []string{"10.0.0.1/24", "2001:db8::1/64"}})
			peer := newHost(b, lan.Port(), &netstack.Config{Addrs: []string{"10.0.0.2/24", "2001:db8::2/64"}})
			resolved := make(chan bool)
			peer.NICs()[0].Datagrams().Receive(func(*stack.Datagram) { close(resolved) })
			p := newPath(b, h, bb.attr)
			send(b, h, p, 1)
			<-resolved
			out.mute.Store(true)
			port := h.NICs()[0].Datagrams()
			b.SetBytes(int64(bb.size * bb.number))
			b.ReportAllocs()
			for b.Loop() {
				s := port.Sender()
				for range bb.number {
					_, payload := s.Datagram(p, bb.size)
					payload[0] = 1
				}
				s.Flush()
			}
			if c := h.Interfaces()[0].Counters(); c.TxFrames == 0 || c.TxNoRoute > 0 {
				b.Fatalf("%+v: nothing was sent", c)
			}
		})
	}
}

// mutable is a link whose output can be discarded.
type mutable struct {
	link.Link
	mute atomic.Bool
}

func (m *mutable) Write(frames []link.Frame) (int, error) {
	if m.mute.Load() {
		return len(frames), nil
	}
	return m.Link.Write(frames)
}

func BenchmarkReceive(b *testing.B) {
	for name, payload := range map[string]int{"single": 1040, "superframe": 62 * 1040} {
		b.Run(name, func(b *testing.B) {
			w := newWire()
			h := newHost(b, w, &netstack.Config{Addrs: []string{"10.0.0.1/24"}})
			segments := 0
			h.NICs()[0].Datagrams().Receive(func(d *stack.Datagram) {
				for _, ok := d.Next(); ok; _, ok = d.Next() {
					segments++
				}
			})
			frames := []link.Frame{{Data: frame4(b4, a4, w.mac, payload), Segmentation: link.UDP, SegmentSize: 1040}}
			original := append([]byte(nil), frames[0].Data[:42]...)
			b.SetBytes(int64(payload))
			b.ReportAllocs()
			for b.Loop() {
				copy(frames[0].Data, original)
				w.recv(frames)
			}
			if segments != b.N*payload/1040 {
				b.Fatalf("%d segments in %d frames", segments, b.N)
			}
		})
	}
}
