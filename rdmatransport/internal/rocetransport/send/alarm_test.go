package send

import (
	"testing"
	"time"
)

func TestAlarm(t *testing.T) {
	const timeout = 100
	for _, c := range []struct {
		name string
		do   func(a *alarm)
		next time.Duration
		kind AlarmKind // at 150
	}{
		{"none", func(*alarm) {}, 0, NoAlarm},
		{"retransmission", func(a *alarm) { a.setRetransmission(100) }, 100, Retransmission},
		{"retransmission, later", func(a *alarm) { a.setRetransmission(200) }, 200, NoAlarm},
		{"probe before it", func(a *alarm) { a.setRetransmission(200); a.setProbe(120) }, 120, Probe},
		{"both are due", func(a *alarm) { a.setRetransmission(140); a.setProbe(120) }, 120, Retransmission},
		{"probed", func(a *alarm) { a.setRetransmission(200); a.setProbe(120); a.probed() }, 200, NoAlarm},
		{"RNR ends both", func(a *alarm) { a.setRetransmission(100); a.setProbe(90); a.setRNR(5, 150) }, 150, RNRWaitEnd},
		{"RNR over", func(a *alarm) { a.setRNR(5, 150); a.endRNR() }, 0, NoAlarm},
		{"RNR outlasts a sign of life", func(a *alarm) { a.setRNR(5, 150); a.onProgress() }, 150, RNRWaitEnd},
		{"restart", func(a *alarm) { a.setRetransmission(100); a.setProbe(90); a.restart() }, 0, NoAlarm},
		{"late", func(a *alarm) { a.setRetransmission(90); a.postponeLate(150, timeout) }, 250, NoAlarm},
		{"late again", func(a *alarm) {
			a.setRetransmission(10)
			a.postponeLate(100, timeout)
			a.setRetransmission(90)
			a.postponeLate(150, timeout)
		}, 90, Retransmission},
		{"late again, after progress", func(a *alarm) {
			a.setRetransmission(10)
			a.postponeLate(100, timeout)
			a.onProgress()
			a.setRetransmission(90)
			a.postponeLate(150, timeout)
		}, 250, NoAlarm},
		{"a little late", func(a *alarm) { a.setRetransmission(100); a.postponeLate(150, timeout) }, 100, Retransmission},
	} {
		var a alarm
		c.do(&a)
		if next, kind := a.next(), a.dueAt(150); next != c.next || kind != c.kind {
			t.Errorf("%s: kind %d, at %d; want %d, %d", c.name, kind, next, c.kind, c.next)
		}
	}
	var a alarm
	a.setRNR(0, 1)
	for psn, want := range map[uint32]bool{0xffffff: false, 0: true, 7: true} {
		if a.blocks(psn) != want {
			t.Errorf("PSN %#x waits: %v", psn, !want)
		}
	}
	if a.mayProbe() {
		t.Error("a probe in an RNR wait")
	}
	a.endRNR()
	for range maxProbes {
		if !a.mayProbe() {
			t.Error("too few probes")
		}
		if a.setProbe(1); a.mayProbe() {
			t.Error("two probes at a time")
		}
		a.probed()
	}
	if a.mayProbe() {
		t.Error("too many probes")
	}
	if a.onResponse(); !a.mayProbe() {
		t.Error("no probe after a sign of life")
	}
}

func TestRetries(t *testing.T) {
	var r retries
	for _, c := range []struct {
		rnr   bool
		limit uint8
		want  bool
	}{{limit: 2, want: true}, {limit: 2, want: true}, {limit: 2}, {true, 1, true}, {limit: 2, want: true}, {rnr: true, limit: 1},
		{true, retryInfinite, true}} {
		got := false
		if c.rnr {
			got = r.onRNRNAK(c.limit)
		} else {
			got = r.onTimeoutOrNAK(c.limit)
		}
		if got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestBackOff: a timeout after others is longer, but not after a NAK or progress, and neither for a
// QP with a long timeout.
func TestBackOff(t *testing.T) {
	const T = 4 * time.Millisecond
	var a alarm
	want := func(T, d time.Duration) {
		t.Helper()
		if got := a.timeout(T); got != d {
			t.Errorf("%v after %+v, want %v", got, a, d)
		}
	}
	want(T, T)
	for _, d := range []time.Duration{2 * T, 4 * T, 4 * T} {
		a.onRetry(onTimeout)
		want(T, d)
	}
	want(100*time.Millisecond, lateAnswer)
	want(time.Second, time.Second)
	for _, end := range []func(){func() { a.onRetry(onNAK) }, a.onProgress, func() { a.setRNR(0, 1) }} {
		end()
		want(T, T)
		a.onRetry(onTimeout)
	}
}
