package trace

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/verbs/ulp/rpcrdma"
)

// TestMidway: captures that begin anywhere within connections of iWARP are right, and the
// connections are followed.
func TestMidway(t *testing.T) {
	followed := 0
	for name, capture := range captured(t) {
		if !strings.HasPrefix(name, "rdmap/") {
			continue
		}
		all := records(t, capture)
		whole, _ := traced(t, &Command{}, all)
		for begin := 1; begin < len(all); begin += 1 + begin/16 {
			a, out := traced(t, &Command{}, all[begin:])
			if c := a.counts; c.Wrong != 0 || c.Left+c.Unchecked != 0 || c.Packets != c.IWARP+c.TCP {
				t.Errorf("%s from packet %d on: %+v\n%s", name, begin+1, c, out)
			}
			followed += strings.Count(out, "which is followed from here on")
			// A connection that goes on for long has whole FPDUs.
			if begin == len(all)/4 && whole.counts.IWARP > 100 && a.counts.IWARP == 0 {
				t.Errorf("%s from packet %d on: nothing is followed\n%s", name, begin+1, out)
			}
		}
	}
	if followed < 100 {
		t.Errorf("%d connections were followed from their midst", followed)
	}
}

// tcpStream builds TCP segments in both directions.
type tcpStream struct {
	t       *testing.T
	syn     bool // the segments are SYNs
	seq     [2]uint32
	port    uint16 // of the passive side
	packets []record
}

func (s *tcpStream) send(side int, payload []byte) {
	src, dst := net.IP{10, 0, 0, 1}, net.IP{10, 0, 0, 2}
	ports := [2]layers.TCPPort{40000, layers.TCPPort(s.port)}
	if side == 1 {
		src, dst = dst, src
		ports[0], ports[1] = ports[1], ports[0]
	}
	ip := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: src, DstIP: dst}
	tcp := &layers.TCP{SrcPort: ports[0], DstPort: ports[1], Seq: s.seq[side], Ack: s.seq[1-side],
		SYN: s.syn, ACK: !s.syn || side == 1, Window: 1000}
	_ = tcp.SetNetworkLayerForChecksum(ip) // an IPv4 header
	b := gopacket.NewSerializeBuffer()
	if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true},
		&layers.Ethernet{SrcMAC: make(net.HardwareAddr, 6), DstMAC: make(net.HardwareAddr, 6), EthernetType: layers.EthernetTypeIPv4},
		ip, tcp, gopacket.Payload(payload)); err != nil {
		s.t.Fatal(err)
	}
	if s.seq[side] += uint32(len(payload)); s.syn {
		s.seq[side]++
	}
	r := record{data: bytes.Clone(b.Bytes())}
	r.info.Timestamp = time.Unix(1, 0).Add(time.Duration(len(s.packets)) * time.Millisecond)
	r.info.CaptureLength, r.info.Length = len(r.data), len(r.data)
	s.packets = append(s.packets, r)
}

// fpduOf returns an FPDU without markers.
func fpduOf(ulpdu []byte, crc bool) []byte {
	b := append(binary.BigEndian.AppendUint16(nil, uint16(len(ulpdu))), ulpdu...)
	b = append(b, make([]byte, -len(b)&3)...)
	sum := uint32(0)
	if crc {
		sum = crc32.Checksum(b, crc32.MakeTable(crc32.Castagnoli))
	}
	return binary.LittleEndian.AppendUint32(b, sum)
}

// tlsRecord returns a record of TLS with n encrypted bytes.
func tlsRecord(n int) []byte {
	b := append([]byte{23, 3, 3}, byte(n>>8), byte(n))
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		b = append(b, byte(r.Uint32()))
	}
	return b
}

