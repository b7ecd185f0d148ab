package cm_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// timeWait is the time wait of a connection with ACK timeout 19.
const timeWait = 2048 * time.Millisecond

func TestDisconnect(t *testing.T) {
	bubble(t, func(r *rig) {
		c, id := r.passive()
		if err := c.Disconnect(); err != nil {
			t.Fatal(err)
		}
		m, _ := next[*mad.DREQ](r)
		if m.LocalCommID != id || m.RemoteCommID != peerID || m.RemoteQPN != peerQPN {
			t.Errorf("DREQ %+v", m)
		}
		time.Sleep(4096 * time.Millisecond)
		next[*mad.DREQ](r)
		r.receive(1, &mad.DREP{LocalCommID: peerID, RemoteCommID: id})
		r.event(rdmacm.Disconnected, 0)
		r.receive(1, &mad.DREP{LocalCommID: peerID, RemoteCommID: id})
		if err := c.Disconnect(); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("in time wait: %v", err)
		}
		if _, _, err := c.QPAttr(verbs.StateRTS); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("QPAttr in time wait: %v", err)
		}
		time.Sleep(timeWait - time.Nanosecond)
		r.nothing()
		time.Sleep(time.Nanosecond)
		r.event(rdmacm.TimewaitExit, 0)
		if n := r.m.Len(); n != 0 {
			t.Errorf("%d connections are kept", n)
		}
		r.nothing()
	})
}

func TestDisconnectedByPeer(t *testing.T) {
	bubble(t, func(r *rig) {
		c, id := r.passive()
		dreq := &mad.DREQ{LocalCommID: peerID, RemoteCommID: id, RemoteQPN: ourQPN}
		r.receive(5, dreq)
		r.event(rdmacm.Disconnected, 0)
		r.receive(6, dreq)
		r.nothing()
		if err := c.Disconnect(); err != nil {
			t.Fatal(err)
		}
		for tid := uint64(6); tid < 9; tid++ {
			if m, s := next[*mad.DREP](r); m.LocalCommID != id || m.RemoteCommID != peerID || s.tid != tid {
				t.Errorf("DREP %+v", m)
			}
			r.receive(tid+1, dreq) // the DREP was lost
		}
		next[*mad.DREP](r)
		time.Sleep(timeWait)
		r.event(rdmacm.TimewaitExit, 0)
		r.receive(10, dreq) // the state is dropped already, but it is answered
		if m, _ := next[*mad.DREP](r); m.LocalCommID != id || m.RemoteCommID != peerID {
			t.Errorf("DREP %+v", m)
		}
		r.nothing()
	})
}

func TestDREQWithoutDREP(t *testing.T) {
	bubble(t, func(r *rig) {
		c, _, _ := r.established()
		if err := c.Disconnect(); err != nil {
			t.Fatal(err)
		}
		for range 16 {
			next[*mad.DREQ](r)
			r.nothing()
			time.Sleep(6144 * time.Millisecond)
		}
		r.event(rdmacm.Disconnected, timedOut)
		time.Sleep(timeWait)
		r.event(rdmacm.TimewaitExit, 0)
		time.Sleep(time.Hour)
		r.nothing()
	})
}

// TestLinkUp checks that unanswered messages are retransmitted when the link returns, once more
// after a second, and then as usual.
func TestLinkUp(t *testing.T) {
	bubble(t, func(r *rig) {
		c, id := r.passive()
		r.m.LinkUp(1)
		r.nothing()
		if err := c.Disconnect(); err != nil {
			t.Fatal(err)
		}
		next[*mad.DREQ](r)
		time.Sleep(time.Millisecond)
		r.m.LinkUp(2) // another port
		r.nothing()
		r.m.LinkUp(1)
		for _, pause := range []time.Duration{time.Second, 4096 * time.Millisecond, 4096 * time.Millisecond} {
			next[*mad.DREQ](r)
			time.Sleep(pause - time.Nanosecond)
			r.nothing()
			time.Sleep(time.Nanosecond)
		}
		next[*mad.DREQ](r)
		r.receive(1, &mad.DREP{LocalCommID: peerID, RemoteCommID: id})
		r.event(rdmacm.Disconnected, 0)
		r.m.LinkUp(1)
		r.nothing()
	})
}

