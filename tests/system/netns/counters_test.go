//go:build linux

package netns

import (
	"bytes"
	"encoding/binary"
	"io"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/tests/captures"
	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// TestPortCounters: the counters of both ports equal those of a capture.
func TestPortCounters(t *testing.T) {
	gate.System(t)
	for _, m := range []medium{media[0], media[2]} {
		t.Run(m.name, func(t *testing.T) {
			interfaces.Namespace(t)
			ls := m.open(t)
			var file bytes.Buffer
			captured, err := capture.New(ls[0], &file)
			if err != nil {
				t.Fatal(err)
			}
			nodes := [2]*node{newNode(t, captured, addrs[0]...), newNode(t, ls[1], addrs[1]...)}
			connect(nodes[0], nodes[1], 1, verbs.MTU1024)
			transfer(nodes[0], nodes[1], verbs.RDMAWrite, 4, message)
			if err := captured.Flush(); err != nil {
				t.Fatal(err)
			}
			out, in := roceTraffic(t, &file, [6]byte(captured.MAC()))
			for i, want := range [2]map[string]uint64{
				{"port_xmit_packets": out.packets, "port_xmit_data": out.bytes / 4, "port_rcv_packets": in.packets,
					"port_rcv_data": in.bytes / 4},
				{"port_rcv_packets": out.packets, "port_rcv_data": out.bytes / 4, "port_xmit_packets": in.packets,
					"port_xmit_data": in.bytes / 4},
			} {
				got, err := nodes[i].dev.PortCounters(1)
				nodes[i].ok(err)
				for name, n := range want {
					if got[name] != n || n == 0 {
						t.Errorf("node %d: %s is %d, captured %d", i, name, got[name], n)
					}
				}
				all := nodes[i].counters()
				if all["sent_pkts"] != got["unicast_xmit_packets"] || all["rcvd_pkts"] != got["unicast_rcv_packets"] {
					t.Errorf("node %d: %d packets sent and %d received by QPs, the port had %d and %d", i, all["sent_pkts"],
						all["rcvd_pkts"], got["unicast_xmit_packets"], got["unicast_rcv_packets"])
				}
			}
		})
	}
}

type captureTraffic struct{ packets, bytes uint64 }

// roceTraffic returns the IPv4 packets to port 4791 from mac, and those from others.
func roceTraffic(t *testing.T, file io.Reader, mac [6]byte) (out, in captureTraffic) {
	t.Helper()
	for _, b := range captures.Frames(t, file) {
		const udp = link.EthernetHeaderLen + 20
		if len(b) < udp+8 || binary.BigEndian.Uint16(b[12:]) != 0x800 || b[23] != 17 || binary.BigEndian.Uint16(b[udp+2:]) != 4791 {
			continue
		}
		to := &in
		if [6]byte(b[6:12]) == mac {
			to = &out
		}
		to.packets++
		to.bytes += uint64(len(b))
	}
	return out, in
}
