package send

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/sacktest"
)

func TestLateAnswers(t *testing.T) {
	const us = time.Microsecond
	var l LateAnswers
	wait := func(likely, most time.Duration) time.Duration { return l.wait(likely, 0, most) }
	check := func(when string, want time.Duration) {
		t.Helper()
		if got := wait(100*us, probeWait); got != want {
			t.Errorf("%s: waits %v, want %v", when, got, want)
		}
	}
	for i := range firstAnswers {
		if l.known() {
			t.Errorf("known from %d answers", i)
		}
		l.add(0, time.Duration(i)*us)
	}
	check("none was late", 100*us)
	if got := l.wait(100*us, granularity, probeWait); got != 1100*us {
		t.Errorf("waits %v with timers that are late", got)
	}
	l.add(200*us, time.Second)
	l.add(50*us, time.Second)
	check("one was late by 200 µs", 500*us)
	if got := l.wait(100*us, granularity, probeWait); got != 1100*us {
		t.Errorf("waits %v with timers that are late, and an answer", got)
	}
	l.add(0, 9*time.Second)
	check("8 s later", 500*us)
	l.add(0, 13*time.Second)
	check("12 s later", 500*us)
	l.add(0, 18*time.Second)
	check("it is forgotten", 100*us)
	l.add(time.Hour, 18*time.Second)
	check("very late", probeWait)
	if got := wait(7*time.Millisecond, probeWait); got != 7*time.Millisecond {
		t.Errorf("waits %v for answers that are likely after 7 ms", got)
	}
	if got := wait(100*us, backProbeWait); got != backProbeWait {
		t.Errorf("waits %v for a peer that goes back", got)
	}
	if n := testing.AllocsPerRun(100, func() { l.add(0, 19*time.Second); l.wait(us, 0, probeWait) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestLateAnswersOfManyQPs: QPs learn concurrently.
func TestLateAnswersOfManyQPs(t *testing.T) {
	var l LateAnswers
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for k := range 1000 {
				l.add(time.Duration(i*1000+k), time.Duration(k)*time.Millisecond)
				l.wait(0, 0, probeWait)
			}
		})
	}
	all.Wait()
	if got := l.wait(0, 0, probeWait); got != 2*7999 {
		t.Errorf("waits %v", got)
	}
}

// device is the only QP of a device, whose peer answers as the test says.
type device struct {
	*requester
	psn    uint32
	probes int
}

// newDevice has a QP whose round trips of 100 µs are known. No process is late.
func newDevice(t *testing.T, selective bool) *device {
	d := &device{requester: newRequester(t)}
	d.env.Prompt = true
	d.peer(selective)
	for range 60 {
		d.answer(100 * time.Microsecond)
	}
	if d.probes != 0 {
		t.Fatalf("%d probes of a prompt peer", d.probes)
	}
	return d
}

// answer sends a packet that is answered after the given time. It returns how long the first probe
// waited, 0 if there was none.
func (d *device) answer(after time.Duration) (probe time.Duration) {
	d.t.Helper()
	begun := d.now
	d.post(Send, 1)
	d.send()
	for at := begun + after; ; {
		due := d.Deadline()
		if due == 0 || due >= at {
			d.now = at
			break
		}
		if d.pass().Action == Probed {
			d.probes++
			if probe == 0 {
				probe = d.now - begun
			}
		}
		d.send()
	}
	d.psn++
	d.OnAck(d.psn)
	d.DetectLosses()
	d.send()
	if !d.Idle() || d.Mode() != InOrder {
		d.t.Fatalf("after an answer: idle %t, %v", d.Idle(), d.Mode())
	}
	return probe
}

