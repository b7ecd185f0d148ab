package rocetransport_test

// States of a QP: the packets that each allows, what remains after it, and two QPs on a bad link.

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs"
)

// TestReuse checks that after ERR and RESET the QP is like new, with new PSNs, whatever its last
// state was.
func TestReuse(t *testing.T) {
	for name, leave := range map[string]func(r *rig){
		"idle":      func(r *rig) {},
		"in flight": func(r *rig) { r.post(r.wr(1, verbs.RDMARead, 3000), r.wr(2, verbs.Send, 3000)) },
		"waiting for a receive": func(r *rig) {
			r.post(r.wr(1, verbs.Send, 8))
			r.give(r.nak(wire.RNRNak, 0))
		},
		"in a SEND": func(r *rig) {
			r.recv(1, 0, 4096)
			r.give(r.req(wire.RCSendFirst, 0, fill(1024, 1)))
		},
		"in a WRITE":      func(r *rig) { r.give(r.req(wire.RCWriteFirst, 0, fill(1024, 1), r.at(0, 2048))) },
		"out of sequence": func(r *rig) { r.give(r.req(wire.RCWriteOnly, 7, nil)) },
		"refused":         func(r *rig) { r.give(r.req(wire.RCSendLast, 0, fill(8, 1))) },
		"in a long READ":  func(r *rig) { r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, 1<<20))) },
		"after READs": func(r *rig) {
			r.give(r.req(wire.RCReadRequest, 0, nil, r.at(0, 8)), r.req(wire.RCReadRequest, 1, nil, r.at(0, 8)))
		},
		"gone back": func(r *rig) {
			r.post(r.wr(1, verbs.RDMAWrite, 5000))
			r.give(r.nak(wire.NakPSNSeq, 3))
		},
	} {
		for _, throughErr := range []bool{false, true} {
			run(t, fmt.Sprint(name, ", through ERR ", throughErr), config{size: 1 << 20, timeout: 14, retry: 7, rnr: 7},
				func(t *testing.T, r *rig) {
					leave(r)
					if throughErr {
						r.modify(verbs.StateErr)
						poll(t, r.scq)
						poll(t, r.rcq)
					}
					r.modify(verbs.StateReset)
					r.completions(r.scq)
					r.take()
					r.c.rqPSN, r.c.sqPSN = 0x800000, 0xfffff0
					if name == "after READs" {
						r.c.rqPSN = 2 // an earlier READ would be a duplicate
					}
					r.connect()
					sleep(3 * time.Second)
					r.expect()
					r.recv(11, 0, 64)
					r.post(r.wr(12, verbs.Send, 8))
					r.give(
						r.req(wire.RCReadRequest, -1, nil, r.at(0, 8)),
						r.req(wire.RCSendOnly, 0, fill(64, 1), ackReq), r.ack(0))
					r.expect("SEND Only 0 len 8 ackreq", "ack 0 msn 1")
					r.completions(r.scq, "12 SUCCESS SEND 0")
					r.completions(r.rcq, "11 SUCCESS RECV 64")
				})
		}
	}
}

// TestDestroyedInFlight: neither packets nor timers find the QP any more.
func TestDestroyedInFlight(t *testing.T) {
	bubble(t, config{timeout: 10, retry: 7}, func(r *rig) {
		r.post(r.wr(1, verbs.RDMARead, 3000))
		r.take()
		if err := r.qp.Close(); err != nil {
			t.Fatal(err)
		}
		was := bytes.Clone(r.buf)
		r.give(r.data(wire.RCReadResponseFirst, 0, fill(1024, 1)), r.ack(0), r.req(wire.RCWriteOnly, 0, nil, ackReq))
		sleep(time.Second)
		r.expect()
		r.completions(r.scq)
		if !bytes.Equal(r.buf, was) {
			t.Error("memory has changed")
		}
		if n := r.counter("unknown_qp"); n != 3 {
			t.Errorf("%d packets are counted", n)
		}
		if n := r.counter("sent_pkts"); n != 1 {
			t.Errorf("%d packets sent are counted: a QP's count outlives it", n)
		}
	})
}

// TestRTR: in RTR requests are answered, and responses ignored.
func TestRTR(t *testing.T) {
	bubble(t, config{stopAt: verbs.StateRTR}, func(r *rig) {
		r.recv(1, 0, 64)
		r.give(r.ack(0), r.nak(wire.NakRemoteAccess, 0), r.data(wire.RCReadResponseOnly, 0, nil),
			r.req(wire.RCSendOnly, 0, fill(8, 1), ackReq))
		r.expect("ack 0 msn 1")
		r.completions(r.rcq, "1 SUCCESS RECV 8")
		r.state(verbs.StateRTR)
	})
}

