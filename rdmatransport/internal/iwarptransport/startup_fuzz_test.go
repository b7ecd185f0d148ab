package iwarptransport_test

import (
	"context"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// FuzzStartUp makes a peer send any bytes from the start to a node that listens or dials. The
// node's application gets a connection or an error within MPA's timeout. A connection ends when the
// peer leaves, nothing is left, and memory is bounded.
func FuzzStartUp(f *testing.F) {
	for _, dials := range []bool{false, true} {
		for _, with := range []func(*mpa.Frame){
			func(*mpa.Frame) {},
			func(m *mpa.Frame) { m.Markers = true },
			func(m *mpa.Frame) { m.CRC = false },
			func(m *mpa.Frame) { m.Rejected = true },
			func(m *mpa.Frame) { m.Revision, m.HasEnhanced = 1, false },
			func(m *mpa.Frame) { m.Enhanced.PeerToPeer, m.Enhanced.RDMARead = true, true },
			func(m *mpa.Frame) { m.Enhanced.IRD, m.Enhanced.ORD = 0, 0 },
			func(m *mpa.Frame) { m.PrivateData = make([]byte, 500) },
		} {
			m := request()
			if dials {
				m = reply()
			}
			with(&m)
			b := encode(f, m)
			f.Add(dials, uint8(0), b)
			f.Add(dials, uint8(7), append(b, make([]byte, 30)...))
			f.Add(dials, uint8(1), b[:len(b)-1])
		}
	}
	f.Fuzz(func(t *testing.T, dials bool, cut uint8, data []byte) {
		synctest.Test(t, func(t *testing.T) {
			bounded(t, 8<<20+16*uint64(len(data)), func() { fuzzStartUp(t, dials, cut, data) })
		})
	})
}

// bounded fails a run that allocates more memory than the peer's bytes justify, even if it is freed
// again.
func bounded(t *testing.T, most uint64, run func()) {
	t.Helper()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run()
	runtime.ReadMemStats(&after)
	if n := after.TotalAlloc - before.TotalAlloc; n > most {
		t.Errorf("%d bytes were allocated, want at most %d", n, most)
	}
}

func fuzzStartUp(t *testing.T, dials bool, cut uint8, data []byte) {
	n := &network{}
	if cut > 0 {
		n.cut = func(int) int { return int(cut) }
	}
	d := newNode(t, n, nodeAddr, 1024, iwarp.Config{Markers: cut&1 != 0})
	d.recvs, d.recvLen = 2, 32
	var p *peer
	var wait func() (*rdmacm.Conn, error)
	if dials {
		p, wait = d.dialling()
	} else {
		l, err := rdmacm.Listen(d.dev, nodePort, d.config())
		must(t, err)
		defer l.Close()
		p = rawDial(t, n)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // there may be no request
		defer cancel()
		done := make(chan struct{})
		var conn *rdmacm.Conn
		go func() {
			conn, err = l.Accept(ctx)
			close(done)
		}()
		wait = func() (*rdmacm.Conn, error) { <-done; return conn, err }
	}
	must(t, p.s.SetWriteDeadline(timeIn(1)))
	_, _ = p.s.Write(data) // the node may already have rejected it
	began := time.Now()
	conn, err := wait()
	if took := time.Since(began); took > time.Minute {
		t.Errorf("the application waits for %v", took)
	}
	p.s.Close()
	if err == nil {
		<-conn.Done()
		must(t, conn.Close())
	}
	synctest.Wait()
	drain(t, d.scq)
	drain(t, d.rcq)
}
