package verbs_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

func TestPoller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		cq := must(r.dev.CreateCQ(4, &verbs.CQInitAttr{Timestamps: true}))(t)
		qp := must(r.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq,
			Cap: verbs.QPCap{MaxSendWR: 4}}))(t)
		(&rig{qp: qp}).moveTo(t, verbs.StateRTS)
		opened := r.dev.RawClock()
		start := time.Now()
		send := func(id uint64) {
			check(t, qp.PostSend(&verbs.SendWR{WRID: id, Opcode: verbs.Send, Flags: verbs.SendSignaled}))
		}
		for id := range uint64(3) {
			time.Sleep(time.Second)
			send(id)
		}
		check(t, cq.Resize(8)) // moves the timestamps too
		time.Sleep(time.Hour)
		var n uint64
		p := cq.StartPoll()
		for p.Next() {
			if wc := p.WC(); wc.WRID != n || wc.Opcode != verbs.WCSend {
				t.Errorf("got %+v", wc)
			}
			if n++; n <= 3 {
				at := time.Duration(n) * time.Second
				if p.CompletionTS() != opened+at || !p.CompletionWallclock().Equal(start.Add(at)) {
					t.Errorf("completion %d: %v, %v", n-1, p.CompletionTS(), p.CompletionWallclock())
				}
			}
			if n == 1 {
				send(3) // the loop may post
			}
		}
		check(t, p.End())
		if n != 4 {
			t.Errorf("%d completions", n)
		}

		r.moveTo(t, verbs.StateRTS)
		check(t, r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
		p = r.cq.StartPoll()
		if !p.Next() || p.CompletionTS() != 0 || !p.CompletionWallclock().IsZero() {
			t.Error("a CQ without timestamps has some")
		}
		check(t, r.qp.Close())
		check(t, r.cq.Close())
		if p.Next() || !errors.Is(p.End(), verbs.ErrClosed) {
			t.Errorf("a closed CQ: %v", p.End())
		}
	})
}
