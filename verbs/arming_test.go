package verbs_test

import (
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestPollAfterArming: a completion is added while a CQ is polled and armed. It is polled at once,
// or after the event that it generates, even if the goroutine that adds it has not returned from
// push.
func TestPollAfterArming(t *testing.T) {
	for _, c := range []struct {
		name          string
		before, after bool // the completion is added before arming, or after it
	}{{"before", true, false}, {"after", false, true}, {"both", true, true}} {
		r := newRig(t)
		poll := func(want int) {
			t.Helper()
			if n := len(pollAll(t, r.cq)); n != want {
				t.Errorf("%s: %d completions, want %d", c.name, n, want)
			}
		}
		poll(0)
		if c.before {
			r.cq.Add(&verbs.WC{})
		}
		check(t, r.cq.ReqNotify(false))
		if c.before {
			poll(1)
		}
		if c.after {
			r.cq.Add(&verbs.WC{})
			if cq := must(r.ch.GetEvent(t.Context()))(t); cq != r.cq {
				t.Errorf("%s: an event of another CQ", c.name)
			}
			check(t, r.cq.AckEvents(1))
			poll(1)
		}
	}
}

// TestPollOrEvent: the same as TestPollAfterArming, while another goroutine adds completions.
func TestPollOrEvent(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	const n = 20_000
	slots := make(chan struct{}, 16)
	go func() {
		for range n {
			slots <- struct{}{}
			if err := r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}); err != nil {
				t.Error(err)
			}
		}
	}()
	var wcs [4]verbs.WC
	poll := func() int {
		k, err := r.cq.Poll(wcs[:])
		if err != nil {
			t.Fatal(err)
		}
		for range k {
			<-slots
		}
		return k
	}
	for got := 0; got < n; {
		k := poll()
		if got += k; k > 0 {
			continue
		}
		if err := r.cq.ReqNotify(false); err != nil {
			t.Fatal(err)
		}
		if k = poll(); k > 0 {
			got += k
			continue
		}
		if _, err := r.ch.GetEvent(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := r.cq.AckEvents(1); err != nil {
			t.Fatal(err)
		}
	}
}
