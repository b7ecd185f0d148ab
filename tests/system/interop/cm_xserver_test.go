//go:build linux

package interop

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestXServer runs against rdma_xserver and rdma_xclient of librdmacm, over RC: rxe has no XRC. The
// client sends 16 bytes, and the server disconnects.
func TestXServer(t *testing.T) {
	gate.System(t)
	const size = 16
	openCM(t, verbs.RoCEv2).eachFamily(t, func(t *testing.T, p cmPair) {
		pd := softrnic{t: t, dev: p.dev}.allocPD().(*softrnicDomain)
		buf := pd.regMR(size, verbs.AccessLocalWrite).(softrnicMemory)
		size := verbs.QPCap{MaxSendWR: 1, MaxRecvWR: 1, MaxSendSGE: 1, MaxRecvSGE: 1}
		client := func(t *testing.T) {
			p.kernelServes(t, "rdma_xserver -c r", func(ctx context.Context) error {
				c, err := rdmacm.Dial(ctx, p.dev, netip.AddrPortFrom(p.there, 7471).String(), &rdmacm.Config{PD: pd.pd, Cap: size})
				if err != nil {
					return err
				}
				defer c.Close()
				if n := len(c.Peer().PrivateData); n < 4 {
					t.Errorf("%d bytes of private data, want the number of an SRQ", n)
				}
				if err := c.QP().PostSend(&verbs.SendWR{WRID: 1, Opcode: verbs.Send, Flags: verbs.SendSignaled,
					SGList: []verbs.SGE{buf.SGE(0, buf.Length())}}); err != nil {
					return err
				}
				if wcs := poll(t, c.SendCQ(), 1, patience); len(wcs) != 1 || wcs[0].Status != ok {
					return fmt.Errorf("the SEND completes with %v", wcs)
				}
				<-c.Done()
				return nil
			})
		}
		if p.here.Is4() { // rdma_xserver does not listen on IPv6
			t.Run("client", client)
		}
		t.Run("server", func(t *testing.T) {
			l, err := rdmacm.Listen(p.dev, netip.AddrPortFrom(p.here, 7471).String(), &rdmacm.Config{PD: pd.pd, Cap: size,
				PrivateData: make([]byte, 4),
				Prepare: func(c *rdmacm.Conn) error {
					return c.QP().PostRecv(&verbs.RecvWR{WRID: 2, SGList: []verbs.SGE{buf.SGE(0, buf.Length())}})
				}})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			buf.Fill(0, buf.Length(), 1)
			p.kernelConnects(t, "rdma_xclient -c r -s "+p.here.String(), func(ctx context.Context) error {
				c, err := l.Accept(ctx)
				if err != nil {
					return err
				}
				defer c.Close()
				if wcs := poll(t, c.RecvCQ(), 1, patience); len(wcs) != 1 || wcs[0].Status != ok || wcs[0].WRID != 2 ||
					int(wcs[0].ByteLen) != buf.Length() {
					return fmt.Errorf("the receive completes with %+v", wcs)
				}
				if got := string(buf.Read(0, buf.Length())); got != string(make([]byte, buf.Length())) {
					return fmt.Errorf("received %q", got)
				}
				return nil
			})
		})
	})
}

// TestXServerXRC: the kernel recognises that SoftRNIC's request is for XRC. A listener for XRC_RECV
// QPs gets no event for an RC request. For an XRC request it gets one, and ends, because rxe has no
// XRC domains.
func TestXServerXRC(t *testing.T) {
	gate.System(t)
	l := openCM(t, verbs.RoCEv2)
	p := cmPair{l, softrnicAddr4, l.peer.Addr4()}
	ctx, cancel := context.WithTimeout(t.Context(), cmPatience)
	defer cancel()
	const program = "rdma_xserver -c x"
	serving := p.startServer(t, program)
	connect := func(kind verbs.QPType) {
		t.Helper()
		id, err := rdmacm.CreateSyncID(rdmacm.IB, p.dev)
		if err != nil {
			t.Fatal(err)
		}
		defer id.Close()
		if err := id.ResolveAddr(ctx, netip.AddrPort{}, netip.AddrPortFrom(p.there, 7471)); err != nil {
			t.Fatal(err)
		}
		if err := id.ResolveRoute(ctx); err != nil {
			t.Fatal(err)
		}
		if err := id.CreateQP(nil, &verbs.QPInitAttr{Type: kind, Cap: verbs.QPCap{MaxSendWR: 1, MaxSendSGE: 1}}); err != nil {
			t.Fatal(err)
		}
		var refused *rdmacm.EventError
		if err := id.Connect(ctx, nil); !errors.As(err, &refused) || refused.Type != rdmacm.Rejected {
			t.Errorf("%v: the kernel answers %v", kind, err)
		}
	}
	connect(verbs.RC)
	p.peer.Run(t, untilListens(program)) // still
	connect(verbs.XRCSend)
	if _, err := serving.Wait(ctx); err != nil {
		t.Fatal(err)
	}
	if want := "rdma_get_request: Operation not supported"; !strings.Contains(serving.Output(), want) {
		t.Errorf("%s says\n%s\nwant %q", program, serving.Output(), want)
	}
}
