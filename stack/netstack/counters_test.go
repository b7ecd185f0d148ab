//go:build amd64 || arm64

package netstack

import (
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/softrnic/softrnic/link"
)

// TestTally checks concurrent counting of the largest and of small frames during reads.
func TestTally(t *testing.T) {
	var c tally
	largest := counts{frames: burstFrames, datagrams: burstDatagrams, bytes: burstBytes}
	const each, senders = 3 * fullFrames, 8
	var adding, reading sync.WaitGroup
	for range senders {
		adding.Go(func() {
			for range each {
				c.add(&largest)
				c.add(&counts{frames: 1, datagrams: 1, bytes: 60})
				c.add(&counts{bad: 1})
			}
		})
	}
	quit := make(chan struct{})
	reading.Go(func() {
		for last := (counts{}); ; {
			now := c.read()
			if now.frames < last.frames || now.bytes < last.bytes || now.datagrams < last.datagrams || now.bytes < 60*now.datagrams {
				t.Errorf("%+v after %+v", now, last)
			}
			last = now
			select {
			case <-quit:
				return
			default:
			}
		}
	})
	adding.Wait()
	close(quit)
	reading.Wait()
	const n = each * senders
	want := counts{frames: n * (burstFrames + 1), datagrams: n * (link.MaxSegments + 1), bytes: n * (burstBytes + 60), bad: n}
	if got := c.read(); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// TestFlowsShareNoCacheLine checks that different flows use different cache lines for reception,
// counters and IPv4 IDs.
func TestFlowsShareNoCacheLine(t *testing.T) {
	const line = 64
	var p port
	var l lane
	var c tally
	for what, o := range map[string]struct{ size, used uintptr }{
		"lane":  {unsafe.Sizeof(p.lanes[0]), unsafe.Offsetof(l.d) + unsafe.Sizeof(l.d)},
		"tally": {unsafe.Sizeof(p.sent[0]), unsafe.Offsetof(c.counts) + unsafe.Sizeof(c.counts)},
	} {
		if o.size-o.used < line { // wherever the first of them lies
			t.Errorf("a %s uses %d of %d bytes: two are less than a cache line apart", what, o.used, o.size)
		}
	}
	owners := make(map[uintptr]int)
	kept := make([]*path, 100)
	for i := range kept {
		kept[i] = new(path)
		at := uintptr(unsafe.Pointer(kept[i]))
		for l := at / line; l <= (at+unsafe.Sizeof(path{})-1)/line; l++ {
			if owner, taken := owners[l]; taken {
				t.Fatalf("paths of %d bytes: %d and %d share a cache line", unsafe.Sizeof(path{}), owner, i)
			}
			owners[l] = i
		}
	}
	runtime.KeepAlive(kept)
}
