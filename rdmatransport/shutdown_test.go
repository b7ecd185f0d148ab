package rdmatransport_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// completion returns the CQ's next completion.
func completion(t *testing.T, cq *verbs.CQ) verbs.WC {
	t.Helper()
	var wc [1]verbs.WC
	for end := time.Now().Add(20 * time.Second); must(cq.Poll(wc[:]))(t) == 0; {
		if time.Now().After(end) {
			t.Fatal("no completion")
		}
		time.Sleep(100 * time.Microsecond)
	}
	return wc[0]
}

// flushed fails the test unless the CQ's next completion is that of a flushed request.
func flushed(t *testing.T, cq *verbs.CQ, id uint64) {
	t.Helper()
	if wc := completion(t, cq); wc.WRID != id || wc.Status != verbs.WCWRFlushErr {
		t.Errorf("completion of %d with %v, want %d flushed", wc.WRID, wc.Status, id)
	}
}

// TestShutdown checks that everything that a program has left open ends at once, for its peers and
// for its own goroutines.
func TestShutdown(t *testing.T) {
	overAll(t, func(t *testing.T, m medium, transport verbs.Transport) {
		a, b := m.stations(t, nil)
		conn, peer := dial(a, b, transport, nil)
		ok(t, peer.QP().PostRecv(&verbs.RecvWR{WRID: 7}))
		ok(t, conn.QP().PostRecv(&verbs.RecvWR{WRID: 8}))

		// A QP that is not known to rdma_cm.
		own := must(b.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, Transport: transport, SendCQ: peer.SendCQ(), RecvCQ: peer.SendCQ(),
			Cap: verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}}))(t)
		defer own.Close()
		attr, mask := verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1},
			verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags
		if transport == verbs.IWARP {
			mask &^= verbs.QPAttrPKeyIndex
		}
		ok(t, own.Modify(&attr, mask))
		ok(t, own.PostRecv(&verbs.RecvWR{WRID: 9}))

		// Two listeners: one has an unanswered request, the other waits for requests.
		cfg := &rdmacm.Config{Transport: transport}
		asked := must(rdmacm.Listen(b.dev, ":7471", cfg))(t)
		served := must(rdmacm.Listen(b.dev, ":7472", cfg))(t)
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		var work sync.WaitGroup
		refused := make(chan error, 1)
		go func() {
			_, err := rdmacm.Dial(ctx, a.dev, b.at(7471), cfg)
			refused <- err
		}()
		request := must(asked.Request(ctx))(t)
		work.Go(func() {
			if _, err := asked.Request(ctx); !errors.Is(err, syscall.ENODEV) {
				t.Errorf("Request: %v", err)
			}
		})
		work.Go(func() {
			if _, err := served.Accept(ctx); !errors.Is(err, syscall.ENODEV) {
				t.Errorf("Accept: %v", err)
			}
		})
		start := time.Now()
		ok(t, b.dev.Shutdown(ctx))
		if took := time.Since(start); took > 10*time.Second {
			t.Errorf("Shutdown took %v", took)
		}
		for _, c := range []*rdmacm.Conn{conn, peer} {
			select {
			case <-c.Done():
			case <-ctx.Done():
				t.Fatal("the connection has not ended")
			}
		}
		flushed(t, conn.RecvCQ(), 8)
		flushed(t, peer.RecvCQ(), 7)
		flushed(t, peer.SendCQ(), 9)
		if err := <-refused; !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("the dial that was not accepted: %v", err)
		}
		if _, err := request.Accept(ctx, cfg); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("Accept of a request: %v", err)
		}
		if _, err := rdmacm.Dial(ctx, b.dev, a.at(7473), cfg); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("Dial: %v", err)
		}
		if _, err := rdmacm.Listen(b.dev, ":7474", cfg); !errors.Is(err, syscall.ENODEV) {
			t.Errorf("Listen: %v", err)
		}
		if e := b.event(); e.Type != verbs.EventDeviceFatal {
			t.Errorf("%v, want DEVICE_FATAL", e.Type)
		}
		work.Wait()
		ok(t, b.dev.Shutdown(ctx)) // there is nothing left to end
		for _, l := range []*rdmacm.Listener{asked, served} {
			ok(t, l.Close())
		}
	})
}

