//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// udaddy does what udaddy of librdmacm does, with package rdmacm: it resolves the server's port for
// each of its QPs, and sends datagrams. The server answers each.
type udaddy struct {
	cmProgram
	connections, messages, size int
	nodes                       []*udaddyNode
}

// udaddyPort is udaddy's default port.
const udaddyPort = 7174

// udaddyNode is one QP, and the address that it sends to.
type udaddyNode struct {
	id  *rdmacm.ID
	pd  *verbs.PD
	mr  *verbs.MR
	ah  *verbs.AH
	qpn uint32
}

func newUdaddy(t *testing.T, l cmLab, connections, messages int) *udaddy {
	t.Helper()
	u := &udaddy{newCMProgram(t, l.dev), connections, messages, 100, nil}
	closing(t, func() error {
		var errs []error
		for _, n := range u.nodes {
			errs = append(errs, n.destroy())
		}
		return errors.Join(errs...)
	})
	return u
}

func (u *udaddy) newNode(id *rdmacm.ID) *udaddyNode {
	n := &udaddyNode{id: id}
	id.SetContext(n)
	u.nodes = append(u.nodes, n)
	return n
}

// prepare creates the QP of a node and posts its receives.
func (u *udaddy) prepare(n *udaddyNode) (err error) {
	if n.pd, err = n.id.Device().AllocPD(); err != nil {
		return err
	}
	if n.mr, err = n.pd.RegMR(make([]byte, (1+u.messages)*u.room()), verbs.AccessLocalWrite); err != nil {
		return err
	}
	if err := n.id.CreateQP(n.pd, &verbs.QPInitAttr{SQSigAll: true, Cap: verbs.QPCap{
		MaxSendWR: u.messages, MaxRecvWR: u.messages, MaxSendSGE: 1, MaxRecvSGE: 1,
	}}); err != nil {
		return err
	}
	for i := range u.messages {
		at := (1 + i) * u.room() // after the sent data
		if err := n.id.QP().PostRecv(&verbs.RecvWR{WRID: uint64(at), SGList: []verbs.SGE{n.mr.SGE(at, u.room())}}); err != nil {
			return err
		}
	}
	return nil
}

// room returns the size of a receive in bytes.
func (u *udaddy) room() int { return verbs.GRHLen + u.size }

func (n *udaddyNode) destroy() error {
	errs := []error{n.id.Close()}
	if n.ah != nil {
		errs = append(errs, n.ah.Close())
	}
	if n.mr != nil {
		errs = append(errs, n.mr.Close())
	}
	if n.pd != nil {
		errs = append(errs, n.pd.Close())
	}
	return errors.Join(errs...)
}

// send sends all messages of all nodes.
func (u *udaddy) send() error {
	for _, n := range u.nodes {
		qp := n.id.QP()
		for range u.messages {
			if err := qp.PostSend(&verbs.SendWR{Opcode: verbs.SendWithImm, ImmData: qp.Num(), AH: n.ah, RemoteQPN: n.qpn,
				RemoteQKey: rdmacm.UDPQKey, SGList: []verbs.SGE{n.mr.SGE(0, u.size)}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// receive waits for all messages of all nodes. A node without a destination answers the first.
func (u *udaddy) receive(ctx context.Context) error {
	for i, n := range u.nodes {
		for done := range u.messages {
			wc, err := awaitWC(ctx, n.id.QP().RecvCQ())
			if err != nil {
				return fmt.Errorf("QP %d: message %d: %w", i, done, err)
			}
			if wc.Status != verbs.WCSuccess || int(wc.ByteLen) != verbs.GRHLen+u.size || wc.ImmData != wc.SrcQP {
				return fmt.Errorf("QP %d: completion %+v", i, wc)
			}
			if n.ah != nil {
				continue
			}
			n.qpn = wc.ImmData
			if n.ah, err = n.pd.CreateAHFromWC(n.id.PortNum(), &wc, n.mr.Buf()[wc.WRID:]); err != nil {
				return err
			}
		}
	}
	return nil
}

// connect is the client.
func (u *udaddy) connect(ctx context.Context, server netip.AddrPort) error {
	for range u.connections {
		id, err := u.createID(rdmacm.UDP, verbs.RoCEv2, nil)
		if err != nil {
			return err
		}
		u.newNode(id)
		if err := id.ResolveAddr(netip.AddrPort{}, server, 2*time.Second); err != nil {
			return err
		}
	}
	left := u.connections
	if err := u.events(ctx, func(e *rdmacm.Event) (bool, error) {
		n := e.ID.Context().(*udaddyNode)
		switch e.Type {
		case rdmacm.AddrResolved:
			return false, e.ID.ResolveRoute()
		case rdmacm.RouteResolved:
			if err := u.prepare(n); err != nil {
				return false, err
			}
			return false, e.ID.Connect(nil)
		case rdmacm.Established:
			if e.UD.QKey != rdmacm.UDPQKey {
				return false, fmt.Errorf("the Q_Key is %#x, want %#x", e.UD.QKey, rdmacm.UDPQKey)
			}
			if to := e.UD.AHAttr.GRH.DGID.Addr(); to != server.Addr() {
				return false, fmt.Errorf("the address handle leads to %v, want %v", to, server.Addr())
			}
			n.qpn = e.UD.QPNum
			left--
			var err error
			n.ah, err = n.pd.CreateAH(&e.UD.AHAttr)
			return left == 0, err
		}
		return false, fmt.Errorf("%v: %w", e.Type, e.Err())
	}); err != nil {
		return err
	}
	if err := u.send(); err != nil {
		return err
	}
	return u.receive(ctx)
}

// serve is the server, which listens already.
func (u *udaddy) serve(ctx context.Context) error {
	if err := u.events(ctx, func(e *rdmacm.Event) (bool, error) {
		if e.Type != rdmacm.ConnectRequest {
			return false, fmt.Errorf("%v: %w", e.Type, e.Err())
		}
		if err := u.prepare(u.newNode(e.ID)); err != nil {
			return false, err
		}
		return len(u.nodes) == u.connections, e.ID.Accept(nil)
	}); err != nil {
		return err
	}
	if err := u.receive(ctx); err != nil {
		return err
	}
	if err := u.send(); err != nil {
		return err
	}
	for _, n := range u.nodes {
		for range u.messages {
			if wc, err := awaitWC(ctx, n.id.QP().SendCQ()); err != nil || wc.Status != verbs.WCSuccess {
				return fmt.Errorf("a send completes as %v: %w", wc.Status, err)
			}
		}
	}
	return nil
}

func TestUdaddy(t *testing.T) {
	gate.System(t)
	const connections, messages = 20, 10
	openCM(t, verbs.RoCEv2).eachFamily(t, func(t *testing.T, p cmPair) {
		options := fmt.Sprintf("-c %d -C %d", connections, messages)
		t.Run("client", func(t *testing.T) {
			u := newUdaddy(t, p.cmLab, connections, messages)
			p.kernelServes(t, fmt.Sprintf("udaddy -b %v %s", p.there, options), func(ctx context.Context) error {
				return u.connect(ctx, netip.AddrPortFrom(p.there, udaddyPort))
			})
		})
		t.Run("server", func(t *testing.T) {
			u := newUdaddy(t, p.cmLab, connections, messages)
			u.listen(t, rdmacm.UDP, verbs.RoCEv2, netip.AddrPortFrom(p.here, udaddyPort))
			out := p.kernelConnects(t, fmt.Sprintf("udaddy -s %v %s", p.here, options), u.serve)
			if !strings.Contains(out, "return status 0") {
				t.Errorf("udaddy: %s", out)
			}
		})
	})
}
