package receive

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/send"
	"github.com/softrnic/softrnic/rdmatransport/internal/sacktest"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

const (
	testMark  = wire.Mark(5)
	testLimit = 2
)

// responder is a State with a clock that moves only when the test moves it. PSN 10 is expected
// first.
type responder struct {
	State
	t   *testing.T
	now time.Duration
}

func newResponder(t *testing.T) *responder {
	r := &responder{t: t, now: time.Minute}
	r.Init(&Shared{Clock: func() time.Duration { return r.now }, Window: send.DefaultWindow})
	r.Begin(&Connection{PSN: 10, MTU: testMTU, Limit: testLimit, Mark: testMark})
	return r
}

// unmarked delivers an unmarked packet of a WRITE.
func (r *responder) unmarked(psn uint32) Outcome { return r.OnRequest(write(psn)) }

// newest, again and ask deliver a marked one; ask also requests an acknowledgement.
func (r *responder) newest(psn uint32) Outcome { return r.marked(psn, testMark.Newest(), false) }
func (r *responder) again(psn uint32) Outcome  { return r.marked(psn, testMark.Again(), false) }
func (r *responder) ask(psn uint32) Outcome    { return r.marked(psn, testMark.Newest(), true) }

func (r *responder) marked(psn uint32, mark uint8, ask bool) Outcome {
	p := write(psn)
	p.Reserved7, p.AckReq = mark, ask
	return r.OnRequest(p)
}

// expect checks an outcome.
func (r *responder) expect(what string, got, want Outcome) {
	r.t.Helper()
	if got != want {
		r.t.Errorf("%s: outcome %04b, want %04b", what, got, want)
	}
}

// execute delivers and executes the expected packet, and all kept packets after it. It returns
// their PSNs.
func (r *responder) execute(unmarked func(uint32) Outcome) string {
	r.t.Helper()
	psns := []string{fmt.Sprint(r.PSN())}
	if !unmarked(r.PSN()).Has(InOrder) {
		r.t.Fatalf("%d is not in order", r.PSN())
	}
	r.OnExecuted(false)
	var p wire.Packet
	for r.Keeps() && r.NextKept(&p) {
		psns = append(psns, fmt.Sprint(p.PSN))
		r.OnExecuted(false)
	}
	return strings.Join(psns, " ")
}

// lose delivers PSN 10 as a retransmission, after 11, so that packets may be kept from then on. 12
// is expected.
func (r *responder) lose() {
	r.t.Helper()
	r.newest(11)
	r.owes("NAK 10")
	r.execute(r.again)
	r.execute(r.again)
}

// owes checks the acknowledgement that is due, and sends it: "ACK 9", "NAK 10" (or RNR, or its
// syndrome), "SACK 10 [1 2]",
// "trimmed 10 2 true", or "".
func (r *responder) owes(want string) {
	r.t.Helper()
	owed := r.Owed()
	var got string
	switch owed {
	case Nothing:
	case SACK:
		got = fmt.Sprintf("SACK %d %v", r.PSN(), sacktest.Distances(r.SACK()))
	case TrimmedSACK:
		n, is := r.TrimmedSACK().Trimmed()
		got = fmt.Sprintf("trimmed %d %d %v", r.PSN(), n, is)
	case Ack:
		got = fmt.Sprint("ACK ", r.AckPSN())
	default:
		a, psn := r.NAK()
		switch {
		case a.IsRNR():
			got = "RNR"
		case a.Syndrome == wire.NakPSNSeq:
			got = "NAK"
		default:
			got = fmt.Sprintf("%#x", a.Syndrome)
		}
		got += fmt.Sprint(" ", psn)
		if a.MSN != r.MSN() {
			r.t.Errorf("%s has MSN %d, want %d", got, a.MSN, r.MSN())
		}
	}
	if r.OnAcknowledged(owed); got != want {
		r.t.Errorf("owes %q, want %q", got, want)
	}
}

// request returns a request packet with an opcode.
func request(op wire.Opcode, psn, length uint32) *wire.Packet {
	return &wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn, Reserved7: testMark.Newest()},
		RETH: wire.RETH{Addr: 4096, RKey: 7, Length: length}}
}

