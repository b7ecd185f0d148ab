package send

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/sacktest"
)

// requester is a State with an application and a clock that moves only when the test moves it.
type requester struct {
	State
	t   *testing.T
	now time.Duration
}

func newRequester(t *testing.T) *requester {
	r := &requester{t: t, now: time.Second}
	r.Init(16, &Env{Clock: func() time.Duration { return r.now }, Answers: new(LateAnswers)})
	r.SetLimits(Limits{Timeout: 100 * time.Millisecond, Retries: 2, RNRRetries: 1, MaxReads: 2})
	r.Begin(&Connection{PSN: 0, MTU: 1024, Path: pathOf(512, 4, Conservation{})})
	return r
}

// pathOf returns a path to a peer that keeps packets of two windows.
func pathOf(window, batch uint32, rules CongestionController) Path {
	return Path{Window: window, Span: 2 * window, Batch: batch, Congestion: rules}
}

func (r *requester) post(kind Kind, packets int) { r.Post(kind, uint64(packets)*1024, false) }

// peer sets whether the peer keeps packets after a gap.
func (r *requester) peer(selective bool) { r.mode.setPeer(selective) }

// send sends everything that may be sent, and describes it: request.packet@PSN, +n for several
// packets, ! for an acknowledgement request. It checks that queries have no side effects.
func (r *requester) send() string {
	r.t.Helper()
	r.DetectLosses()
	var sent []string
	for {
		var b, again Burst
		before := r.snapshot()
		step := r.Next(0, &b)
		if other := r.Next(0, &again); other != step || step != Wait && again != b {
			r.t.Fatalf("called twice: %d %+v, then %d %+v", step, b, other, again)
		}
		if after := r.snapshot(); after != before {
			r.t.Fatalf("a query changed\n%s\nto\n%s", before, after)
		}
		switch step {
		case Transmit:
			s := fmt.Sprintf("%d.%d@%d", b.Request, b.Packet, b.PSN)
			if b.Packets > 1 {
				s += fmt.Sprintf("+%d", b.Packets-1)
			}
			if b.AckReq {
				s += "!"
			}
			sent = append(sent, s)
			r.Sent(&b)
			if b.Final && r.Next(0, &again) != Wait {
				r.t.Fatalf("%s was final, and %+v follows", s, again)
			}
		case ExecuteLocal:
			sent = append(sent, fmt.Sprintf("local %d: %d complete", b.Request, r.LocalExecuted().Completed))
		case Wait:
			r.SetAlarm(true)
			return strings.Join(sent, " ")
		case Refuse:
			sent = append(sent, "refuse")
			r.Fail(&b, 7)
		default:
			return strings.Join(append(sent, fmt.Sprintf("give up for %d", b.Reason)), " ")
		}
	}
}

func (r *requester) snapshot() string {
	s := r.State
	s.env = nil
	var reads, board string
	if s.reads.bounds != nil {
		reads = fmt.Sprint(*s.reads.bounds)
	}
	if s.board.scoreboard != nil {
		board = fmt.Sprint(*s.board.scoreboard)
	}
	return fmt.Sprintf("%+v %s %s", s, reads, board)
}

// expect sends, and checks the packets and the mode.
func (r *requester) expect(sent string, m Mode) {
	r.t.Helper()
	if got := r.send(); got != sent || r.Mode() != m {
		r.t.Errorf("%v: sent %q, want %v: %q", r.Mode(), got, m, sent)
	}
}

// pass lets time pass until the alarm is due.
func (r *requester) pass() Outcome {
	r.t.Helper()
	if r.now = r.Deadline(); r.now == 0 {
		r.t.Fatal("no alarm is set")
	}
	return r.OnAlarm(r.now)
}

// until lets the alarm go off, and sends, until the outcome is the given action.
func (r *requester) until(a Action) {
	r.t.Helper()
	for range 100 {
		if r.pass().Action == a {
			return
		}
		r.send()
	}
	r.t.Fatalf("no alarm has action %d", a)
}

