package rdmatransport_test

import (
	"bytes"
	"testing"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestSRQAcrossTransports checks that QPs of both protocols take their receives from one SRQ, and
// that the limit event is raised.
func TestSRQAcrossTransports(t *testing.T) { overMedia(t, srqAcrossTransports) }

func srqAcrossTransports(t *testing.T, m medium) {
	const size = 4096 // several packets
	a, b := m.stations(t, nil)
	out := a.reg(make([]byte, size), everyAccess)
	buf := make([]byte, 8*size)
	in := b.reg(buf, verbs.AccessLocalWrite)
	srq := must(b.pd.CreateSRQ(&verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 8, MaxSGE: 1, Limit: 4}}))(t)
	t.Cleanup(func() { ok(t, srq.Close()) })
	for i := range 8 {
		ok(t, srq.PostRecv(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{in.SGE(i*size, size)}}))
	}
	var from, at []*rdmacm.Conn
	for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP, verbs.RoCEv2} {
		x, y := dial(a, b, transport, func(c *rdmacm.Config) { c.SRQ = srq })
		from, at = append(from, x), append(at, y)
	}
	for n := range uint64(8) {
		i := int(n) % len(from)
		copy(out.Buf(), bytes.Repeat([]byte{byte(n + 1)}, size))
		ok(t, from[i].QP().PostSend(&verbs.SendWR{
			Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{out.SGE(0, size)},
		}))
		wc := poll(t, at[i].QP().RecvCQ())
		if wc.Status != verbs.WCSuccess || wc.WRID != n || wc.ByteLen != size || wc.QPNum != at[i].QP().Num() {
			t.Fatalf("message %d: %+v", n, wc)
		}
		if got := buf[int(n)*size:][:size]; !bytes.Equal(got, out.Buf()) {
			t.Errorf("message %d: other data", n)
		}
		poll(t, from[i].QP().SendCQ())
	}
	for {
		if e := b.event(); e.Type == verbs.EventSRQLimitReached {
			if e.SRQ != srq {
				t.Errorf("got %+v", e)
			}
			break
		}
	}
}