// read delivers and accepts a READ of this many packets.
func (r *responder) read(packets uint32) {
	r.t.Helper()
	p := request(wire.RCReadRequest, r.PSN(), packets*testMTU)
	r.expect("READ", r.OnRequest(p), InOrder)
	r.OnAccepted(&Response{Kind: Read, RETH: p.RETH})
}

// respond sends at most this many packets of queued responses, and returns their PSNs.
func (r *responder) respond(most int) string {
	var psns []string
	for range most {
		p := r.Pending()
		if p == nil {
			break
		}
		psns = append(psns, fmt.Sprint(p.PSN))
		if r.OnResponsePackets(p, 1, min(testMTU, p.RETH.Length)); p.Packets == 0 {
			r.OnResponseSent()
		}
	}
	return strings.Join(psns, " ")
}

func TestState(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(r *responder)
	}{
		{"in order", func(r *responder) {
			r.execute(r.unmarked)
			r.owes("")
			r.execute(r.unmarked)
			r.OnAckRequest()
			r.owes("ACK 11")
			r.owes("")
		}},
		{"messages are counted", func(r *responder) {
			r.unmarked(10)
			r.OnExecuted(false)
			r.unmarked(11)
			r.OnExecuted(true)
			r.read(3)
			if r.MSN() != 2 || r.PSN() != 15 {
				r.t.Errorf("MSN %d, PSN %d", r.MSN(), r.PSN())
			}
		}},
		{"a duplicate is acknowledged again", func(r *responder) {
			r.execute(r.unmarked)
			r.expect("10", r.unmarked(10), Duplicate)
			r.owes("ACK 10")
			r.expect("the PSN half of all before", r.unmarked(wire.PSNAdd(11, 1<<23)), Duplicate)
			r.owes("ACK 10")
		}},
		{"one gap, one NAK", func(r *responder) {
			r.expect("11", r.unmarked(11), Gap)
			r.owes("NAK 10")
			r.expect("12", r.unmarked(12), 0)
			r.owes("")
			r.execute(r.unmarked)
			r.expect("12 again", r.unmarked(12), Gap)
			r.owes("NAK 11")
		}},
		{"a NAK that is not sent yet", func(r *responder) {
			r.unmarked(11)
			r.execute(r.unmarked)
			r.owes("")
		}},
		{"a marked packet with an acknowledgement request is a probe", func(r *responder) {
			r.expect("11", r.newest(11), Gap)
			r.owes("NAK 10")
			r.expect("12", r.newest(12), 0)
			r.owes("")
			r.expect("13", r.ask(13), 0)
			r.owes("NAK 10")
		}},
		{"an unmarked packet is no probe", func(r *responder) {
			r.unmarked(11)
			r.owes("NAK 10")
			p := write(12)
			p.AckReq = true
			r.expect("12", r.OnRequest(p), 0)
			r.owes("")
		}},
		{"a peer that marks its packets marks them all", func(r *responder) {
			r.execute(r.newest)
			for _, psn := range []uint32{10, 11, 12} {
				r.expect(fmt.Sprint(psn), r.unmarked(psn), Suspect)
			}
			r.owes("")
			r.execute(r.newest)
		}},
		{"a marked packet after a gap does not show that the peer marks", func(r *responder) {
			r.newest(11)
			r.execute(r.unmarked)
		}},
		{"no receive request", func(r *responder) {
			r.unmarked(10)
			r.OnNotReady(wire.RNRNak | 1)
			r.owes("RNR 10")
			r.owes("")
			r.expect("11, in flight", r.unmarked(11), 0)
			r.expect("12, in flight", r.ask(12), 0)
			r.owes("")
			r.expect("retransmission, without 10", r.unmarked(11), Gap)
			r.owes("NAK 10")
			r.execute(r.unmarked)
		}},
		{"no receive request, and the wait has ended", func(r *responder) {
			r.unmarked(10)
			r.OnNotReady(wire.RNRNak | 1)
			r.expect("11, before the NAK", r.unmarked(11), 0)
			r.now += wire.RNRTimer(1)
			r.expect("11 again, before the NAK", r.unmarked(11), 0)
			r.owes("RNR 10")
			r.expect("11 again", r.unmarked(11), Gap)
		}},
		{"packets after one without a receive request show no loss", func(r *responder) {
			r.newest(10)
			r.OnNotReady(wire.RNRNak | 1)
			r.owes("RNR 10")
			r.newest(11)
			r.now += wire.RNRTimer(1)
			r.newest(11)
			r.owes("NAK 10")
			r.execute(r.again)
			r.newest(12)
			if r.Keeps() {
				r.t.Error("12 is kept")
			}
		}},
		{"refused", func(r *responder) {
			r.unmarked(10)
			r.OnRefused(wire.NakRemoteAccess, 9)
			if !r.Refused() || r.Owed() != LastNAK || r.Reason() != 9 {
				r.t.Error("not refused")
			}
			r.expect("11", r.unmarked(11), 0)
			r.owes(fmt.Sprintf("%#x 10", wire.NakRemoteAccess))
			r.expect("10", r.unmarked(10), 0)
			r.owes("")
		}},
		{"a NAK acknowledges all before", func(r *responder) {
			r.execute(r.unmarked)
			r.OnAckRequest()
			r.unmarked(12)
			r.owes("NAK 11")
			r.owes("")
		}},
		{"the first loss goes back", func(r *responder) {
			r.expect("11", r.newest(11), Gap)
			if r.Keeps() {
				r.t.Error("11 is kept")
			}
			r.owes("NAK 10")
		}},
		{"the next is kept", func(r *responder) {
			r.lose()
			r.expect("13", r.newest(13), Gap)
			r.owes("")
			r.expect("14", r.newest(14), 0)
			r.expect("15", r.newest(15), 0)
			r.owes("SACK 12 [1 2 3]")
			if got := r.execute(r.again); got != "12 13 14 15" || r.Keeps() || r.Deadline() != 0 {
				r.t.Errorf("executed %s, and keeps %v", got, r.Keeps())
			}
			r.owes("")
		}},
		{"two gaps", func(r *responder) {
			r.lose()
			r.newest(13)
			r.expect("15", r.ask(15), Gap)
			r.owes("SACK 12 [1 3]")
			if got := r.execute(r.again); got != "12 13" || !r.Keeps() {
				r.t.Errorf("executed %s, and keeps %v", got, r.Keeps())
			}
			r.owes("SACK 14 [1]")
			r.execute(r.again)
			r.owes("")
		}},
		{"some cannot be kept", func(r *responder) {
			r.lose()
			reserved, long := write(13), write(13)
			reserved.Opcode, reserved.Reserved7 = 0x1f, testMark.Newest()
			long.Payload, long.Reserved7 = make([]byte, testMTU+HeaderRoom), testMark.Newest()
			for _, p := range []*wire.Packet{reserved, long, write(13)} {
				r.OnRequest(p)
			}
			r.newest(wire.PSNAdd(12, testSpan))
			if r.Keeps() {
				r.t.Error("a packet is kept")
			}
			r.owes("NAK 12")
		}},
		{"none are kept after a NAK", func(r *responder) {
			r.lose()
			reserved := request(0x1f, 13, 0)
			r.expect("one that cannot be kept", r.OnRequest(reserved), Gap)
			r.newest(14)
			if r.Keeps() {
				r.t.Error("14 is kept")
			}
			r.owes("NAK 12")
		}},
		{"not after a while", func(r *responder) {
			r.lose()
			r.now += lossPeriod
			r.newest(13)
			r.owes("NAK 12")
		}},
		{"a kept packet finds no receive request", func(r *responder) {
			r.lose()
			r.newest(13)
			r.newest(14)
			r.again(12)
			r.OnExecuted(false)
			var p wire.Packet
			if !r.NextKept(&p) || p.PSN != 13 {
				r.t.Fatal("13 is missing")
			}
			r.OnNotReady(wire.RNRNak | 1)
			if r.NextKept(&p) || !r.Keeps() {
				r.t.Error("14 is next, or dropped")
			}
			r.owes("RNR 13")
			r.owes("")
			if got := r.execute(r.again); got != "13 14" {
				r.t.Error("executed", got)
			}
		}},
		{"a kept packet is refused", func(r *responder) {
			r.refuseKept(false)
			if r.Keeps() || r.Refused() || r.PSN() != 13 {
				r.t.Errorf("keeps %v, refused %v, PSN %d", r.Keeps(), r.Refused(), r.PSN())
			}
			r.owes("NAK 13")
			r.execute(r.again)
			r.newest(15)
			if r.Keeps() {
				r.t.Error("15 is kept, after a contradiction")
			}
		}},
		{"a kept packet is refused, and an acknowledgement due", func(r *responder) {
			r.refuseKept(true)
			r.owes("ACK 12")
			r.expect("14", r.newest(14), Gap)
			r.owes("NAK 13")
		}},
		{"contradictions", func(r *responder) {
			for _, unmarked := range []func(){
				func() { r.expect("the expected one is the newest", r.newest(12), InOrder|Suspect) },
				func() { r.expect("one between is the newest", r.newest(14), Suspect|Gap) },
				func() {
					p := write(15)
					p.Reserved7, p.Payload[0] = testMark.Newest(), 0
					r.expect("another packet", r.OnRequest(p), Suspect|Gap)
				},
				func() {
					if !r.DropContradicted() {
						r.t.Error("nothing was kept")
					}
				},
			} {
				r.Begin(&Connection{PSN: 10, MTU: testMTU, Limit: testLimit, Mark: testMark})
				r.lose()
				if r.newest(15); !r.Keeps() {
					r.t.Fatal("15 is not kept")
				}
				r.OnAckRequest()
				if unmarked(); r.Keeps() || r.Owed() == SACK {
					r.t.Error("15 is still kept")
				}
				r.OnAcknowledged(r.Owed())
				r.newest(18)
				r.execute(r.again)
				r.newest(20)
				if r.Keeps() {
					r.t.Error("20 is kept")
				}
			}
			if r.DropContradicted() {
				r.t.Error("a packet was kept")
			}
		}},
		{"the expected one is the newest, after a report to the peer", func(r *responder) {
			r.lose()
			r.ask(13)
			r.owes("SACK 12 [1]")
			if got := r.execute(r.newest); got != "12" {
				r.t.Error("executed", got)
			}
			r.owes("NAK 13") // the peer takes it for kept
			r.owes("")
			r.execute(r.again)
			r.newest(15)
			r.owes("NAK 14")
		}},
		{"one between is the newest, and so are later ones", func(r *responder) {
			r.lose()
			r.newest(15)
			r.newest(13) // contradicts 15, and others contradict it
			r.expect("12", r.newest(12), InOrder|Suspect)
		}},
		{"kept too long", func(r *responder) {
			r.lose()
			r.newest(13)
			if r.Deadline() != r.now+keepTimeout {
				r.t.Errorf("the deadline is in %v", r.Deadline()-r.now)
			}
			r.OnAlarm(r.now + keepTimeout - 1)
			if !r.Keeps() {
				r.t.Error("dropped early")
			}
			r.now += keepTimeout
			if r.OnAlarm(r.now); r.Keeps() || r.Deadline() != 0 {
				r.t.Error("not dropped")
			}
			r.owes("") // the peer had no report of it
		}},
		{"kept too long, after a report to the peer", func(r *responder) {
			r.lose()
			r.ask(13)
			r.owes("SACK 12 [1]")
			r.now += keepTimeout
			r.OnAlarm(r.now)
			r.owes("NAK 12")
		}},
		{"some missing packets arrive in time", func(r *responder) {
			r.lose()
			r.newest(15)
			r.now += keepTimeout - 1
			r.execute(r.again)
			if r.Deadline() != r.now+keepTimeout {
				r.t.Errorf("the deadline is in %v", r.Deadline()-r.now)
			}
		}},
		{"no missing packet arrives in time", func(r *responder) {
			r.lose()
			r.newest(13)
			due := r.Deadline()
			r.now += keepTimeout / 2
			r.again(12)
			r.OnNotReady(wire.RNRNak | 1)
			var p wire.Packet
			if r.NextKept(&p) || r.Deadline() != due {
				r.t.Errorf("the deadline is %v, not %v", r.Deadline(), due)
			}
			r.owes("RNR 12")
			r.now += keepTimeout / 2
			r.OnAlarm(r.now)
			r.execute(r.again)
			r.newest(14)
			if r.Keeps() {
				r.t.Error("14 is kept")
			}
		}},
		{"a loss while packets are kept is another loss", func(r *responder) {
			r.lose()
			r.now += lossPeriod - 1
			r.newest(13)
			r.execute(r.again)
			r.now += lossPeriod - 1
			r.newest(15)
			r.newest(17)
			r.execute(r.again)
			r.now += lossPeriod - 1
			r.execute(r.again)
			r.now += lossPeriod - 1
			if r.newest(19); !r.Keeps() {
				r.t.Error("19 is not kept")
			}
		}},
		{"a missing receive request while packets are kept is none", func(r *responder) {
			r.lose()
			r.newest(13)
			r.newest(14)
			r.again(12)
			r.OnExecuted(false)
			lost := r.now
			var p wire.Packet
			r.NextKept(&p)
			r.OnNotReady(wire.RNRNak | 1)
			r.NextKept(&p)
			r.owes("RNR 13")
			r.now += lossPeriod - 1
			if got := r.execute(r.again); got != "13 14" {
				r.t.Error("executed", got)
			}
			r.now = lost + lossPeriod
			r.newest(16)
			if r.Keeps() {
				r.t.Error("16 is kept")
			}
		}},
		{"the first of two deadlines", func(r *responder) {
			r.lose()
			r.read(2)
			r.newest(16)
			due := r.Deadline()
			r.now += keepTimeout - 1
			if r.OnBurst(); r.Deadline() != due {
				r.t.Error("the later")
			}
		}},
		{"stopped", func(r *responder) {
			r.lose()
			r.read(2)
			r.ask(15)
			r.OnBurst()
			if r.Stop(); r.Keeps() || r.Deadline() != 0 || r.shared.stores.inUse.Load() != 0 {
				r.t.Error("it goes on")
			}
			r.owes("")
		}},
		{"reset", func(r *responder) {
			r.unmarked(10)
			r.OnRefused(wire.NakInvalidRequest, 1)
			r.Reset()
			r.Begin(&Connection{PSN: 5, MTU: testMTU})
			r.execute(r.unmarked)
			r.OnAckRequest()
			r.owes("ACK 5")
			if r.Limit() != 0 || !r.Full() || r.Mark() != 0 {
				r.t.Error("state of the earlier connection is left")
			}
		}},
		{"responses come first, in order", func(r *responder) {
			r.read(2)
			r.read(1)
			r.execute(r.newest)
			r.OnAckRequest()
			if r.OnlyAck() {
				r.t.Error("only an acknowledgement is due")
			}
			if got := r.respond(9); got != "10 11 12" {
				r.t.Error("responded", got)
			}
			if !r.OnlyAck() {
				r.t.Error("more than an acknowledgement is due")
			}
			r.owes("ACK 13")
		}},
		{"a response acknowledges all before", func(r *responder) {
			r.execute(r.unmarked)
			r.OnAckRequest()
			r.read(1)
			r.owes("")
		}},
		{"bursts and pauses", func(r *responder) {
			r.read(1000)
			p := r.Pending()
			if r.Burst(p) != firstBurst {
				r.t.Error("a burst is", r.Burst(p))
			}
			r.respond(firstBurst)
			r.OnBurst()
			if !r.Pausing() || r.Deadline() != r.now+responsePause {
				r.t.Errorf("pausing %v, until %v", r.Pausing(), r.Deadline())
			}
			r.OnAlarm(r.now + responsePause - 1)
			if !r.Pausing() || r.OnlyAck() || r.Quiescent(1010) {
				r.t.Error("the pause is short")
			}
			r.OnAlarm(r.now + responsePause)
			r.respond(1000)
			r.read(1000)
			if r.Pausing() || r.Burst(r.Pending()) != 2*firstBurst {
				r.t.Error("a burst is", r.Burst(r.Pending()))
			}
		}},
		{"the limit of outstanding READs", func(r *responder) {
			r.read(1)
			if r.Full() {
				r.t.Error("full after one")
			}
			r.read(1)
			if !r.Full() {
				r.t.Error("not full after two")
			}
			r.SetLimit(3)
			if r.Full() {
				r.t.Error("full after two of three")
			}
			r.read(1)
			if r.respond(3) != "10 11 12" {
				r.t.Error("not all are answered")
			}
			for psn := uint32(10); psn < 13; psn++ {
				r.OnRequest(request(wire.RCReadRequest, psn, testMTU))
			}
			if got := r.respond(9); got != "10 11 12" {
				r.t.Error("again, responded", got)
			}
			r.SetLimit(2)
			r.read(1)
			r.read(1)
			r.respond(1)
			r.OnRequest(request(wire.RCReadRequest, 10, testMTU)) // a duplicate
			if r.Full() {
				r.t.Error("full with a duplicate")
			}
		}},
		{"a READ again", func(r *responder) {
			r.read(4)
			r.expect("while it is answered", r.OnRequest(request(wire.RCReadRequest, 10, 4*testMTU)), Duplicate)
			sent := r.respond(1)
			inside := request(wire.RCReadRequest, 12, testMTU)
			inside.RETH.Addr += 2 * testMTU
			r.expect("a part that will be answered", r.OnRequest(inside), Duplicate)
			if sent += " " + r.respond(9); sent != "10 11 12 13" {
				r.t.Error("responded", sent)
			}
			tail := request(wire.RCReadRequest, 12, 2*testMTU)
			tail.RETH.Addr += 2 * testMTU
			r.expect("its end", r.OnRequest(tail), Duplicate)
			if p := r.Pending(); p == nil || p.First() || p.MSN != 1 || p.RETH != tail.RETH {
				r.t.Errorf("%+v", p)
			}
			if got := r.respond(9); got != "12 13" {
				r.t.Error("responded", got)
			}
			if r.Burst(&Response{Packets: 1000}) != firstBurst {
				r.t.Error("a marked READ from the middle is a loss")
			}
			r.repeat(request(wire.RCReadRequest, 10, 4*testMTU), unmarked)
			if r.Burst(&Response{Packets: 1000}) != firstBurst {
				r.t.Error("a whole READ again is a loss")
			}
			r.respond(9)
			tail.Reserved7 = 0
			r.repeat(tail, unmarked)
			if r.Burst(&Response{Packets: 1000}) == firstBurst {
				r.t.Error("a READ from the middle is no loss")
			}
		}},
		{"another READ with the same PSN", func(r *responder) {
			r.read(4)
			r.respond(9)
			for _, change := range []func(p *wire.Packet){
				func(p *wire.Packet) { p.RETH.RKey++ },
				func(p *wire.Packet) { p.RETH.Addr++ },
				func(p *wire.Packet) { p.RETH.Length++ },
				func(p *wire.Packet) { p.PSN++ },
				func(p *wire.Packet) { p.Opcode = wire.RCFetchAdd },
				func(p *wire.Packet) { p.Opcode = wire.RCFlush },
			} {
				p := request(wire.RCReadRequest, 10, 4*testMTU)
				change(p)
				r.expect("another", r.OnRequest(p), Duplicate)
				if r.Pending() != nil {
					r.t.Errorf("%+v is answered", p)
				}
				r.owes("")
			}
		}},
		{"a long READ again is answered no faster", func(r *responder) {
			r.read(1000)
			r.respond(1000)
			r.OnRequest(request(wire.RCReadRequest, 10, 1000*testMTU))
			before := r.Burst(&Response{Packets: 1000})
			if r.respond(1000); r.Burst(&Response{Packets: 1000}) != before {
				r.t.Error("a burst is", r.Burst(&Response{Packets: 1000}))
			}
		}},
		{"a reserved opcode again", func(r *responder) {
			r.execute(r.newest)
			r.expect("10", r.OnRequest(request(0x1f, 10, 0)), Duplicate)
			r.owes("")
		}},
		{"an atomic again", func(r *responder) {
			r.OnRequest(request(wire.RCFetchAdd, 10, 0))
			r.OnAccepted(&Response{Kind: Atomic, Orig: 7})
			r.respond(1)
			r.execute(r.newest)
			r.OnRequest(request(wire.RCFlush, 10, 0))
			if r.Pending() != nil {
				r.t.Error("a FLUSH is answered")
			}
			r.OnRequest(request(wire.RCFetchAdd, 10, 0))
			if p := r.Pending(); p == nil || p.Orig != 7 || p.PSN != 10 {
				r.t.Errorf("%+v", p)
			}
			if r.respond(1); r.PSN() != 12 {
				r.t.Error("PSN", r.PSN())
			}
		}},
		{"deferred", func(r *responder) {
			r.OnRequest(request(wire.RCFlush, 10, 0))
			if r.Defers() {
				r.t.Error("nothing is deferred yet")
			}
			r.OnAccepted(&Response{Kind: Empty, Deferred: true})
			if !r.Defers() {
				r.t.Error("nothing is deferred")
			}
			r.OnRequest(request(wire.RCFetchAdd, 11, 0))
			r.OnAccepted(&Response{Kind: Atomic, Deferred: true})
			r.OnRequest(request(wire.RCFlush, 10, 0))
			r.OnRequest(request(wire.RCFetchAdd, 11, 0))
			if !r.Full() {
				r.t.Error("a duplicate takes the place of the original, which will be answered")
			}
			r.OnDeferredExecuted(0)
			r.respond(1)
			r.OnRequest(request(wire.RCFetchAdd, 10, 0))
			if p := r.Pending(); p.PSN != 11 {
				r.t.Errorf("an atomic with the PSN of a FLUSH is answered by %+v", p)
			}
			if r.OnDeferredExecuted(7); r.Defers() || r.Pending().Orig != 7 {
				r.t.Errorf("%+v", r.Pending())
			}
			if got := r.respond(9); got != "11" {
				r.t.Error("responded", got)
			}
			r.OnRequest(request(wire.RCFetchAdd, 11, 0))
			if p := r.Pending(); p == nil || p.Orig != 7 || p.Deferred {
				r.t.Errorf("%+v", p)
			}
			if r.DropPending(); r.Responds() {
				r.t.Error("not dropped")
			}
		}},
		{"not quiescent, with a response to be sent", func(r *responder) {
			r.read(1)
			if r.Quiescent(r.PSN()) {
				r.t.Error("quiescent")
			}
			if r.respond(1); !r.Quiescent(r.PSN()) {
				r.t.Error("not quiescent")
			}
		}},
		{"moved directly", func(r *responder) {
			if r.Quiescent(11) || !r.Quiescent(10) {
				r.t.Error("not quiescent at PSN 10")
			}
			r.unmarked(11)
			if r.Quiescent(10) {
				r.t.Error("quiescent, and a NAK is due")
			}
			r.owes("NAK 10")
			r.OnMovedDirectly(4, true, true)
			if !r.Quiescent(14) || r.MSN() != 1 {
				r.t.Errorf("PSN %d, MSN %d", r.PSN(), r.MSN())
			}
			r.OnMovedDirectly(2, false, false)
			r.OnAckRequest()
			r.owes("ACK 13")
			r.expect("the gap after it", r.unmarked(17), Gap)
			r.execute(r.unmarked)
			r.unmarked(17)
			r.OnRefused(wire.NakInvalidRequest, 1)
			if r.Quiescent(17) {
				r.t.Error("quiescent, and a rejection is due")
			}
			if r.OnAcknowledged(LastNAK); r.Quiescent(17) {
				r.t.Error("quiescent, and refused")
			}
		}},
		{"unreliable", func(r *responder) {
			r.Begin(&Connection{PSN: 10})
			if r.OnUnreliable(10) {
				r.t.Error("10 is missing")
			}
			r.OnUnreliableDropped()
			if r.OnUnreliable(11) || !r.OnUnreliable(14) || r.PSN() != 14 {
				r.t.Error("PSN", r.PSN())
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) { c.run(newResponder(t)) })
	}
}

// refuseKept makes PSN 13 fail when it leaves the store, with 14 after it. 12 may have requested an
// acknowledgement.
func (r *responder) refuseKept(asked bool) {
	r.t.Helper()
	r.lose()
	r.newest(13)
	r.newest(14)
	r.again(12)
	if r.OnExecuted(false); asked {
		r.OnAckRequest()
	}
	var p wire.Packet
	if !r.NextKept(&p) || p.PSN != 13 {
		r.t.Fatal("13 is missing")
	}
	r.OnRefused(wire.NakInvalidRequest, 1)
	r.OnKeptRefused()
}