// TestEvents: events for errors that no completion reports.
func TestEvents(t *testing.T) {
	for _, c := range []struct {
		name string
		c    config
		give func(r *rig) []wire.Packet
		want []verbs.AsyncEventType
	}{
		{"first request in RTR", config{stopAt: verbs.StateRTR},
			func(r *rig) []wire.Packet {
				return []wire.Packet{r.req(wire.RCWriteOnly, -1, nil), r.ack(0), r.req(wire.RCWriteOnly, 0, nil),
					r.req(wire.RCWriteOnly, 1, nil)}
			},
			[]verbs.AsyncEventType{verbs.EventCommEst}},
		{"first request in RTS", config{}, one(func(r *rig) wire.Packet { return r.req(wire.RCWriteOnly, 0, nil) }), nil},
		{"no access", config{},
			one(func(r *rig) wire.Packet { return r.req(wire.RCReadRequest, 0, nil, reth(0, 0, 8)) }),
			[]verbs.AsyncEventType{verbs.EventQPAccessErr}},
		{"invalid request", config{}, one(func(r *rig) wire.Packet { return r.req(wire.RCSendLast, 0, fill(8, 1)) }),
			[]verbs.AsyncEventType{verbs.EventQPReqErr}},
		{"a receive request reports it", config{},
			one(func(r *rig) wire.Packet { return r.req(wire.RCSendOnly, 0, fill(99, 1)) }),
			nil},
	} {
		run(t, c.name, c.c, func(t *testing.T, r *rig) {
			r.recv(1, 0, 64)
			r.give(c.give(r)...)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			var got []verbs.AsyncEventType
			for {
				e, err := r.dev.GetAsyncEvent(ctx)
				if err != nil {
					break
				}
				if e.QP != r.qp {
					t.Errorf("%v of another QP", e.Type)
				}
				got = append(got, e.Type)
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("events %v, want %v", got, c.want)
			}
		})
	}
}

// TestCQOverrun: a lost completion cannot be reported, so the QP stops. Its messages are placed.
func TestCQOverrun(t *testing.T) {
	bubble(t, config{cqe: 1}, func(r *rig) {
		r.recv(1, 0, 64)
		r.recv(2, 64, 64)
		r.give(r.req(wire.RCSendOnly, 0, fill(8, 1), ackReq), r.req(wire.RCSendOnly, 1, fill(8, 2), ackReq))
		r.expect("ack 0 msn 1", "ack 1 msn 2")
		if !bytes.Equal(r.buf[64:72], fill(8, 2)) {
			t.Error("the second message is lost")
		}
		var wcs [4]verbs.WC
		if n, err := r.rcq.Poll(wcs[:]); n != 1 || err != nil || wcs[0].WRID != 1 {
			t.Errorf("%d completions, %v", n, err)
		}
		if _, err := r.rcq.Poll(wcs[:]); !errors.Is(err, verbs.ErrCQOverrun) {
			t.Errorf("poll: %v", err)
		}
		r.state(verbs.StateErr)
		r.give(r.req(wire.RCSendOnly, 2, fill(8, 1), ackReq))
		r.expect()
	})
}

// TestWriteWithImmediateRefused: the WRITE's receive request ends with the error of its own side's
// memory.
func TestWriteWithImmediateRefused(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		r.recv(1, 0, 64)
		r.recv(2, 64, 64)
		p := r.req(wire.RCWriteOnlyImm, 0, fill(8, 1), r.at(0, 8), ackReq)
		p.RETH.RKey++
		r.give(p)
		r.expect("nak62 0 msn 0")
		r.completions(r.rcq, "1 LOC_ACCESS_ERR", "2 WR_FLUSH_ERR")
	})
}

// TestAccessChangesInRTS: the QP's access flags are checked for every request.
func TestAccessChangesInRTS(t *testing.T) {
	bubble(t, config{}, func(r *rig) {
		r.give(r.req(wire.RCWriteOnly, 0, fill(8, 1), r.at(0, 8), ackReq))
		r.expect("ack 0 msn 1")
		err := r.qp.Modify(&verbs.QPAttr{QPAccessFlags: verbs.AccessRemoteRead}, verbs.QPAttrAccessFlags)
		if err != nil {
			t.Fatal(err)
		}
		r.give(r.req(wire.RCReadRequest, 1, nil, r.at(0, 8)), r.req(wire.RCWriteOnly, 2, fill(8, 1), r.at(0, 8), ackReq))
		r.expect("Only 1 msn 2 len 8", "nak61 2 msn 2")
	})
}
