//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// cmatose does what ucmatose does, with package rdmacm: it opens connections and sends messages
// over all of them, the server's first. Then it disconnects, the server first.
type cmatose struct {
	cmProgram
	transport                   verbs.Transport
	connections, messages, size int
	nodes                       []*cmatoseNode
}

// cmatosePort is ucmatose's default port.
const cmatosePort = 7471

// cmatoseNode is one connection.
type cmatoseNode struct {
	id                      *rdmacm.ID
	pd                      *verbs.PD
	mr                      *verbs.MR
	connected, disconnected bool
}

func newCmatose(t *testing.T, l cmLab, connections, messages int) *cmatose {
	t.Helper()
	c := &cmatose{newCMProgram(t, l.dev), l.transport, connections, messages, 100, nil}
	closing(t, func() error {
		var errs []error
		for _, n := range c.nodes {
			errs = append(errs, n.destroy())
		}
		return errors.Join(errs...)
	})
	return c
}

func (c *cmatose) newNode(id *rdmacm.ID) *cmatoseNode {
	n := &cmatoseNode{id: id}
	id.SetContext(n)
	c.nodes = append(c.nodes, n)
	return n
}

// prepare creates the QP of a node and posts its receives.
func (c *cmatose) prepare(n *cmatoseNode) (err error) {
	if n.pd, err = n.id.Device().AllocPD(); err != nil {
		return err
	}
	if n.mr, err = n.pd.RegMR(make([]byte, c.size), verbs.AccessLocalWrite); err != nil {
		return err
	}
	if err := n.id.CreateQP(n.pd, &verbs.QPInitAttr{SQSigAll: true, Cap: verbs.QPCap{
		MaxSendWR: c.messages, MaxRecvWR: c.messages, MaxSendSGE: 1, MaxRecvSGE: 1,
	}}); err != nil {
		return err
	}
	for range c.messages {
		if err := n.id.QP().PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{n.mr.SGE(0, c.size)}}); err != nil {
			return err
		}
	}
	return nil
}

func (n *cmatoseNode) destroy() error {
	errs := []error{n.id.Close()}
	if n.mr != nil {
		errs = append(errs, n.mr.Close())
	}
	if n.pd != nil {
		errs = append(errs, n.pd.Close())
	}
	return errors.Join(errs...)
}

// handle handles any event of either side.
func (c *cmatose) handle(e *rdmacm.Event) error {
	n, _ := e.ID.Context().(*cmatoseNode)
	switch e.Type {
	case rdmacm.AddrResolved:
		return e.ID.ResolveRoute()
	case rdmacm.RouteResolved:
		if err := c.prepare(n); err != nil {
			return err
		}
		return e.ID.Connect(&rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 5})
	case rdmacm.ConnectRequest:
		if err := c.prepare(c.newNode(e.ID)); err != nil {
			return err
		}
		return e.ID.Accept(nil)
	case rdmacm.Established:
		n.connected = true
	case rdmacm.Disconnected:
		n.disconnected = true
		_ = e.ID.Disconnect() // an error if this side began
		return nil
	}
	return e.Err()
}

// until handles events until the condition holds on every connection.
func (c *cmatose) until(ctx context.Context, what string, so func(*cmatoseNode) bool) error {
	count := func() (n int) {
		for _, node := range c.nodes {
			if so(node) {
				n++
			}
		}
		return n
	}
	if err := c.events(ctx, func(e *rdmacm.Event) (bool, error) {
		err := c.handle(e)
		return count() == c.connections, err
	}); err != nil {
		return fmt.Errorf("%d of %d connections %s: %w", count(), c.connections, what, err)
	}
	return nil
}

func (c *cmatose) untilConnected(ctx context.Context) error {
	return c.until(ctx, "connected", func(n *cmatoseNode) bool { return n.connected })
}

func (c *cmatose) untilDisconnected(ctx context.Context) error {
	return c.until(ctx, "disconnected", func(n *cmatoseNode) bool { return n.disconnected })
}

