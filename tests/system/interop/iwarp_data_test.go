//go:build linux

package interop

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/pyverbs"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// siwCap fits siw, which has 6 SGEs.
var siwCap = verbs.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 6, MaxRecvSGE: 6}

// openIWARP opens a SoftRNIC device beside a peer that has siw0.
func openIWARP(t *testing.T, wrap func(*testing.T, link.Link) link.Link, config iwarp.Config) cmLab {
	t.Helper()
	p := cmPeer(t, 2, verbs.IWARP)
	dev := openSoftRNIC(t, wrap(t, openTAP(t, p.Netns)), &rdmatransport.Config{IWARP: config}).(softrnic).dev
	return cmLab{p, dev, verbs.IWARP}
}

const iwarpPort = 7471

// iwarpRoom is the size of each side's memory, and of the largest message.
const iwarpRoom = 1 << 20

// dialSIW connects SoftRNIC to a script on siw.
func dialSIW(t *testing.T, p cmPair, linux pyverbs.CM, client, server *rdmacm.ConnParam) conns {
	t.Helper()
	c := conns{pd: softrnic{t: t, dev: p.dev}.allocPD().(*softrnicDomain)}
	addr := netip.AddrPortFrom(p.there, iwarpPort)
	l := linux.Listen(addr)
	t.Cleanup(l.Close)
	dialled := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var err error
		c.here, err = rdmacm.Dial(ctx, p.dev, addr.String(), &rdmacm.Config{
			Transport: verbs.IWARP, PD: c.pd.pd, Cap: siwCap, Param: client,
		})
		dialled <- err
	}()
	c.there = l.Accept(server, siwCap)
	t.Cleanup(c.there.QP.Destroy)
	if err := <-dialled; err != nil {
		t.Fatal(err)
	}
	closing(t, c.here.Close)
	return c
}

// acceptSIW connects a script on siw to SoftRNIC.
func acceptSIW(t *testing.T, p cmPair, linux pyverbs.CM, client, server *rdmacm.ConnParam) conns {
	t.Helper()
	c := conns{pd: softrnic{t: t, dev: p.dev}.allocPD().(*softrnicDomain)}
	addr := netip.AddrPortFrom(p.here, iwarpPort)
	l, err := rdmacm.Listen(p.dev, addr.String(), &rdmacm.Config{
		Transport: verbs.IWARP, PD: c.pd.pd, Cap: siwCap, Param: server,
	})
	if err != nil {
		t.Fatal(err)
	}
	closing(t, l.Close)
	accepted := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var err error
		c.here, err = l.Accept(ctx)
		accepted <- err
	}()
	c.there = linux.Connect(addr, client, siwCap)
	t.Cleanup(c.there.QP.Destroy)
	if err := <-accepted; err != nil {
		t.Fatal(err)
	}
	closing(t, c.here.Close)
	return c
}

func depths(in, out uint8) *rdmacm.ConnParam {
	return &rdmacm.ConnParam{ResponderResources: in, InitiatorDepth: out, RetryCount: 7, RNRRetryCount: 7}
}

// moveAll moves every kind of message that siw supports, both ways, the connection's initiator
// first.
func (c conns) moveAll(t *testing.T, initiator, responder *side, sizes []int) {
	t.Helper()
	for _, way := range [][2]*side{{initiator, responder}, {responder, initiator}} {
		o := &operation{
			t: t, posted: true, requester: way[0], responder: way[1],
			local: way[0].pd.regMR(iwarpRoom+8, allAccess), remote: way[1].pd.regMR(iwarpRoom+8, allAccess),
		}
		for _, size := range sizes {
			for _, opcode := range []verbs.WROpcode{verbs.Send, verbs.RDMAWrite, verbs.RDMARead} {
				o.transfer(opcode, size)
			}
		}
		o.scatter(verbs.Send)
		o.scatter(verbs.RDMAWrite)
		if _, ours := way[0].qp.(softrnicQP); ours { // siw reads into one piece only
			o.scatter(verbs.RDMARead)
		}
	}
}

