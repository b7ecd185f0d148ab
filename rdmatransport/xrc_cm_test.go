package rdmatransport_test

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// listenIB listens in port space IB.
func listenIB(t *testing.T, s *station) *rdmacm.SyncID {
	t.Helper()
	l := must(rdmacm.CreateSyncID(rdmacm.IB, s.dev))(t)
	ok(t, l.Bind(netip.AddrPortFrom(s.addr, cmPort)))
	ok(t, l.Listen(0))
	return l
}

// resolved returns an ID that is ready to connect.
func resolved(t *testing.T, ctx context.Context, space rdmacm.PortSpace, from, to *station) *rdmacm.SyncID {
	t.Helper()
	id := must(rdmacm.CreateSyncID(space, from.dev))(t)
	ok(t, id.ResolveAddr(ctx, netip.AddrPort{}, netip.AddrPortFrom(to.addr, cmPort)))
	ok(t, id.ResolveRoute(ctx))
	return id
}

// TestXRCOverCM works like rdma_xserver and rdma_xclient, with two clients whose targets share an
// SRQ. The private data contains its number.
func TestXRCOverCM(t *testing.T) { overMedia(t, xrcOverCM) }

func xrcOverCM(t *testing.T, m medium) {
	a, b := m.stations(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	l := listenIB(t, b)

	var srq *verbs.SRQ
	accept := func() (*rdmacm.SyncID, error) {
		id, err := l.GetRequest(ctx)
		if err != nil {
			return nil, err
		}
		if id.QPType() != verbs.XRCRecv {
			t.Errorf("a peer requests %v", id.QPType())
		}
		if err := id.CreateXRCQP(nil); err != nil {
			return nil, err
		}
		if srq == nil { // of the first connection and of the domain, shared by all
			if err := id.CreateSRQ(nil, &verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 8, MaxSGE: 1}}); err != nil {
				return nil, err
			}
			srq = id.SRQ()
		}
		return id, id.Accept(ctx, &rdmacm.ConnParam{PrivateData: binary.BigEndian.AppendUint32(nil, srq.Num()),
			ResponderResources: 2, RNRRetryCount: 7})
	}
	type answer struct {
		id  *rdmacm.SyncID
		err error
	}
	var clients, servers []*rdmacm.SyncID
	for range 2 {
		answers := make(chan answer, 1)
		go func() {
			id, err := accept()
			answers <- answer{id, err}
		}()
		c := resolved(t, ctx, rdmacm.IB, a, b)
		ok(t, c.CreateQP(a.pd, &verbs.QPInitAttr{Type: verbs.XRCSend, Cap: verbs.QPCap{MaxSendWR: 4, MaxSendSGE: 1}}))
		ok(t, c.Connect(ctx, &rdmacm.ConnParam{InitiatorDepth: 2, ResponderResources: 7, RetryCount: 7, RNRRetryCount: 7}))
		s := <-answers
		ok(t, s.err)
		clients, servers = append(clients, c), append(servers, s.id)
		if e := c.Event(); !e.Param.SRQ || e.Param.QPNum != s.id.QP().Num() {
			t.Errorf("the server answers %+v for QP %#x", e.Param, s.id.QP().Num())
		}
		if e := s.id.Event(); e.Type != rdmacm.Established {
			t.Errorf("the server gets %v", e.Type)
		}
		if attr, _, err := s.id.QP().Query(); err != nil || attr.MaxDestRDAtomic != 2 {
			t.Errorf("the target accepts %d READs, %v", attr.MaxDestRDAtomic, err)
		}
		if c.QP().State() != verbs.StateRTS || s.id.QP().State() != verbs.StateRTS {
			t.Errorf("the initiator is %v, the target %v", c.QP().State(), s.id.QP().State())
		}
	}
	pd := srq.PD()
	am, bm := a.reg([]byte("to whom it may concern"), everyAccess), must(pd.RegMR(make([]byte, 100), everyAccess))(t)
	for i, c := range clients {
		srqn := binary.BigEndian.Uint32(c.Event().Param.PrivateData)
		ok(t, srq.PostRecv(&verbs.RecvWR{WRID: uint64(i), SGList: []verbs.SGE{bm.SGE(0, 100)}}))
		for _, wr := range []verbs.SendWR{
			{Opcode: verbs.Send, RemoteSRQN: srqn, SGList: []verbs.SGE{am.SGE(0, 22)}},
			{Opcode: verbs.RDMARead, RemoteSRQN: srqn, SGList: []verbs.SGE{am.SGE(0, 22)}, RemoteAddr: bm.Addr(), RKey: bm.RKey()},
		} {
			wr.Flags = verbs.SendSignaled
			ok(t, c.QP().PostSend(&wr))
			if wc := poll(t, c.QP().SendCQ()); wc.Status != verbs.WCSuccess {
				t.Fatalf("%v: %v", wr.Opcode, wc.Status)
			}
		}
		wc := poll(t, srq.CQ())
		if wc.Status != verbs.WCSuccess || wc.WRID != uint64(i) || wc.QPNum != servers[i].QP().Num() ||
			string(bm.Buf()[:22]) != "to whom it may concern" {
			t.Errorf("%+v, %q", wc, bm.Buf()[:22])
		}
	}
	for i := range clients {
		ended := make(chan error, 1)
		go func() { ended <- servers[i].Disconnect(ctx) }()
		<-clients[i].Done()
		_ = clients[i].Disconnect(ctx) // an answer, unless it was already given
		ok(t, <-ended)
		ok(t, clients[i].Close())
	}
	ok(t, bm.Close())
	for _, s := range servers {
		ok(t, s.Close())
	}
	ok(t, l.Close())
}

