package rocetransport_test

import (
	"bytes"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// giveMarked passes packets with an ECN mark to the engine.
func (r *rig) giveMarked(pkts ...wire.Packet) {
	for i := range pkts {
		d := r.frame(pkts[i])
		d.TrafficClass = 3
		r.port.receive(d)
	}
}

func (r *rig) cnp() wire.Packet {
	p := r.req(wire.CNP, 0, make([]byte, wire.CNPPayloadLen))
	p.PSN, p.BECN = 0, true
	return p
}

// counts checks the congestion counters.
func (r *rig) counts(marked, sent, handled, ignored uint64) {
	r.t.Helper()
	got := [4]uint64{r.counter("np_ecn_marked_roce_packets"), r.counter("np_cnp_sent"),
		r.counter("rp_cnp_handled"), r.counter("rp_cnp_ignored")}
	if got != [4]uint64{marked, sent, handled, ignored} {
		r.t.Errorf("marked, CNPs sent, handled, ignored: %v, want %v", got, [4]uint64{marked, sent, handled, ignored})
	}
}

// TestNotify checks that marked packets are answered by CNPs, at a minimum interval.
func TestNotify(t *testing.T) {
	for service, op := range map[verbs.QPType]wire.Opcode{
		verbs.RC: wire.RCWriteOnly, verbs.UC: wire.UCWriteOnly, verbs.XRCRecv: wire.RCWriteOnly | wire.Opcode(wire.XRC)<<5,
	} {
		run(t, service.String(), config{service: service, dcqcn: &roce.DCQCN{}}, func(t *testing.T, r *rig) {
			psn, srq, at := 0, uint32(0), r.at(0, 8)
			if service == verbs.XRCRecv {
				x := newXRCTarget(r)
				srq = x.srq[0].Num()
				at = reth(x.mem[0].Addr(), x.mem[0].RKey(), 8)
			}
			cnps := func(marked bool) (n int) {
				p := r.req(op, psn, fill(8, 1), at)
				p.XRCETH.SRQ = srq
				if psn++; marked {
					r.giveMarked(p)
				} else {
					r.give(p)
				}
				for _, p := range r.take() {
					if p.Opcode != wire.CNP {
						t.Errorf("the engine sent %v", p.Opcode)
					}
					want := wire.BTH{Opcode: wire.CNP, MigReq: true, PKey: wire.DefaultPKey, BECN: true, DestQP: peerQPN}
					if service != verbs.UC {
						want.Reserved7 = p.Reserved7
					}
					if p.BTH != want || !bytes.Equal(p.Payload, make([]byte, 16)) {
						t.Errorf("CNP %+v with % x", p.BTH, p.Payload)
					}
					n++
				}
				return n
			}
			for i, c := range []struct {
				after  time.Duration
				marked bool
				want   int
			}{{0, false, 0}, {0, true, 1}, {0, true, 0}, {49 * time.Microsecond, true, 0},
				{time.Microsecond, true, 1}, {time.Second, true, 1}, {time.Second, false, 0}} {
				sleep(c.after)
				if n := cnps(c.marked); n != c.want {
					t.Errorf("step %d: %d CNPs, want %d", i, n, c.want)
				}
			}
			r.counts(5, 3, 0, 0)
		})
	}
}

// TestCongestionOff checks that congestion control is off by default, as on hardware, and never
// applies to datagrams.
func TestCongestionOff(t *testing.T) {
	for _, c := range []config{{}, {service: verbs.UC}, {service: verbs.UD}, {service: verbs.UD, dcqcn: &roce.DCQCN{}}} {
		run(t, fmt.Sprintf("%v %v", c.service, c.dcqcn != nil), c, func(t *testing.T, r *rig) {
			r.giveMarked(r.req(wire.RCWriteOnly, 0, fill(8, 1), r.at(0, 8)))
			r.give(r.cnp())
			r.take()
			r.counts(0, 0, 0, 1)
		})
	}
}

const megabit = 1_000_000

// TestReaction checks the rate of a connection: full, half after a CNP, and then recovering.
func TestReaction(t *testing.T) {
	for _, service := range []verbs.QPType{verbs.RC, verbs.UC, verbs.XRCSend} {
		// 1088 bytes per IPv4 packet: 8.704 ms at 1 Mbit/s.
		c := config{service: service, dcqcn: &roce.DCQCN{RPGMaxRate: 100 * megabit}, size: 1 << 20}
		run(t, service.String(), c, func(t *testing.T, r *rig) {
			middle := map[verbs.QPType]wire.Opcode{
				verbs.RC: wire.RCWriteMiddle, verbs.UC: wire.UCWriteMiddle, verbs.XRCSend: wire.RCWriteMiddle | wire.Opcode(wire.XRC)<<5,
			}[service]
			r.post(r.wr(1, verbs.RDMAWrite, 1<<20))
			next := 0
			// rate returns the Mbit/s sent in this many ms.
			rate := func(ms int) float64 {
				r.take()
				bits := 0
				for range ms * 10 {
					sleep(100 * time.Microsecond)
					for _, p := range r.take() {
						if p.Opcode == middle {
							bits += 8 * (28 + p.Size())
						}
						if next = int(wire.PSNDiff(p.PSN, r.c.sqPSN)); p.AckReq && service != verbs.UC {
							r.give(r.ack(next))
						}
					}
				}
				return float64(bits) / float64(ms) / 1e3
			}
			near := func(what string, got, want float64) {
				t.Helper()
				if got < 0.9*want || got > 1.1*want {
					t.Errorf("%s: %.1f Mbit/s, want %.1f", what, got, want)
				}
			}
			rate(1)
			near("at first", rate(10), 100)
			r.give(r.cnp())
			sleep(300 * time.Microsecond)
			r.take()
			// Half, and then halfway back every 300 µs.
			near("after a notification and 300 µs", rate(1), 100-(25*.3+12.5*.3+6.25*.3+3.1*.1))
			rate(5)
			near("in the end", rate(5), 100)
			for range 100 { // a decrease of 50 % every 50 µs
				r.give(r.cnp())
				sleep(50 * time.Microsecond)
			}
			r.take()
			if got := rate(1); got > 60 {
				t.Errorf("after 5 ms of notifications: %.1f Mbit/s", got)
			}
			if r.counter("rp_cnp_handled") != 101 || r.counter("completer_retry_err") != 0 {
				t.Errorf("%v", must(r.dev.HWCounters()))
			}
		})
	}
}

// TestPacedTimeout checks that a rate at which a window takes longer than the timeout does not
// count as a loss. A waiting sender requests acknowledgements in between.
func TestPacedTimeout(t *testing.T) {
	c := config{dcqcn: &roce.DCQCN{RPGMaxRate: megabit}, size: 64 << 10, timeout: 14, retry: 1}
	bubble(t, c, func(r *rig) {
		r.post(r.wr(1, verbs.RDMAWrite, 64<<10))
		for range 7000 {
			sleep(100 * time.Microsecond)
			for _, p := range r.take() {
				if p.AckReq {
					r.give(r.ack(int(wire.PSNDiff(p.PSN, r.c.sqPSN))))
				}
			}
		}
		r.completions(r.scq, "1 SUCCESS RDMA_WRITE 0")
		if n := r.counter("completer_retry_err") + r.counter("tail_probes"); n != 0 {
			r.t.Errorf("%d packets counted as lost", n)
		}
	})
}

// TestPacedResponses checks that READ responses are paced too.
func TestPacedResponses(t *testing.T) {
	bubble(t, config{dcqcn: &roce.DCQCN{RPGMaxRate: megabit}, size: 64 << 10}, func(r *rig) {
		r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, 64<<10)))
		r.take()
		sleep(87 * time.Millisecond)
		if n := len(r.take()); n < 9 || n > 10 {
			r.t.Errorf("%d responses in 87 ms, want one per 8.7 ms", n)
		}
		r.modify(verbs.StateErr)
		sleep(time.Second)
		if n := len(r.take()); n != 0 {
			r.t.Errorf("%d responses after the end", n)
		}
	})
}

