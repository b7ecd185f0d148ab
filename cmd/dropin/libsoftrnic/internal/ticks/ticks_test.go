package ticks

import (
	"testing"
	"time"
)

// TestSecond: an interval of the system's clock has at least as many ticks as Second says. The
// interval of package time lies within that of ticks.
func TestSecond(t *testing.T) {
	const while = 20 * time.Millisecond
	first := Now()
	began := time.Now()
	for time.Since(began) < while {
	}
	if n, want := Now()-first, uint64(while*Second/time.Second); n < want {
		t.Errorf("%d ticks in %v, want %d or more", n, while, want)
	}
}

func BenchmarkNow(b *testing.B) {
	for b.Loop() {
		Now()
	}
}
