package cm_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// drain runs Drain with a limit, and returns a channel for its result.
func (r *rig) drain(limit time.Duration) <-chan error {
	done := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(r.t.Context(), limit)
		defer cancel()
		done <- r.m.Drain(ctx)
	}()
	synctest.Wait()
	return done
}

// TestDrain checks that a program that exits waits until its peers have been notified. Unanswered
// DREQs are retransmitted soon, also those of connections closed during Drain.
func TestDrain(t *testing.T) {
	bubble(t, func(r *rig) {
		if err := <-r.drain(time.Hour); err != nil {
			t.Errorf("nothing to wait for: %v", err)
		}
	})
	bubble(t, func(r *rig) {
		c, id := r.passive()
		d, req, tid := r.asked()
		rep := kernelREP(req)
		rep.LocalCommID, rep.LocalQPN = peerID+1, peerQPN+1
		r.receive(tid, rep)
		r.event(rdmacm.ConnectResponse, 0)
		if err := d.Establish(); err != nil {
			t.Fatal(err)
		}
		next[*mad.RTU](r)
		c.Close()
		next[*mad.DREQ](r)
		start := time.Now()
		done := r.drain(time.Hour)
		r.nothing()
		time.Sleep(100 * time.Millisecond)
		m, _ := next[*mad.DREQ](r)
		if m.RemoteCommID != peerID {
			t.Errorf("DREQ %+v", m)
		}
		d.Close()
		next[*mad.DREQ](r)
		r.receive(1, &mad.DREP{LocalCommID: peerID, RemoteCommID: id})
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("Drain returned %v before the other connection's peer was notified", err)
		default:
		}
		time.Sleep(100 * time.Millisecond)
		next[*mad.DREQ](r)
		r.receive(1, &mad.DREP{LocalCommID: peerID + 1, RemoteCommID: req.LocalCommID})
		if err := <-done; err != nil || time.Since(start) != 200*time.Millisecond {
			t.Errorf("%v after %v, want nil after 200ms", err, time.Since(start))
		}
		r.nothing()
	})
}

// TestDrainEnds checks that peers without an answer delay Drain no longer than the context or
// sixteen DREQs.
func TestDrainEnds(t *testing.T) {
	bubble(t, func(r *rig) {
		c, _ := r.passive()
		c.Close()
		next[*mad.DREQ](r)
		if err := <-r.drain(250 * time.Millisecond); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		start := time.Now()
		done := r.drain(time.Hour)
		if err := <-done; err != nil || time.Since(start) > 2*time.Second {
			t.Errorf("%v after %v, want nil after less than 2 s", err, time.Since(start))
		}
		r.mu.Lock()
		if n := len(r.sent); n != 15 {
			t.Errorf("the DREQ was repeated %d times, want 15", n)
		}
		r.sent = nil
		r.mu.Unlock()
	})
}

// TestDrainWithoutHub checks that DREQs do not count while the port has no hub, and are sent to the
// next hub at once.
func TestDrainWithoutHub(t *testing.T) {
	bubble(t, func(r *rig) {
		c, id := r.passive()
		c.Close()
		next[*mad.DREQ](r)
		r.carrierExpected.Store(true)
		done := r.drain(time.Hour)
		time.Sleep(time.Minute)
		select {
		case err := <-done:
			t.Fatalf("Drain returned %v while there was no hub", err)
		default:
		}
		r.mu.Lock()
		r.sent = nil
		r.mu.Unlock()
		r.carrierExpected.Store(false)
		r.m.LinkUp(1)
		next[*mad.DREQ](r)
		r.receive(1, &mad.DREP{LocalCommID: peerID, RemoteCommID: id})
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	bubble(t, func(r *rig) {
		c, _ := r.passive()
		c.Close()
		r.carrierExpected.Store(true)
		if err := <-r.drain(time.Minute); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("without a next hub: %v", err)
		}
		r.mu.Lock()
		r.sent = nil
		r.mu.Unlock()
		r.carrierExpected.Store(false)
		start := time.Now()
		if err := <-r.drain(time.Hour); err != nil || time.Since(start) < time.Second || time.Since(start) > 2*time.Second {
			t.Errorf("%v after %v, want nil after 15 DREQs", err, time.Since(start))
		}
		r.mu.Lock()
		r.sent = nil
		r.mu.Unlock()
	})
}
