//go:build linux

package interop

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/tests/captures"
	"github.com/softrnic/softrnic/tests/system/interop/peer"
)

// captureTo returns a link whose frames also go to a file.
func captureTo(t *testing.T, file string, l link.Link) link.Link {
	t.Helper()
	c, err := capture.Create(l, file)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// capturedIWARP returns a link whose frames wellFormedIWARP checks after the test has closed it.
func capturedIWARP(t *testing.T, l link.Link) link.Link {
	t.Helper()
	file := filepath.Join(t.ArtifactDir(), "capture.pcapng")
	t.Cleanup(func() { wellFormedIWARP(t, file) })
	return captureTo(t, file, l)
}

// iwarpConn is a connection in a capture, in the order of their SYNs.
type iwarpConn struct {
	request, reply mpa.Frame
	crc            bool
	halves         [2]iwarpHalf // sent by the initiator, and by the responder
}

// iwarpHalf is one direction.
type iwarpHalf struct {
	from       netip.AddrPort
	segments   []*layers.TCP
	messages   map[rdmap.Opcode]int // segments of each kind
	terminates []rdmap.Cause
	fpdus      int
	ends       map[int]bool // where segments end, in bytes of the stream
	next       int          // where the next FPDU starts, without markers
	cut        bool         // a segment ends within the first bytes of an FPDU
}

// mpaPeek is the number of bytes of an FPDU that tshark 4.0 needs. If a segment ends with fewer,
// tshark may take the next segment for the start of an FPDU.
const mpaPeek = 8

// readIWARP reassembles every TCP connection of a pcapng file and parses it as iWARP. Everything
// must be valid, including the CRCs. Only a RST may end a connection within a message.
func readIWARP(t *testing.T, pcapng []byte) []*iwarpConn {
	t.Helper()
	var conns []*iwarpConn
	byAddr := make(map[[2]netip.AddrPort]*iwarpConn)
	for _, data := range captures.Frames(t, bytes.NewReader(pcapng)) {
		p := gopacket.NewPacket(data, layers.LinkTypeEthernet, gopacket.Default)
		tcp, ok := p.TransportLayer().(*layers.TCP)
		// A bridge floods frames of others.
		if !ok || !bytes.Equal(data[:6], softrnicMAC) && !bytes.Equal(data[6:12], softrnicMAC) {
			continue
		}
		flow := p.NetworkLayer().NetworkFlow()
		src, _ := netip.AddrFromSlice(flow.Src().Raw())
		dst, _ := netip.AddrFromSlice(flow.Dst().Raw())
		from, to := netip.AddrPortFrom(src, uint16(tcp.SrcPort)), netip.AddrPortFrom(dst, uint16(tcp.DstPort))
		c, half := byAddr[[2]netip.AddrPort{from, to}], 0
		if c == nil {
			c, half = byAddr[[2]netip.AddrPort{to, from}], 1
		}
		if tcp.SYN && !tcp.ACK && (c == nil || half == 1 || tcp.Seq != c.halves[0].segments[0].Seq) {
			c, half = new(iwarpConn), 0
			c.halves[0].from, c.halves[1].from = from, to
			conns = append(conns, c)
			byAddr[[2]netip.AddrPort{from, to}] = c
			delete(byAddr, [2]netip.AddrPort{to, from})
		}
		if c == nil {
			t.Errorf("%v to %v: a segment, but no SYN", from, to)
			continue
		}
		c.halves[half].segments = append(c.halves[half].segments, tcp)
	}
	for _, c := range conns {
		c.read(t)
	}
	return conns
}

// stream joins the segments. cut reports that a RST is among them or that some are missing at the
// end.
func (h *iwarpHalf) stream(t *testing.T) (stream []byte) {
	t.Helper()
	i := slices.IndexFunc(h.segments, func(s *layers.TCP) bool { return s.SYN })
	if i < 0 {
		return nil // refused, or no host
	}
	first := h.segments[i].Seq + 1
	h.ends = make(map[int]bool)
	data := slices.DeleteFunc(slices.Clone(h.segments), func(s *layers.TCP) bool { return len(s.Payload) == 0 || s.RST })
	slices.SortStableFunc(data, func(a, b *layers.TCP) int { return cmp.Compare(a.Seq-first, b.Seq-first) })
	for _, s := range data {
		at := int(s.Seq - first)
		h.ends[at+len(s.Payload)] = true
		if at > len(stream) {
			t.Errorf("%v: bytes %d to %d of the stream are missing", h.from, len(stream), at)
			return stream
		}
		if again := len(stream) - at; again < len(s.Payload) {
			stream = append(stream, s.Payload[again:]...)
		}
	}
	return stream
}

// read reads both directions.
func (c *iwarpConn) read(t *testing.T) {
	t.Helper()
	var streams [2][]byte
	frames := [2]*mpa.Frame{&c.request, &c.reply}
	reset := false
	for i := range c.halves {
		h := &c.halves[i]
		h.messages = make(map[rdmap.Opcode]int)
		streams[i] = h.stream(t)
		reset = reset || slices.ContainsFunc(h.segments, func(s *layers.TCP) bool { return s.RST })
		if len(streams[i]) == 0 {
			continue
		}
		frame, n, err := mpa.Parse(streams[i])
		if err != nil || frame.Reply != (i == 1) {
			t.Errorf("%v: no MPA frame: %v", h.from, err)
			return
		}
		*frames[i], streams[i], h.next = frame, streams[i][n:], n
	}
	c.crc = c.request.CRC || c.reply.CRC
	for i, stream := range streams {
		// Each side announces what it wants to receive.
		r := mpa.NewReceiver(mpa.Config{Markers: frames[1-i].Markers, CRC: c.crc})
		h := &c.halves[i]
		if err := r.Feed(stream, h); err != nil {
			t.Errorf("%v: after %d FPDUs: %v", h.from, h.fpdus, err)
		} else if r.Pending() > 0 && !reset {
			t.Errorf("%v: %d bytes after the last FPDU", h.from, r.Pending())
		}
	}
}

// ULPDU implements mpa.Handler.
func (h *iwarpHalf) ULPDU(b []byte) error {
	h.fpdus++
	for i := 1; i < mpaPeek; i++ {
		h.cut = h.cut || h.ends[h.next+i]
	}
	h.next += (2+len(b)+3)&^3 + 4
	if len(b) == 0 {
		return nil
	}
	var control uint8
	var payload []byte
	if ddp.IsTagged(b) {
		header, p, err := ddp.ParseTagged(b)
		if err != nil {
			return err
		}
		control, payload = header.RsvdULP, p
	} else {
		header, p, err := ddp.ParseUntagged(b)
		if err != nil {
			return err
		}
		control, payload = header.RsvdULP, p
	}
	op, err := rdmap.ParseControl(control)
	if err != nil {
		return err
	}
	h.messages[op]++
	if op == rdmap.Terminate {
		term, err := rdmap.ParseTerminate(payload)
		if err != nil {
			return err
		}
		h.terminates = append(h.terminates, term.Cause)
	}
	return nil
}

// wellFormedIWARP checks captures of SoftRNIC's links: every stream is valid, also for tshark. It
// returns the connections.
func wellFormedIWARP(t *testing.T, files ...string) (conns []*iwarpConn) {
	t.Helper()
	if _, err := exec.LookPath("tshark"); err != nil {
		peer.Unavailable(t, fmt.Errorf("captures are checked with tshark (apt-get install tshark): %w", err))
	}
	for _, file := range files {
		traced(t, file, 0)
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		found := readIWARP(t, data)
		conns = append(conns, found...)
		fpdus, crcs, markers, cut := 0, 0, false, false
		for _, c := range found {
			markers = markers || c.request.Markers || c.reply.Markers
			for _, h := range c.halves {
				fpdus += h.fpdus
				cut = cut || h.cut
				if c.crc {
					crcs += h.fpdus
				}
			}
		}
		if difference := dissectIWARP(t, file, fpdus, crcs, markers); difference != "" && cut && !markers {
			t.Logf("%s, but a segment ends within the first bytes of an FPDU", difference)
		} else if difference != "" {
			t.Error(difference)
		}
	}
	return conns
}

// dissectIWARP makes tshark read a capture with the given numbers of FPDUs and of FPDUs with CRCs.
// With markers, tshark 4.0 takes each TCP segment for one FPDU. It misses FPDUs, and reads the CRC
// at the end of a segment even if that holds a part of the next FPDU. With markers only other
// malformed packets are checked. The result says what tshark finds different.
func dissectIWARP(t *testing.T, file string, fpdus, crcs int, markers bool) (difference string) {
	t.Helper()
	args := []string{"-n", "-2", "-r", file, "-o", "tcp.reassemble_out_of_order:TRUE", "-V", "-O", "iwarp_mpa,iwarp_ddp_rdmap",
		// An ephemeral port may be the registered port of another protocol.
		"-o", "tcp.try_heuristic_first:TRUE"}
	// There is nothing above RDMAP.
	for _, guess := range []string{"rpcordma", "smb_direct", "nvme-rdma", "iser", "lnet", "ceph"} {
		args = append(args, "--disable-protocol", guess)
	}
	out, err := exec.Command("tshark", args...).Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	const malformedMPA = "[Malformed Packet: IWARP_MPA]"
	seen := make(map[string]int)
	for line := range strings.Lines(string(out)) {
		for _, what := range []string{"ULPDU length", "(Good CRC32)", "Bad CRC32", malformedMPA, "Malformed", "[Short Frame"} {
			if strings.Contains(line, what) {
				seen[what]++
				break
			}
		}
	}
	want := map[string]int{"ULPDU length": fpdus, "(Good CRC32)": crcs}
	if markers {
		if seen["(Good CRC32)"] == 0 {
			return filepath.Base(file) + ": tshark finds no FPDU"
		}
		for _, what := range []string{"ULPDU length", "(Good CRC32)", "Bad CRC32"} {
			want[what] = seen[what]
		}
		want[malformedMPA] = min(seen[malformedMPA], seen["Bad CRC32"])
	}
	maps.DeleteFunc(want, func(_ string, n int) bool { return n == 0 })
	if !maps.Equal(seen, want) {
		return fmt.Sprintf("%s: tshark finds %v, want %v", filepath.Base(file), seen, want)
	}
	return ""
}
