package ticks

import (
	"testing"
	"time"
)

// TestSecond: a while by the system's clock has as many ticks as Second promises, or more. The interval of package time is within
// that of ticks.
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