// TestMidwayForms: what the bytes of a connection are, whose beginning is not captured.
func TestMidwayForms(t *testing.T) {
	write := make([]byte, 14+300) // a tagged segment of a WRITE
	write[0], write[1] = 0xc1, 0x40
	fpdu := func(crc bool) []byte { return fpduOf(write, crc) }
	tls := tlsRecord(100)
	bulk := bytes.Repeat(tlsRecord(1<<14), 5)[5000:]
	carrier := fpduOf(append(bytes.Clone(write[:14]), bytes.Repeat(tls, 3)...), true)
	text := bytes.Repeat([]byte("neither of them "), 100)
	half := fpdu(true)
	for name, c := range map[string]struct {
		port             uint16
		payloads         [][]byte
		iwarp, tcp, left int
	}{
		"FPDUs":                    {7471, [][]byte{fpdu(true), fpdu(true)}, 2, 0, 0},
		"from within an FPDU on":   {7471, [][]byte{append(half[100:len(half):len(half)], fpdu(true)...), fpdu(true)}, 2, 0, 0},
		"FPDUs in pieces":          {7471, [][]byte{fpdu(true)[:150], half[150:], fpdu(true)}, 3, 0, 0},
		"FPDUs without CRC":        {7471, [][]byte{bytes.Repeat(fpdu(false), 5), fpdu(false)}, 2, 0, 0},
		"one FPDU without CRC":     {7471, [][]byte{fpdu(false)}, 0, 1, 0},
		"TLS":                      {7471, [][]byte{tls, tls}, 0, 0, 2},
		"TLS of HTTPS":             {443, [][]byte{tls, tls}, 0, 2, 0},
		"TLS in bulk":              {7471, slices.Collect(slices.Chunk(bulk, 1448)), 0, 0, (len(bulk) + 1447) / 1448},
		"TLS above iWARP":          {7471, [][]byte{carrier[16:], carrier, carrier}, 3, 0, 0},
		"FPDUs after a record":     {7471, [][]byte{tls, fpdu(true)}, 2, 0, 0},
		"another protocol":         {7471, [][]byte{text, text, text}, 0, 3, 0},
		"MPA without the SYN":      {7471, [][]byte{append([]byte("MPA ID Req Frame"), 0, 1, 0, 0)}, 1, 0, 0},
		"2 MB of another protocol": {7471, slices.Repeat([][]byte{bytes.Repeat(text, 20)}, 70), 0, 70, 0},
	} {
		s := &tcpStream{t: t, port: c.port, seq: [2]uint32{1 << 31, 77}}
		for _, p := range c.payloads {
			s.send(0, p)
		}
		a, out := traced(t, &Command{}, s.packets)
		n := a.counts
		if n.IWARP != c.iwarp || n.TCP != c.tcp || n.Left != c.left || n.Wrong != 0 || a.buffered != 0 {
			t.Errorf("%s: %+v, %d bytes are kept\n%s", name, n, a.buffered, out)
		}
	}
}

// total returns the number of packets by what they are.
func (c *counts) total() int { return c.RoCE + c.IWARP + c.TCP + c.Other + c.Left }

// TestTLSFromItsBeginning: both sides of a connection speak TLS, and each segment counts once, even
// if FPDUs follow.
func TestTLSFromItsBeginning(t *testing.T) {
	write := make([]byte, 14+300)
	write[0], write[1] = 0xc1, 0x40
	for name, hole := range map[string]bool{"whole": false, "FPDUs after missing bytes": true} {
		s := &tcpStream{t: t, port: 7471, syn: true}
		s.send(0, nil)
		s.send(1, nil)
		s.syn = false
		s.send(0, nil)
		for range 2 {
			s.send(0, tlsRecord(200))
			if hole {
				break
			}
			s.send(1, tlsRecord(300))
		}
		if hole {
			s.seq[1] += 1000
			s.send(0, nil)
			s.send(1, fpduOf(write, true))
		}
		a, out := traced(t, new(Command), s.packets)
		n := a.counts
		if n.total() != len(s.packets) || n.TCP != 0 || n.Left < 0 || (n.IWARP > 0) != hole || (a.rules[1].String() == "") != hole {
			t.Errorf("%s: %+v, %v\n%s", name, n, a.rules[1], out)
		}
	}
}

