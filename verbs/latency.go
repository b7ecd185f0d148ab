package verbs

import "time"

// Bound returns the upper bound of a class: 1 µs, 2 µs, 4 µs and so on.
func (*Latency) Bound(class int) time.Duration { return time.Microsecond << class }

func (l *Latency) observe(d time.Duration) {
	i := 0
	for i < len(l.Classes)-1 && d >= l.Bound(i) {
		i++
	}
	l.Classes[i]++
	l.Count++
	l.Sum += d
}

// add adds the times of another histogram.
func (l *Latency) add(o *Latency) {
	l.Count += o.Count
	l.Sum += o.Sum
	for i, n := range o.Classes {
		l.Classes[i] += n
	}
}

// MeasureLatency makes QPs that are created from now on measure the latency of send requests, from
// posting to completion with success or an error. Each QP measures one request at a time: while
// that one is in flight, it measures no other. [Device.Snapshot] and [QP.Stats] return the
// latencies.
func (d *Device) MeasureLatency() {
	d.latencyMu.Lock()
	defer d.latencyMu.Unlock()
	if d.latencies == nil {
		d.latencies = make(map[Transport]*Latency)
	}
}

// sumLatencies returns the latencies of each wire protocol, of existing and closed QPs.
func (d *Device) sumLatencies() map[Transport]Latency {
	sum := make(map[Transport]Latency)
	d.latencyMu.Lock() // a QP closed meanwhile would be counted twice or not at all
	defer d.latencyMu.Unlock()
	for t, l := range d.latencies {
		sum[t] = *l
	}
	for _, qp := range d.QPs() {
		qp.lock()
		if qp.observed&measured != 0 {
			l := sum[qp.init.Transport]
			l.add(&qp.extra.latency.Latency)
			sum[qp.init.Transport] = l
		}
		qp.mu.Unlock()
	}
	return sum
}

// latency measures the requests of one send queue. Its QP is locked.
type latency struct {
	Latency
	// The number of requests that complete before the measured one; -1: none is measured.
	ahead  int
	posted time.Time // the time at which the measured request was posted
}

// post is called when a request is posted after n others.
func (l *latency) post(c Clock, n int) {
	if l.ahead < 0 {
		l.ahead, l.posted = n, c.Now()
	}
}

// complete is called when the oldest request is complete.
func (l *latency) complete(c Clock) {
	switch l.ahead--; l.ahead {
	case -1:
		l.observe(c.Since(l.posted))
	case -2:
		l.ahead = -1 // none was measured
	}
}

// measureLatency makes a new QP measure its requests, if MeasureLatency was called.
func (qp *QP) measureLatency() {
	d := qp.pd.dev
	d.latencyMu.Lock()
	defer d.latencyMu.Unlock()
	if d.latencies != nil {
		qp.extra, qp.observed = &qpExtra{latency: &latency{ahead: -1}}, qp.observed|measured
	}
}

// keepLatency adds the latencies of a QP that is being closed to those of the device. latencyMu
// is held.
func (d *Device) keepLatency(qp *QP) {
	if qp.observed&measured == 0 {
		return
	}
	l := d.latencies[qp.init.Transport]
	if l == nil {
		l = new(Latency)
		d.latencies[qp.init.Transport] = l
	}
	l.add(&qp.extra.latency.Latency)
}
