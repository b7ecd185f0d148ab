package conformance

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// TestNothingSentTwice moves data both ways at once, in real time and as fast as possible. Nothing
// is lost, so no timeout may fire. A packet may be repeated only as a probe of a late peer. Without
// selective repeat, a probe may make its sender go back once.
func TestNothingSentTwice(t *testing.T) {
	const size = 1 << 20
	count := 32
	if gate.InSystem() && !raceEnabled {
		count = 256
	}
	for _, selective := range []bool{false, true} {
		for _, mtu := range []verbs.MTU{verbs.MTU1024, verbs.MTU4096} {
			for _, code := range []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMARead, verbs.Send} {
				t.Run(fmt.Sprintf("selective=%t/%v/%v", selective, code, mtu), func(t *testing.T) {
					p := newPair(t, pairOptions{
						terms: func(c *terms) {
							c.mtu = mtu
							for i := range c.sides {
								c.sides[i].timeout = 21 // nine seconds: for losses, not for a busy machine
							}
						},
						nodes: &rdmatransport.Config{RoCE: roce.Config{SelectiveRepeat: selective}},
					})
					defer p.close()
					mr := [2]*verbs.MR{p.a.reg(make([]byte, 2*size), allAccess), p.b.reg(make([]byte, 2*size), allAccess)}
					ends := [2]*endpoint{p.a, p.b}
					elapsed := streams(t, ends, mr, code, 8, count, size)
					t.Logf("%.1f Gbit/s both ways", float64(2*count*size)*8/1e9/elapsed.Seconds())
					for i, e := range ends {
						checkRepeated(t, e, ends[1-i], selective)
					}
					for _, e := range ends {
						e.toErr()
						e.poll()
					}
					for _, m := range mr {
						ok(t, m.Close())
					}
				})
			}
		}
	}
}

// checkRepeated checks with the counters of e that e and its peer have repeated only probes.
func checkRepeated(t *testing.T, e, peer *endpoint, selective bool) {
	t.Helper()
	probes, asked := e.counter("tail_probes"), peer.counter("tail_probes")
	back := probes
	if selective {
		back = 0
	}
	if n := e.counter("completer_retry_err"); n > back {
		t.Errorf("went back %d times, after %d probes", n, probes)
	}
	if n := e.counter("duplicate_request"); n > asked && (selective || asked == 0) {
		t.Errorf("%d duplicate requests, and %d probes", n, asked)
	}
	for _, name := range []string{"out_of_seq_request", "rcvd_seq_err", "rcvd_rnr_err", "icrc_errors"} {
		if n := e.counter(name); n != 0 {
			t.Errorf("%s is %d; port %+v", name, n, e.host.Interfaces()[0].Counters())
		}
	}
}

// firstRecvs are posted before the peer begins, to avoid RNR NAKs.
const firstRecvs = 32

// streams lets both ends stream to each other, from region to region, with up to depth messages
// posted. It returns the duration.
func streams(t *testing.T, ends [2]*endpoint, mr [2]*verbs.MR, code verbs.WROpcode, depth, count, size int) time.Duration {
	for i, e := range ends {
		for range firstRecvs {
			ok(t, e.qp.PostRecv(&verbs.RecvWR{WRID: recvID, SGList: []verbs.SGE{mr[i].SGE(size, size)}}))
		}
	}
	start := time.Now()
	result := make(chan error, 2)
	for i, e := range ends {
		go func() { result <- e.stream(code, depth, count, size, mr[i], mr[1-i]) }()
	}
	ok(t, <-result)
	ok(t, <-result)
	return time.Since(start)
}

// stream sends count messages from the first half of mine to the second half of theirs, and
// receives as many.
func (e *endpoint) stream(code verbs.WROpcode, depth, count, size int, mine, theirs *verbs.MR) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	sent, received, posted, ready := 0, 0, 0, firstRecvs
	if code != verbs.Send {
		received = count
	}
	for sent < count || received < count {
		for ; code == verbs.Send && ready < count && ready-received < firstRecvs; ready++ {
			if err := e.qp.PostRecv(&verbs.RecvWR{WRID: recvID, SGList: []verbs.SGE{mine.SGE(size, size)}}); err != nil {
				return err
			}
		}
		for ; posted < count && posted-sent < depth && posted-received < depth; posted++ {
			if err := e.qp.PostSend(&verbs.SendWR{Opcode: code, Flags: verbs.SendSignaled, SGList: []verbs.SGE{mine.SGE(0, size)},
				RemoteAddr: theirs.Addr() + uint64(size), RKey: theirs.RKey()}); err != nil {
				return err
			}
		}
		var wcs [4]verbs.WC
		n, err := e.wait(ctx, wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			switch {
			case wc.Status != verbs.WCSuccess:
				return fmt.Errorf("WR %#x: %v", wc.WRID, wc.Status)
			case wc.WRID == recvID:
				received++
			default:
				sent++
			}
		}
	}
	return nil
}
