package main

import (
	"runtime"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// perfSlice is what the peak bandwidth is of: the best so long.
const perfSlice = 10 * time.Millisecond

// perfMeter counts what one lane sends.
type perfMeter struct {
	began    time.Time
	now      time.Duration // since then, when something completed last
	took     time.Duration
	messages int64
	verified int64
	latency  *hdrhistogram.Histogram // nanoseconds; nil if that is not measured
	halves   bool                    // what is recorded is half of what is measured

	sliceBegan    time.Duration
	sliceMessages int64
	peak          float64 // messages per second
}

func newPerfMeter(p *perfPlan) *perfMeter {
	m := &perfMeter{}
	if p.Metric == perfLat || p.Op == perfConnect {
		m.latency = hdrhistogram.New(1, int64(time.Minute), 3)
		m.halves = p.tcp() || p.Op == perfSend || p.Op == perfWrite
	}
	return m
}

func (m *perfMeter) start() { m.began = time.Now() }

// elapsed is since start.
func (m *perfMeter) elapsed() time.Duration { return time.Since(m.began) }

// add counts messages that are complete.
func (m *perfMeter) add(messages int64) {
	m.messages += messages
	m.sliceMessages += messages
	m.now = m.elapsed()
	if d := m.now - m.sliceBegan; d >= perfSlice {
		m.peak = max(m.peak, float64(m.sliceMessages)/d.Seconds())
		m.sliceBegan, m.sliceMessages = m.now, 0
	}
}

// record takes in the time of one exchange.
func (m *perfMeter) record(d time.Duration) {
	m.messages++
	if m.halves {
		d /= 2
	}
	_ = m.latency.RecordValue(min(max(int64(d), 1), int64(time.Minute))) // it is in range
}

// runtimeMallocs is the number of objects that this process has allocated.
func runtimeMallocs() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.Mallocs
}

// stop ends the time.
func (m *perfMeter) stop() { m.took = m.elapsed() }
