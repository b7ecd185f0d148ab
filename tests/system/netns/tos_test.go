//go:build linux

package netns

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// TestTypeOfService: each side of an iWARP connection sets a type of service. Wireshark sees it on
// all packets of the side after TCP's handshake.
func TestTypeOfService(t *testing.T) {
	gate.System(t)
	tshark := needTshark(t)
	for i, c := range []struct{ family, dscp string }{{"IPv4", "ip.dsfield.dscp"}, {"IPv6", "ipv6.tclass.dscp"}} {
		t.Run(c.family, func(t *testing.T) {
			lan := new(pipe.Switch)
			file := filepath.Join(t.TempDir(), "tos.pcapng")
			taken, err := capture.Create(lan.Port(), file)
			if err != nil {
				t.Fatal(err)
			}
			a, b := newNode(t, taken, addrs[0]...), newNode(t, lan.Port(), addrs[1]...)
			config := func(n *node, tos uint8) *rdmacm.Config {
				return &rdmacm.Config{Transport: verbs.IWARP, PD: n.mr.PD(), TOS: tos, SendCQ: n.cq, RecvCQ: n.cq,
					Cap: verbs.QPCap{MaxSendWR: depth, MaxRecvWR: depth, MaxSendSGE: 1, MaxRecvSGE: 1}}
			}
			// ECN's bits are not the application's.
			l, err := rdmacm.Listen(b.dev, ":7471", config(b, 22<<2|3))
			b.ok(err)
			accepted := make(chan *rdmacm.Conn, 1)
			go func() {
				conn, err := l.Accept(t.Context())
				if err != nil {
					t.Error(err)
				}
				accepted <- conn
			}()
			host, _, _ := strings.Cut(addrs[1][i], "/")
			conn, err := rdmacm.Dial(t.Context(), a.dev, map[string]string{"IPv4": host, "IPv6": "[" + host + "]"}[c.family]+":7471",
				config(a, 11<<2))
			a.ok(err)
			for _, code := range []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMARead} {
				a.ok(conn.QP().PostSend(&verbs.SendWR{Opcode: code, Flags: verbs.SendSignaled, SGList: []verbs.SGE{a.mr.SGE(0, 100_000)},
					RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
				a.wait()
			}
			peer := <-accepted
			a.ok(conn.Close())
			b.ok(peer.Close())
			b.ok(l.Close())
			a.ok(a.host.Close())

			out, err := exec.Command(tshark, "-n", "-r", file, "-Y", "tcp.len > 0", "-T", "fields", "-E", "separator=|", "-e", "eth.src",
				"-e", c.dscp).Output()
			a.ok(err)
			seen := map[string]int{}
			for line := range strings.Lines(string(out)) {
				seen[strings.TrimSpace(line)]++
			}
			from, to := taken.MAC().String()+"|11", b.host.NICs()[0].MAC().String()+"|22"
			if seen[from] == 0 || seen[to] == 0 || len(seen) != 2 {
				t.Errorf("%v, want only %s and %s", seen, from, to)
			}
		})
	}
}
