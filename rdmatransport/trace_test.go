package rdmatransport_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// tracer keeps the events of a device.
type tracer struct {
	added chan struct{} // has room for one: events were added

	mu     sync.Mutex
	events []trace.Event
}

func (r *tracer) sink(e trace.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	select {
	case r.added <- struct{}{}:
	default:
	}
}

// take returns the events of a QP since the last call, as text, without events of certain types.
// PSNs count from first.
func (r *tracer) take(qpn, first uint32, without ...trace.Type) (lines []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, e := range r.events {
		if e.QPN != qpn || slices.Contains(without, e.Type) {
			continue
		}
		line := e.Type.String()
		switch e.Type {
		case trace.QPState, trace.SendMode, trace.SendPhase:
			line += fmt.Sprintf(": %s to %s", e.From, e.To)
		case trace.PacketsLost:
			line += fmt.Sprintf(": %d from %d", e.Packets, (e.PSN-first)&0xffffff)
		case trace.ProbeSent, trace.RetransmissionTimeout, trace.RNRWaitEnded:
			line += fmt.Sprintf(": %d", (e.PSN-first)&0xffffff)
		case trace.RNRWaitStarted:
			line += fmt.Sprintf(": %d for %v", (e.PSN-first)&0xffffff, e.Duration)
		case trace.NAKSent, trace.NAKReceived:
			line += fmt.Sprintf(": %d %s", (e.PSN-first)&0xffffff, e.Detail)
		case trace.Window:
			line += fmt.Sprintf(": %d", e.Packets)
		case trace.AlarmSet, trace.AlarmFired, trace.TerminateSent, trace.TerminateReceived, trace.MPANegotiated:
			line += ": " + e.Detail
		case trace.MPAFailed, trace.StreamLost:
			line += fmt.Sprintf(": %v", e.Err)
		}
		lines = append(lines, line)
	}
	r.events = nil
	return lines
}

// takeUntil returns the events of a QP up to a certain one, or all events after ten seconds.
func (r *tracer) takeUntil(last string, qpn uint32) (lines []string) {
	for timeout := time.After(10 * time.Second); !slices.Contains(lines, last); {
		select {
		case <-r.added:
			lines = append(lines, r.take(qpn, 0)...)
		case <-timeout:
			return lines
		}
	}
	return lines
}

// traced has two stations with recorded events. The rules apply to the first one's packets.
type traced struct {
	t      *testing.T
	a, b   *station
	ta, tb tracer
}

func newTraced(t *testing.T, rules ...impair.Rule) *traced {
	x := &traced{t: t, ta: tracer{added: make(chan struct{}, 1)}, tb: tracer{added: make(chan struct{}, 1)}}
	lan := new(pipe.Switch)
	bad := must(impair.New(lan.Port(), &impair.Config{Out: impair.Direction{Rules: rules}}))(t)
	selective := roce.Config{SelectiveRepeat: true}
	x.a = newStationOn(t, bad, "10.0.0.1/24", &rdmatransport.Config{RoCE: selective, Trace: x.ta.sink})
	x.b = newStationOn(t, lan.Port(), "10.0.0.2/24", &rdmatransport.Config{RoCE: selective, Trace: x.tb.sink})
	return x
}

// completion waits, in virtual time, for a completion.
func (x *traced) completion(cq *verbs.CQ) verbs.WC {
	x.t.Helper()
	var wc [1]verbs.WC
	for range 10_000 {
		if must(cq.Poll(wc[:]))(x.t) == 1 {
			return wc[0]
		}
		time.Sleep(10 * time.Millisecond)
	}
	x.t.Fatal("no completion")
	return wc[0]
}

// wants compares lines.
func (x *traced) wants(got []string, want ...string) {
	x.t.Helper()
	if !slices.Equal(got, want) {
		x.t.Errorf("the trace is\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// pair connects the stations. It returns their QPs, the first PSN of a, and a WRITE of 16 packets.
// Events until then are dropped.
func (x *traced) pair(transport verbs.Transport) (conn, peer *rdmacm.Conn, first uint32, wr *verbs.SendWR) {
	x.t.Helper()
	conn, peer = dial(x.a, x.b, transport, nil)
	if transport == verbs.RoCEv2 {
		attr, _, err := conn.QP().Query()
		ok(x.t, err)
		first = attr.SQPSN
	}
	const size = 64 << 10
	from, to := x.a.reg(make([]byte, size), 0), x.b.reg(make([]byte, size), verbs.AccessLocalWrite|verbs.AccessRemoteWrite)
	return conn, peer, first, &verbs.SendWR{
		Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{from.SGE(0, size)}, RemoteAddr: to.Addr(), RKey: to.RKey(),
	}
}

// forget drops the recorded events.
func (x *traced) forget() {
	synctest.Wait()
	x.ta.take(0, 0)
	x.tb.take(0, 0)
}

// class is a rule for packets of a class of package impair.
func class(t *testing.T, name string) func([]byte) bool { return must(impair.Class(name))(t) }

// Lost packets of WRITEs, as traced by both sides.
func TestTraceLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTraced(t, impair.Rule{Match: class(t, "write"), Nth: 3}, impair.Rule{Match: class(t, "write"), Nth: 33},
			impair.Rule{Match: class(t, "write"), Nth: 63})
		conn, peer, first, wr := x.pair(verbs.RoCEv2)
		synctest.Wait()
		x.wants(x.ta.take(conn.QP().Num(), first),
			"QP state: RESET to INIT", "QP state: INIT to RTR", "send mode: failed to in order", "window: 128", "QP state: RTR to RTS")
		x.forget()
		ok(t, conn.QP().PostSend(wr))
		if wc := x.completion(conn.SendCQ()); wc.Status != verbs.WCSuccess {
			t.Fatal(wc.Status)
		}
		synctest.Wait()
		lines := x.ta.take(conn.QP().Num(), first, trace.Window)
		x.wants(slices.DeleteFunc(lines, func(l string) bool { return strings.HasPrefix(l, "alarm set") }),
			"NAK received: 2 PSN sequence error", "packets lost: 14 from 2", "send mode: in order to gone back",
			"NAK received: 2 PSN sequence error", "send mode: gone back to in order")
		x.wants(x.tb.take(peer.QP().Num(), first), "NAK sent: 2 PSN sequence error", "NAK sent: 2 PSN sequence error")

		// The peer keeps packets that arrive after the next gap.
		x.forget()
		ok(t, conn.QP().PostSend(wr))
		if wc := x.completion(conn.SendCQ()); wc.Status != verbs.WCSuccess {
			t.Fatal(wc.Status)
		}
		synctest.Wait()
		x.wants(x.ta.take(conn.QP().Num(), first, trace.AlarmSet),
			"NAK received: 18 PSN sequence error", "window: 80", "send mode: in order to selective",
			"packets lost: 1 from 18", "window: 79",
			"NAK received: 18 PSN sequence error", "window: 93", "send mode: selective to in order")

		// The last packet of the third WRITE is lost, so the peer sees no gap.
		x.forget()
		ok(t, conn.QP().PostSend(wr))
		if wc := x.completion(conn.SendCQ()); wc.Status != verbs.WCSuccess {
			t.Fatal(wc.Status)
		}
		synctest.Wait()
		x.wants(x.ta.take(conn.QP().Num(), first, trace.Window),
			"alarm set: retransmission", "alarm set: probe", "alarm fired: probe", "alarm set: probe", "send mode: in order to selective",
			"probe sent: 47", "send mode: selective to in order")
	})
}

