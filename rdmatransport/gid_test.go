package rdmatransport_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/verbs"
)

// TestGIDChange checks that an address keeps its index, and that the GID of a removed address
// cannot be used. Each change raises an event.
func TestGIDChange(t *testing.T) {
	s := newStation(t, new(pipe.Switch), "10.0.0.1/24")
	n := s.host.Interfaces()[0]
	changed := func() {
		t.Helper()
		if e := s.event(); e.Type != verbs.EventGIDChange || e.PortNum != 1 {
			t.Errorf("got %+v", e)
		}
	}
	for _, a := range []string{"10.0.0.2/24", "10.0.0.3/24"} {
		ok(t, n.AddAddr(a))
		changed()
	}
	third := must(s.dev.QueryGID(1, 3))(t)
	ok(t, n.RemoveAddr(must(s.dev.QueryGID(1, 2))(t).GID.Addr()))
	changed()
	if got := must(s.dev.QueryGID(1, 3))(t); got != third {
		t.Errorf("GID 3 is %v, was %v", got, third)
	}
	if _, err := s.dev.QueryGID(1, 2); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("the hole: %v", err)
	}
	_, err := s.pd.CreateAH(&verbs.AHAttr{PortNum: 1, IsGlobal: true, GRH: verbs.GRH{DGID: third.GID, SGIDIndex: 2}})
	if !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("with the GID of a removed address: %v", err)
	}
}

// TestGIDTable checks that addresses have the same indices for RoCEv2 as with rxe, and for RoCE v1
// indices that are 128 higher.
func TestGIDTable(t *testing.T) {
	s := newStation(t, new(pipe.Switch), "10.0.0.1/24")
	n := s.host.Interfaces()[0]
	for i := 2; i < 200; i++ {
		ok(t, n.AddAddr(fmt.Sprintf("10.0.0.%d/24", i)))
	}
	addrs := n.GIDs()
	table := must(s.dev.GIDTable(1))(t)
	if len(table) != 2*roce.V1Index {
		t.Fatalf("%d entries", len(table))
	}
	for i, e := range table {
		want := verbs.GIDEntry{GID: verbs.GIDFromAddr(addrs[i%roce.V1Index]), Index: i, PortNum: 1,
			Type: verbs.GIDTypeRoCEv2, NetDev: n.Name()}
		if i >= roce.V1Index {
			want.Type = verbs.GIDTypeRoCEv1
		}
		if e != want {
			t.Errorf("entry %d is %+v, want %+v", i, e, want)
		}
	}
}

// TestGIDTableLength: without Ethernet frames there are no RoCE v1 entries, and no room for them.
func TestGIDTableLength(t *testing.T) {
	frames := newStation(t, new(pipe.Switch), "10.0.0.1/24")
	host := must(kernel.New(&kernel.Config{Addrs: []string{"127.0.0.1"}, Unopened: true}))(t)
	sockets := must(rdmatransport.Open(host, nil))(t)
	defer func() {
		ok(t, sockets.Close())
		ok(t, host.Close())
	}()
	for dev, want := range map[*verbs.Device]int{frames.dev: 2 * roce.V1Index, sockets: roce.V1Index} {
		if p := must(dev.QueryPort(1))(t); p.GIDTblLen != want {
			t.Errorf("%d entries, want %d", p.GIDTblLen, want)
		}
	}
}

// TestGIDTypesDiffer checks that a QP receives nothing from a peer that uses the other version of
// RoCE, in packets or directly.
func TestGIDTypesDiffer(t *testing.T) { overMedia(t, gidTypesDiffer) }

func gidTypesDiffer(t *testing.T, m medium) {
	a, b := m.stations(t, nil)
	for _, tc := range []struct {
		gids [2]uint8
		want verbs.WCStatus
	}{{[2]uint8{1, 1}, verbs.WCSuccess}, {[2]uint8{129, 129}, verbs.WCSuccess}, {[2]uint8{1, 129}, verbs.WCRetryExcErr},
		{[2]uint8{129, 1}, verbs.WCRetryExcErr}} {
		var qps [2]*verbs.QP
		var cqs [2]*verbs.CQ
		for i, s := range []*station{a, b} {
			ch := must(s.dev.CreateCompChannel())(t)
			cqs[i] = must(s.dev.CreateCQ(8, &verbs.CQInitAttr{Channel: ch}))(t)
			qps[i] = must(s.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cqs[i], RecvCQ: cqs[i],
				Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4}}))(t)
			defer func() {
				ok(t, qps[i].Close())
				ok(t, cqs[i].Close())
				ok(t, ch.Close())
			}()
		}
		rts := verbs.QPAttr{QPState: verbs.StateRTS, Timeout: 10, RetryCnt: 1, MaxRDAtomic: 1}
		if tc.want == verbs.WCSuccess {
			rts.Timeout, rts.RetryCnt = 18, 7
		}
		for i, peer := range []*station{b, a} {
			ok(t, qps[i].Modify(&verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1},
				verbs.QPAttrState|verbs.QPAttrPKeyIndex|verbs.QPAttrPort|verbs.QPAttrAccessFlags))
			ok(t, qps[i].Modify(&verbs.QPAttr{QPState: verbs.StateRTR, PathMTU: verbs.MTU1024,
				DestQPNum: qps[1-i].Num(), MaxDestRDAtomic: 1,
				AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1,
					GRH: verbs.GRH{DGID: verbs.GIDFromAddr(peer.addr), SGIDIndex: tc.gids[i]}}},
				verbs.QPAttrState|verbs.QPAttrAV|verbs.QPAttrPathMTU|verbs.QPAttrDestQPN|
					verbs.QPAttrRQPSN|verbs.QPAttrMaxDestRDAtomic|verbs.QPAttrMinRNRTimer))
			ok(t, qps[i].Modify(&rts,
				verbs.QPAttrState|verbs.QPAttrSQPSN|verbs.QPAttrTimeout|verbs.QPAttrRetryCnt|
					verbs.QPAttrRNRRetry|verbs.QPAttrMaxQPRDAtomic))
		}
		ok(t, qps[1].PostRecv(&verbs.RecvWR{}))
		ok(t, qps[0].PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendSignaled}))
		if wc := poll(t, cqs[0]); wc.Status != tc.want {
			t.Errorf("GIDs %d: %v, want %v", tc.gids, wc.Status, tc.want)
		}
	}
}
