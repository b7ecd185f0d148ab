package mpa_test

import (
	"fmt"
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/mpa"
)

// BenchmarkSender sends memory that is not in the caches, as user memory rarely is.
func BenchmarkSender(b *testing.B) {
	user := make([]byte, 32<<20)
	for i := range user {
		user[i] = byte(i)
	}
	for _, c := range configs {
		for _, emss := range []int{1448, 1 << 16} {
			b.Run(fmt.Sprintf("%s/%d", name(c), emss), func(b *testing.B) {
				s := mpa.NewSender(c)
				n := c.MaxULPDU(emss)
				dst, at := make([]byte, 1<<17), 0
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					s.Begin(dst[:s.Size(n)], n)
					s.Add(user[at : at+n])
					s.End()
					if at += n; at+n > len(user) {
						at = 0
					}
				}
			})
		}
	}
}

type byteCounter struct{ bytes int }

func (h *byteCounter) ULPDU(b []byte) error {
	h.bytes += len(b)
	return nil
}

func BenchmarkReceiver(b *testing.B) {
	for _, c := range configs {
		for _, chunk := range []int{1 << 20, 1448, 1000} {
			b.Run(name(c)+map[int]string{1 << 20: "/whole", 1448: "/mss", 1000: "/split"}[chunk], func(b *testing.B) {
				s := mpa.NewSender(c)
				n := c.MaxULPDU(1448)
				var stream []byte
				for len(stream)%512 != 0 || len(stream) == 0 { // so that it can be fed repeatedly
					stream = frame(b, &s, stream, make([]byte, n))
				}
				r := mpa.NewReceiver(c)
				h := &byteCounter{}
				b.SetBytes(int64(len(stream)))
				b.ReportAllocs()
				for b.Loop() {
					for rest := stream; len(rest) > 0; {
						k := min(chunk, len(rest))
						if err := r.Feed(rest[:k], h); err != nil {
							b.Fatal(err)
						}
						rest = rest[k:]
					}
				}
			})
		}
	}
}

func name(c mpa.Config) string {
	return map[mpa.Config]string{{}: "plain", {CRC: true}: "crc", {Markers: true}: "markers", {Markers: true, CRC: true}: "both"}[c]
}
