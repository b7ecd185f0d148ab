//go:build linux

package interop

import (
	"context"
	"net"
	"path/filepath"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/tap"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestIWARPMarkers runs every operation between two SoftRNICs on TAP interfaces, with and without
// markers in either direction, because siw has no markers. tshark dissects the packets.
func TestIWARPMarkers(t *testing.T) {
	gate.System(t)
	n := cmPeer(t, 2, verbs.IWARP).Netns
	for _, agreement := range []struct {
		name string
		a, b iwarp.Config
	}{
		{"none", iwarp.Config{}, iwarp.Config{}},
		{"both ways", iwarp.Config{Markers: true}, iwarp.Config{Markers: true}},
		{"to the client", iwarp.Config{Markers: true}, iwarp.Config{}},
		{"to the server", iwarp.Config{}, iwarp.Config{Markers: true}},
	} {
		file := filepath.Join(t.TempDir(), "capture.pcapng")
		if !t.Run(agreement.name, func(t *testing.T) {
			here := openSoftRNIC(t, captureTo(t, file, openTAP(t, n)), &rdmatransport.Config{IWARP: agreement.a})
			other := openSecond(t, n, agreement.b)
			exchange(t, here, other)
		}) {
			continue
		}
		conns := wellFormedIWARP(t, file)
		if len(conns) != 1 {
			t.Fatalf("%d connections are captured", len(conns))
		}
		c := conns[0]
		if !c.crc || c.request.Markers != agreement.a.Markers || c.reply.Markers != agreement.b.Markers {
			t.Errorf("%s: request %+v, reply %+v", agreement.name, c.request, c.reply)
		}
		for i, ops := range [2][]rdmap.Opcode{
			{rdmap.Write, rdmap.ReadRequest, rdmap.Send, rdmap.AtomicRequest, rdmap.ImmediateData},
			{rdmap.ReadResponse, rdmap.AtomicResponse},
		} {
			for _, op := range ops {
				if c.halves[i].messages[op] == 0 {
					t.Errorf("%s: %v is not in the capture: %v", agreement.name, op, c.halves[i].messages)
				}
			}
		}
	}
}

// openSecond opens a second SoftRNIC in the namespace, at 10.77.0.101.
func openSecond(t *testing.T, n *peer.Netns, config iwarp.Config) softrnic {
	t.Helper()
	var l link.Link
	if err := n.Do(func() (err error) {
		l, err = tap.Open("softrnic1", &tap.Config{Bridge: n.Bridge, MTU: n.MTU, MAC: net.HardwareAddr{0x02, 0, 0, 0x77, 0, 101}})
		return err
	}); err != nil {
		t.Fatal(err)
	}
	host, err := netstack.New(l, &netstack.Config{Addrs: []string{"10.77.0.101/24"}})
	if err != nil {
		t.Fatal(err)
	}
	closing(t, host.Close)
	dev, err := rdmatransport.Open(host, &rdmatransport.Config{IWARP: config})
	if err != nil {
		t.Fatal(err)
	}
	closing(t, dev.Close)
	return softrnic{t, dev}
}

// exchange runs every operation from one device to another.
func exchange(t *testing.T, from device, to softrnic) {
	t.Helper()
	a, b := from.allocPD().(*softrnicDomain), to.allocPD().(*softrnicDomain)
	l, err := rdmacm.Listen(b.dev, "10.77.0.101:7471", &rdmacm.Config{Transport: verbs.IWARP, PD: b.pd, Cap: siwCap})
	if err != nil {
		t.Fatal(err)
	}
	closing(t, l.Close)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	accepted := make(chan *rdmacm.Conn, 1)
	go func() {
		defer close(accepted)
		if c, err := l.Accept(ctx); err == nil {
			accepted <- c
		}
	}()
	ca, err := rdmacm.Dial(ctx, a.dev, "10.77.0.101:7471", &rdmacm.Config{Transport: verbs.IWARP, PD: a.pd, Cap: siwCap})
	if err != nil {
		t.Fatal(err)
	}
	closing(t, ca.Close)
	cb := <-accepted
	if cb == nil {
		t.Fatal("no connection is accepted")
	}
	closing(t, cb.Close)
	a.qps, b.qps = append(a.qps, ca.QP()), append(b.qps, cb.QP())
	o := &operation{
		t: t, posted: true, requester: &side{pd: a, qp: softrnicQP{ca.QP(), t}}, responder: &side{pd: b, qp: softrnicQP{cb.QP(), t}},
		local: a.regMR(iwarpRoom+8, allAccess), remote: b.regMR(iwarpRoom+8, allAccess),
	}
	for _, size := range []int{0, 1, 3, 500, 1441, 100_000} {
		for _, opcode := range []verbs.WROpcode{verbs.Send, verbs.RDMAWrite, verbs.RDMAWriteWithImm, verbs.RDMARead} {
			o.transfer(opcode, size)
		}
	}
	o.atomics()
}
