package send

import (
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/sacktest"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// trimmed reports a packet as trimmed, at a distance from the missing packet psn.
func (r *requester) trimmed(psn, distance uint32) {
	r.OnSelectiveNAK(psn, wire.AppendTrimmed(nil, distance))
}

// TestTrimmed: what the peer says is trimmed is repeated at once, and nothing else.
func TestTrimmed(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(r *requester)
	}{
		{"one, and again", func(r *requester) {
			r.trimmed(0, 3)
			r.expect("0.3@3!", Selective)
			r.trimmed(0, 3)
			r.expect("0.3@3!", Selective)
			r.trimmed(0, 0)
			r.trimmed(0, 0) // it is to be sent again already
			r.expect("0.0@0!", Selective)
			if o := r.OnAck(12); o.Completed != 1 || r.Mode() != InOrder {
				r.t.Errorf("%+v, %v", o, r.Mode())
			}
		}},
		{"beside what is found lost", func(r *requester) {
			r.trimmed(2, 2) // 0 and 1 have arrived
			r.expect("0.4@4!", Selective)
			r.OnSelectiveNAK(2, sacktest.Of(1, 3, 4, 5))
			r.expect("0.2@2!", Selective)
			r.trimmed(2, 3) // it has arrived
			r.expect("", Selective)
		}},
		{"not in flight", func(r *requester) {
			for _, d := range []uint32{12, 13, 1000, wire.MaxSackPackets} {
				r.trimmed(0, d)
			}
			r.expect("", Selective)
			r.OnAck(12)
			r.expect("", InOrder)
		}},
		{"in an RNR wait", func(r *requester) {
			r.OnRNR(0, time.Millisecond)
			r.trimmed(0, 0)
			r.expect("", RNRWait)
		}},
		{"the timeout goes on, and the probe waits anew", func(r *requester) {
			due, probe := r.alarm.due, r.alarm.probeDue
			for range 100 {
				r.now += probe / 1000
				r.trimmed(0, 1)
				r.send()
			}
			if r.alarm.due != due || r.alarm.probeDue <= probe {
				r.t.Errorf("timeout %v, before %v; probe %v, before %v", r.alarm.due, due, r.alarm.probeDue, probe)
			}
		}},
		{"the window becomes small", func(r *requester) {
			for i := range uint32(100) {
				r.trimmed(0, i%12)
				r.send()
			}
			if r.window.size != trimmedWindow {
				r.t.Errorf("the window is %d", r.window.size)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRequester(t)
			r.Begin(&Connection{MTU: 1024, Path: pathOf(16, 4, Conservation{})}) // which is quick to compare
			r.peer(true)
			r.post(Write, 12)
			r.send()
			c.run(r)
		})
	}
}

// TestTrimmedProbe: what was trimmed after a probe, and is sent again, is not answered late.
func TestTrimmedProbe(t *testing.T) {
	for _, c := range []struct {
		kind   Kind
		report func(d *device)
	}{
		{Send, func(d *device) { d.trimmed(d.psn, 0) }},
		{Read, func(d *device) { d.hint(d.psn, true, true) }},
	} {
		d := newDevice(t, true) // round trips of 100 µs
		d.post(c.kind, 1)
		d.send()
		d.until(Probed)
		d.send()
		for range 10 {
			d.now += 100 * time.Microsecond
			c.report(d)
			d.send()
		}
		d.now += 100 * time.Microsecond
		if c.kind == Send {
			d.OnAck(d.psn + 1)
		} else if _, _, _, ok := d.OnAnswer(d.psn); ok {
			d.OnAnswered(d.psn)
		}
		d.send()
		if late := d.env.Answers.longest.Load(); !d.Idle() || late != 0 {
			t.Errorf("kind %d: idle %t, late by %v", c.kind, d.Idle(), time.Duration(late))
		}
	}
}

// TestTrimmedAnswer: a READ response that was trimmed is asked for again.
func TestTrimmedAnswer(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(r *requester)
	}{
		{"selective", func(r *requester) {
			r.hint(4, true, true)
			r.hint(5, true, true)
			r.expect("1.3@4+1!", Selective)
			r.hint(4, true, true)
			r.expect("1.3@4!", Selective)
			r.hint(4, false, false)
			r.hint(0, true, false)
			r.hint(6, true, false)
			r.hint(7, true, false)
			r.hint(1<<23, true, false)
			r.peer(true)
			r.hint(5, false, false)
		}},
		{"go back", func(r *requester) {
			r.hint(2, false, false)
			r.hint(1, false, false)
			r.OnAck(1)
			r.hint(1, false, true)
			r.expect("0.0@1+4! 1.0@6!", GoneBack)
			r.hint(1, false, false)
		}},
		{"not the last retry", func(r *requester) {
			r.OnAck(1)
			for _, retries := range []uint8{0, 1} {
				r.SetLimits(Limits{MaxReads: 2, Retries: retries})
				r.hint(1, false, false)
			}
			r.SetLimits(Limits{MaxReads: 2, Retries: 2, Timeout: 100 * time.Millisecond})
			r.hint(1, false, true)
			r.send()
			r.until(WentBack)
			r.hint(1, false, false)
		}},
		{"not more than the peer's packets at a time", func(r *requester) {
			n := 0
			for range 10 * r.window.span {
				if _, used := r.OnTrimmedAnswer(3, true); used {
					n++
				}
				r.send()
			}
			if n != int(r.window.span) {
				r.t.Errorf("%d hints, want %d", n, r.window.span)
			}
		}},
		{"failed", func(r *requester) {
			r.Stop()
			r.hint(3, true, false)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRequester(t)
			r.Begin(&Connection{MTU: 1024, Path: pathOf(16, 4, Conservation{})})
			r.post(Write, 1)
			r.post(Read, 5)
			r.post(Atomic, 1)
			r.send()
			c.run(r)
		})
	}
}

// hint delivers what a switch has left of a READ response.
func (r *requester) hint(psn uint32, selective, want bool) {
	r.t.Helper()
	if o, used := r.OnTrimmedAnswer(psn, selective); used != want || o.Action == RetriesExceeded {
		r.t.Errorf("PSN %d: used %t, %+v", psn, used, o)
	}
}