func (c *cmatose) send() error {
	for _, n := range c.nodes {
		for range c.messages {
			if err := n.id.QP().PostSend(&verbs.SendWR{Opcode: verbs.Send, SGList: []verbs.SGE{n.mr.SGE(0, c.size)}}); err != nil {
				return err
			}
		}
	}
	return nil
}

// complete waits for one queue's completions on every connection.
func (c *cmatose) complete(ctx context.Context, queue func(*verbs.QP) *verbs.CQ) error {
	for i, n := range c.nodes {
		cq := queue(n.id.QP())
		for done := 0; done < c.messages; {
			wc, err := awaitWC(ctx, cq)
			if err != nil {
				return fmt.Errorf("connection %d: completion %d of %d: %w", i, done, c.messages, err)
			}
			if wc.Status != verbs.WCSuccess || wc.Opcode == verbs.WCRecv && int(wc.ByteLen) != c.size {
				return fmt.Errorf("connection %d: %v completes as %v with %d bytes", i, wc.Opcode, wc.Status, wc.ByteLen)
			}
			done++
		}
	}
	return nil
}

// awaitWC waits for one completion of a CQ with its own channel.
func awaitWC(ctx context.Context, cq *verbs.CQ) (verbs.WC, error) {
	var wcs [1]verbs.WC
	for {
		if err := cq.ReqNotify(false); err != nil {
			return wcs[0], err
		}
		if n, err := cq.Poll(wcs[:]); n == 1 || err != nil {
			return wcs[0], err
		}
		if _, err := cq.Channel().GetEvent(ctx); err != nil {
			return wcs[0], err
		}
		if err := cq.AckEvents(1); err != nil {
			return wcs[0], err
		}
	}
}

// serve is the server; it listens already.
func (c *cmatose) serve(ctx context.Context) error {
	if err := c.untilConnected(ctx); err != nil {
		return err
	}
	if err := c.send(); err != nil {
		return err
	}
	if err := c.complete(ctx, (*verbs.QP).SendCQ); err != nil {
		return err
	}
	if err := c.complete(ctx, (*verbs.QP).RecvCQ); err != nil {
		return err
	}
	for _, n := range c.nodes {
		if err := n.id.Disconnect(); err != nil {
			return err
		}
	}
	return c.untilDisconnected(ctx)
}

// connect is the client.
func (c *cmatose) connect(ctx context.Context, server netip.AddrPort) error {
	for range c.connections {
		id, err := c.createID(rdmacm.TCP, c.transport, nil)
		if err != nil {
			return err
		}
		c.newNode(id)
		if err := id.ResolveAddr(netip.AddrPort{}, server, 2*time.Second); err != nil {
			return err
		}
	}
	if err := c.untilConnected(ctx); err != nil {
		return err
	}
	if err := c.complete(ctx, (*verbs.QP).RecvCQ); err != nil {
		return err
	}
	if err := c.send(); err != nil {
		return err
	}
	return c.untilDisconnected(ctx)
}

func TestUcmatose(t *testing.T) {
	gate.System(t)
	testUcmatose(t, openCM(t, verbs.RoCEv2))
}

func testUcmatose(t *testing.T, l cmLab) {
	const connections, messages = 20, 50
	options := fmt.Sprintf("-c %d -C %d", connections, messages)
	l.eachFamily(t, func(t *testing.T, p cmPair) {
		t.Run("client", func(t *testing.T) {
			c := newCmatose(t, p.cmLab, connections, messages)
			p.kernelServes(t, fmt.Sprintf("ucmatose -b %v %s", p.there, options), func(ctx context.Context) error {
				return c.connect(ctx, netip.AddrPortFrom(p.there, cmatosePort))
			})
		})
		t.Run("server", func(t *testing.T) {
			c := newCmatose(t, p.cmLab, connections, messages)
			c.listen(t, rdmacm.TCP, p.transport, netip.AddrPortFrom(p.here, cmatosePort))
			p.kernelConnects(t, fmt.Sprintf("ucmatose -s %v %s", p.here, options), c.serve)
		})
	})
}
