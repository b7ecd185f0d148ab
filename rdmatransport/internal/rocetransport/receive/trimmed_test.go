package receive

import (
	"testing"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// trimmed delivers what a switch has left of a packet of a WRITE.
func (r *responder) trimmed(psn uint32, mark uint8) bool {
	p := write(psn)
	p.Reserved7 = mark
	return r.OnTrimmed(p)
}

// TestTrimmed: what is owed for trimmed packets, beside other acknowledgements.
func TestTrimmed(t *testing.T) {
	newest, again := testMark.Newest(), testMark.Again()
	for _, c := range []struct {
		name string
		run  func(r *responder)
	}{
		{"at once, and once", func(r *responder) {
			r.trimmed(12, newest)
			r.owes("trimmed 10 2 true")
			r.owes("")
			r.trimmed(10, newest)
			r.owes("trimmed 10 0 true")
		}},
		{"it acknowledges what came before", func(r *responder) {
			r.execute(r.newest)
			r.OnAckRequest()
			r.trimmed(11, newest)
			r.owes("trimmed 11 0 true")
			r.owes("")
		}},
		{"it has arrived meanwhile", func(r *responder) {
			r.trimmed(10, newest)
			r.execute(r.newest)
			r.owes("")
		}},
		{"it has arrived meanwhile, and PSNs wrap", func(r *responder) {
			r.trimmed(10, newest)
			r.execute(r.newest)
			r.OnAckRequest()
			r.owes("ACK 10")
			r.OnExecutedRun(1 << 23)
			r.owes("")
		}},
		{"after a list of kept packets", func(r *responder) {
			r.lose()
			r.ask(15)
			r.trimmed(13, again)
			r.owes("SACK 12 [3]")
			r.owes("trimmed 12 1 true")
			r.owes("")
			r.execute(r.again)
			r.owes("SACK 13 [2]")
		}},
		{"a NAK makes it needless", func(r *responder) {
			r.trimmed(12, newest)
			r.newest(11) // not kept
			r.owes("NAK 10")
			r.owes("")
			r.trimmed(10, again) // the peer has gone back
			r.owes("trimmed 10 0 true")
		}},
		{"a peer that goes back", func(r *responder) {
			if !r.trimmed(12, 0) || !r.trimmed(11, 0) || !r.trimmed(13, 0) {
				r.t.Error("they are no hints")
			}
			r.owes("")
			r.execute(r.unmarked)
			r.owes("NAK 11")
			if r.trimmed(11, 0) {
				r.t.Error("a second NAK of a gap")
			}
			r.execute(r.unmarked)
			r.execute(r.unmarked)
			r.owes("")
		}},
		{"the next one is in error", func(r *responder) {
			r.trimmed(11, 0)
			r.unmarked(10)
			r.OnRefused(wire.NakRemoteAccess, 1)
			r.owes("0x62 10")
			if r.trimmed(10, 0) {
				r.t.Error("a hint after the end")
			}
		}},
		{"the next one finds no receive request", func(r *responder) {
			r.trimmed(11, 0)
			r.unmarked(10)
			r.OnNotReady(wire.RNRNak | 1)
			r.owes("RNR 10")
			if r.trimmed(10, 0) || r.trimmed(11, 0) {
				r.t.Error("a hint while the peer waits")
			}
		}},
		{"a READ takes its PSN", func(r *responder) {
			r.trimmed(11, 0)
			p := request(wire.RCReadRequest, 10, 3*testMTU)
			p.Reserved7 = 0
			r.expect("READ", r.OnRequest(p), InOrder)
			r.OnAccepted(&Response{Kind: Read, RETH: p.RETH})
			r.respond(3)
			r.owes("NAK 13") // it is true, if needless
		}},
		{"within the span only", func(r *responder) {
			span := Span(send.DefaultWindow, testMTU)
			for psn, want := range map[uint32]bool{10 + span - 1: true, 10 + span: false, 10 + 1<<23: false, 9: false,
				wire.PSNAdd(10, 1<<24-span): false} {
				if got := r.trimmed(psn, newest); got != want {
					r.t.Errorf("PSN %d is a hint: %t", psn, got)
				}
			}
			r.execute(r.newest)
			if r.trimmed(11, 0) {
				r.t.Error("the peer marks its packets, and this has no mark")
			}
		}},
		{"a probe that was executed", func(r *responder) {
			r.execute(r.newest)
			p := write(10)
			p.Reserved7, p.AckReq = again, true
			r.OnTrimmed(p)
			r.owes("ACK 10")
		}},
		{"not more than a window at a time", func(r *responder) {
			n, span := 0, int(Span(send.DefaultWindow, testMTU))
			for range 10 * span {
				if r.trimmed(10, newest) {
					n++
				}
			}
			if n != span {
				r.t.Errorf("%d hints, want %d", n, span)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(newResponder(t)) })
	}
}
