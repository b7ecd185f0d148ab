//go:build linux

package interop

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
)

// counters are values by the names of rxe's hw_counters, or their increments.
type counters map[string]uint64

// since returns the increments.
func (c counters) since(before counters) counters {
	d := make(counters)
	for name, n := range c {
		d[name] = n - before[name]
	}
	return d
}

// String returns the counters that are not zero.
func (c counters) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(c)) {
		if c[name] != 0 {
			fmt.Fprintf(&b, " %s=%d", name, c[name])
		}
	}
	return strings.TrimSpace(b.String())
}

// books has the counters of SoftRNIC and of a peer's rxe for the traffic between them.
type books struct {
	t          *testing.T
	here       softrnic
	linux      kernel
	link       *impair.Link // SoftRNIC's
	ours, rxes counters     // initial values, like those of link
	in, out    impair.Counters
}

func hwCounters(t *testing.T, dev *verbs.Device) map[string]uint64 {
	t.Helper()
	c, err := dev.HWCounters()
	fatal(t, err)
	return c
}

func openBooks(t *testing.T, here, linux device, l *impair.Link) *books {
	t.Helper()
	b := &books{t: t, here: here.(softrnic), linux: linux.in(t).(kernel), link: l}
	b.ours, b.rxes = hwCounters(t, b.here.dev), b.linux.Counters()
	b.in, b.out = l.Counters()
	return b
}

// balance waits until check accepts the increments of rxe's counters on both sides, and each side
// has received what the other sent. The last packets may be in flight, and the kernel's counters
// may be old.
func (b *books) balance(check func(ours, rxes counters) error) {
	b.t.Helper()
	for end := time.Now().Add(patience); ; {
		rxes := counters(b.linux.Counters()).since(b.rxes)
		now, ours := counters(hwCounters(b.t, b.here.dev)), make(counters)
		for name := range rxes {
			if _, ok := now[name]; !ok {
				b.t.Fatalf("SoftRNIC has no counter %s", name)
			}
			ours[name] = now[name] - b.ours[name]
		}
		err := check(ours, rxes)
		if err == nil {
			err = b.packets(ours, rxes)
		}
		if err == nil {
			return
		}
		if time.Now().After(end) {
			b.t.Fatalf("%v\nSoftRNIC: %v\nrxe:      %v", err, ours, rxes)
		}
	}
}

// packets checks that each side has received the packets of the other, except for the link's
// impairments, and without these their bytes, if rxe counts them: see peer.CountsBytes.
func (b *books) packets(ours, rxes counters) error {
	in, out := b.link.Counters()
	for _, way := range []struct {
		whose            string
		from, to         counters
		lost, duplicated uint64
	}{
		{"SoftRNIC's", ours, rxes, out.Lost - b.out.Lost, out.Duplicated - b.out.Duplicated},
		{"rxe's", rxes, ours, in.Lost - b.in.Lost, in.Duplicated - b.in.Duplicated},
	} {
		if way.from["sent_pkts"]-way.lost+way.duplicated != way.to["rcvd_pkts"] {
			return fmt.Errorf("of %s packets %d were sent, %d lost, %d duplicated and %d received",
				way.whose, way.from["sent_pkts"], way.lost, way.duplicated, way.to["rcvd_pkts"])
		}
		if _, counted := rxes["sent_bytes"]; counted && way.lost+way.duplicated == 0 && way.from["sent_bytes"] != way.to["rcvd_bytes"] {
			return fmt.Errorf("of %s packets %d bytes were sent and %d received", way.whose, way.from["sent_bytes"], way.to["rcvd_bytes"])
		}
	}
	return nil
}

// countedExchange is traffic between a requester and a responder, and the expected counters of
// either role.
type countedExchange struct {
	name string
	path path
	bad  impair.Direction // of the link, in both directions
	run  func(o *operation)
	// often names a counter of the requester that depends on time, but is not 0. n is its value, or
	// 0 without such a counter.
	often                string
	requester, responder func(n uint64) counters
	// asRxe has the counters that differ for rxe as the requester, and why has the reason.
	asRxe counters
	why   string
}

// check compares the increments with the expected ones. The requester differs in some.
func (e countedExchange) check(requester, responder, differently counters) error {
	n := requester[e.often]
	if e.often != "" && n == 0 {
		return fmt.Errorf("the requester's %s is 0", e.often)
	}
	want := e.requester(n)
	maps.Copy(want, differently)
	if err := requester.are(want); err != nil {
		return fmt.Errorf("requester: %w", err)
	}
	if err := responder.are(e.responder(n)); err != nil {
		return fmt.Errorf("responder: %w", err)
	}
	return nil
}

// varying are counters that need not be 0. Acknowledgements may be combined or superfluous.
// ack_deferred counts how often one arrived before rxe's completer had handled the previous one.
var varying = []string{"sent_pkts", "rcvd_pkts", "sent_bytes", "rcvd_bytes", "ack_deferred"}