// TestRateLimit checks that QPAttr.RateLimit paces every service, with and without congestion
// control, until it is removed.
func TestRateLimit(t *testing.T) {
	for _, c := range []config{
		{}, {dcqcn: &roce.DCQCN{}}, {service: verbs.UC}, {service: verbs.UD}, {service: verbs.XRCSend},
	} {
		run(t, fmt.Sprintf("%v %v", c.service, c.dcqcn != nil), c, func(t *testing.T, r *rig) {
			limit := func(kbits uint32) {
				t.Helper()
				if err := r.qp.Modify(&verbs.QPAttr{RateLimit: kbits}, verbs.QPAttrRateLimit); err != nil {
					t.Fatal(err)
				}
			}
			limit(1000)
			wr := r.wr(1, verbs.Send, 1024)
			if c.service == verbs.UD {
				ah := must(r.pd.CreateAH(&verbs.AHAttr{IsGlobal: true, PortNum: 1,
					GRH: verbs.GRH{DGID: verbs.GIDFromAddr(r.them), SGIDIndex: 1}}))
				defer ah.Close()
				wr.AH, wr.RemoteQPN, wr.RemoteQKey = ah, peerQPN, qkey
			}
			for range 60 {
				r.post(wr)
			}
			sleep(87 * time.Millisecond) // a packet takes 8.7 ms
			if n := len(r.take()); n < 9 || n > 11 {
				t.Errorf("%d packets in 87 ms, want one per 8.7 ms", n)
			}
			limit(0)
			sleep(10 * time.Millisecond)
			if n := len(r.take()); n < 49 {
				t.Errorf("%d packets without a limit", n)
			}
		})
	}
}

// FuzzCongestion checks that after any sequence of marks, CNPs and delays the rate is valid, and
// posted requests arrive.
func FuzzCongestion(f *testing.F) {
	random(f, 50, 100)
	f.Fuzz(func(t *testing.T, data []byte) {
		s := script(data)
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t, config{size: 16 << 10, dcqcn: &roce.DCQCN{
				RPGMaxRate: choose[int64](&s, 0, megabit, 10*megabit), RPGMinRate: choose[int64](&s, 0, megabit, 1),
				RPGAIRate: choose[int64](&s, 0, 1<<62),
				DCETCPG:   s.n(1025), RPGGD: s.n(15), RPGThreshold: s.n(6), RateToSetOnFirstCNP: choose[int64](&s, 0, 1, 1<<62),
			}})
			for s.more() {
				switch s.n(4) {
				case 0:
					r.give(r.cnp())
				case 1:
					r.giveMarked(r.ack(0))
				case 2:
					if err := r.qp.PostSend(r.wr(1, verbs.RDMAWrite, 16<<10)); err != nil {
						continue
					}
				default:
					sleep(choose(&s, time.Microsecond, time.Millisecond, time.Hour))
				}
				for _, p := range r.take() {
					if p.AckReq {
						r.give(r.ack(int(wire.PSNDiff(p.PSN, r.c.sqPSN))))
					}
				}
			}
		})
	})
}