func TestState(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(r *requester)
	}{
		{"in order", func(r *requester) {
			r.post(Send, 1)
			r.post(Write, 7)
			r.expect("0.0@0 1.0@1+1 1.2@3+3 1.6@7!", InOrder)
			if o := r.OnAck(8); o != (Outcome{Completed: 2}) || !r.Idle() {
				r.t.Errorf("%+v", o)
			}
			if r.SetAlarm(true); r.Deadline() != 0 {
				r.t.Error("an alarm is set with nothing in flight")
			}
		}},
		{"a part of a request is acknowledged", func(r *requester) {
			r.post(Write, 3)
			r.send()
			if o := r.OnAck(2); o != (Outcome{}) {
				r.t.Errorf("%+v", o)
			}
			if o := r.OnAck(3); o != (Outcome{Completed: 1}) {
				r.t.Errorf("%+v", o)
			}
		}},
		{"a fence waits for answers", func(r *requester) {
			r.post(Read, 2)
			r.Post(Send, 8, true)
			r.expect("0.0@0+1!", InOrder)
			r.OnAnswered(0)
			r.expect("", InOrder)
			r.OnAnswered(1)
			r.expect("0.0@2!", InOrder)
		}},
		{"outstanding READs are bounded", func(r *requester) {
			for range 3 {
				r.post(Atomic, 1)
			}
			r.expect("0.0@0! 1.0@1!", InOrder)
			if i, at, o, ok := r.OnAnswer(0); i != 0 || at != 0 || o != (Outcome{}) || !ok {
				r.t.Error(i, at, o, ok)
			}
			if o := r.OnAnswered(0); o.Completed != 1 {
				r.t.Errorf("%+v", o)
			}
			r.expect("1.0@2!", InOrder)
		}},
		{"none may be outstanding", func(r *requester) {
			r.SetLimits(Limits{})
			r.post(Send, 1)
			r.post(Read, 1)
			r.expect("0.0@0! refuse", InOrder)
			r.OnAck(1)
			r.expect("give up for 7", InOrder)
		}},
		{"local requests in their turn", func(r *requester) {
			r.post(Local, 0)
			r.post(Send, 1)
			r.post(Local, 0)
			r.expect("local 0: 1 complete 0.0@0! local 1: 0 complete", InOrder)
			if o := r.OnAck(1); o.Completed != 2 {
				r.t.Errorf("%+v", o)
			}
		}},
		{"an acknowledgement that could not be requested is requested", func(r *requester) {
			r.post(Send, 1)
			r.post(Send, 1)
			var b Burst
			r.Next(0, &b)
			r.Sent(&b)
			r.Next(0, &b)
			r.Fail(&b, 9)
			r.expect("0.0@0!", InOrder)
			r.OnAck(1)
			r.expect("give up for 9", InOrder)
		}},
		{"gone back", func(r *requester) {
			r.post(Write, 6)
			r.send()
			if o, counts := r.OnSequenceNAK(2); o != (Outcome{Action: WentBack}) || !counts {
				r.t.Errorf("%+v", o)
			}
			if o, _ := r.OnSequenceNAK(2); o != (Outcome{}) {
				r.t.Errorf("its echo: %+v", o)
			}
			r.expect("0.2@2+3!", GoneBack)
			r.OnAck(3)
			r.expect("", InOrder)
			r.OnSequenceNAK(3)
			if o, _ := r.OnSequenceNAK(4); o.Action != WentBack {
				r.t.Errorf("a loss after progress: %+v", o)
			}
		}},
		{"retries are bounded", func(r *requester) {
			r.post(Write, 2)
			for i := range 3 {
				r.send()
				want := Outcome{Action: WentBack}
				if i == 2 {
					want.Action = RetriesExceeded
				}
				if o := r.pass(); o != want {
					r.t.Errorf("timeout %d: %+v", i, o)
				}
			}
		}},
		{"a late timeout is excused once", func(r *requester) {
			r.post(Write, 2)
			r.send()
			r.now = r.Deadline() + 60*time.Millisecond
			if o := r.OnAlarm(r.now); o != (Outcome{}) {
				r.t.Errorf("%+v", o)
			}
			r.now = r.Deadline() + 60*time.Millisecond
			if o := r.OnAlarm(r.now); o.Action != WentBack {
				r.t.Errorf("%+v", o)
			}
		}},
		{"an implied NAK", func(r *requester) {
			r.post(Read, 2)
			r.post(Send, 1)
			r.expect("0.0@0+1! 1.0@2!", InOrder)
			if o := r.OnAck(3); o != (Outcome{Action: WentBack}) {
				r.t.Errorf("%+v", o)
			}
			r.expect("0.0@0+1! 1.0@2!", GoneBack)
		}},
		{"selective", func(r *requester) {
			r.peer(true)
			r.post(Write, 12)
			r.send()
			o, counts := r.OnSelectiveNAK(2, sacktest.Of(1, 5))
			if o != (Outcome{}) || !counts {
				r.t.Errorf("%+v", o)
			}
			// Too few later packets have arrived for the others.
			r.expect("0.2@2! 0.4@4!", Selective)
			if r.OnAck(12); r.Mode() != InOrder {
				r.t.Errorf("%v", r.Mode())
			}
			if !r.Idle() || r.Posted() != 0 {
				r.t.Errorf("%d posted", r.Posted())
			}
		}},
		{"a missing answer", func(r *requester) {
			r.peer(true)
			r.post(Read, 4)
			r.send()
			for _, psn := range []uint32{0, 2, 3} {
				if _, at, _, ok := r.OnAnswer(psn); !ok || at != psn {
					r.t.Errorf("answer %d is dropped", psn)
				}
				r.OnAnswered(psn)
			}
			r.expect("0.1@1!", Selective)
			if _, _, _, ok := r.OnAnswer(2); ok {
				r.t.Error("an answer is placed twice")
			}
			if o := r.OnAnswered(1); o.Completed != 1 || r.Mode() != InOrder {
				r.t.Errorf("%+v, %v", o, r.Mode())
			}
		}},
		{"gone back in a recovery", func(r *requester) {
			r.peer(true)
			r.post(Write, 6)
			r.send()
			r.OnSelectiveNAK(1, sacktest.Of(3))
			r.expect("0.1@1!", Selective)
			r.OnSequenceNAK(1)
			r.expect("0.1@1 0.2@2+3!", GoneBack)
		}},
		{"RNR", func(r *requester) {
			r.post(Send, 1)
			r.post(Send, 1)
			r.send()
			if o, counts := r.OnRNR(1, 20*time.Millisecond); o != (Outcome{Completed: 1}) || !counts {
				r.t.Errorf("%+v", o)
			}
			r.expect("", RNRWait)
			if _, counts := r.OnRNR(1, time.Hour); counts {
				r.t.Error("its echo counts")
			}
			if _, counts := r.OnSequenceNAK(1); counts {
				r.t.Error("a sequence NAK counts meanwhile")
			}
			if d := r.Deadline() - r.now; d != 20*time.Millisecond {
				r.t.Errorf("waits %v", d)
			}
			r.pass()
			r.expect("0.0@1!", InOrder)
			if o, _ := r.OnRNR(1, time.Millisecond); o.Action != RNRRetriesExceeded || o.Request != 0 {
				r.t.Errorf("%+v", o)
			}
		}},
		{"RNR, and it was executed", func(r *requester) {
			r.post(Send, 1)
			r.send()
			r.OnRNR(0, time.Second)
			if o := r.OnAck(1); o.Completed != 1 || r.Mode() != InOrder || r.Deadline() != 0 {
				r.t.Errorf("%+v, %v", o, r.Mode())
			}
		}},
		{"RNR after a missing answer", func(r *requester) {
			r.post(Read, 1)
			r.post(Send, 1)
			r.send()
			r.OnRNR(1, time.Second)
			r.expect("0.0@0!", RNRWait)
			r.OnAnswered(0)
			r.expect("", RNRWait)
			r.pass()
			r.expect("0.0@1!", InOrder)
		}},
		{"rejected after a missing answer", func(r *requester) {
			r.post(Send, 1)
			r.post(Read, 1)
			r.post(Write, 1)
			r.send()
			if o := r.OnRefusal(2); o != (Outcome{Completed: 1, Action: FailRequest, Request: 1}) {
				r.t.Errorf("%+v", o)
			}
		}},
		{"probing", func(r *requester) {
			r.measure(30 * time.Millisecond)
			r.post(Write, 4)
			r.expect("0.0@1+1 0.2@3+1!", InOrder)
			if o := r.pass(); o.Action != Probed {
				r.t.Errorf("%+v", o)
			}
			r.expect("0.0@1!", Probing)
			if o := r.OnAck(2); o.Action != WentBack || r.window.size != MinWindow {
				r.t.Errorf("%+v, window %d", o, r.window.size)
			}
			r.expect("0.1@2 0.2@3+1!", InOrder)
		}},
		{"a probe of a slow peer", func(r *requester) {
			r.measure(30 * time.Millisecond)
			r.post(Write, 4)
			r.send()
			r.pass()
			r.send()
			if o := r.OnAck(4); o.Action != Proceed || r.Mode() != InOrder {
				r.t.Errorf("%+v, %v", o, r.Mode())
			}
		}},
		{"a probe of the only packet", func(r *requester) {
			r.measure(30 * time.Millisecond)
			r.post(Read, 4)
			r.send()
			r.pass()
			r.expect("0.0@1+3!", InOrder)
		}},
		{"a probe of a peer that keeps packets", func(r *requester) {
			r.peer(true)
			r.post(Write, 4)
			r.send()
			r.pass()
			r.expect("0.3@3!", Selective)
		}},
		{"a NAK while probing", func(r *requester) {
			r.measure(30 * time.Millisecond)
			r.post(Write, 4)
			r.send()
			r.pass()
			r.send()
			r.OnSequenceNAK(1)
			r.expect("0.0@1+1 0.2@3+1!", GoneBack)
		}},
		{"moved directly", func(r *requester) {
			if !r.Quiescent() || r.Una() != 0 || r.Moved() != 0 {
				r.t.Fatal("a request is being sent")
			}
			r.MovedDirectly(Send, 5)
			r.post(Send, 1)
			r.expect("0.0@5!", InOrder)
			if r.Quiescent() {
				r.t.Error("quiescent, with a packet in flight")
			}
		}},
		{"moved in parts", func(r *requester) {
			r.post(Read, 9)
			r.Post(Write, 8, true)
			r.MovedPart(4)
			if !r.Quiescent() || r.Una() != 4 || r.Moved() != 4 || !r.Begun() || r.NextPSN() != 9 {
				r.t.Fatal("not at the fifth packet")
			}
			r.MovedPart(2)
			r.MovedDirectly(Read, 3)
			if !r.Quiescent() || r.Una() != 9 || r.Moved() != 0 || r.Begun() {
				r.t.Fatal("not at the end")
			}
			r.expect("0.0@9!", InOrder) // no response is missing
		}},
		{"the rest of a partly copied message", func(r *requester) {
			r.post(Write, 6)
			r.post(Send, 1)
			r.MovedPart(2)
			r.expect("0.2@2+3 1.0@6!", InOrder)
			if o := r.OnAck(4); o.Completed != 0 || r.Quiescent() {
				r.t.Errorf("%+v", o)
			}
			if o := r.OnAck(7); o.Completed != 2 || !r.Quiescent() {
				r.t.Errorf("%+v", o)
			}
		}},
		{"the rest of a partly sent message", func(r *requester) {
			r.post(Read, 9)
			r.MovedPart(1)
			var b Burst
			if r.Next(0, &b) != Transmit || b.Packet != 1 || b.Packets != 8 {
				r.t.Fatalf("%+v", b)
			}
			b.Packets = 3
			r.Sent(&b)
			for psn := range uint32(3) {
				if r.Quiescent() {
					r.t.Error("quiescent, with a packet in flight")
				}
				r.OnAnswered(1 + psn)
			}
			if !r.Quiescent() || r.Una() != 4 || r.Moved() != 4 {
				r.t.Errorf("not quiescent at PSN 4: %d, %d", r.Una(), r.Moved())
			}
			if r.Fail(&Burst{}, 7); r.Quiescent() {
				r.t.Error("quiescent, and the request has failed")
			}
		}},
		{"ghosts and duplicates", func(r *requester) {
			r.post(Write, 2)
			r.send()
			r.OnAck(1)
			for psn, want := range map[uint32]bool{0: false, 1: true, 2: false, 0x800000: false} {
				if r.OnResponse(psn, false) != want {
					r.t.Errorf("PSN %#x counts: %v", psn, !want)
				}
			}
		}},
		{"a window full in the middle of a request", func(r *requester) {
			r.Begin(&Connection{MTU: 1024, Path: pathOf(512, 1, Conservation{})})
			r.post(Write, 2*int(Window(DefaultWindow, 1024)))
			var b Burst
			for sent := uint32(0); sent < Window(DefaultWindow, 1024); sent += b.Packets {
				if r.Next(0, &b) != Transmit {
					r.t.Fatalf("%d packets fill the window", sent)
				}
				if r.Sent(&b); b.Final != (sent+b.Packets == Window(DefaultWindow, 1024)) {
					r.t.Errorf("final is %v after %d packets", b.Final, sent+b.Packets)
				}
			}
			if r.Fail(&b, 7); b.Final || r.Next(0, &b) != GiveUp {
				r.t.Error("the failure of the last is not reported")
			}
		}},
		{"a window full at the end of a request", func(r *requester) {
			r.post(Write, int(Window(DefaultWindow, 1024)))
			r.post(Local, 0)
			if sent := r.send(); !strings.HasSuffix(sent, "local 1: 0 complete") {
				r.t.Error(sent)
			}
		}},
		{"failed", func(r *requester) {
			r.post(Write, 2)
			r.send()
			r.Stop()
			r.expect("", Failed)
			if r.Deadline() != 0 || r.OnResponse(0, true) || r.Quiescent() {
				r.t.Error("it goes on")
			}
		}},
		{"drained", func(r *requester) {
			r.post(Write, 1)
			var b Burst
			if r.Next(Draining, &b) != Wait || r.Begun() {
				r.t.Error("a request is begun")
			}
			r.send()
			if !r.Begun() {
				r.t.Error("none is being sent")
			}
		}},
		{"another controller", func(r *requester) {
			s := new(stubborn)
			r.Begin(&Connection{MTU: 1024, Path: pathOf(512, 4, s)})
			r.post(Write, 8)
			r.send()
			r.OnAck(1)
			r.OnSequenceNAK(1)
			if r.window.size != 100 {
				r.t.Errorf("window %d", r.window.size)
			}
			r.send()
			r.until(WentBack)
			r.peer(true)
			r.send()
			r.OnSelectiveNAK(1, sacktest.Of(5))
			r.send()
			if want := []string{"ack", "back", "timeout", "loss"}; !reflect.DeepEqual(s.calls, want) || r.window.size != MinWindow {
				r.t.Errorf("%v, window %d", s.calls, r.window.size)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(newRequester(t)) })
	}
}

// measure has a first request answered after the given time.
func (r *requester) measure(trip time.Duration) {
	r.post(Send, 1)
	r.send()
	r.now += trip
	r.OnAck(1)
}
