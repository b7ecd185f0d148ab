package wireguard

import (
	"encoding/binary"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
)

// TestOutbox: writers give frames of all kinds to the outbox while the device reads, slowly at
// times. Each packet is read once, and those of a writer in their order.
func TestOutbox(t *testing.T) {
	const writers, packets, size, mtu = 3, 20_000, 500, 1420
	synctest.Test(t, func(t *testing.T) {
		o := newOutbox("test", mtu)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer o.close() // writers wait if a check below has failed
		for w := range writers {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(uint64(w), 1))
				for next := 0; next < packets; {
					var frames []link.Frame
					for range 1 + r.IntN(3) {
						if next == packets {
							break
						}
						n := min(1+r.IntN(100), packets-next)
						f := linktest.Superframe(make([]byte, 6), make([]byte, 6), false, n, size)
						if n == 1 {
							f.Segmentation, f.SegmentSize, f.HeaderLen = link.NoSegmentation, 0, 0
						}
						for i := range n {
							number := f.Data[len(f.Data)-(n-i)*size:]
							number[0] = byte(w)
							binary.BigEndian.PutUint32(number[1:], uint32(next+i))
						}
						if r.IntN(4) == 0 {
							split := 50 + r.IntN(len(f.Data)-50)
							f.Data, f.More = f.Data[:split:split], [][]byte{f.Data[split:]}
						}
						frames, next = append(frames, f), next+n
					}
					if err := o.write(frames); err != nil {
						t.Error(err)
						return
					}
				}
			})
		}
		b := emptyBatch(mtu)
		r := rand.New(rand.NewPCG(1, 2))
		var next [writers]uint32
		for range writers * packets {
			if next == [writers]uint32{packets, packets, packets} {
				break
			}
			n, err := o.read(b.bufs, b.sizes, b.offset)
			if err != nil || n == 0 {
				t.Fatalf("%d packets: %v", n, err)
			}
			for i, got := range b.sizes[:n] {
				number := b.bufs[i][b.offset+ipv4Len+8:]
				if w := number[0]; got < ipv4Len+8+size || binary.BigEndian.Uint32(number[1:]) != next[w] {
					t.Fatalf("writer %d: packet %d of %d bytes, want packet %d", w, binary.BigEndian.Uint32(number[1:]), got, next[w])
				} else {
					next[w]++
				}
			}
			if r.IntN(20) > 0 { // otherwise the device is slow, until the outbox assumes that they are lost
				o.sent(n)
			}
		}
		wg.Wait()
		if o.pending() || !o.taken.empty() {
			t.Error("packets are left")
		}
	})
}

// TestDrained: the packets of a frame that is written in parts are not sent before its last is, and
// a write that close has interrupted fails.
func TestDrained(t *testing.T) {
	const frames, packets, mtu = 2000, 32, 1420
	synctest.Test(t, func(t *testing.T) {
		o := newOutbox("test", mtu)
		defer o.close()
		var seen, writes atomic.Int64
		go func() {
			b := emptyBatch(mtu)
			for {
				n, err := o.read(b.bufs[:4], b.sizes, b.offset)
				if err != nil {
					return
				}
				seen.Add(int64(n))
				o.sent(n)
			}
		}()
		f := linktest.Superframe(make([]byte, 6), make([]byte, 6), false, packets, 500)
		go func() {
			for o.write([]link.Frame{f}) == nil {
				writes.Add(1)
			}
		}()
		for n := int64(0); n < frames*packets && !t.Failed(); n = seen.Load() {
			if o.drained() && seen.Load() == n && n%packets != 0 {
				t.Errorf("drained after %d packets", n)
			}
			runtime.Gosched()
		}
		whole := int64(0)
		for interrupted := false; !interrupted; runtime.Gosched() {
			o.mu.Lock()
			if interrupted = o.writing > 0; interrupted {
				o.closed, whole = true, writes.Load()
			}
			o.mu.Unlock()
		}
		o.close()
		synctest.Wait()
		if n := writes.Load(); n != whole {
			t.Errorf("%d writes, want %d", n, whole)
		}
	})
}