// TestXRCPortSpace checks that listeners of port space TCP and their IDs do not support XRC.
func TestXRCPortSpace(t *testing.T) { overMedia(t, xrcPortSpace) }

func xrcPortSpace(t *testing.T, m medium) {
	a, b := m.stations(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := resolved(t, ctx, rdmacm.TCP, a, b)
	defer c.Close()
	for _, err := range []error{
		c.CreateQP(nil, &verbs.QPInitAttr{Type: verbs.XRCSend, Cap: verbs.QPCap{MaxSendWR: 1}}), c.CreateXRCQP(nil),
	} {
		if !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("in port space TCP: %v", err)
		}
	}
	x := resolved(t, ctx, rdmacm.IB, a, b)
	defer x.Close()
	if err := x.CreateQP(nil, &verbs.QPInitAttr{Type: verbs.XRCRecv}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("CreateQP of an XRC_RECV QP: %v", err)
	}
	ok(t, x.CreateQP(nil, &verbs.QPInitAttr{Type: verbs.XRCSend, Cap: verbs.QPCap{MaxSendWR: 1}}))
	var e *rdmacm.EventError
	if err := x.Connect(ctx, nil); !errors.As(err, &e) || !errors.Is(err, syscall.ECONNREFUSED) || e.Status != rdmacm.RejectInvalidService {
		t.Errorf("without a listener: %v", err)
	}
}

// TestSRQOfID checks that the QP of an ID takes its receives from the ID's SRQ.
func TestSRQOfID(t *testing.T) { overMedia(t, srqOfID) }

func srqOfID(t *testing.T, m medium) {
	a, b := m.stations(t, nil)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	c := resolved(t, ctx, rdmacm.TCP, a, b)
	ok(t, c.CreateSRQ(nil, &verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 2, MaxSGE: 1}}))
	if err := c.CreateSRQ(nil, &verbs.SRQInitAttr{Attr: verbs.SRQAttr{MaxWR: 2}}); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a second SRQ: %v", err)
	}
	ok(t, c.CreateQP(c.SRQ().PD(), &verbs.QPInitAttr{Cap: verbs.QPCap{MaxSendWR: 1}}))
	if c.QP().SRQ() != c.SRQ() {
		t.Error("the QP has another SRQ")
	}
	if err := c.CloseSRQ(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("an SRQ in use is closed: %v", err)
	}
	ok(t, c.CloseQP())
	ok(t, c.CloseSRQ())
	if c.SRQ() != nil {
		t.Error("the SRQ still exists")
	}
	ok(t, c.Close())
}