// TestSearchEnds: a search leaves no bytes behind when a direction is not followed any more.
func TestSearchEnds(t *testing.T) {
	write := make([]byte, 14+300)
	write[0], write[1] = 0xc1, 0x40
	for name, gap := range map[string]uint32{"cut": 0, "cut, after a gap": 100} {
		s := &tcpStream{t: t, port: 7471, seq: [2]uint32{1 << 31, 77}}
		s.send(0, fpduOf(write, true)[:150])
		s.seq[0] += gap
		s.send(0, fpduOf(write, true)[150:])
		s.packets[1].data = s.packets[1].data[:100]
		s.packets[1].info.CaptureLength = 100
		if a, out := traced(t, new(Command), s.packets); a.buffered != 0 {
			t.Errorf("%s: %d bytes are kept\n%s", name, a.buffered, out)
		}
	}
}

// TestSearchIsBounded: bytes that look like the beginning of an FPDU everywhere do not have their
// CRC computed without end.
func TestSearchIsBounded(t *testing.T) {
	a := newAnalysis(new(printer), false)
	s := &stream{half: [2]half{{phase: midway}, {}}}
	a.streams[s.streamKey] = s
	h := &s.half[0]
	b := bytes.Repeat([]byte{0x20, 4, 0xc1, 0x40, 0}, 12000) // a length, and the control fields of a WRITE
	a.deliver(s, 0, b)
	if h.phase != unfollowed || a.buffered != 0 {
		t.Errorf("the search goes on after %d bytes of CRCs, and keeps %d bytes", h.checked, a.buffered)
	}
}

// TestHoleInMessage: what follows missing bytes is not the end of the message in front of them.
func TestHoleInMessage(t *testing.T) {
	call := rpcCallTo(rpcrdma.Header{XID: 7, Type: rpcrdma.Msg}, programNFS, 3, 1)
	send := func(last bool, msn, offset uint32, b []byte) []byte {
		h := make([]byte, 18)
		if h[0], h[1] = 0x01, 0x43; last {
			h[0] |= 0x40
		}
		binary.BigEndian.PutUint32(h[10:], msn)
		binary.BigEndian.PutUint32(h[14:], offset)
		return fpduOf(append(h, b...), true)
	}
	for name, hole := range map[string]uint32{"none": 0, "a hole": 3000} {
		s := &tcpStream{t: t, port: portNFS, seq: [2]uint32{1 << 31, 77}}
		s.send(0, append([]byte("MPA ID Req Frame"), 0x40, 1, 0, 0))
		s.send(1, append([]byte("MPA ID Rep Frame"), 0x40, 1, 0, 0))
		s.send(0, send(false, 1, 0, call))
		s.seq[0] += hole
		s.send(1, nil)
		s.send(0, send(true, 1, uint32(len(call)), make([]byte, 100)))
		_, out := traced(t, new(Command), s.packets)
		if named := strings.Contains(out, "GETATTR"); named != (hole == 0) || strings.Contains(out, "not followed") {
			t.Errorf("%s: named: %v\n%s", name, named, out)
		}
	}
}

// statisticsBlock is a block of pcapng that says how many packets the interface and the system have
// dropped.
func statisticsBlock(byInterface, bySystem uint64) []byte {
	le := binary.LittleEndian
	b := le.AppendUint32(nil, blockStatistics)
	b = le.AppendUint32(b, 52)
	b = append(b, make([]byte, 12)...) // the interface, and the time
	for code, n := range map[uint16]uint64{optionByIntf: byInterface, optionBySystem: bySystem} {
		b = le.AppendUint16(b, code)
		b = le.AppendUint16(b, 8)
		b = le.AppendUint64(b, n)
	}
	b = le.AppendUint32(b, 0) // the end of the options
	return le.AppendUint32(b, 52)
}