// TestLinkUpAfterMRA checks that nothing is retransmitted to a peer that has sent an MRA.
func TestLinkUpAfterMRA(t *testing.T) {
	bubble(t, func(r *rig) {
		_, req, tid := r.asked()
		r.receive(tid, &mad.MRA{LocalCommID: peerID, RemoteCommID: req.LocalCommID, About: mad.AnsweredREQ, ServiceTimeout: 20})
		r.m.LinkUp(1)
		r.nothing()
	})
}

func TestBothDisconnect(t *testing.T) {
	bubble(t, func(r *rig) {
		c, id := r.passive()
		if err := c.Disconnect(); err != nil {
			t.Fatal(err)
		}
		next[*mad.DREQ](r)
		r.receive(5, &mad.DREQ{LocalCommID: peerID, RemoteCommID: id, RemoteQPN: ourQPN})
		if _, s := next[*mad.DREP](r); s.tid != 5 {
			t.Errorf("transaction %d", s.tid)
		}
		r.event(rdmacm.Disconnected, 0)
		r.receive(1, &mad.DREP{LocalCommID: peerID, RemoteCommID: id})
		time.Sleep(time.Minute)
		r.event(rdmacm.TimewaitExit, 0)
		r.nothing()
	})
}

// TestForgedMessages checks that an established connection accepts only messages of its peer that
// name all of its IDs.
func TestForgedMessages(t *testing.T) {
	bubble(t, func(r *rig) {
		c, id := r.passive()
		dreq := mad.DREQ{LocalCommID: peerID, RemoteCommID: id, RemoteQPN: ourQPN}
		rej := mad.REJ{LocalCommID: peerID, RemoteCommID: id, Reason: mad.ConsumerDefined}
		// From another address.
		r.receiveFrom(third, 1, &dreq)
		r.receiveFrom(third, 1, &rej)
		r.receiveFrom(third, 1, &mad.LAP{LocalCommID: peerID, RemoteCommID: id})
		if apr, s := next[*mad.APR](r); apr.Status != mad.APRInvalidCommID || s.to != third {
			t.Errorf("%+v", apr)
		}
		// With one wrong field.
		for _, m := range []mad.Message{
			&mad.DREQ{LocalCommID: peerID + 1, RemoteCommID: id, RemoteQPN: ourQPN},
			&mad.DREQ{LocalCommID: peerID, RemoteCommID: id, RemoteQPN: ourQPN + 1},
			&mad.REJ{LocalCommID: peerID + 1, RemoteCommID: id, Reason: mad.ConsumerDefined},
			&mad.REJ{LocalCommID: peerID + 1, RemoteCommID: id, Reason: mad.Timeout, InfoLen: 8, Info: make([]byte, 72)},
			&mad.REJ{LocalCommID: 0, RemoteCommID: id, About: mad.AnsweredREQ, Reason: mad.InvalidServiceID},
			&mad.DREP{LocalCommID: peerID, RemoteCommID: id},
			&mad.RTU{LocalCommID: peerID, RemoteCommID: id},
			&mad.MRA{LocalCommID: peerID, RemoteCommID: id, ServiceTimeout: 20},
			&mad.REP{LocalCommID: peerID, RemoteCommID: id, LocalQPN: peerQPN},
		} {
			r.receive(1, m)
		}
		r.nothing()
		// Another host that claims the peer's QP and GUID gets a connection of its own.
		m := kernelREQ()
		ip := mad.IPCM{Src: third, Dst: here}
		m.PrivateData, m.Primary.LocalGID = ip.Append(nil), third.As16()
		r.receiveFrom(third, 3, m)
		r.event(rdmacm.ConnectRequest, 0)
		if _, _, err := c.QPAttr(verbs.StateRTS); err != nil {
			t.Errorf("no longer established: %v", err)
		}
		r.nothing()
	})
}

// TestStaleConnection checks a new connection request of the peer's QP, which shows that the peer
// has lost the old connection.
func TestStaleConnection(t *testing.T) {
	bubble(t, func(r *rig) {
		c, id := r.passive()
		m := kernelREQ()
		m.LocalCommID++
		r.receive(peerTID+1, m)
		if rej, s := next[*mad.REJ](r); rej.Reason != mad.StaleConnection || rej.RemoteCommID != m.LocalCommID || s.tid != peerTID+1 {
			t.Errorf("REJ %+v", rej)
		}
		if d, _ := next[*mad.DREQ](r); d.LocalCommID != id || d.RemoteCommID != peerID {
			t.Errorf("DREQ %+v", d)
		}
		r.receive(1, &mad.DREP{LocalCommID: peerID, RemoteCommID: id})
		if e := r.event(rdmacm.Disconnected, 0); e.Conn != c {
			t.Error("disconnected: another connection")
		}
		r.receive(peerTID+2, m) // now there is room
		r.event(rdmacm.ConnectRequest, 0)
		r.nothing()
	})
}

