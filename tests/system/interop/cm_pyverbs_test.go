//go:build linux

package interop

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/pyverbs"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// cmHandshake has the parameters that the two ends of a connection send each other.
type cmHandshake struct {
	name           string
	client, server rdmacm.ConnParam
}

// At most 56 and 196 bytes of private data fit. rxe rounds depths to powers of two, so they are
// powers of two.
var cmHandshakes = []cmHandshake{{
	"no private data",
	rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7},
	rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 7, RNRRetryCount: 7},
}, {
	"all different",
	rdmacm.ConnParam{PrivateData: counting(56), ResponderResources: 4, InitiatorDepth: 8, RetryCount: 3, RNRRetryCount: 4},
	rdmacm.ConnParam{PrivateData: counting(196), ResponderResources: 2, InitiatorDepth: 1, RetryCount: 1, RNRRetryCount: 6},
}}

func counting(n int) (b []byte) {
	for i := range n {
		b = append(b, byte(i+1))
	}
	return b
}

// received returns a side's parameters as the other side receives them, with private data padded as
// on the wire.
func (h *cmHandshake) received(p *rdmacm.ConnParam, room int) rdmacm.ConnParam {
	return rdmacm.ConnParam{
		PrivateData:        append(bytes.Clone(p.PrivateData), make([]byte, room-len(p.PrivateData))...),
		ResponderResources: p.InitiatorDepth, InitiatorDepth: p.ResponderResources,
	}
}

// checkParam checks the parameters that SoftRNIC received.
func (h *cmHandshake) checkParam(t *testing.T, got, want rdmacm.ConnParam) {
	t.Helper()
	if !bytes.Equal(got.PrivateData, want.PrivateData) {
		t.Errorf("SoftRNIC receives private data\n%x, want\n%x", got.PrivateData, want.PrivateData)
	}
	if got.ResponderResources != want.ResponderResources || got.InitiatorDepth != want.InitiatorDepth {
		t.Errorf("SoftRNIC receives responder resources %d, initiator depth %d, want %d and %d",
			got.ResponderResources, got.InitiatorDepth, want.ResponderResources, want.InitiatorDepth)
	}
}

// qpHas checks the attributes of a QP.
func (h *cmHandshake) qpHas(t *testing.T, where string, got, want verbs.QPAttr) {
	t.Helper()
	if got.MaxDestRDAtomic != want.MaxDestRDAtomic || got.MaxRDAtomic != want.MaxRDAtomic ||
		got.RetryCnt != want.RetryCnt || got.RNRRetry != want.RNRRetry {
		t.Errorf("%s: the QP has MaxDestRDAtomic %d, MaxRDAtomic %d, RetryCnt %d, RNRRetry %d, want %d, %d, %d, %d", where,
			got.MaxDestRDAtomic, got.MaxRDAtomic, got.RetryCnt, got.RNRRetry,
			want.MaxDestRDAtomic, want.MaxRDAtomic, want.RetryCnt, want.RNRRetry)
	}
}

// ofConn returns the attributes of the kernel's QP.
func ofConn(p *rdmacm.ConnParam) verbs.QPAttr {
	return verbs.QPAttr{MaxDestRDAtomic: p.ResponderResources, MaxRDAtomic: p.InitiatorDepth, RetryCnt: p.RetryCount,
		RNRRetry: p.RNRRetryCount}
}

// clientQP returns the attributes of the client's QP. The server decides the depths.
func (h *cmHandshake) clientQP() verbs.QPAttr {
	return verbs.QPAttr{
		MaxDestRDAtomic: h.server.InitiatorDepth, MaxRDAtomic: h.server.ResponderResources,
		RetryCnt: h.client.RetryCount, RNRRetry: h.server.RNRRetryCount,
	}
}

var cmCap = verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 4, MaxRecvSGE: 4}

// conns is a connection, seen from both ends.
type conns struct {
	here  *rdmacm.Conn
	there *pyverbs.Conn
	pd    *softrnicDomain
}

const (
	cmREQRoom = 56
	cmREPRoom = 196
)

// dial connects SoftRNIC to the kernel.
func (h *cmHandshake) dial(t *testing.T, p cmPair, linux pyverbs.CM) conns {
	t.Helper()
	c := conns{pd: softrnic{t: t, dev: p.dev}.allocPD().(*softrnicDomain)}
	addr := netip.AddrPortFrom(p.there, 7471)
	l := linux.Listen(addr)
	t.Cleanup(l.Close)
	dialled := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
		defer cancel()
		var err error
		c.here, err = rdmacm.Dial(ctx, p.dev, addr.String(), &rdmacm.Config{
			Transport: p.transport, PD: c.pd.pd, Cap: cmCap, Param: &h.client,
		})
		dialled <- err
	}()
	c.there = l.Accept(&h.server, cmCap)
	t.Cleanup(c.there.QP.Destroy)
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
	closing(t, c.here.Close)
	if want := h.received(&h.client, cmREQRoom).PrivateData; !bytes.Equal(c.there.Param.PrivateData, want) {
		t.Errorf("kernel: private data\n%x, want\n%x", c.there.Param.PrivateData, want)
	}
	// The application prepares the QP before it passes its parameters.
	h.qpHas(t, "kernel", ofConn(&c.there.Param), verbs.QPAttr{
		MaxDestRDAtomic: h.client.InitiatorDepth, MaxRDAtomic: h.client.ResponderResources,
		RetryCnt: h.client.RetryCount, RNRRetry: h.client.RNRRetryCount,
	})
	h.checkParam(t, c.here.Peer(), h.received(&h.server, cmREPRoom))
	attr, _, err := c.here.QP().Query()
	if err != nil {
		t.Fatal(err)
	}
	h.qpHas(t, "SoftRNIC", attr, h.clientQP())
	return c
}

