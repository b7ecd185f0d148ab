//go:build linux

package netns

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/tests/captures"
	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/verbs"
)

// TestCapture records all operations on every medium. Wireshark finds nothing malformed and a BTH
// in each packet to port 4791, and every ICRC is correct.
func TestCapture(t *testing.T) {
	gate.System(t)
	tshark := needTshark(t)
	for _, m := range media {
		for gid, family := range map[int]string{1: "IPv4", 2: "IPv6"} {
			t.Run(m.name+"/"+family, func(t *testing.T) {
				interfaces.Namespace(t)
				file := filepath.Join(t.TempDir(), "all.pcapng")
				record(t, m, gid, file)
				roce := checkICRCs(t, file)
				seen := dissect(t, tshark, file)
				if n := seen["vlan.id"]; m.vlan != (n >= roce) || !m.vlan && n != 0 {
					t.Errorf("tshark finds a tag in %d packets, %d went to port 4791", n, roce)
				}
				if n := seen["_ws.malformed"]; n != 0 {
					t.Errorf("tshark finds %d malformed packets", n)
				}
				if bth, icrc := seen["infiniband.bth"], seen["infiniband.invariant.crc"]; bth != roce || icrc != roce {
					t.Errorf("tshark finds a BTH in %d packets and an ICRC in %d, %d went to port 4791", bth, icrc, roce)
				}
				for name, n := range seen {
					if strings.HasSuffix(name, ".checksum.status") && n != 0 {
						t.Errorf("tshark finds %d wrong %s", n, strings.TrimSuffix(name, ".status"))
					}
					// A GRH is RoCE v1's.
					if strings.HasPrefix(name, "infiniband") && (n == 0) != (name == "infiniband.grh") {
						t.Errorf("tshark finds %d %s", n, name)
					}
				}
			})
		}
	}
}

// needTshark returns the path of tshark. Without tshark the test is skipped.
func needTshark(t *testing.T) string {
	t.Helper()
	tshark, err := exec.LookPath("tshark")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("needs tshark, which CI installs")
		}
		t.Skip("needs tshark")
	}
	return tshark
}

// record runs every operation with node a's link captured to file.
func record(t *testing.T, m medium, gid int, file string) {
	t.Helper()
	ls := m.open(t)
	out, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	taken, err := capture.New(ls[0], out)
	if err != nil {
		t.Fatal(err)
	}
	a, b := newNode(t, m.node(t, taken), addrs[0]...), newNode(t, m.node(t, ls[1]), addrs[1]...)
	connect(a, b, gid, verbs.MTU1024)
	const count = 4
	for _, size := range []int{1, 1024, 1025, 100_001} {
		for _, code := range []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMARead, verbs.Send} {
			a.scramble()
			data := a.mr.Buf()[:count*size] // all data that is sent
			for i := range data {
				// Wireshark would look for an EtherType in a SEND's padding; it does not know this one.
				data[i] |= 0xf0
			}
			transfer(a, b, code, count, size)
		}
	}
	one := func(code verbs.WROpcode, size int) {
		b.ok(b.qp.PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 64)}}))
		a.ok(a.qp.PostSend(&verbs.SendWR{Opcode: code, Flags: verbs.SendSignaled | verbs.SendSolicited, ImmData: 0x1234,
			SGList: []verbs.SGE{a.mr.SGE(0, size)}, RemoteAddr: b.mr.Addr(), RKey: b.mr.RKey()}))
		a.wait()
	}
	one(verbs.Send, 0)
	b.wait()
	one(verbs.SendWithImm, 3)
	b.wait()
	one(verbs.RDMAWriteWithImm, 2049)
	b.wait()
	one(verbs.AtomicCmpAndSwp, 8)
	one(verbs.AtomicFetchAndAdd, 8)
	unreliable(a, b, gid)
	a.ok(a.host.Close())
}

