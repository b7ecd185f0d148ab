//go:build linux

package interop

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// udaddy does what udaddy does as far as the service resolution goes: its QPs are numbers, and nothing is sent.
type udaddy struct {
	cmProgram
	ids []*rdmacm.ID
	qps []uint32 // numbers of the peer's QPs, as they are resolved
}

// udaddyPort is udaddy's default port.
const udaddyPort = 7174

func newUdaddy(t *testing.T, l cmLab) *udaddy {
	t.Helper()
	u := &udaddy{cmProgram: newCMProgram(t, l.dev)}
	t.Cleanup(func() {
		for _, id := range u.ids {
			if err := id.Destroy(); err != nil {
				t.Error(err)
			}
		}
	})
	return u
}

// connect is the client: it resolves the server's port as often as it has QPs.
func (u *udaddy) connect(ctx context.Context, server netip.AddrPort, connections int) error {
	for range connections {
		id, err := u.createID(rdmacm.UDP, verbs.RoCEv2, nil)
		if err != nil {
			return err
		}
		u.ids = append(u.ids, id)
		if err := id.ResolveAddr(netip.AddrPort{}, server, 2*time.Second); err != nil {
			return err
		}
	}
	return u.events(ctx, func(e *rdmacm.Event) (bool, error) {
		switch e.Type {
		case rdmacm.AddrResolved:
			return false, e.ID.ResolveRoute()
		case rdmacm.RouteResolved:
			return false, e.ID.Connect(&rdmacm.ConnParam{QPNum: 0x1234})
		case rdmacm.Established:
			if e.UD.QKey != rdmacm.UDPQKey {
				return false, fmt.Errorf("the Q_Key is %#x, want %#x", e.UD.QKey, rdmacm.UDPQKey)
			}
			if to := e.UD.AHAttr.GRH.DGID.Addr(); to != server.Addr() {
				return false, fmt.Errorf("the address handle leads to %v, want %v", to, server.Addr())
			}
			u.qps = append(u.qps, e.UD.QPNum)
			return len(u.qps) == connections, nil
		}
		return false, fmt.Errorf("%v: %w", e.Type, e.Err())
	})
}

// serve is the server, which listens already: it answers with a QP number for each client.
func (u *udaddy) serve(ctx context.Context, connections int) error {
	return u.events(ctx, func(e *rdmacm.Event) (bool, error) {
		if e.Type != rdmacm.ConnectRequest {
			return false, fmt.Errorf("%v: %w", e.Type, e.Err())
		}
		u.ids = append(u.ids, e.ID)
		return len(u.ids) == connections, e.ID.Accept(&rdmacm.ConnParam{QPNum: 0x1000 + uint32(len(u.ids))})
	})
}

func TestUdaddyResolution(t *testing.T) {
	const connections = 20
	openCM(t, verbs.RoCEv2).eachFamily(t, func(t *testing.T, p cmPair) {
		t.Run("client", func(t *testing.T) {
			u := newUdaddy(t, p.cmLab)
			var qps string
			p.endlessKernelServes(t, fmt.Sprintf("udaddy -b %v -C 20 -c %d", p.there, connections), func(ctx context.Context) error {
				err := u.connect(ctx, netip.AddrPortFrom(p.there, udaddyPort), connections)
				qps = p.peer.Run(t, "rdma resource show qp")
				return err
			})
			for _, n := range u.qps {
				if !strings.Contains(qps, fmt.Sprintf("lqpn %d type UD state RTS", n)) {
					t.Errorf("the peer has no UD QP %d:\n%s", n, qps)
				}
			}
		})
		t.Run("server", func(t *testing.T) {
			u := newUdaddy(t, p.cmLab)
			u.listen(t, rdmacm.UDP, verbs.RoCEv2, netip.AddrPortFrom(p.here, udaddyPort))
			// No messages: it ends when all is resolved.
			out := p.kernelConnects(t, fmt.Sprintf("udaddy -s %v -C 0 -c %d", p.here, connections), func(ctx context.Context) error {
				return u.serve(ctx, connections)
			})
			if !strings.Contains(out, "return status 0") {
				t.Errorf("udaddy: %s", out)
			}
		})
	})
}