// TestIWARPData moves data between SoftRNIC and a script on siw, with all features that both
// support.
func TestIWARPData(t *testing.T) {
	gate.System(t)
	for _, agreement := range []struct {
		name   string
		config iwarp.Config
		sizes  []int
	}{
		{"CRC", iwarp.Config{}, []int{1, 3, 1441, 65_537, iwarpRoom}},
		{"no CRC, not peer to peer", iwarp.Config{NoCRC: true, NoPeerToPeer: true}, []int{1, 1441, 65_537}},
		{"revision 1", iwarp.Config{Revision: 1}, []int{1, 1441}},
	} {
		t.Run(agreement.name, func(t *testing.T) {
			l := openIWARP(t, capturedIWARP, agreement.config)
			linux := pyverbs.OpenCM(t, l.peer, "siw0")
			l.eachFamily(t, func(t *testing.T, p cmPair) {
				t.Run("client", func(t *testing.T) {
					c := dialSIW(t, p, linux.In(t), depths(16, 16), depths(16, 16))
					here, there := c.sides(t)
					c.moveAll(t, here, there, agreement.sizes)
					c.there.Disconnect()
					<-c.here.Done()
				})
				t.Run("server", func(t *testing.T) {
					c := acceptSIW(t, p, linux.In(t), depths(16, 16), depths(16, 16))
					here, there := c.sides(t)
					c.moveAll(t, there, here, agreement.sizes)
					if err := c.here.ID().Disconnect(); err != nil {
						t.Error(err)
					}
					c.there.AwaitDisconnected()
				})
			})
		})
	}
}

// TestIWARPDepths connects with different depths, and posts more READs at once than either permits.
func TestIWARPDepths(t *testing.T) {
	gate.System(t)
	l := openIWARP(t, capturedIWARP, iwarp.Config{})
	linux := pyverbs.OpenCM(t, l.peer, "siw0")
	p := cmPair{l, softrnicAddr4, l.peer.Addr4()}
	for _, d := range []struct{ clientIn, clientOut, serverIn, serverOut uint8 }{
		{1, 1, 1, 1}, {1, 8, 4, 2}, {8, 1, 2, 4}, {3, 16, 1, 16}, {16, 5, 16, 1},
	} {
		client, server := depths(d.clientIn, d.clientOut), depths(d.serverIn, d.serverOut)
		t.Run(fmt.Sprintf("client/%d,%d,%d,%d", d.clientIn, d.clientOut, d.serverIn, d.serverOut), func(t *testing.T) {
			c := dialSIW(t, p, linux.In(t), client, server)
			here, there := c.sides(t)
			readMany(t, here, there)
			readMany(t, there, here)
		})
		t.Run(fmt.Sprintf("server/%d,%d,%d,%d", d.clientIn, d.clientOut, d.serverIn, d.serverOut), func(t *testing.T) {
			c := acceptSIW(t, p, linux.In(t), client, server)
			here, there := c.sides(t)
			readMany(t, there, here)
			readMany(t, here, there)
		})
	}
}

// readMany posts READs until the send queue is full. Each must return the named data.
func readMany(t *testing.T, requester, responder *side) {
	t.Helper()
	const reads, n = 12, 3000
	local, remote := requester.pd.regMR(reads*n, allAccess), responder.pd.regMR(reads*n, allAccess)
	remote.Fill(0, reads*n, 77)
	for i := range reads {
		if err := requester.qp.PostSend(&verbs.SendWR{
			WRID: uint64(i), Opcode: verbs.RDMARead, Flags: verbs.SendSignaled, SGList: []verbs.SGE{local.SGE(i*n, n)},
			RemoteAddr: remote.Addr() + uint64(i*n), RKey: remote.RKey(),
		}); err != nil {
			t.Fatal(err)
		}
	}
	wcs := requester.qp.PollSend(reads, patience)
	for i, wc := range wcs {
		if wc.WRID != uint64(i) || wc.Status != verbs.WCSuccess {
			t.Errorf("completion %d is %v of request %d", i, wc.Status, wc.WRID)
		}
	}
	if len(wcs) != reads {
		t.Errorf("%d of %d READs complete", len(wcs), reads)
	}
	if local.Digest(0, reads*n) != remote.Digest(0, reads*n) {
		t.Error("the data differs")
	}
}
