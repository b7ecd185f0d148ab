//go:build linux

// Package netns tests two nodes over the kernel's own media, in network namespaces that the tests
// create.
package netns

import (
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/packet"
	"github.com/softrnic/softrnic/link/tap"
	"github.com/softrnic/softrnic/link/vlan"
	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// MTU that leaves room for a path MTU of 4096.
const mtu = 4200

// medium creates two connected links.
type medium struct {
	name string
	uso  bool // superframes cross it unsegmented
	vlan bool // the nodes are in a VLAN
	open func(t testing.TB) [2]link.Link
}

const vlanID = 5

// node returns the link of a node on the medium.
func (m *medium) node(t testing.TB, l link.Link) link.Link {
	t.Helper()
	if !m.vlan {
		return l
	}
	v, err := vlan.New(l, vlanID)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

var media = []medium{
	{"TAP", true, false, offloadingTAPs},
	{"TAP without offloads", false, false, plainTAPs},
	{"packet", true, false, packets},
	{"packet without offloads", false, false, singles},
	{"VLAN of TAP", true, true, offloadingTAPs},
	{"VLAN of TAP without offloads", false, true, plainTAPs},
	{"VLAN of packet", true, true, packets},
}

func offloadingTAPs(t testing.TB) [2]link.Link { return taps(t, false) }
func plainTAPs(t testing.TB) [2]link.Link      { return taps(t, true) }

func singles(t testing.TB) [2]link.Link {
	ls := packets(t)
	return [2]link.Link{single{ls[0]}, single{ls[1]}}
}

// taps creates two TAP interfaces in a bridge.
func taps(t testing.TB, plain bool) (ls [2]link.Link) {
	t.Helper()
	interfaces.TUN(t)
	interfaces.Bridge(t, "br0", mtu)
	for i, name := range []string{"rnic0", "rnic1"} {
		l, err := tap.Open(name, &tap.Config{MTU: mtu, Bridge: "br0", NoOffloads: plain})
		if err != nil {
			t.Fatal(err)
		}
		ls[i] = l
	}
	return ls
}

// packets opens packet sockets on the two ends of a veth pair.
func packets(t testing.TB) (ls [2]link.Link) {
	t.Helper()
	interfaces.Veth(t, mtu)
	for i, name := range []string{"v0", "v1"} {
		l, err := packet.Open(name, nil)
		if err != nil {
			t.Fatal(err)
		}
		ls[i] = l
	}
	return ls
}

// single is a link without superframes.
type single struct{ link.Link }

func (single) Offloads() link.Offloads { return link.Offloads{} }

var addrs = [2][]string{{"10.7.0.1/24", "2001:db8:7::1/64"}, {"10.7.0.2/24", "2001:db8:7::2/64"}}

// TestEndToEnd moves data over each medium and each IP version. It checks that the data arrives,
// that next to nothing is sent twice, and that superframes cross if the medium permits.
func TestEndToEnd(t *testing.T) {
	gate.System(t)
	for _, m := range media {
		for gid, family := range []string{"link-local", "IPv4", "IPv6"} {
			t.Run(m.name+"/"+family, func(t *testing.T) {
				interfaces.Namespace(t)
				ls := m.open(t)
				a, b := newNode(t, m.node(t, ls[0]), addrs[0]...), newNode(t, m.node(t, ls[1]), addrs[1]...)
				connect(a, b, gid, verbs.MTU4096)
				for _, code := range []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMARead, verbs.Send} {
					a.scramble()
					rate := transfer(a, b, code, 64, message)
					t.Logf("%v: %.1f Gbit/s", code, rate)
				}
				for i, n := range []*node{a, b} {
					// A peer that is scheduled late may be probed.
					asked := []*node{b, a}[i].counters()["tail_probes"]
					for name, v := range n.counters() {
						switch name {
						case "duplicate_request":
							if v > asked+4 { // a busy machine looks like loss
								t.Errorf("%d duplicate requests, and %d probes, though nothing was lost", v, asked)
							}
						case "completer_retry_err":
							if v > 4 {
								t.Errorf("%s is %d though nothing was lost", name, v)
							}
						case "out_of_seq_request", "icrc_errors", "malformed_packets":
							if v != 0 {
								t.Errorf("%s is %d though nothing was lost", name, v)
							}
						}
					}
				}
				ac, bc := a.host.Interfaces()[0].Counters(), b.host.Interfaces()[0].Counters()
				datagrams := 2 * 64 * (message / 4096) // those of WRITE and SEND
				switch {
				case m.uso && (int(ac.TxFrames)*5 > datagrams || int(bc.RxFrames)*5 > datagrams):
					t.Errorf("%d datagrams went in %d frames and came in %d: no superframes?", datagrams, ac.TxFrames, bc.RxFrames)
				case !m.uso && (int(ac.TxFrames) < datagrams || int(bc.RxFrames) < datagrams):
					t.Errorf("%d datagrams went in %d frames and came in %d: superframes?", datagrams, ac.TxFrames, bc.RxFrames)
				}
			})
		}
	}
}
