//go:build linux

package kernel_test

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// end is one end of a connection, with memory.
type end struct {
	*rdmacm.Conn
	t   testing.TB
	buf []byte
	mr  *verbs.MR
}

func newEnd(t testing.TB, c *rdmacm.Conn, size int) *end {
	e := &end{Conn: c, t: t, buf: make([]byte, size)}
	e.mr = must(c.PD().RegMR(e.buf, verbs.AccessLocalWrite|verbs.AccessRemoteWrite|verbs.AccessRemoteRead))(t)
	return e
}

func (e *end) post(wr *verbs.SendWR) {
	e.t.Helper()
	if err := e.QP().PostSend(wr); err != nil {
		e.t.Fatal(err)
	}
	e.done(e.SendCQ())
}

func (e *end) postRecv() {
	e.t.Helper()
	if err := e.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{e.mr.SGE(0, len(e.buf))}}); err != nil {
		e.t.Fatal(err)
	}
}

// settle orders this goroutine's accesses to the memory with the peer's writes. The race detector
// does not see that a packet is sent before it is received.
func (e *end) settle() {
	e.t.Helper()
	if _, _, err := e.QP().Query(); err != nil { // takes the QP's lock, as reception does
		e.t.Fatal(err)
	}
}

// done polls for one completion.
func (e *end) done(cq *verbs.CQ) verbs.WC {
	e.t.Helper()
	var wc [1]verbs.WC
	for give := time.Now().Add(20 * time.Second); ; {
		n, err := cq.Poll(wc[:])
		switch {
		case err != nil:
			e.t.Fatal(err)
		case n == 1 && wc[0].Status != verbs.WCSuccess:
			e.t.Fatalf("completion: %v", wc[0].Status)
		case n == 1:
			return wc[0]
		case time.Now().After(give):
			e.t.Fatal("no completion")
		}
	}
}

func open(t testing.TB, h *kernel.Host) *verbs.Device {
	dev := must(rdmatransport.Open(h, nil))(t)
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return dev
}

// dialRC connects two devices, which may be the same.
func dialRC(t testing.TB, from, to *verbs.Device, addr string, transport verbs.Transport) (a, b *rdmacm.Conn) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	size := verbs.QPCap{MaxSendWR: 64, MaxRecvWR: 64, MaxSendSGE: 2, MaxRecvSGE: 2}
	l := must(rdmacm.Listen(to, ":0", &rdmacm.Config{Transport: transport, Cap: size}))(t)
	defer l.Close()
	accepted := make(chan error, 1)
	go func() {
		var err error
		b, err = l.Accept(ctx)
		accepted <- err
	}()
	target := netip.AddrPortFrom(netip.MustParseAddr(addr), l.Addr().Port()).String()
	a = must(rdmacm.Dial(ctx, from, target, &rdmacm.Config{Transport: transport, Cap: size}))(t)
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(a.Close(), b.Close()); err != nil {
			t.Error(err)
		}
	})
	return a, b
}

// TestRDMA runs ping-pong, WRITE and READ of all sizes, over both transports, IPv4 and IPv6, as any
// user. No packet is lost to a wrong ICRC.
func TestRDMA(t *testing.T) {
	for _, c := range []struct{ name, from, to string }{
		{"IPv4", "127.0.0.1", "127.0.0.2"},
		{"IPv4, with itself", "127.0.0.1", "127.0.0.1"},
		{"IPv6, with itself", "::1", "::1"},
	} {
		for _, transport := range []verbs.Transport{verbs.RoCEv2, verbs.IWARP} {
			t.Run(c.name+" "+transport.String(), func(t *testing.T) {
				host := newHost(t, c.from)
				from := open(t, host)
				to := from
				if c.to != c.from {
					to = open(t, newHost(t, c.to))
				}
				onA, onB := dialRC(t, from, to, c.to, transport)
				const size = 1 << 20
				a, b := newEnd(t, onA, size), newEnd(t, onB, size)
				t.Cleanup(func() {
					if err := errors.Join(a.mr.Close(), b.mr.Close()); err != nil {
						t.Error(err)
					}
				})
				for i, n := range []int{1, 8, 1000, 4096, 4097, 65536, 300000, size} {
					for j := range a.buf[:n] {
						a.buf[j] = byte(i + j>>8 + j)
					}
					a.postRecv()
					b.postRecv()
					a.post(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, n)}})
					if wc := b.done(b.RecvCQ()); int(wc.ByteLen) != n || !bytes.Equal(a.buf[:n], b.buf[:n]) {
						t.Fatalf("SEND of %d bytes: %d arrived, equal: %t", n, wc.ByteLen, bytes.Equal(a.buf[:n], b.buf[:n]))
					}
					clear(a.buf[:n])
					a.settle()
					b.post(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled, SGList: []verbs.SGE{b.mr.SGE(0, n)}})
					a.done(a.RecvCQ())
					if !bytes.Equal(a.buf[:n], b.buf[:n]) {
						t.Fatalf("the answer of %d bytes differs", n)
					}
					clear(b.buf[:n])
					b.settle()
					remote := verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, n)},
						RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}
					a.post(&remote)
					remote.Opcode = verbs.RDMARead
					clear(a.buf[:n])
					a.post(&remote) // after the WRITE, whose data it reads
					b.settle()
					if !bytes.Equal(a.buf[:n], b.buf[:n]) || n > 1 && a.buf[1] == a.buf[0] {
						t.Fatalf("%d bytes read differ from those written", n)
					}
				}
				sent := host.NICs()[0].Counters()
				if roce := transport == verbs.RoCEv2; roce != (sent.TxDatagrams > 500) || roce && sent.TxFrames*4 > sent.TxDatagrams {
					t.Errorf("%d RoCE packets were sent in %d superframes", sent.TxDatagrams, sent.TxFrames)
				}
				for _, dev := range []*verbs.Device{from, to} {
					counters := must(dev.HWCounters())(t)
					for _, name := range []string{"icrc_errors", "malformed_packets", "port_rcv_errors", "port_xmit_discards"} {
						if counters[name] != 0 {
							t.Errorf("%s: %d", name, counters[name])
						}
					}
				}
			})
		}
	}
}