// accept connects the kernel to SoftRNIC.
func (h *cmHandshake) accept(t *testing.T, p cmPair, linux pyverbs.CM) conns {
	t.Helper()
	c := conns{pd: softrnic{t: t, dev: p.dev}.allocPD().(*softrnicDomain)}
	addr := netip.AddrPortFrom(p.here, 7471)
	l, err := rdmacm.Listen(p.dev, addr.String(), &rdmacm.Config{Transport: p.transport})
	if err != nil {
		t.Fatal(err)
	}
	closing(t, l.Close)
	var asked rdmacm.ConnParam
	accepted := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
		defer cancel()
		r, err := l.Request(ctx)
		if err == nil {
			asked = r.Peer()
			c.here, err = r.Accept(ctx, &rdmacm.Config{PD: c.pd.pd, Cap: cmCap, Param: &h.server})
		}
		accepted <- err
	}()
	c.there = linux.Connect(addr, &h.client, cmCap)
	t.Cleanup(c.there.QP.Destroy)
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	closing(t, c.here.Close)
	h.checkParam(t, asked, h.received(&h.client, cmREQRoom))
	attr, _, err := c.here.QP().Query()
	if err != nil {
		t.Fatal(err)
	}
	h.qpHas(t, "SoftRNIC", attr, verbs.QPAttr{
		MaxDestRDAtomic: h.server.ResponderResources, MaxRDAtomic: h.server.InitiatorDepth,
		RetryCnt: h.client.RetryCount, RNRRetry: h.client.RNRRetryCount,
	})
	if want := h.received(&h.server, cmREPRoom).PrivateData; !bytes.Equal(c.there.Param.PrivateData, want) {
		t.Errorf("kernel: private data\n%x, want\n%x", c.there.Param.PrivateData, want)
	}
	h.qpHas(t, "kernel", ofConn(&c.there.Param), h.clientQP())
	return c
}

// sides returns the two ends for the operations.
func (c conns) sides(t *testing.T) (here, there *side) {
	c.pd.qps = append(c.pd.qps, c.here.QP())
	return &side{pd: c.pd, qp: softrnicQP{QP: c.here.QP(), t: t}},
		&side{pd: kernelDomain{c.there.PD}, qp: kernelQP{c.there.QP}}
}

// move moves messages from one side to the other.
func (c conns) move(t *testing.T, requester, responder *side, sizes ...int) {
	t.Helper()
	o := &operation{
		t: t, requester: requester, responder: responder,
		local: requester.pd.regMR(1<<20+8, allAccess), remote: responder.pd.regMR(1<<20+8, allAccess),
	}
	for _, size := range sizes {
		for _, opcode := range []verbs.WROpcode{verbs.Send, verbs.RDMAWrite, verbs.RDMARead} {
			o.transfer(opcode, size)
		}
	}
}

// TestConnectedPyverbs connects to a script over rdma_cm, moves data on the connection, and
// disconnects.
func TestConnectedPyverbs(t *testing.T) {
	gate.System(t)
	openCM(t, verbs.RoCEv2).eachFamily(t, func(t *testing.T, p cmPair) {
		linux := pyverbs.OpenCM(t, p.peer, "rxe0")
		for _, h := range cmHandshakes {
			t.Run(fmt.Sprintf("client/%s", h.name), func(t *testing.T) {
				c := h.dial(t, p, linux.In(t))
				here, there := c.sides(t)
				c.move(t, here, there, 1, 4097, 1<<20)
				c.move(t, there, here, 1, 4097, 1<<20)
				c.kernelDisconnects(t)
			})
			t.Run(fmt.Sprintf("server/%s", h.name), func(t *testing.T) {
				c := h.accept(t, p, linux.In(t))
				here, there := c.sides(t)
				c.move(t, here, there, 1, 4097, 1<<20)
				c.move(t, there, here, 1, 4097, 1<<20)
				if err := c.here.ID().Disconnect(); err != nil {
					t.Error(err)
				}
				c.there.AwaitDisconnected()
				c.there.Disconnect()
				<-c.here.Done()
			})
		}
	})
}

// kernelDisconnects checks that posted requests are flushed.
func (c conns) kernelDisconnects(t *testing.T) {
	t.Helper()
	const receives = 3
	for id := range uint64(receives) {
		if err := c.here.QP().PostRecv(&verbs.RecvWR{WRID: id}); err != nil {
			t.Fatal(err)
		}
	}
	c.there.Disconnect()
	wcs := poll(t, c.here.RecvCQ(), receives, patience)
	if len(wcs) != receives {
		t.Fatalf("%d of %d receives are flushed", len(wcs), receives)
	}
	for i, wc := range wcs {
		if wc.Status != verbs.WCWRFlushErr || wc.WRID != uint64(i) {
			t.Errorf("completion %d is %v of request %d, want %v", i, wc.Status, wc.WRID, verbs.WCWRFlushErr)
		}
	}
	<-c.here.Done()
	c.there.AwaitDisconnected()
}
