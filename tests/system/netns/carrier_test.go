//go:build linux

package netns

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// Values of phys_state.
const (
	polling  = 2
	disabled = 3
	linkUp   = 5
)

// awaitPort waits for an event of a port, and checks that the port is in the event's state. It
// ignores other events.
func (n *node) awaitPort(want verbs.AsyncEventType, phys uint8) {
	n.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	for {
		e, err := n.dev.GetAsyncEvent(ctx)
		if err != nil {
			n.t.Fatalf("waiting for %v: %v", want, err)
		}
		if e.Type == verbs.EventPortErr || e.Type == verbs.EventPortActive {
			if e.Type != want || e.PortNum != 1 {
				n.t.Fatalf("%v of port %d, want %v of port 1", e.Type, e.PortNum, want)
			}
			break
		}
	}
	state := verbs.PortActive
	if want == verbs.EventPortErr {
		state = verbs.PortDown
	}
	p, err := n.dev.QueryPort(1)
	n.ok(err)
	if p.State != state || p.PhysState != phys {
		n.t.Errorf("after %v the port is %v, its link in state %d; want %v and %d", want, p.State, p.PhysState, state, phys)
	}
}

// set brings an interface up or down, like ip link set.
func set(t *testing.T, name string, up bool) {
	t.Helper()
	change := netlink.LinkSetDown
	if up {
		change = netlink.LinkSetUp
	}
	if err := change(interfaces.ByName(t, name)); err != nil {
		t.Fatal(err)
	}
}

// writes does one small WRITE, and returns its status.
func (n *node) writes(peer *node) verbs.WCStatus {
	n.t.Helper()
	n.ok(n.qp.PostSend(&verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
		SGList: []verbs.SGE{n.mr.SGE(0, 64)}, RemoteAddr: peer.mr.Addr(), RKey: peer.mr.RKey()}))
	wcs := make([]verbs.WC, 1)
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		k, err := n.cq.Poll(wcs)
		n.ok(err)
		if k > 0 {
			return wcs[0].Status
		}
	}
	n.t.Fatal("no completion")
	return 0
}

// again creates new QPs on nodes whose QPs have failed.
func again(a, b *node, timeout uint8) {
	for _, n := range []*node{a, b} {
		n.ok(n.qp.Modify(&verbs.QPAttr{QPState: verbs.StateReset}, verbs.QPAttrState))
	}
	connect(a, b, 1, verbs.MTU1024)
	for _, n := range []*node{a, b} {
		n.ok(n.qp.Modify(&verbs.QPAttr{QPState: verbs.StateSQD}, verbs.QPAttrState))
		n.ok(n.qp.Modify(&verbs.QPAttr{QPState: verbs.StateSQD, Timeout: timeout, RetryCnt: 2},
			verbs.QPAttrState|verbs.QPAttrTimeout|verbs.QPAttrRetryCnt))
		n.ok(n.qp.Modify(&verbs.QPAttr{QPState: verbs.StateRTS}, verbs.QPAttrState))
	}
}

