//go:build linux

package netns

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// TestCNPDissected: a queue marks every packet that waits. Wireshark dissects the congestion
// notification packets, and finds nothing wrong with them.
func TestCNPDissected(t *testing.T) {
	gate.System(t)
	tshark := needTshark(t)
	for gid, family := range map[int]string{1: "IPv4", 2: "IPv6"} {
		t.Run(family, func(t *testing.T) {
			lan := new(pipe.Switch)
			queue, err := impair.New(lan.Port(), &impair.Config{In: impair.Direction{Rate: 1e8, ECN: impair.ECN{Max: 1}}})
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "cnp.pcapng")
			taken, err := capture.Create(queue, file)
			if err != nil {
				t.Fatal(err)
			}
			device := &rdmatransport.Config{RoCE: roce.Config{DCQCN: &roce.DCQCN{}}}
			a, b := newNodeWith(t, taken, device, addrs[0]...), newNodeWith(t, lan.Port(), device, addrs[1]...)
			connect(a, b, gid, verbs.MTU1024)
			transfer(b, a, verbs.RDMAWrite, 4, 100_000)
			a.ok(a.host.Close())

			layer := map[string]string{"IPv4": "ip.dsfield", "IPv6": "ipv6.tclass"}[family]
			cmd := exec.Command(tshark, append(tsharkArgs, "-r", file, "-Y", "infiniband.bth", "-T", "fields", "-E", "separator=|",
				"-e", "infiniband.bth.opcode", "-e", layer+".dscp", "-e", layer+".ecn", "-e", "infiniband.bth.destqp", "-e",
				"_ws.malformed",
				"-e", "_ws.col.Info")...)
			cmd.Stderr = os.Stderr
			out, err := cmd.Output()
			a.ok(err)
			cnps, marked := 0, 0
			for line := range strings.Lines(string(out)) {
				f := strings.Split(strings.TrimSpace(line), "|")
				opcode, dscp, ecn, qpn, bad, info := f[0], f[1], f[2], f[3], f[4], f[5]
				switch {
				case bad != "":
					t.Fatalf("malformed: %s", line)
				case opcode == fmt.Sprint(uint8(wire.CNP)): // Wireshark 4.0 has no name for it
					cnps++
					if dscp != "48" || ecn != "0" || qpn != fmt.Sprintf("0x%06x", b.qp.Num()) {
						t.Fatalf("a CNP with DSCP %s, ECN %s to QP %s: %s", dscp, ecn, qpn, info)
					}
				case ecn == "3" && qpn != fmt.Sprintf("0x%06x", b.qp.Num()):
					marked++
				case dscp != "0" || ecn != "2":
					t.Fatalf("DSCP %s, ECN %s: %s", dscp, ecn, info)
				}
			}
			if counted := a.counters()["np_cnp_sent"]; cnps == 0 || uint64(cnps) != counted || marked < cnps {
				t.Errorf("tshark finds %d CNPs, %d were sent; %d packets marked", cnps, counted, marked)
			}
		})
	}
}