// unreliable sends a message over UC and a datagram over UD from a to b, at a GID index.
func unreliable(a, b *node, gid int) {
	a.t.Helper()
	const qkey = 0x1111
	g, err := b.dev.QueryGID(1, gid)
	a.ok(err)
	back, err := a.dev.QueryGID(1, gid)
	a.ok(err)
	for _, service := range []verbs.QPType{verbs.UC, verbs.UD} {
		var qps [2]*verbs.QP
		for i, n := range []*node{a, b} {
			qps[i], err = n.mr.PD().CreateQP(&verbs.QPInitAttr{Type: service, SendCQ: n.cq, RecvCQ: n.cq,
				Cap: verbs.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}})
			n.ok(err)
		}
		for i, n := range []*node{a, b} {
			to := verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: []verbs.GID{g.GID, back.GID}[i], SGIDIndex: uint8(gid)}}
			masks := [3]verbs.QPAttrMask{verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrQKey, 0, verbs.QPAttrSQPSN}
			if service == verbs.UC {
				masks[0] = verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccessFlags
				masks[1] = verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN
			}
			for s, mask := range masks {
				n.ok(qps[i].Modify(&verbs.QPAttr{QPState: verbs.StateInit + verbs.QPState(s), PortNum: 1, QKey: qkey, AHAttr: to,
					PathMTU: verbs.MTU1024, DestQPNum: qps[1-i].Num()}, verbs.QPAttrState|mask))
			}
		}
		wr := &verbs.SendWR{Opcode: verbs.SendWithImm, Flags: verbs.SendSignaled, ImmData: 7, SGList: []verbs.SGE{a.mr.SGE(0, 1000)},
			RemoteQPN: qps[1].Num(), RemoteQKey: qkey}
		if service == verbs.UD {
			wr.AH, err = a.mr.PD().CreateAH(&verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: g.GID, SGIDIndex: uint8(gid)}})
			a.ok(err)
		} else {
			wr.SGList[0].Length = 3001
		}
		b.ok(qps[1].PostRecv(&verbs.RecvWR{SGList: []verbs.SGE{b.mr.SGE(0, 4096)}}))
		a.ok(qps[0].PostSend(wr))
		a.wait()
		if wc := b.wait(); wc.ImmData != 7 {
			a.t.Errorf("%v: %+v", service, wc)
		}
		for i, n := range []*node{a, b} {
			n.ok(qps[i].Close())
		}
	}
}

// checkICRCs counts the packets to UDP port 4791, whose ICRCs must be correct.
func checkICRCs(t *testing.T, file string) (roce int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for n, frame := range captures.Frames(t, f) {
		at := link.NetworkOffset(frame)
		ip := frame[at:]
		headers, proto := 28, 9
		if frame[at-2] == 0x86 {
			headers, proto = 48, 6
		} else if frame[at-2] != 8 || frame[at-1] != 0 {
			continue
		}
		if len(ip) < headers || ip[proto] != 17 || ip[headers-6] != 4791>>8 || ip[headers-5] != 4791&0xff {
			continue
		}
		roce++
		end := headers - 8 + (int(ip[headers-4])<<8 | int(ip[headers-3])) // without Ethernet's padding
		if !wire.CheckICRC(ip[:headers], ip[headers:end]) {
			t.Errorf("packet %d has a wrong ICRC", n)
		}
	}
	return roce
}

// tsharkArgs keep Wireshark from guessing upper protocols in random payload: some guesses read
// beyond the end of a short SEND. RoCEv2 over IPv6 has no UDP checksum.
var tsharkArgs = func() []string {
	args := []string{"-n", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "udp.ignore_ipv6_zero_checksum:TRUE"}
	for _, guess := range []string{"drbd", "fcoib", "infiniband_sdp", "iser", "lnet", "nvme-rdma", "rpcordma", "smb_direct", "smc"} {
		args = append(args, "--disable-protocol", guess)
	}
	return args
}()

// fields are the fields that dissect counts.
var fields = []string{"_ws.malformed", "infiniband.grh", "infiniband.bth", "infiniband.deth", "infiniband.invariant.crc",
	"infiniband.reth.va",
	"infiniband.aeth.msn", "infiniband.atomiceth.cmpdt", "infiniband.atomicacketh.origremdt", "infiniband.immdt",
	"vlan.id", "ip.checksum.status", "udp.checksum.status", "icmpv6.checksum.status"}

// dissect makes tshark count the packets that have each of fields and, of checksum states, those
// that are wrong.
func dissect(t *testing.T, tshark, file string) map[string]int {
	t.Helper()
	args := append(slices.Clone(tsharkArgs), "-r", file, "-T", "fields", "-E", "separator=|")
	for _, f := range fields {
		args = append(args, "-e", f)
	}
	var stderr bytes.Buffer
	cmd := exec.Command(tshark, args...)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark: %v: %s", err, stderr.String())
	}
	seen := map[string]int{}
	for _, f := range fields {
		seen[f] = 0
	}
	for line := range strings.Lines(string(out)) {
		for i, v := range strings.Split(strings.TrimSuffix(line, "\n"), "|") {
			if strings.HasSuffix(fields[i], ".status") && v != "0" { // 0 is bad, 1 good, others unverified
				continue
			}
			if v != "" {
				seen[fields[i]]++
			}
		}
	}
	return seen
}