// are reports the first unexpected counter. A counter that is not named there must be 0, except
// for varying ones.
func (c counters) are(want counters) error {
	for _, name := range slices.Sorted(maps.Keys(c)) {
		n, named := want[name]
		if c[name] != n && (named || !slices.Contains(varying, name)) {
			return fmt.Errorf("%s is %d, want %d", name, c[name], n)
		}
	}
	return nil
}

func countedExchanges(t *testing.T) []countedExchange {
	calm := usual
	calm.timeout = 21 // 8.6 s: even a slow machine does not reach it
	late := calm
	late.minRNRTimer = 24 // 41 ms
	never := calm
	never.rnrRetry = 2
	unanswered := usual
	unanswered.timeout = 16 // 0.27 s
	impatient := usual
	impatient.timeout, impatient.retryCnt = 13, 2 // 34 ms

	rule := func(action impair.Action, class string, nth int) impair.Rule {
		match, err := impair.Class(class)
		if err != nil {
			t.Fatal(err)
		}
		return impair.Rule{Match: match, Nth: nth, Action: action}
	}
	rules := func(r ...impair.Rule) impair.Direction { return impair.Direction{Rules: r} }
	all := rule(impair.Drop, "write", 1)
	all.Count = -1
	// one does one request, with a receive for a SEND that is to succeed.
	one := func(opcode verbs.WROpcode, size int, want verbs.WCStatus) func(o *operation) {
		return func(o *operation) {
			o.t.Helper()
			if opcode == verbs.Send && want == ok {
				o.postRecv(o.remote.SGE(0, size))
			}
			o.post(verbs.SendWR{Opcode: opcode, SGList: []verbs.SGE{o.local.SGE(0, size)}})
			if wcs := o.requester.qp.PollSend(1, patience); len(wcs) != 1 || wcs[0].Status != want {
				o.t.Fatalf("%v: completions %+v, want %v", opcode, wcs, want)
			}
		}
	}
	always := func(c counters) func(uint64) counters {
		return func(uint64) counters { return maps.Clone(c) }
	}
	return []countedExchange{
		{
			name: "every_operation", path: calm,
			run: func(o *operation) {
				o.transfer(verbs.Send, 5000)
				o.transfer(verbs.SendWithImm, 16)
				o.transfer(verbs.RDMAWrite, 3000)
				o.transfer(verbs.RDMAWriteWithImm, 100)
				o.transfer(verbs.RDMARead, 3500)
				o.atomics() // four
			},
			requester: always(counters{"sent_pkts": 5 + 1 + 3 + 1 + 1 + 4, "rcvd_pkts": 1 + 1 + 1 + 1 + 4 + 4, "rdma_sends": 2}),
			responder: always(counters{"sent_pkts": 12, "rcvd_pkts": 15, "rdma_recvs": 3}),
		}, {
			name: "receive_posted_late", path: late,
			run: func(o *operation) {
				o.post(verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{o.local.SGE(0, 16)}})
				if wcs := o.requester.qp.PollSend(1, 100*time.Millisecond); len(wcs) > 0 {
					o.t.Fatalf("completes as %v with no receive posted", wcs[0].Status)
				}
				o.postRecv(o.remote.SGE(0, 16))
				o.sent("SEND before its receive", verbs.WCSend)
			},
			often: "rcvd_rnr_err",
			requester: func(n uint64) counters {
				return counters{"sent_pkts": n + 1, "rcvd_pkts": n + 1, "rcvd_rnr_err": n, "rdma_sends": 1}
			},
			responder: func(n uint64) counters {
				return counters{"sent_pkts": n + 1, "rcvd_pkts": n + 1, "send_rnr_err": n, "rdma_recvs": 1}
			},
		}, {
			name: "receive_never_posted", path: never,
			run:       one(verbs.Send, 16, rnrExc),
			requester: always(counters{"sent_pkts": 3, "rcvd_pkts": 3, "rcvd_rnr_err": 3, "retry_rnr_exceeded_err": 1}),
			responder: always(counters{"sent_pkts": 3, "rcvd_pkts": 3, "send_rnr_err": 3}),
			asRxe:     counters{"rdma_sends": 1}, why: "it counts SENDs with any outcome",
		}, {
			// The first packet of the SEND, and the third of the WRITE.
			name: "packets_lost", path: calm, bad: rules(rule(impair.Drop, "send", 1), rule(impair.Drop, "write", 3)),
			run: func(o *operation) {
				one(verbs.Send, 3000, ok)(o)
				one(verbs.RDMAWrite, 5000, ok)(o)
			},
			requester: always(counters{"rcvd_pkts": 4, "rcvd_seq_err": 2, "completer_retry_err": 2, "rdma_sends": 1}),
			responder: always(counters{"sent_pkts": 4, "out_of_seq_request": 2, "rdma_recvs": 1}),
			asRxe:     counters{"rcvd_seq_err": 1}, why: "it counts a sequence NAK only if that acknowledges something",
		}, {
			name: "acknowledgement_lost", path: unanswered, bad: rules(rule(impair.Drop, "ack", 1)),
			run:   one(verbs.Send, 16, ok),
			often: "completer_retry_err",
			requester: func(n uint64) counters {
				return counters{"sent_pkts": n + 1, "completer_retry_err": n, "rdma_sends": 1}
			},
			responder: func(n uint64) counters {
				return counters{"rcvd_pkts": n + 1, "duplicate_request": n, "rdma_recvs": 1}
			},
		}, {
			name: "requests_duplicated", path: calm, bad: rules(rule(impair.Duplicate, "send", 1),
				rule(impair.Duplicate, "read-request", 1)),
			run: func(o *operation) {
				one(verbs.Send, 16, ok)(o)
				one(verbs.RDMARead, 2000, ok)(o)
			},
			requester: always(counters{"sent_pkts": 2, "rdma_sends": 1}),
			responder: always(counters{"rcvd_pkts": 4, "duplicate_request": 2, "rdma_recvs": 1}),
		}, {
			name: "nothing_arrives", path: impatient, bad: rules(all),
			run:       one(verbs.RDMAWrite, 16, verbs.WCRetryExcErr),
			requester: always(counters{"sent_pkts": 3, "completer_retry_err": 2, "retry_exceeded_err": 1}),
			responder: always(counters{}),
		},
	}
}

