package memory

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"testing"
)

func TestMove(t *testing.T) {
	src := make([]byte, 5000)
	for i := range src {
		src[i] = byte(i*7 + i>>8)
	}
	for _, n := range []int{0, 1, 1023, 1024, 1025, 2048, 4096, 4999} {
		dst := make([]byte, 5000)
		move(dst[1:], src[:n])
		if want := make([]byte, 4999-n); !bytes.Equal(dst[1:1+n], src[:n]) || !bytes.Equal(dst[1+n:], want) {
			t.Errorf("%d bytes: not what was there, or more", n)
		}
	}
}

// BenchmarkPacketCopy is what a packet's payload costs each side: a copy between a large region and a superframe, and a
// CRC of what is in the superframe.
func BenchmarkPacketCopy(b *testing.B) {
	region, frame := make([]byte, 16<<20), make([]byte, 64<<10)
	for i := range region {
		region[i] = byte(i)
	}
	for name, move := range map[string]func(dst, src []byte){
		"move": move,
		"copy": func(dst, src []byte) { copy(dst, src) },
	} {
		for _, payload := range []int{1024, 4096} {
			packets := 60 << 10 / payload
			run := func(way string, packet func(region, frame []byte)) {
				b.Run(fmt.Sprintf("%s/%d/%s", way, payload, name), func(b *testing.B) {
					b.SetBytes(int64(packets * payload))
					b.ReportAllocs()
					at := 0
					for b.Loop() {
						for i := range packets {
							packet(region[at+i*payload:][:payload], frame[54+i*(payload+16):][:payload])
						}
						if at += packets * payload; at+packets*payload > len(region) {
							at = 0
						}
					}
				})
			}
			run("send", func(r, f []byte) { move(f, r); crc32.ChecksumIEEE(f) })
			run("receive", func(r, f []byte) { crc32.ChecksumIEEE(f); move(r, f) })
		}
	}
}