func TestREJOfEstablished(t *testing.T) {
	bubble(t, func(r *rig) {
		_, id := r.passive()
		r.receive(peerTID, &mad.REJ{LocalCommID: peerID, RemoteCommID: id, About: mad.AnsweredREP, Reason: mad.ConsumerDefined})
		r.event(rdmacm.Rejected, 28)
		time.Sleep(time.Hour)
		r.nothing()
	})
}

// TestClose checks that in each state the peer gets the right message, and that nothing is
// reported.
func TestClose(t *testing.T) {
	t.Run("REQ sent", func(t *testing.T) {
		bubble(t, func(r *rig) {
			c, _, _ := r.asked()
			c.Close()
			if rej, _ := next[*mad.REJ](r); rej.Reason != mad.Timeout || rej.InfoLen != 8 {
				t.Errorf("REJ %+v", rej)
			}
			r.forgotten(c)
		})
	})
	t.Run("REQ received", func(t *testing.T) {
		bubble(t, func(r *rig) {
			r.listen(rdmacm.TCP, 1)
			r.receive(peerTID, kernelREQ())
			c := r.event(rdmacm.ConnectRequest, 0).Conn
			c.Close()
			if rej, _ := next[*mad.REJ](r); rej.Reason != mad.ConsumerDefined || rej.About != mad.AnsweredREQ {
				t.Errorf("REJ %+v", rej)
			}
			r.forgotten(c)
		})
	})
	t.Run("REP sent", func(t *testing.T) {
		bubble(t, func(r *rig) {
			c, rep := r.accepted()
			c.Close()
			if rej, _ := next[*mad.REJ](r); rej.Reason != mad.ConsumerDefined || rej.LocalCommID != rep.LocalCommID {
				t.Errorf("REJ %+v", rej)
			}
			r.forgotten(c)
		})
	})
	t.Run("established", func(t *testing.T) {
		bubble(t, func(r *rig) {
			c, id := r.passive()
			c.Close()
			next[*mad.DREQ](r)
			time.Sleep(4096 * time.Millisecond)
			next[*mad.DREQ](r) // the peer must be notified
			r.receive(1, &mad.DREP{LocalCommID: peerID, RemoteCommID: id})
			r.forgotten(c)
		})
	})
	t.Run("established, a dead peer", func(t *testing.T) {
		bubble(t, func(r *rig) {
			c, _ := r.passive()
			c.Close()
			for range 16 {
				next[*mad.DREQ](r)
				time.Sleep(4096 * time.Millisecond)
			}
			r.forgotten(c)
		})
	})
	t.Run("disconnected by the peer", func(t *testing.T) {
		bubble(t, func(r *rig) {
			c, id := r.passive()
			r.receive(1, &mad.DREQ{LocalCommID: peerID, RemoteCommID: id, RemoteQPN: ourQPN})
			r.event(rdmacm.Disconnected, 0)
			c.Close()
			next[*mad.DREP](r)
			r.forgotten(c)
		})
	})
	t.Run("time wait", func(t *testing.T) {
		bubble(t, func(r *rig) {
			c, id := r.passive()
			if err := c.Disconnect(); err != nil {
				t.Fatal(err)
			}
			next[*mad.DREQ](r)
			r.receive(1, &mad.DREP{LocalCommID: peerID, RemoteCommID: id})
			r.event(rdmacm.Disconnected, 0)
			c.Close()
			r.forgotten(c)
		})
	})
}

// forgotten checks that no state of a closed connection is left.
func (r *rig) forgotten(c rdmacm.ProviderConn) {
	r.t.Helper()
	synctest.Wait()
	if n := r.m.Len(); n != 0 {
		r.t.Errorf("%d connections are kept", n)
	}
	c.Close()
	for what, err := range map[string]error{"Establish": c.Establish(), "Disconnect": c.Disconnect(),
		"Reject": c.Reject(nil), "Accept": c.Accept(acceptParam(), 0), "Notify": c.Notify()} {
		if !errors.Is(err, verbs.ErrClosed) {
			r.t.Errorf("%s after Close: %v", what, err)
		}
	}
	time.Sleep(time.Hour)
	r.nothing()
}
