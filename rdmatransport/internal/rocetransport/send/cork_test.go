package send

import (
	"math"
	"testing"
)

func TestCork(t *testing.T) {
	for _, c := range []struct {
		name  string
		bytes []uint64
		batch uint32
		fits  bool
	}{
		{"one small", []uint64{64}, 15, true},
		{"a frame", []uint64{14 * 1024}, 15, false},
		{"less than a frame", []uint64{10 * 1024, 4*1024 - 1}, 15, true},
		{"no frames of several", []uint64{1}, 1, false},
		{"many small", make([]uint64, fullFrame), 15, false},
		{"more than can be counted", []uint64{math.MaxUint32, math.MaxUint32, 5}, 15, false},
	} {
		var k cork
		for _, n := range c.bytes {
			k.posted(n)
		}
		if got := k.fits(c.batch, 1024); got != c.fits || k.empty() {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