// TestProbesFollowAnswers checks when a QP probes, by what its device has seen. The QP's own round
// trips are 100 µs, so the longest likely one is 150 µs.
func TestProbesFollowAnswers(t *testing.T) {
	const us, ms = time.Microsecond, time.Millisecond
	for _, selective := range []bool{false, true} {
		lost := func(d *device) time.Duration { return d.answer(50 * ms) }
		most := backProbeWait
		if selective {
			most = probeWait
		}
		d := &device{requester: newRequester(t)}
		d.peer(selective)
		for range firstAnswers / 2 {
			d.answer(100 * us)
		}
		if got := lost(d); got != most {
			t.Errorf("selective %t: before enough answers the probe waits %v", selective, got)
		}
		for _, c := range []struct {
			name string
			do   func(d *device)
			want time.Duration
		}{
			{"prompt", func(d *device) {}, 150 * us},
			{"another QP had a late answer", func(d *device) { d.env.Answers.add(300*us, d.now) }, 750 * us},
			{"that is forgotten", func(d *device) {
				d.env.Answers.add(300*us, d.now)
				for range 60 { // some of them are measured
					d.now += time.Second
					d.answer(100 * us)
				}
			}, 150 * us},
			{"an answer soon after a probe was late", func(d *device) {
				d.answer(160 * us)
				d.answer(100 * us)
			}, 170 * us},
		} {
			d := newDevice(t, selective)
			c.do(d)
			if got := lost(d); got != c.want {
				t.Errorf("selective %t, %s: the probe waits %v, want %v", selective, c.name, got, c.want)
			}
		}
	}
}

// TestProbesStayFew: a peer that is late at times is probed less and less.
// Losses, which probes repair, are not taken for lateness.
func TestProbesStayFew(t *testing.T) {
	const us = time.Microsecond
	for _, selective := range []bool{false, true} {
		d := newDevice(t, selective)
		random := rand.New(rand.NewPCG(1, 2))
		const answers = 5000
		for range answers {
			after := 100 * us
			if random.IntN(50) == 0 {
				after += time.Duration(random.IntN(1000)) * us
			}
			d.answer(after)
		}
		if d.probes > 30 {
			t.Errorf("selective %t: %d probes for about a hundred late answers of %d", selective, d.probes, answers)
		}
		d = newDevice(t, selective)
		for range 200 {
			wait := d.answerProbe(100 * us)
			for range 5 {
				d.answer(100 * us)
			}
			if wait > 200*us {
				t.Fatalf("selective %t: a probe waits %v", selective, wait)
			}
		}
	}
}

// TestLossesInTurn: a probe waits no longer because of earlier ones that were answered in time,
// except each sixth, which finds out whether the peer has become slower.
func TestLossesInTurn(t *testing.T) {
	for _, selective := range []bool{false, true} {
		d := newDevice(t, selective)
		for i := range 20 {
			want := 150 * time.Microsecond
			if i > 0 && i%mostUsual == 0 {
				want *= 2
			}
			if wait := d.answerProbe(100 * time.Microsecond); wait != want {
				t.Errorf("selective %t: probe %d waits %v, want %v", selective, i, wait, want)
			}
		}
	}
}

// TestSlowerPeer: a peer whose round trips become longer, whatever by, is not probed for ever. Its
// answers come as soon after a probe as if they were the probe's.
func TestSlowerPeer(t *testing.T) {
	const us = time.Microsecond
	for _, selective := range []bool{false, true} {
		for after := 110 * us; after < 10000*us; after += after / 6 {
			d := newDevice(t, selective)
			for range 40 {
				d.answer(after)
			}
			if d.probes > 30 {
				t.Errorf("selective %t: %d probes of 40 answers after %v", selective, d.probes, after)
			}
			d.probes = 0
			for range 20 {
				d.answer(after)
			}
			if d.probes > 0 {
				t.Errorf("selective %t: %d further probes of 20 answers after %v", selective, d.probes, after)
			}
		}
	}
}

