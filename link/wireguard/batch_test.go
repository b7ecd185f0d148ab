package wireguard

import (
	"bytes"
	"slices"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
)

// emptyBatch returns a batch whose buffers have bytes of earlier packets.
func emptyBatch(mtu int) *batch {
	b := &batch{sizes: make([]int, maxBatch), offset: 16, mtu: mtu}
	for range maxBatch {
		b.bufs = append(b.bufs, bytes.Repeat([]byte{0xee}, 1<<16))
	}
	return b
}

// queued returns a queue of packets with these sizes, each filled with its number.
func queued(sizes ...int) *queue {
	q := new(queue)
	for i, n := range sizes {
		q.data = append(q.data, make([]byte, link.EthernetHeaderLen)...)
		q.data = append(q.data, bytes.Repeat([]byte{byte(i)}, n)...)
		q.sizes = append(q.sizes, link.EthernetHeaderLen+n)
	}
	return q
}

// TestLevel: packets that are a little shorter than the largest become as long, with zeros, so that
// they share an UDP superframe. They never exceed what the largest takes anyway.
func TestLevel(t *testing.T) {
	for _, c := range []struct {
		name        string
		mtu         int
		sizes, want []int
	}{
		{"first, middles and last of a WRITE", 1420, []int{1084, 1068, 1068, 1068}, []int{1084, 1088, 1088, 1088}},
		{"a first packet within", 1420, []int{1068, 1084, 1068}, []int{1088, 1084, 1088}},
		{"one size", 1420, []int{1068, 1068, 1066}, []int{1068, 1068, 1066}},
		{"an acknowledgement", 1420, []int{1084, 48, 1068}, []int{1084, 48, 1088}},
		{"32 bytes", 1420, []int{128, 96, 95, 81, 80}, []int{128, 128, 128, 128, 80}},
		{"not beyond the MTU", 1420, []int{1420, 1408, 1400, 1376}, []int{1420, 1420, 1420, 1376}},
		{"small MTU", 1290, []int{1290, 1280, 1258, 1200}, []int{1290, 1290, 1290, 1200}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := emptyBatch(c.mtu)
			b.take(queued(c.sizes...))
			b.level()
			if got := b.sizes[:b.n]; !slices.Equal(got, c.want) {
				t.Errorf("sizes %v, want %v", got, c.want)
			}
			for i, n := range c.sizes {
				want := append(bytes.Repeat([]byte{byte(i)}, n), make([]byte, b.sizes[i]-n)...)
				if got := b.bufs[i][b.offset:][:b.sizes[i]]; !bytes.Equal(got, want) {
					t.Errorf("packet %d is %x, want %x", i, got, want)
				}
			}
		})
	}
}

// TestBatchFull: a batch has the packets of one UDP superframe, whether they come from a queue or
// from a frame, and the next batch the rest.
func TestBatchFull(t *testing.T) {
	for _, c := range []struct{ size, mtu, want int }{{1068, 1420, 59}, {1084, 1420, 58}, {1420, 1420, 45}, {4200, 4200, 15}, {64, 1420, 64},
		{65000, 65455, 1}} {
		n := 2*c.want + 1
		q := queued(slices.Repeat([]int{c.size}, n)...)
		for _, want := range []int{c.want, c.want, 1} {
			b := emptyBatch(c.mtu)
			if b.take(q); b.n != want {
				t.Errorf("packets of %d bytes: %d of a queue fit, want %d", c.size, b.n, want)
			}
		}
		if !q.empty() {
			t.Error("the queue has more")
		}
		if n*c.size > link.MaxSuperframe {
			continue
		}
		f := linktest.Superframe(make([]byte, 6), make([]byte, 6), false, n, c.size-28)
		s := link.Segmenter{NoUDPChecksum: true}
		s.Cut(&f)
		for i, want := range []int{c.want, c.want, 1} {
			b := emptyBatch(c.mtu)
			if done := b.fill(&s); b.n != want || done != (i == 2) {
				t.Errorf("packets of %d bytes: %d of a frame fit, want %d; the last: %t", c.size, b.n, want, done)
			}
		}
	}
}
