//go:build linux

package interop

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/tests/captures"
	"github.com/softrnic/softrnic/tests/system/internal/libraries"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
)

// captured returns a link whose frames wellFormed checks after the test has closed it.
func captured(t *testing.T, l link.Link) link.Link {
	t.Helper()
	file := filepath.Join(t.ArtifactDir(), "capture.pcapng")
	t.Cleanup(func() { wellFormed(t, file) })
	return captureTo(t, file, l)
}

// tracePort captures what passes a peer's port of the bridge until the test ends. softrnic trace
// must then find nothing wrong. A capture on the bridge itself may have an answer first, since
// Linux shows it a packet after it has forwarded it.
func tracePort(t *testing.T, p *peer.Peer) {
	t.Helper()
	n, port := p.Netns, fmt.Sprintf("peer%d", p.ID)
	file := filepath.Join(t.ArtifactDir(), fmt.Sprintf("%s-%d.pcapng", port, n.MTU))
	const buffer = "64" // MiB
	capturing := startProcess(t, n.Command(context.Background(), "dumpcap", "-q", "-B", buffer, "-i", port, "-w", file))
	capturing.await(t, "File:")
	t.Cleanup(func() {
		capturing.interrupt(t)
		traced(t, file, 0)
	})
}

// captureDir returns a directory of captures that wellFormed checks together at the end of the
// test, since tshark starts slowly.
func captureDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	t.Cleanup(func() {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			t.Fatal(err)
		}
		wellFormed(t, files...)
	})
	return dir
}

// wellFormed checks captures of SoftRNIC's links. Each has RoCEv2 packets, and all together have
// some in both directions. Every packet has a correct ICRC, tshark recognises it, and reports
// nothing malformed.
func wellFormed(t *testing.T, files ...string) {
	t.Helper()
	if t.Skipped() { // before any packets
		return
	}
	if _, err := exec.LookPath("tshark"); err != nil {
		peer.Unavailable(t, fmt.Errorf("captures are checked with tshark (apt-get install tshark): %w", err))
	}
	totalIn, totalOut := 0, 0
	// Sections may follow each other in a file.
	all, err := os.Create(filepath.Join(t.TempDir(), "all.pcapng"))
	if err != nil {
		t.Fatal(err)
	}
	defer all.Close()
	for _, name := range files {
		traced(t, name, 0)
		data, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		in, out := checkICRCs(t, data)
		if in+out == 0 {
			t.Errorf("%s has no RoCEv2 packet", filepath.Base(name))
		}
		totalIn, totalOut = totalIn+in, totalOut+out
		if _, err := all.Write(data); err != nil {
			t.Fatal(err)
		}
	}
	if totalIn == 0 || totalOut == 0 {
		t.Errorf("%d RoCEv2 packets came, %d went", totalIn, totalOut)
	}
	dissect(t, all.Name(), totalIn+totalOut)
}

// impatient are the findings about peers, 10.77.0.2 to 99: their rxe does not always wait as long
// as an RNR NAK asks for. Its retransmission timer, once started, also runs on when all is
// acknowledged, and then ends early for a later packet.
var impatient = regexp.MustCompile(`(?m)^ +\d+ [\d.]+ (?:10\.77\.0\.|fd77::)(?:[2-9]|[1-9]\d) > .*\n` +
	` +WRONG packet \d+: (?:the RNR NAK of packet \d+ asked for |repeats packet \d+, and nothing asked for it$)`)

// traced gives a capture to softrnic trace, and checks its exit status: 0 if all was checked and
// nothing is wrong.
func traced(t *testing.T, file string, want int) {
	t.Helper()
	program, err := libraries.Program()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "trace", "--errors", file)
	out, err := cmd.CombinedOutput()
	if n := len(impatient.FindAll(out, -1)); n > 0 && n == bytes.Count(out, []byte("WRONG packet")) {
		t.Logf("%s: %d times a peer did not wait", filepath.Base(file), n)
		return
	}
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != want {
		t.Errorf("softrnic trace %s: %v, want exit status %d\n%.4000s", filepath.Base(file), err, want, out)
	} else if bytes.Contains(out, []byte(" DOUBTFUL packet ")) {
		t.Logf("softrnic trace %s:\n%.2000s", filepath.Base(file), out)
	}
}