// droppedBefore returns an enhanced packet block of an ARP packet, before which n were dropped.
func droppedBefore(n uint64) []byte {
	const length = 12 + 20 + 60 + 4 + 8 + 4
	b := binary.LittleEndian.AppendUint32(nil, blockEnhanced)
	for _, v := range []uint32{length, 0, 0, 0, 60, 60} {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	frame := make([]byte, 60)
	frame[12], frame[13] = 8, 6
	b = binary.LittleEndian.AppendUint16(append(b, frame...), optionLost)
	b = binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint16(b, 8), n)
	return binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(b, 0), length)
}

// TestCaptureDropped: what a capture says that it has dropped is not the fault of the peers. What a
// checksum shows stays wrong.
func TestCaptureDropped(t *testing.T) {
	whole := records(t, captured(t)["wire/rc-send"])
	var gap []record
	for i := len(whole) / 2; ; i++ { // without a packet that must exist
		gap = slices.Delete(slices.Clone(whole), i, i+1)
		if a, _ := traced(t, new(Command), gap); a.counts.Wrong > 0 {
			break
		}
	}
	damaged := slices.Clone(gap)
	last := &damaged[len(damaged)/3]
	last.data = bytes.Clone(last.data)
	last.data[len(last.data)-6] ^= 1
	for name, c := range map[string]struct {
		packets []record
		tail    []byte
		dropped int
		wrong   bool
	}{
		"a gap":                            {gap, nil, 0, true},
		"a gap, and nothing was dropped":   {gap, statisticsBlock(0, 0), 0, true},
		"a gap, and packets were dropped":  {gap, append(statisticsBlock(0, 1), statisticsBlock(2, 3)...), 5, false},
		"a damaged packet, and a gap":      {damaged, statisticsBlock(2, 0), 2, true},
		"no gap, and packets were dropped": {whole, statisticsBlock(0, 4), 4, false},
		"packets and statistics say it":    {whole, append(droppedBefore(3), statisticsBlock(0, 4)...), 4, false},
		"more than may be":                 {whole, slices.Repeat(statisticsBlock(1<<63, 1<<40), 2), maxLost, false},
	} {
		var b bytes.Buffer
		w, err := pcapgo.NewNgWriter(&b, layers.LinkTypeEthernet)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range c.packets {
			r.info.InterfaceIndex = 0
			if err := w.WritePacket(r.info, r.data); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Flush(); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "capture.pcapng")
		if err := os.WriteFile(file, append(b.Bytes(), c.tail...), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err = (&Command{File: file}).Run(context.Background(), &cli.Env{Stdout: &out})
		var incomplete cli.IncompleteError
		if c.wrong != (err != nil && !errors.As(err, &incomplete)) || (c.dropped > 0) != strings.Contains(out.String(), "not the peers' fault") ||
			c.wrong != strings.Contains(out.String(), "WRONG") {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
		// A pipe is read once.
		src, err := open(bytes.NewReader(append(b.Bytes(), c.tail...)))
		if err != nil {
			t.Fatal(err)
		}
		out.Reset()
		a, err := new(Command).trace(context.Background(), src, &out, name)
		if err != nil || a.counts.Dropped != c.dropped || (a.counts.Wrong > 0) != c.wrong {
			t.Errorf("%s, from a pipe: %v, %+v\n%s", name, err, a.counts, out.String())
		}
	}
}

// readCounter counts the bytes that are read.
type readCounter struct {
	*bytes.Reader
	n int
}

func (r *readCounter) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.n += n
	return n, err
}

// TestInterruptedAtOnce: a long pcapng file is not read to its end when the command is interrupted.
func TestInterruptedAtOnce(t *testing.T) {
	file := ng(binary.LittleEndian, 6, 0, make([]byte, 1<<16), make([]uint64, 100)...)
	for _, interrupted := range []bool{false, true} {
		r := &readCounter{Reader: bytes.NewReader(file)}
		src, err := open(r)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		if interrupted {
			cancel()
		}
		if _, err = foretold(ctx, src, r); err != nil || (r.n < len(file)) != interrupted {
			t.Errorf("interrupted: %v: %d of %d bytes are read, %v", interrupted, r.n, len(file), err)
		}
		cancel()
	}
}