// TestCarrier takes the carrier of links away and restores it. The ports must go down and up.
// Requests must fail with RETRY_EXC_ERR while they are down, and succeed afterwards.
func TestCarrier(t *testing.T) {
	gate.System(t)
	type effect struct {
		set  string // the interface that goes down
		phys [2]uint8
	}
	for _, m := range []struct {
		medium
		effects []effect
	}{
		{media[0], []effect{{"rnic1", [2]uint8{linkUp, polling}}, {"br0", [2]uint8{polling, polling}}}},
		{media[2], []effect{{"v1", [2]uint8{polling, disabled}}}},
	} {
		for _, e := range m.effects {
			t.Run(fmt.Sprintf("%s/%s", m.name, e.set), func(t *testing.T) {
				interfaces.Namespace(t)
				ls := m.open(t)
				var err error
				var wrapped [2]link.Link
				if wrapped[0], err = capture.New(ls[0], new(bytes.Buffer)); err != nil {
					t.Fatal(err)
				}
				if wrapped[1], err = impair.New(ls[1], &impair.Config{}); err != nil {
					t.Fatal(err)
				}
				nodes := [2]*node{newNode(t, wrapped[0], addrs[0]...), newNode(t, wrapped[1], addrs[1]...)}
				a, b := nodes[0], nodes[1]
				connect(a, b, 1, verbs.MTU1024)
				if s := a.writes(b); s != verbs.WCSuccess {
					t.Fatalf("before: %v", s)
				}
				again(a, b, 10)
				set(t, e.set, false)
				for i, n := range nodes {
					if e.phys[i] != linkUp {
						n.awaitPort(verbs.EventPortErr, e.phys[i])
					}
				}
				if s := a.writes(b); s != verbs.WCRetryExcErr {
					t.Errorf("while %s is down: %v, want RETRY_EXC_ERR", e.set, s)
				}
				set(t, e.set, true)
				for i, n := range nodes {
					want := uint64(0)
					if e.phys[i] != linkUp {
						want = 1
						n.awaitPort(verbs.EventPortActive, linkUp)
					}
					if got := n.counters()["link_downed"]; got != want {
						t.Errorf("link_downed of node %d is %d, want %d", i, got, want)
					}
				}
				again(a, b, 18)
				if s := a.writes(b); s != verbs.WCSuccess {
					t.Errorf("afterwards: %v", s)
				}
			})
		}
	}
}

// TestRemoval deletes the interface of a node. Its port must go down, unless it was down before,
// and its device must raise DEVICE_FATAL.
func TestRemoval(t *testing.T) {
	gate.System(t)
	for _, m := range []struct {
		medium
		name string
		phys uint8 // of the port while the interface is down
	}{{media[0], "rnic0", polling}, {media[2], "v0", disabled}} {
		for _, downBefore := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/down before: %v", m.medium.name, downBefore), func(t *testing.T) {
				interfaces.Namespace(t)
				n := newNode(t, m.open(t)[0], addrs[0]...)
				if downBefore {
					set(t, m.name, false)
					n.awaitPort(verbs.EventPortErr, m.phys)
				}
				if err := netlink.LinkDel(interfaces.ByName(t, m.name)); err != nil {
					t.Fatal(err)
				}
				want := []verbs.AsyncEventType{verbs.EventPortErr, verbs.EventDeviceFatal}
				if downBefore {
					want = want[1:]
				}
				for _, w := range want {
					ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
					e, err := n.dev.GetAsyncEvent(ctx)
					cancel()
					if err != nil || e.Type != w {
						t.Fatalf("%v, %v; want %v", e.Type, err, w)
					}
				}
				p, err := n.dev.QueryPort(1)
				n.ok(err)
				if got := n.counters()["link_downed"]; p.State != verbs.PortDown || p.PhysState != disabled || got != 1 {
					t.Errorf("the port is %v, its link in state %d, link_downed %d; want it down, in state %d, once", p.State, p.PhysState,
						got, disabled)
				}
			})
		}
	}
}

// TestMTUChange: the active MTU follows the interface's MTU, as rxe's does.
func TestMTUChange(t *testing.T) {
	gate.System(t)
	for _, m := range []struct {
		medium
		name string
	}{{media[0], "rnic0"}, {media[2], "v0"}} {
		t.Run(m.medium.name, func(t *testing.T) {
			interfaces.Namespace(t)
			n := newNode(t, m.open(t)[0], addrs[0]...)
			for _, c := range []struct {
				mtu    int
				active verbs.MTU
			}{{1500, verbs.MTU1024}, {mtu, verbs.MTU4096}} {
				if err := netlink.LinkSetMTU(interfaces.ByName(t, m.name), c.mtu); err != nil {
					t.Fatal(err)
				}
				deadline := time.Now().Add(10 * time.Second)
				for {
					p, err := n.dev.QueryPort(1)
					n.ok(err)
					if p.ActiveMTU == c.active {
						break
					}
					if time.Now().After(deadline) {
						t.Fatalf("the active MTU is %v with an interface's MTU of %d", p.ActiveMTU, c.mtu)
					}
				}
			}
		})
	}
}