// checkICRCs counts the packets to UDP port 4791 that SoftRNIC received and sent, whose ICRCs must
// be correct. A FLUSH may have rxe's.
func checkICRCs(t *testing.T, pcapng []byte) (in, out int) {
	t.Helper()
	for n, frame := range captures.Frames(t, bytes.NewReader(pcapng)) {
		headers, payload, ok := roce(frame)
		if !ok {
			continue
		}
		from := "peer"
		if bytes.Equal(frame[6:12], softrnicMAC) {
			from = "SoftRNIC"
			out++
		} else {
			in++
		}
		if !wire.CheckICRC(headers, payload) && !wire.CheckRxeFlushICRC(headers, payload) {
			t.Errorf("packet %d, from the %s, has a wrong ICRC", n, from)
		}
	}
	return in, out
}

// roce splits a frame to UDP port 4791 into its IP and UDP headers and the UDP payload.
func roce(frame []byte) (headers, payload []byte, ok bool) {
	at := link.NetworkOffset(frame)
	ip := frame[at:]
	length, proto := 20+8, 9
	switch [2]byte(frame[at-2:]) {
	case [2]byte{0x08, 0x00}:
	case [2]byte{0x86, 0xdd}:
		length, proto = 40+8, 6
	default:
		return nil, nil, false
	}
	if len(ip) < length || ip[proto] != 17 {
		return nil, nil, false
	}
	port := int(ip[length-6])<<8 | int(ip[length-5])
	end := length - 8 + (int(ip[length-4])<<8 | int(ip[length-3])) // without Ethernet's padding
	if port != 4791 || end < length || end > len(ip) {
		return nil, nil, false
	}
	return ip[:length], ip[length:end], true
}

// tsharkArgs avoid two false reports of tshark. RoCEv2 over IPv6 has no UDP checksum (IBTA
// A17.3.1), and no upper protocol can be guessed from the tests' payload.
var tsharkArgs = func() []string {
	args := []string{"-n", "-o", "udp.ignore_ipv6_zero_checksum:TRUE"}
	for _, guess := range []string{"drbd", "fcoib", "infiniband_sdp", "iser", "lnet", "nvme-rdma", "rpcordma", "smb_direct", "smc"} {
		args = append(args, "--disable-protocol", guess)
	}
	return args
}()

// tshark returns its output for a capture.
func tshark(t *testing.T, file string, args ...string) string {
	t.Helper()
	var warnings strings.Builder
	cmd := exec.Command("tshark", slices.Concat(tsharkArgs, []string{"-r", file}, args)...)
	cmd.Stderr = &warnings
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("tshark %s: %v\n%s", strings.Join(args, " "), err, warnings.String())
	}
	return string(out)
}

// tsharkError is the severity of malformed or wrong packets in tshark's output: PI_ERROR.
const tsharkError = "8388608"

// dissect lets tshark dissect every packet, of which the given number are RoCEv2.
func dissect(t *testing.T, file string, packets int) {
	t.Helper()
	args := []string{"-T", "fields", "-E", "separator=|"}
	for _, field := range []string{"frame.number", "infiniband.bth", "infiniband.invariant.crc", "_ws.short", "_ws.expert.severity",
		"infiniband.bth.opcode", "_ws.expert.message"} {
		args = append(args, "-e", field)
	}
	flush := fmt.Sprint(int(wire.RCFlush)) // tshark 4.0 takes all after its BTH for unknown data
	dissected, wrong := 0, 0
	for line := range strings.Lines(tshark(t, file, args...)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), "|", 7)
		if f[1] != "" && (f[2] != "" || f[5] == flush) {
			dissected++
		}
		if f[3] != "" || slices.Contains(strings.Split(f[4], ","), tsharkError) {
			if wrong++; wrong <= 10 {
				t.Errorf("tshark on packet %s: %s", f[0], f[6])
			}
		}
	}
	if wrong > 10 {
		t.Errorf("tshark finds %d packets wrong", wrong)
	}
	if dissected != packets {
		t.Errorf("tshark finds a BTH and an ICRC in %d packets, %d went to port 4791", dissected, packets)
	}
}
