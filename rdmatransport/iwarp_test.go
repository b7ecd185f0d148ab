package rdmatransport_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// iwarpPair is two connected iWARP QPs on two devices of one switch.
type iwarpPair struct {
	a, b       *rdmacm.Conn
	mrA, mrB   *verbs.MR
	bufA, bufB []byte
}

const iwarpAccess = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

func newIWARPPair(t *testing.T, cfgA, cfgB iwarp.Config, size int) *iwarpPair {
	t.Helper()
	lan := pipe.New()
	device := func(addr string, cfg iwarp.Config) *verbs.Device {
		host, err := stack.New(lan.Port(), stack.Addr(addr))
		if err != nil {
			t.Fatal(err)
		}
		dev, err := verbs.Open(rdmatransport.New(host, rdmatransport.MPA(cfg)))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { host.Close() })
		return dev
	}
	devA, devB := device("10.0.0.1/24", cfgA), device("10.0.0.2/24", cfgB)
	p := &iwarpPair{bufA: make([]byte, size), bufB: make([]byte, size)}
	region := func(dev *verbs.Device, buf []byte) *verbs.MR {
		pd, err := dev.AllocPD()
		if err != nil {
			t.Fatal(err)
		}
		mr, err := pd.RegMR(buf, iwarpAccess)
		if err != nil {
			t.Fatal(err)
		}
		return mr
	}
	p.mrA, p.mrB = region(devA, p.bufA), region(devB, p.bufB)
	config := func(mr *verbs.MR) *rdmacm.Config {
		return &rdmacm.Config{
			Transport: verbs.IWARP, PD: mr.PD(),
			Cap: verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 8, MaxRecvSGE: 8, MaxInlineData: 64},
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	l, err := rdmacm.Listen(devB, ":7471", config(p.mrB))
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan error, 1)
	go func() {
		var err error
		p.b, err = l.Accept(ctx)
		accepted <- err
	}()
	if p.a, err = rdmacm.Dial(ctx, devA, "10.0.0.2:7471", config(p.mrA)); err != nil {
		t.Fatal(err)
	}
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.a.Close()
		p.b.Close()
		l.Close()
		for _, mr := range []*verbs.MR{p.mrA, p.mrB} {
			if err := mr.Dereg(); err != nil {
				t.Error(err)
			}
			pd := mr.PD()
			if err := pd.Dealloc(); err != nil {
				t.Error(err)
			}
			if err := pd.Device().Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return p
}

func poll(t *testing.T, cq *verbs.CQ) verbs.WC {
	t.Helper()
	var wc [1]verbs.WC
	for deadline := time.Now().Add(10 * time.Second); time.Now().Before(deadline); {
		n, err := cq.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		if n == 1 {
			return wc[0]
		}
		time.Sleep(50 * time.Microsecond)
	}
	t.Fatal("no completion in 10 s")
	return verbs.WC{}
}

// Every operation, over every agreement that MPA can come to.
func TestIWARPOperations(t *testing.T) {
	for name, cfg := range map[string][2]iwarp.Config{
		"default":         {},
		"markers":         {{Markers: true}, {Markers: true}},
		"markers one way": {{Markers: true}, {}},
		"no CRC":          {{NoCRC: true}, {NoCRC: true}},
		"revision 1":      {{Revision: 1}, {}},
		"no RTR":          {{NoPeerToPeer: true}, {}},
	} {
		t.Run(name, func(t *testing.T) {
			const size = 1 << 20
			p := newIWARPPair(t, cfg[0], cfg[1], size)
			for _, n := range []int{0, 1, 3, 1400, 1401, 65536, 300_001, size} {
				rand.Read(p.bufA[:n])
				post := func(wr *verbs.SendWR) verbs.WC {
					t.Helper()
					wr.Flags |= verbs.SendSignaled
					if err := p.a.QP().PostSend(wr); err != nil {
						t.Fatal(err)
					}
					wc := poll(t, p.a.SendCQ())
					if wc.Status != verbs.WCSuccess {
						t.Fatalf("%v of %d bytes: %v", wr.Opcode, n, wc.Status)
					}
					return wc
				}
				recv := func() verbs.WC {
					t.Helper()
					wc := poll(t, p.b.RecvCQ())
					if wc.Status != verbs.WCSuccess {
						t.Fatalf("receive: %v", wc.Status)
					}
					return wc
				}
				same := func(what string) {
					t.Helper()
					if !bytes.Equal(p.bufA[:n], p.bufB[:n]) {
						t.Fatalf("%s of %d bytes: data differ", what, n)
					}
				}
				if err := p.b.QP().PostRecv(&verbs.RecvWR{ID: 1, SGList: []verbs.SGE{p.mrB.SGE(0, size)}}, &verbs.RecvWR{ID: 2}); err != nil {
					t.Fatal(err)
				}
				half := n / 2
				post(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{p.mrA.SGE(0, half), p.mrA.SGE(half, n-half)}})
				if wc := recv(); int(wc.ByteLen) != n {
					t.Fatalf("SEND of %d bytes: %d received", n, wc.ByteLen)
				}
				same("SEND")
				rand.Read(p.bufA[:n])
				post(&verbs.SendWR{
					Opcode: verbs.RDMAWriteWithImm, SGList: []verbs.SGE{p.mrA.SGE(0, n)}, ImmData: 0xdecade,
					RemoteAddr: p.mrB.Addr(), RKey: p.mrB.RKey(),
				})
				if wc := recv(); int(wc.ByteLen) != n || wc.ImmData != 0xdecade || wc.Opcode != verbs.WCRecvRDMAWithImm {
					t.Fatalf("WRITE with immediate of %d bytes: %+v", n, wc)
				}
				same("WRITE")
				rand.Read(p.bufB[:n])
				wc := post(&verbs.SendWR{
					Opcode: verbs.RDMARead, SGList: []verbs.SGE{p.mrA.SGE(0, half), p.mrA.SGE(half, n-half)},
					RemoteAddr: p.mrB.Addr(), RKey: p.mrB.RKey(),
				})
				if int(wc.ByteLen) != n {
					t.Fatalf("READ of %d bytes: %d", n, wc.ByteLen)
				}
				same("READ")
			}
			clear(p.bufA[:16])
			clear(p.bufB[:16])
			p.bufB[0] = 7
			for _, op := range []verbs.WROpcode{verbs.AtomicFetchAndAdd, verbs.AtomicCmpAndSwp} {
				wr := &verbs.SendWR{
					Opcode: op, Flags: verbs.SendSignaled, SGList: []verbs.SGE{p.mrA.SGE(0, 8)}, CompareAdd: 5, Swap: 99,
					RemoteAddr: p.mrB.Addr(), RKey: p.mrB.RKey(),
				}
				if op == verbs.AtomicCmpAndSwp {
					wr.CompareAdd = 12
				}
				if err := p.a.QP().PostSend(wr); err != nil {
					t.Fatal(err)
				}
				if wc := poll(t, p.a.SendCQ()); wc.Status != verbs.WCSuccess || wc.ByteLen != 8 {
					t.Fatalf("%v: %+v", op, wc)
				}
			}
			if p.bufA[0] != 12 || p.bufB[0] != 99 {
				t.Fatalf("atomics: found %d, left %d", p.bufA[0], p.bufB[0])
			}
		})
	}
}
