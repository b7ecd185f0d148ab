package rocetransport_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// TestCorkedRequests checks that a small request posted while another is in flight is corked until
// one of these events.
func TestCorkedRequests(t *testing.T) {
	for name, then := range map[string]func(r *rig){
		"polls":           func(r *rig) { r.idle() },
		"sleep":           func(r *rig) { r.dev.Provider().EndProgress() },
		"neither":         func(*rig) { sleep(time.Millisecond) },
		"acknowledgement": func(r *rig) { r.give(r.ack(0)) },
	} {
		run(t, name, config{batch: 62}, func(t *testing.T, r *rig) {
			r.post(r.wr(1, verbs.Send, 4))
			r.expect("SEND Only 0 len 4 ackreq")
			r.post(r.wr(2, verbs.Send, 8))
			r.post(r.wr(3, verbs.Send, 12))
			r.expect()
			then(r)
			r.expect("SEND Only 1 len 8", "SEND Only 2 len 12 ackreq")
			r.give(r.ack(2))
			r.completions(r.scq, "1 SUCCESS SEND 0", "2 SUCCESS SEND 0", "3 SUCCESS SEND 0")
			r.post(r.wr(4, verbs.Send, 4))
			r.expect("SEND Only 3 len 4 ackreq")
		})
	}
}

// TestFullFrameIsNotCorked checks that requests that fill a frame are sent at once.
func TestFullFrameIsNotCorked(t *testing.T) {
	for _, n := range []int{8, 1024, 64 << 10} {
		run(t, fmt.Sprint(n), config{batch: 62, maxWR: 128}, func(t *testing.T, r *rig) {
			r.post(r.wr(0, verbs.RDMAWrite, 8))
			r.take()
			posted := 0
			for len(r.take()) == 0 {
				if posted++; posted > 64 {
					t.Fatal("64 requests are corked")
				}
				r.post(r.wr(uint64(posted), verbs.RDMAWrite, n))
			}
			if bytes := posted * n; posted < 64 && bytes < 60<<10 {
				t.Errorf("%d requests of %d bytes were not corked", posted, n)
			}
		})
	}
}

// TestCorkedWhilePosting checks that polls between posts send nothing, if each finds a new post.
func TestCorkedWhilePosting(t *testing.T) {
	bubble(t, config{batch: 62}, func(r *rig) {
		r.post(r.wr(0, verbs.RDMAWrite, 8))
		r.take()
		for i := range 10 {
			r.post(r.wr(uint64(i), verbs.RDMAWrite, 8))
			r.completions(r.scq)
			r.expect()
		}
		r.idle()
		if n := len(r.take()); n != 10 {
			t.Errorf("%d requests are sent, want 10", n)
		}
	})
}

// TestTimerWhileSendingDelayed checks a timer that fires while a poll sends for another QP.
// Requests of a QP with a post since the last poll stay corked, but not forever.
func TestTimerWhileSendingDelayed(t *testing.T) {
	bubble(t, config{batch: 62}, func(r *rig) {
		a := r.qp
		r.createQP()
		r.connect()
		defer func() {
			if err := a.Close(); err != nil {
				t.Error(err)
			}
		}()
		b := r.qp
		post := func(qps ...*verbs.QP) {
			for _, r.qp = range qps {
				r.post(r.wr(0, verbs.RDMAWrite, 8))
			}
		}
		post(a, b) // in flight
		r.take()
		post(a, b)
		r.dev.Provider().Progress()
		post(b)
		r.expect()
		r.port.lost = func(*wire.Packet) bool {
			r.port.lost = nil
			sleep(2 * time.Millisecond)
			return false
		}
		r.dev.Provider().Progress() // a's requests are sent, b has posted
		sleep(2 * time.Millisecond)
		if n := len(r.take()); n != 3 {
			t.Errorf("%d requests are sent, want 3", n)
		}
	})
}

// TestDelayedAck checks when an acknowledgement that becomes due inside a poll is sent. It is sent
// with the application's answer, by the next poll, by a timer before the requester's timeout, or
// before the QP ends.
func TestDelayedAck(t *testing.T) {
	for name, tc := range map[string]struct {
		then func(r *rig)
		want []string
	}{
		"post that fails": {func(r *rig) {
			wr := r.wr(1, verbs.Send, 8)
			wr.SGList[0].LKey++
			r.post(wr)
			r.completions(r.scq, "1 LOC_PROT_ERR")
		}, []string{"ack 0 msn 1"}},
		"answer": {func(r *rig) { r.post(r.wr(1, verbs.Send, 8)) }, []string{"SEND Only 0 len 8 ackreq", "ack 0 msn 1"}},
		"polls":  {func(r *rig) { r.idle() }, []string{"ack 0 msn 1"}},
		"sleep":  {func(r *rig) { r.dev.Provider().EndProgress() }, []string{"ack 0 msn 1"}},
		"none":   {func(r *rig) { sleep(time.Millisecond) }, []string{"ack 0 msn 1"}},
		"ERR":    {func(r *rig) { r.modify(verbs.StateErr) }, []string{"ack 0 msn 1"}},
		"RESET":  {func(r *rig) { r.modify(verbs.StateReset) }, []string{"ack 0 msn 1"}},
		"destroy": {func(r *rig) {
			if err := r.qp.Close(); err != nil {
				r.t.Error(err)
			}
		}, []string{"ack 0 msn 1"}},
	} {
		run(t, name, config{batch: 62}, func(t *testing.T, r *rig) {
			r.recv(7, 0, 64)
			r.idle()
			p := r.req(wire.RCSendOnly, 0, fill(8, 1), ackReq)
			r.port.arrived = append(r.port.arrived, r.frame(p))
			r.completions(r.rcq, "7 SUCCESS RECV 8")
			r.expect()
			tc.then(r)
			r.expect(tc.want...)
			sleep(time.Second / 1000)
			r.expect()
		})
	}
}

// idle polls like an application that has nothing to post.
func (r *rig) idle() {
	for range 3 {
		r.completions(r.scq)
		r.completions(r.rcq)
	}
}