// answerProbe loses a packet. The probe is answered after the given time. The result is how long it
// waited.
func (d *device) answerProbe(after time.Duration) (wait time.Duration) {
	d.t.Helper()
	begun := d.now
	d.post(Send, 1)
	d.send()
	for d.pass().Action != Probed {
	}
	wait = d.now - begun
	d.send()
	d.now += after
	d.psn++
	d.OnAck(d.psn)
	d.send()
	return wait
}

// TestNoProbeBeforeRequest: an answer that was not requested is not late, as packets may be sent
// slowly.
func TestNoProbeBeforeRequest(t *testing.T) {
	d := newDevice(t, true)
	d.post(Write, 3)
	var b Burst
	for i := range 3 {
		if d.Next(Paced, &b) != Transmit || b.AckReq != (i == 2) {
			t.Fatalf("packet %d: %+v", i, b)
		}
		d.Sent(&b)
		d.SetAlarm(true)
		want := time.Duration(0)
		if i == 2 {
			want = d.now + 150*time.Microsecond
		}
		if d.alarm.probeDue != want {
			t.Errorf("packet %d: a probe is due at %v, want %v", i, d.alarm.probeDue, want)
		}
		d.now += time.Millisecond
	}
}

// TestKeptAfterProbe: an answer after a probe that only reports packets as kept ends the wait.
func TestKeptAfterProbe(t *testing.T) {
	d := newDevice(t, true)
	d.post(Send, 1)
	d.post(Send, 1)
	d.send()
	d.pass()
	d.send()
	d.now += 100 * time.Microsecond
	d.OnSelectiveNAK(d.psn, sacktest.Of(1))
	d.DetectLosses()
	d.send()
	if d.rtt.probing() {
		t.Error("it goes on")
	}
	d.now += time.Millisecond
	d.OnAck(d.psn + 2)
	d.send()
	d.psn += 2
	d.answer(100 * time.Microsecond)
	if got := d.answer(50 * time.Millisecond); got != 150*time.Microsecond {
		t.Errorf("the next probe waits %v", got)
	}
}

// TestLossUnderLoad: a probe that is answered sooner than the packets before it, because its path's
// queues are empty since, is not taken for a late answer.
func TestLossUnderLoad(t *testing.T) {
	const us = time.Microsecond
	for _, selective := range []bool{false, true} {
		d := newDevice(t, selective) // round trips of 100 µs
		for range 400 {
			d.answer(1000 * us)
		}
		first := d.answerProbe(100 * us)
		for range 5 {
			for range 20 {
				d.answer(1000 * us)
			}
			if wait := d.answerProbe(100 * us); wait > first+50*us {
				t.Errorf("selective %t: a probe waits %v, and the first waited %v", selective, wait, first)
			}
		}
	}
}

// TestProbeSentLater: the time from when a probe is due to when the rate or the adapter lets it be
// sent is not taken for lateness of its answer.
func TestProbeSentLater(t *testing.T) {
	const us = time.Microsecond
	for _, selective := range []bool{false, true} {
		d := newDevice(t, selective)
		d.post(Send, 1)
		d.send()
		d.pass()
		d.now += 20000 * us
		d.send()
		d.now += 100 * us
		d.psn++
		d.OnAck(d.psn)
		d.send()
		d.answer(100 * us)
		if got := d.answer(50000 * us); got != 150*us {
			t.Errorf("selective %t: the next probe waits %v", selective, got)
		}
	}
}

// TestRNRWaitAfterProbe: an RNR wait is not taken for lateness.
func TestRNRWaitAfterProbe(t *testing.T) {
	d := newDevice(t, true)
	d.post(Read, 1)
	d.post(Send, 1)
	d.send()
	d.pass()
	d.send()
	if _, isNew := d.OnRNR(d.psn+1, 10*time.Millisecond); !isNew || d.Mode() != Selective {
		t.Fatalf("an RNR NAK of the probe: new %t, %v", isNew, d.Mode())
	}
	if d.rtt.probing() {
		t.Error("it goes on awaiting the probe's answer")
	}
}
