//go:build linux

package interop

import (
	"testing"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// TestLoss loses packets between SoftRNIC and rxe, in both directions. The lost packets are
// repeated, and the data is correct.
func TestLoss(t *testing.T) {
	gate.System(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	linux := openKernel(t, p)
	for _, c := range []struct {
		name string
		loss impair.Direction
	}{
		{"1_%", impair.Direction{Loss: 0.01}},
		{"third_READ_response", dropping(t, "read-response", 3)},
		{"READ_request", dropping(t, "read-request", 1)},
		{"third_packet_of_SEND", dropping(t, "send", 3)},
		{"third_packet_of_WRITE", dropping(t, "write", 3)},
		{"acknowledgement", dropping(t, "ack", 1)},
		{"atomic_request", dropping(t, "atomic", 1)},
		{"atomic_acknowledgement", dropping(t, "atomic-ack", 1)},
		{"RNR_NAK", dropping(t, "rnr-nak", 1)},
	} {
		t.Run(c.name, func(t *testing.T) {
			l, err := impair.New(openTAP(t, p.Netns), &impair.Config{Seed: 1, In: c.loss, Out: c.loss})
			if err != nil {
				t.Fatal(err)
			}
			here := openSoftRNIC(t, captured(t, l), nil)
			t.Run("requester", func(t *testing.T) {
				overLoss(t, newSide(t, here, softrnicAddr4), newSide(t, linux, p.Addr4()))
			})
			t.Run("responder", func(t *testing.T) {
				overLoss(t, newSide(t, linux, p.Addr4()), newSide(t, here, softrnicAddr4))
			})
			if in, out := l.Counters(); in.Lost == 0 || out.Lost == 0 {
				t.Errorf("%d packets were lost on their way in, %d on their way out: nothing was tried", in.Lost, out.Lost)
			}
		})
	}
}

// dropping drops the nth packet of a class.
func dropping(t *testing.T, class string, nth int) impair.Direction {
	t.Helper()
	match, err := impair.Class(class)
	if err != nil {
		t.Fatal(err)
	}
	return impair.Direction{Rules: []impair.Rule{{Match: match, Nth: nth, Action: impair.Drop}}}
}

// overLoss does every operation on a path that loses packets.
func overLoss(t *testing.T, requester, responder *side) {
	t.Helper()
	p := usual
	p.timeout = 15 // 134 ms
	o := newOperation(t, requester, responder, p, 200_000)
	for range 2 {
		for _, opcode := range transfers {
			o.transfer(opcode, 200_000)
		}
		o.atomics()
		o.lateReceive()
	}
}

// TestLostTwice loses a packet to rxe, which reports the gap, and its repetition, of which rxe
// sends no second report. Only a probe reveals it before the timeout, and the timeout is longer
// than the test waits.
func TestLostTwice(t *testing.T) {
	gate.System(t)
	p := peer.Boot(t, peer.Config{ID: 2})[0]
	linux := openKernel(t, p)
	write, err := impair.Class("write")
	if err != nil {
		t.Fatal(err)
	}
	writes, psn := 0, [3]byte{}
	third := func(frame []byte) bool {
		if !write(frame) {
			return false
		}
		_, b, _ := roce(frame)
		if writes++; writes == 3 {
			psn = [3]byte(b[9:])
		}
		return writes >= 3 && [3]byte(b[9:]) == psn
	}
	l, err := impair.New(openTAP(t, p.Netns), &impair.Config{Out: impair.Direction{Rules: []impair.Rule{{Match: third, Count: 2}}}})
	if err != nil {
		t.Fatal(err)
	}
	here := openSoftRNIC(t, captured(t, l), nil)
	patient := usual
	patient.timeout = 24 // 69 s
	o := newOperation(t, newSide(t, here, softrnicAddr4), newSide(t, linux, p.Addr4()), patient, 200_000)
	o.transfer(verbs.Send, 200_000)
	o.transfer(verbs.RDMAWrite, 200_000)
	if _, out := l.Counters(); out.Lost != 2 {
		t.Errorf("%d packets were lost", out.Lost)
	}
	if n := hwCounters(t, here.(softrnic).dev)["tail_probes"]; n == 0 {
		t.Error("there was no probe")
	}
}
