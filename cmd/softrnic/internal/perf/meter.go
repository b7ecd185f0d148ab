package perf

import (
	"runtime"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// meterSlice is the shortest time over which the peak bandwidth is measured.
const meterSlice = 10 * time.Millisecond

// meter counts the messages of one lane.
type meter struct {
	began    time.Time
	now      time.Duration // time of the last completion, since the start
	took     time.Duration
	messages int64
	verified int64
	latency  *hdrhistogram.Histogram // nanoseconds; nil if latency is not measured
	halves   bool                    // half of the measured time is recorded

	sliceBegan    time.Duration
	sliceMessages int64
	peak          float64 // messages per second
}

func newMeter(p *plan) *meter {
	m := &meter{}
	if p.Metric == metricLat || p.Op == opConnect {
		m.latency = hdrhistogram.New(1, int64(time.Minute), 3)
		m.halves = p.stream() || p.Op == opSend || p.Op == opWrite
	}
	return m
}

func (m *meter) start() { m.began = time.Now() }

// elapsed returns the time since the start.
func (m *meter) elapsed() time.Duration { return time.Since(m.began) }

// add counts completed messages.
func (m *meter) add(messages int64) {
	m.messages += messages
	m.sliceMessages += messages
	m.now = m.elapsed()
	if d := m.now - m.sliceBegan; d >= meterSlice {
		m.peak = max(m.peak, float64(m.sliceMessages)/d.Seconds())
		m.sliceBegan, m.sliceMessages = m.now, 0
	}
}

// record records the time of one exchange.
func (m *meter) record(d time.Duration) {
	m.messages++
	if m.halves {
		d /= 2
	}
	_ = m.latency.RecordValue(min(max(int64(d), 1), int64(time.Minute))) // the value is in range
}

// runtimeMallocs returns the number of objects that this process has allocated.
func runtimeMallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// stop ends the measurement.
func (m *meter) stop() { m.took = m.elapsed() }
