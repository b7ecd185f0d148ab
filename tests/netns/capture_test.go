//go:build linux

package netns

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
	"github.com/softrnic/softrnic/verbs"
)

// TestCapture records all operations on every medium: Wireshark finds nothing malformed and a BTH in each packet to
// port 4791, and every ICRC is right.
func TestCapture(t *testing.T) {
	tshark := needTshark(t)
	for _, m := range media {
		for gid, family := range map[int]string{1: "IPv4", 2: "IPv6"} {
			t.Run(m.name+"/"+family, func(t *testing.T) {
				linktest.Namespace(t)
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
					if strings.HasPrefix(name, "infiniband") && n == 0 {
						t.Errorf("tshark finds no %s", name)
					}
				}
			})
		}
	}
}

// needTshark is where tshark is; without it the test is skipped.
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
	for _, size := range []int{1, 1024, 1025, 100_001} {
		for _, code := range []verbs.WROpcode{verbs.RDMAWrite, verbs.RDMARead, verbs.Send} {
			a.scramble()
			for i := range a.mr.Buf() {
				a.mr.Buf()[i] |= 0xf0 // an EtherType that Wireshark does not know, where a SEND's padding makes it look for one
			}
			transfer(a, b, code, 4, size)
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
	a.ok(a.host.Close())
}

// checkICRCs counts the packets to UDP port 4791, whose ICRCs must be right.
func checkICRCs(t *testing.T, file string) (roce int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewNgReader(f, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for n := 1; ; n++ {
		frame, _, err := r.ReadPacketData()
		if errors.Is(err, io.EOF) {
			return roce
		}
		if err != nil {
			t.Fatal(err)
		}
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
}

// tsharkArgs keep Wireshark from guessing protocols above in payload that is random: some guesses read behind the end
// of a short SEND. RoCEv2 over IPv6 has no UDP checksum.
var tsharkArgs = func() []string {
	args := []string{"-n", "-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE", "-o", "udp.ignore_ipv6_zero_checksum:TRUE"}
	for _, guess := range []string{"drbd", "fcoib", "infiniband_sdp", "iser", "lnet", "nvme-rdma", "rpcordma", "smb_direct", "smc"} {
		args = append(args, "--disable-protocol", guess)
	}
	return args
}()

// fields are what dissect counts.
var fields = []string{"_ws.malformed", "infiniband.bth", "infiniband.invariant.crc", "infiniband.reth.va",
	"infiniband.aeth.msn", "infiniband.atomiceth.cmpdt", "infiniband.atomicacketh.origremdt", "infiniband.immdt",
	"vlan.id", "ip.checksum.status", "udp.checksum.status", "icmpv6.checksum.status"}

// dissect has tshark count the packets that have each of fields, of checksum states those that are wrong.
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
