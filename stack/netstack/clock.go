package netstack

import (
	"encoding/binary"
	"math/rand"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"

	"github.com/softrnic/softrnic/link/clock"
)

// setClock gives gVisor the time and the random numbers of the links, unless they are the
// machine's, which it uses by itself.
func (h *Host) setClock(o *gstack.Options) {
	if !h.clock.Virtual() {
		return
	}
	o.Clock = &gvisorClock{h.clock, h.clock.Now()}
	o.SecureRNG = h.clock.Rand()
	o.RandSource = gvisorRand{h.clock}
}

// gvisorClock is a clock as gVisor wants it.
type gvisorClock struct {
	clock.Clock
	start time.Time
}

// NowMonotonic implements tcpip.Clock.
func (c *gvisorClock) NowMonotonic() tcpip.MonotonicTime {
	var zero tcpip.MonotonicTime
	return zero.Add(c.Since(c.start))
}

// AfterFunc implements tcpip.Clock.
func (c *gvisorClock) AfterFunc(d time.Duration, f func()) tcpip.Timer {
	return gvisorTimer{c.Clock.AfterFunc(d, f)}
}

// gvisorTimer is a timer as gVisor wants it.
type gvisorTimer struct{ clock.Timer }

// Reset implements tcpip.Timer.
func (t gvisorTimer) Reset(d time.Duration) { t.Timer.Reset(d) }

// gvisorRand is a clock's random numbers as gVisor wants them.
type gvisorRand struct{ clock.Clock }

var _ rand.Source = gvisorRand{}

// Int63 implements rand.Source.
func (r gvisorRand) Int63() int64 {
	var b [8]byte
	_, _ = r.Rand().Read(b[:])
	return int64(binary.LittleEndian.Uint64(b[:]) >> 1)
}

// Seed implements rand.Source. The clock has its own seed.
func (gvisorRand) Seed(int64) {}