// A peer becomes unreachable: timeouts, and the end of the QP.
func TestTraceTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTraced(t, impair.Rule{Match: class(t, "write"), Count: -1})
		conn, _, first, wr := x.pair(verbs.RoCEv2)
		x.forget()
		ok(t, conn.QP().PostSend(wr))
		if wc := x.completion(conn.SendCQ()); wc.Status != verbs.WCRetryExcErr {
			t.Fatal(wc.Status)
		}
		synctest.Wait()
		timeout := []string{"alarm set: retransmission", "alarm fired: retransmission", "retransmission timeout: 0"}
		want := slices.Concat(slices.Repeat(append(timeout, "packets lost: 16 from 0"), 7), timeout,
			[]string{"send mode: in order to failed", "QP state: RTS to ERR"}) // retry_cnt is 7
		x.wants(x.ta.take(conn.QP().Num(), first, trace.Window), want...)
	})
}

// A SEND without a receive request.
func TestTraceRNR(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x := newTraced(t)
		conn, peer, first, wr := x.pair(verbs.RoCEv2)
		x.forget()
		wr.Opcode = verbs.Send
		wr.SGList[0].Length = 8
		ok(t, conn.QP().PostSend(wr))
		synctest.Wait()
		ok(t, peer.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{x.b.reg(make([]byte, 8), verbs.AccessLocalWrite).SGE(0, 8)}}))
		if wc := x.completion(conn.SendCQ()); wc.Status != verbs.WCSuccess {
			t.Fatal(wc.Status)
		}
		synctest.Wait()
		x.wants(x.ta.take(conn.QP().Num(), first),
			"alarm set: retransmission", "NAK received: 0 RNR", "send mode: in order to RNR wait", "RNR wait started: 0 for 655.36ms",
			"alarm fired: RNR wait", "RNR wait ended: 0", "send mode: RNR wait to in order", "alarm set: retransmission", "alarm set: probe")
		x.wants(x.tb.take(peer.QP().Num(), first), "NAK sent: 0 RNR")
	})
}

// An iWARP connection from its setup to a Terminate message, and one that is not accepted.
func TestTraceIWARP(t *testing.T) {
	x := newTraced(t)
	conn, peer, _, wr := x.pair(verbs.IWARP)
	wr.RKey++
	ok(t, conn.QP().PostSend(wr))
	const end = "QP state: RTS to ERR"
	a, b := x.ta.takeUntil(end, conn.QP().Num()), x.tb.takeUntil(end, peer.QP().Num())
	settled := "MPA negotiated: revision 2, IRD 128, ORD 128, CRC true, markers sent false, markers received false, MULPDU 4114"
	x.wants(a, "QP state: RESET to INIT", settled+", ready-to-receive message WRITE", "send phase: closed to open",
		"send phase: open to sending RTR", "send phase: sending RTR to open", "QP state: INIT to RTS",
		"Terminate received: DDP tagged buffer error: invalid STag", "send phase: open to closed", "QP state: RTS to ERR")
	x.wants(b, "QP state: RESET to INIT", settled, "send phase: closed to awaiting peer", "QP state: INIT to RTS",
		"send phase: awaiting peer to open", "send phase: open to terminating",
		"Terminate sent: DDP tagged buffer error: invalid STag", "send phase: terminating to closed", "QP state: RTS to ERR")
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := rdmacm.Dial(ctx, x.a.dev, "10.0.0.2:1", &rdmacm.Config{Transport: verbs.IWARP, PD: x.a.pd}); err == nil {
		t.Error("connected without a listener")
	}
	const refused = "MPA failed: dial tcp 10.0.0.2:1: connection refused"
	x.wants(x.ta.takeUntil(refused, 0), refused)
}