// TestCounters lets SoftRNIC and rxe do the same exchanges with each other, in both roles. In the
// same role, they count the same. rxe counts all traffic of its device, so only this test uses the
// peer's rdma_cm: it would repeat messages to hosts that have ended.
func TestCounters(t *testing.T) {
	gate.System(t)
	p := peer.Boot(t, peer.Config{ID: 2, MTU: 4200})[0]
	open := func(t *testing.T, bad impair.Direction) (*impair.Link, device) {
		l, err := impair.New(openTAP(t, p.Netns), &impair.Config{In: bad, Out: bad})
		if err != nil {
			t.Fatal(err)
		}
		return l, openSoftRNIC(t, l, nil)
	}
	linux := openKernel(t, p)
	if _, counted := linux.(kernel).Counters()["sent_bytes"]; counted != p.Kernel.Has(peer.CountsBytes) {
		t.Errorf("rxe counts bytes: %v, the table of kernels says %v", counted, !counted)
	}
	for _, e := range countedExchanges(t) {
		t.Run(e.name, func(t *testing.T) {
			if (e.asRxe != nil) != (e.why != "") {
				t.Errorf("the differences of rxe are %v, because %q", e.asRxe, e.why)
			}
			l, here := open(t, e.bad)
			t.Run("requester", func(t *testing.T) {
				b := openBooks(t, here, linux, l)
				e.run(newOperation(t, newSide(t, here, softrnicAddr4), newSide(t, linux, p.Addr4()), e.path, 8192))
				b.balance(func(ours, rxes counters) error { return e.check(ours, rxes, nil) })
			})
			t.Run("responder", func(t *testing.T) {
				b := openBooks(t, here, linux, l)
				e.run(newOperation(t, newSide(t, linux, p.Addr4()), newSide(t, here, softrnicAddr4), e.path, 8192))
				b.balance(func(ours, rxes counters) error { return e.check(rxes, ours, e.asRxe) })
			})
		})
	}
	// The connection manager's messages are SENDs of QP 1.
	t.Run("rdma_cm", func(t *testing.T) {
		const connections, messages = 3, 10
		l, here := open(t, impair.Direction{})
		b := openBooks(t, here, linux, l)
		lab := cmPair{cmLab{p, here.(softrnic).dev, verbs.RoCEv2}, softrnicAddr4, p.Addr4()}
		c := newCmatose(t, lab.cmLab, connections, messages)
		lab.kernelServes(t, fmt.Sprintf("ucmatose -b %v -c %d -C %d", lab.there, connections, messages), func(ctx context.Context) error {
			return c.connect(ctx, netip.AddrPortFrom(lab.there, cmatosePort))
		})
		b.balance(func(ours, rxes counters) error {
			const least = connections*messages + connections*2 // of REQ and RTU, or REP and DREQ
			if ours["rdma_sends"] < least || rxes["rdma_sends"] < least {
				return fmt.Errorf("the messages of rdma_cm are not all counted")
			}
			if ours["rdma_sends"] != rxes["rdma_recvs"] || rxes["rdma_sends"] != ours["rdma_recvs"] {
				return fmt.Errorf("messages sent and received differ")
			}
			return nil
		})
	})
}