// TestShutdownOverBadNetwork checks that the peer's end of a connection ends at once, even if the
// first disconnect message was lost. A vanished peer does not delay the program.
func TestShutdownOverBadNetwork(t *testing.T) {
	for name, c := range map[string]struct {
		lost     int // number of frames lost of those that b sends from then on; -1: all
		notified bool
	}{"DREQ lost": {1, true}, "peer gone": {-1, false}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lan := new(pipe.Switch)
				var shut atomic.Bool
				bad := must(impair.New(lan.Port(), &impair.Config{Out: impair.Direction{Rules: []impair.Rule{{
					Match: func(f []byte) bool { return shut.Load() && isRoCE(f) }, Count: c.lost, Action: impair.Drop,
				}}}}))(t)
				a, b := newStation(t, lan, "10.0.0.1/24"), newStationOn(t, bad, "10.0.0.2/24", nil)
				conn, peer := dial(a, b, verbs.RoCEv2, nil)
				shut.Store(true)
				start := time.Now()
				ok(t, b.dev.Shutdown(t.Context()))
				if took := time.Since(start); took > 2*time.Second {
					t.Errorf("Shutdown took %v", took)
				}
				<-peer.Done()
				synctest.Wait()
				select {
				case <-conn.Done():
					if !c.notified {
						t.Error("the peer has been notified")
					}
				default:
					if c.notified {
						t.Error("the peer has not been notified")
					}
				}
			})
		})
	}
}

// TestShutdownWaitsForData checks that data of completed iWARP requests reaches the peer, even if
// the program's host is closed as soon as Shutdown returns. TCP needs real time.
func TestShutdownWaitsForData(t *testing.T) {
	lan := new(pipe.Switch)
	far := must(impair.New(lan.Port(), &impair.Config{Out: impair.Direction{Delay: 50 * time.Millisecond}}))(t)
	a, b := newStation(t, lan, "10.0.0.1/24"), newStationOn(t, far, "10.0.0.2/24", nil)
	conn, peer := dial(a, b, verbs.IWARP, nil)
	from, to := b.reg(make([]byte, 1<<16), everyAccess), a.reg(make([]byte, 1<<16), everyAccess)
	ok(t, conn.QP().PostRecv(&verbs.RecvWR{WRID: 1, SGList: []verbs.SGE{to.SGE(0, 1<<16)}}))
	ok(t, peer.QP().PostSend(&verbs.SendWR{WRID: 2, Opcode: verbs.Send, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{from.SGE(0, 1<<16)}}))
	if wc := completion(t, peer.SendCQ()); wc.Status != verbs.WCSuccess {
		t.Fatalf("SEND: %v", wc.Status)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	ok(t, b.dev.Shutdown(ctx))
	ok(t, b.host.Close())
	if wc := completion(t, conn.RecvCQ()); wc.Status != verbs.WCSuccess || wc.ByteLen != 1<<16 {
		t.Errorf("receive: %v, %d bytes", wc.Status, wc.ByteLen)
	}
}

// TestProviderClosed checks that closing the provider of an open device ends all objects of the
// device.
func TestProviderClosed(t *testing.T) { overMedia(t, providerClosed) }

func providerClosed(t *testing.T, m medium) {
	s, _ := m.stations(t, nil)
	id := must(rdmacm.CreateSyncID(rdmacm.TCP, s.dev))(t)
	ok(t, id.Listen(1))
	ok(t, s.dev.Provider().Close())
	if e := cmEvent(t, id.ID); e != rdmacm.DeviceRemoval {
		t.Errorf("%v, want DEVICE_REMOVAL", e)
	}
	ok(t, id.Close())
}
