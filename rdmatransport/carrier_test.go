package rdmatransport_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/verbs"
)

// TestPortEvents pulls a port's cable. While the port is down nothing is delivered, in memory
// either. Messages in flight continue when it is up again. Time is virtual: the QP's timeout is
// seconds.
func TestPortEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lan := new(pipe.Switch)
		cable := lan.Port()
		a, b := newStationOn(t, cable, "10.0.0.1/24", nil), newStation(t, lan, "10.0.0.2/24")
		conn, _ := dial(a, b, verbs.RoCEv2, nil)
		local, remote := a.reg(make([]byte, 8), everyAccess), b.reg(make([]byte, 8), everyAccess)
		for i := range 2 {
			cable.SetCarrier(false)
			cable.SetCarrier(false)
			if e := a.event(); e.Type != verbs.EventPortErr || e.PortNum != 1 {
				t.Fatalf("%v of port %d, want PORT_ERR of 1", e.Type, e.PortNum)
			}
			if p := must(a.dev.QueryPort(1))(t); p.State != verbs.PortDown {
				t.Errorf("the port is %v", p.State)
			}
			ok(t, conn.QP().PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
				SGList: []verbs.SGE{local.SGE(0, 8)}, RemoteAddr: remote.Addr(), RKey: remote.RKey()}))
			var wc [1]verbs.WC
			if n := must(conn.SendCQ().Poll(wc[:]))(t); n > 0 {
				t.Fatalf("a WRITE ended with %v without a cable", wc[0].Status)
			}
			cable.SetCarrier(true)
			if e := a.event(); e.Type != verbs.EventPortActive || e.PortNum != 1 {
				t.Fatalf("%v of port %d, want PORT_ACTIVE of 1", e.Type, e.PortNum)
			}
			if p := must(a.dev.QueryPort(1))(t); p.State != verbs.PortActive {
				t.Errorf("the port is %v", p.State)
			}
			if wc := poll(t, conn.SendCQ()); wc.Status != verbs.WCSuccess {
				t.Errorf("the WRITE ended with %v", wc.Status)
			}
			if n := must(a.dev.HWCounters())(t)["link_downed"]; n != uint64(i)+1 {
				t.Errorf("link_downed is %d, want %d", n, i+1)
			}
		}
	})
}

// TestDisconnectWithoutCable disconnects while the cable is pulled. The disconnect is repeated when
// the cable is plugged in again, or a second later if the peer's cable was pulled too. The
// connection manager's own timeout is four seconds.
func TestDisconnectWithoutCable(t *testing.T) {
	for name, late := range map[string]time.Duration{"one side": 0, "both sides": time.Second / 2} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				lan := new(pipe.Switch)
				cable, far := lan.Port(), lan.Port()
				a, b := newStationOn(t, cable, "10.0.0.1/24", nil), newStationOn(t, far, "10.0.0.2/24", nil)
				conn, peer := dial(a, b, verbs.RoCEv2, nil)
				cable.SetCarrier(false)
				far.SetCarrier(late == 0)
				closed := make(chan error, 1)
				go func() { closed <- conn.Close() }()
				time.Sleep(time.Second)
				select {
				case <-peer.Done():
					t.Fatal("the peer was notified without a cable")
				default:
				}
				cable.SetCarrier(true)
				time.Sleep(late)
				far.SetCarrier(true)
				back := time.Now()
				<-peer.Done()
				if took := time.Since(back); took > time.Second {
					t.Errorf("the peer is notified %v after the cable is plugged in", took)
				}
				ok(t, <-closed)
			})
		})
	}
}
