package verbs

import "time"

// LatencyBuckets is how many classes a [Latency] has.
const LatencyBuckets = 24

// Latency is a histogram of times. Class i counts those shorter than LatencyBound(i), and not shorter than LatencyBound(i-1);
// the last class has no upper bound.
type Latency struct {
	Count   uint64
	Sum     time.Duration
	Classes [LatencyBuckets]uint64
}

// LatencyBound is the upper bound of a class: 1 µs, 2 µs, 4 µs and so on.
func LatencyBound(i int) time.Duration { return time.Microsecond << i }

func (l *Latency) observe(d time.Duration) {
	i := 0
	for i < LatencyBuckets-1 && d >= LatencyBound(i) {
		i++
	}
	l.Classes[i]++
	l.Count++
	l.Sum += d
}

// Add adds the times of another histogram.
func (l *Latency) Add(o *Latency) {
	l.Count += o.Count
	l.Sum += o.Sum
	for i, n := range o.Classes {
		l.Classes[i] += n
	}
}

// MeasureLatency has the QPs that are created from now on measure how long send requests take, from when they are posted until they
// complete with success or an error. Each QP measures one request at a time: while that one is under way no other is measured.
func (d *Device) MeasureLatency() {
	d.latencyMu.Lock()
	defer d.latencyMu.Unlock()
	if d.latencies == nil {
		d.latencies = make(map[Transport]*Latency)
	}
}

// Latencies returns what was measured for each wire protocol (see MeasureLatency), by QPs that are gone and by those that are there.
func (d *Device) Latencies() map[Transport]Latency {
	sum := make(map[Transport]Latency)
	d.latencyMu.Lock() // no QP goes meanwhile, which would be counted twice or not at all
	defer d.latencyMu.Unlock()
	for t, l := range d.latencies {
		sum[t] = *l
	}
	for _, qp := range d.QPs() {
		qp.lock()
		if qp.measured {
			l := sum[qp.init.Transport]
			l.Add(&qp.rare.latency.Latency)
			sum[qp.init.Transport] = l
		}
		qp.mu.Unlock()
	}
	return sum
}

// latency measures the requests of one send queue. Its QP is locked.
type latency struct {
	Latency
	ahead  int // how many requests complete before that which is measured, which was posted at the time posted; -1: none is
	posted time.Time
}

// post is told that a request was posted behind n others.
func (l *latency) post(n int) {
	if l.ahead < 0 {
		l.ahead, l.posted = n, time.Now()
	}
}

// complete is told that the oldest request is complete.
func (l *latency) complete() {
	switch l.ahead--; l.ahead {
	case -1:
		l.observe(time.Since(l.posted))
	case -2:
		l.ahead = -1 // none was measured
	}
}

// measureLatency has a new QP measure its requests, if MeasureLatency was called.
func (qp *QP) measureLatency() {
	d := qp.pd.dev
	d.latencyMu.Lock()
	defer d.latencyMu.Unlock()
	if d.latencies != nil {
		qp.rare, qp.measured = &rare{latency: &latency{ahead: -1}}, true
	}
}

// keepLatency keeps what a QP has measured that is destroyed. latencyMu is held.
func (d *Device) keepLatency(qp *QP) {
	if !qp.measured {
		return
	}
	l := d.latencies[qp.init.Transport]
	if l == nil {
		l = new(Latency)
		d.latencies[qp.init.Transport] = l
	}
	l.Add(&qp.rare.latency.Latency)
}
