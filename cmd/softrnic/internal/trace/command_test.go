package trace

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// file unpacks one of the project's captures.
func file(t *testing.T, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "capture.pcap")
	if err := os.WriteFile(path, captured(t)[name], 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestExitStatus: a capture with findings is an error with their number. A correct capture is no
// error.
func TestExitStatus(t *testing.T) {
	path := file(t, "wire/rc-send")
	var out bytes.Buffer
	if err := (&Command{File: path}).Run(context.Background(), &cli.Env{Stdout: &out}); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)-1] ^= 1 // of the last packet's ICRC
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(b); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, zipped.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	out.Reset()
	err = (&Command{File: path, Errors: true}).Run(context.Background(), &cli.Env{Stdout: &out})
	if err == nil || !strings.Contains(err.Error(), "1 wrong") || !strings.Contains(out.String(), "WRONG packet 111: the ICRC is wrong") {
		t.Errorf("%v\n%s", err, out.String())
	}
	for _, c := range []*Command{{}, {File: path + "no"}} {
		if err := c.Run(context.Background(), &cli.Env{Stdout: io.Discard}); err == nil {
			t.Errorf("%+v: no error", c)
		}
	}
}

// TestNarrowed: --qp, --from and --to select packets, and --errors selects those with findings.
func TestNarrowed(t *testing.T) {
	packets := records(t, captured(t)["wire/rc-srq"])
	lines := func(c *Command) (n int) {
		_, out := traced(t, c, packets)
		for line := range strings.Lines(out) {
			if strings.Contains(line, " PSN ") {
				n++
			}
		}
		return n
	}
	all := lines(new(Command))
	one := lines(&Command{QP: []uint32{0x14}})
	early, late := lines(&Command{To: 104 * time.Millisecond}), lines(&Command{From: 104*time.Millisecond + 1})
	if all != 72 || one != 18 || early == 0 || late == 0 || early+late != all || lines(&Command{Errors: true}) != 0 ||
		lines(&Command{Stats: true}) != 0 {
		t.Errorf("%d packets in all, %d of QP 0x14, %d early, %d late", all, one, early, late)
	}
}

// TestLine: a line has a packet's source, operation, and the packet that it answers.
func TestLine(t *testing.T) {
	_, out := traced(t, new(Command), records(t, captured(t)["wire/cm-rping"]))
	for _, want := range []string{
		"     1 0.000000 10.77.0.2 > 10.77.0.3 QP 0x1 > 0x1 PSN 4 REQ, ",
		"     5 1.277126 10.77.0.3 > 10.77.0.2 QP 0x1d > 0x1d PSN 6911390 RC Acknowledge, MSN 1, answers 4 after 518µs\n",
		"     7 1.282100 10.77.0.2 > 10.77.0.3 QP 0x1d > 0x1d PSN 2551640 RC READ Response Only, message 1 packet 1, 64 bytes, MSN 1, " +
			"answers 6 after 634µs\n",
	} {
		head, tail, _ := strings.Cut(want, "PSN")
		_, tail, _ = strings.Cut(strings.TrimLeft(tail, " 0123456789"), " ")
		found := false
		for line := range strings.Lines(out) {
			found = found || strings.HasPrefix(line, head) && strings.Contains(line, tail)
		}
		if !found {
			t.Errorf("no line like %q in\n%.2000s", want, out)
		}
	}
}

// TestJSON: each packet is an object. The last object has the counts and statistics.
func TestJSON(t *testing.T) {
	_, out := traced(t, &Command{JSON: true}, records(t, captured(t)["wire/rc-rnr"]))
	d := json.NewDecoder(strings.NewReader(out))
	rnr, packets := 0, 0
	for {
		var v struct {
			Number     int
			Class      string
			Counts     *counts
			Statistics []row
		}
		err := d.Decode(&v)
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch {
		case v.Counts != nil:
			if v.Counts.Packets != 692 || len(v.Statistics) != 2 || v.Statistics[0].RNRs != uint64(rnr) || v.Statistics[0].Repeated != 520 {
				t.Errorf("%+v, %+v", v.Counts, v.Statistics)
			}
		case v.Class == "rnr":
			rnr++
			fallthrough
		default:
			packets++
		}
	}
	if rnr != 21 || packets != 661 {
		t.Errorf("%d RNR NAKs in %d packets", rnr, packets)
	}
}

// TestLadder: a ladder is well-formed and shows losses and retransmissions.
func TestLadder(t *testing.T) {
	captures := captured(t)
	// Of "perf send bw --size 5000 -n 20" with "--mtu 1500 --impair loss=3%,seed=6", captured after
	// the losses.
	lossy, err := os.ReadFile("testdata/lossy.pcapng.gz")
	if err != nil {
		t.Fatal(err)
	}
	captures["lossy"] = lossy
	for name, want := range map[string][]string{
		"wire/rc-rnr": {"RNR NAK", "sent again", "nothing for", "36 × RC SEND Only, PSN 3936031 to 3936066"},
		"lossy": {"PSN 7448259 is missing", "NAK PSN sequence error, PSN 7448259, MSN 6", "6 × RC SEND, PSN 7448259 to 7448264",
			"271 × sent again", "20 × gap"},
		"wire/cm-reject": {"REQ, ", "REJ, ", "no listener"},
		"wire/cm-rping":  {"REQ, ", "REP, ", "RTU, ", "DREQ, ", "RC READ Response Only", "10.77.0.2 QP 0x1d and 10.77.0.3 QP 0x1d"},
		"rdmap/rping":    {"MPA request, revision", "MPA reply", "RDMA Read Request", "TCP FIN"},
	} {
		for _, ext := range []string{"svg", "html"} {
			out := filepath.Join(t.TempDir(), "ladder."+ext)
			traced(t, &Command{Stats: true, Ladder: out}, records(t, captures[name]))
			b, err := os.ReadFile(out)
			if err != nil {
				t.Fatal(err)
			}
			for _, w := range want {
				if !bytes.Contains(b, []byte(w)) {
					t.Errorf("%s: no %q in its ladder", name, w)
				}
			}
			if d := xml.NewDecoder(bytes.NewReader(b)); ext == "svg" {
				for err == nil {
					_, err = d.Token()
				}
				if err != io.EOF {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	}
}

// rc has the packets of a test's connection.
type rc struct {
	t       *testing.T
	ids     [2]uint16
	now     time.Duration
	packets []record
}

// send adds a packet of a side after a time. If it has no QP, it is one to 0x21, or to 0x12.
func (c *rc) send(side int, after time.Duration, p *wire.Packet) {
	src, dst := alice, bob
	if side == 1 {
		src, dst = bob, alice
	}
	if p.DestQP == 0 {
		p.DestQP = [...]uint32{0x21, 0x12}[side]
	}
	c.ids[side]++
	c.now += after
	b := ethernet(src, dst, c.ids[side], p)
	r := record{data: b}
	r.info.Timestamp, r.info.CaptureLength, r.info.Length = time.Unix(1, 0).Add(c.now), len(b), len(b)
	c.packets = append(c.packets, r)
}

func (c *rc) request(after time.Duration, psn uint32, op wire.Opcode, bytes int) {
	c.send(0, after, &wire.Packet{BTH: wire.BTH{Opcode: op, PSN: psn, AckReq: op.Info().Last()}, Payload: make([]byte, bytes),
		RETH: wire.RETH{Length: uint32(bytes)}})
}

func (c *rc) answer(after time.Duration, psn uint32, syndrome uint8, msn uint32) {
	c.send(1, after, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, PSN: psn}, AETH: wire.AETH{Syndrome: syndrome, MSN: msn}})
}

// TestFaults: a violation of the protocol is reported with the packet that shows it.
func TestFaults(t *testing.T) {
	const us, ack = time.Microsecond, wire.AckUnlimited
	tests := map[string]struct {
		packets func(c *rc)
		want    string // "" if nothing is wrong
	}{
		"nothing": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.answer(10*us, 5, ack, 1)
		}, ""},
		"an RNR wait that is kept": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.answer(10*us, 5, wire.RNRNak|12, 0)
			c.request(700*us, 5, wire.RCSendOnly, 8)
			c.answer(10*us, 5, ack, 1)
		}, ""},
		"an RNR wait that is not kept": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.answer(10*us, 5, wire.RNRNak|12, 0)
			c.request(100*us, 5, wire.RCSendOnly, 8)
			c.answer(10*us, 5, ack, 1)
		}, "WRONG packet 3: the RNR NAK of packet 2 asked for 640µs, but PSN 5 comes again after 100µs"},
		"a NAK that is followed": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(us, 6, wire.RCSendOnly, 8)
			c.answer(10*us, 5, ack, 1)
			c.answer(us, 6, wire.NakPSNSeq, 1)
			c.request(100*us, 6, wire.RCSendOnly, 8)
			c.answer(10*us, 6, ack, 2)
		}, ""},
		"a NAK that is not": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.answer(10*us, 5, wire.NakPSNSeq, 0)
			c.request(2*time.Second, 6, wire.RCSendOnly, 8)
		}, "WRONG packet 2: the NAK of PSN 5 in packet 2 was not followed by what it asks for"},
		"a repeated packet": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(10*us, 5, wire.RCSendOnly, 8)
		}, "WRONG packet 2: repeats packet 1, and nothing asked for it"},
		"a timeout": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(70*time.Millisecond, 5, wire.RCSendOnly, 8)
			c.answer(10*us, 5, ack, 1)
		}, ""},
		"an acknowledgement of what was not sent": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.answer(10*us, 5, ack, 1)
			c.answer(10*us, 6, ack, 2)
		}, "WRONG packet 3: answers PSN 6, which was not sent: the next is 6"},
		"an acknowledgement that a bridge shows before what it acknowledges": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.answer(10*us, 5, ack, 1)
			c.answer(10*us, 6, ack, 2)
			c.request(10*us, 6, wire.RCSendOnly, 8)
			c.request(10*us, 7, wire.RCSendOnly, 8)
			c.answer(10*us, 7, ack, 3)
		}, "NOTE packet 3: reordered: acknowledges PSN 6 before the capture has it"},
		"an acknowledgement of what is sent much later": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.answer(10*us, 5, ack, 1)
			c.answer(10*us, 6, ack, 2)
			c.request(time.Second, 6, wire.RCSendOnly, 8)
			c.answer(10*us, 6, ack, 2)
		}, "WRONG packet 3: answers PSN 6, which was not sent: the next is 6"},
		"an acknowledgement that goes back": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(us, 6, wire.RCSendOnly, 8)
			c.answer(10*us, 6, ack, 2)
			c.answer(10*us, 5, ack, 1)
		}, "NOTE packet 4: reordered: acknowledges PSN 5 after the acknowledgement of PSN 6"},
		"an acknowledgement that comes again": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(us, 6, wire.RCSendOnly, 8)
			c.answer(10*us, 5, ack, 1)
			c.answer(10*us, 6, ack, 2)
			c.answer(10*us, 5, ack, 1)
		}, "WRONG packet 5: acknowledges PSN 5 again"},
		"a wrong MSN": {func(c *rc) {
			for i := range uint32(3) {
				c.request(0, 5+i, wire.RCSendOnly, 8)
				c.answer(10*us, 5+i, ack, 1+i+i/2)
			}
		}, "WRONG packet 6: MSN 4, but 3 messages are complete with PSN 7"},
		"opcodes out of sequence": {func(c *rc) {
			c.request(0, 5, wire.RCSendFirst, 1024)
			c.request(us, 6, wire.RCWriteMiddle, 1024)
		}, "WRONG packet 2: RC WRITE Middle does not continue message 1"},
		"a message that begins within another": {func(c *rc) {
			c.request(0, 5, wire.RCSendFirst, 1024)
			c.request(us, 6, wire.RCSendOnly, 8)
		}, "WRONG packet 2: RC SEND Only begins a message, but message 1 has not ended"},
		"two path MTUs": {func(c *rc) {
			c.request(0, 5, wire.RCSendFirst, 1024)
			c.request(us, 6, wire.RCSendMiddle, 512)
		}, "WRONG packet 2: 512 bytes of payload; the path MTU is 1024"},
		"a WRITE of another length": {func(c *rc) {
			c.request(0, 5, wire.RCWriteOnly, 8)
			c.send(0, us, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCWriteOnly, PSN: 6}, Payload: make([]byte, 8),
				RETH: wire.RETH{Length: 12}})
		}, "WRONG packet 2: a WRITE whose RETH says another length than its packets have"},
		"two NAKs that are both followed": {func(c *rc) {
			for i := range uint32(4) {
				c.request(us, 5+i, wire.RCSendOnly, 8)
			}
			c.answer(us, 5, wire.NakPSNSeq, 0)
			c.answer(us, 7, wire.NakPSNSeq, 2)
			for _, psn := range []uint32{5, 6, 7, 8, 7, 8} {
				c.request(us, psn, wire.RCSendOnly, 8)
			}
		}, "DOUBTFUL packet 11: repeats packet 3, as was asked for"},
		"a third repeat for two NAKs": {func(c *rc) {
			for i := range uint32(4) {
				c.request(us, 5+i, wire.RCSendOnly, 8)
			}
			c.answer(us, 5, wire.NakPSNSeq, 0)
			c.answer(us, 7, wire.NakPSNSeq, 2)
			for _, psn := range []uint32{5, 6, 7, 8, 7, 8, 7} {
				c.request(us, psn, wire.RCSendOnly, 8)
			}
		}, "WRONG packet 13: repeats packet 3, and nothing asked for it"},
		"packets that come one by one after others that were repeated": {func(c *rc) {
			for i := range uint32(5) {
				c.request(us, 5+i, wire.RCSendOnly, 8)
			}
			c.answer(us, 5, wire.NakPSNSeq, 0)
			for _, psn := range []uint32{5, 9, 7, 6, 8} {
				c.request(us, psn, wire.RCSendOnly, 8)
			}
			c.answer(us, 9, ack, 5)
		}, ""},
		"packets that come long after others, and are repeated": {func(c *rc) {
			c.request(us, 0, wire.RCSendOnly, 8)
			c.request(us, 37, wire.RCSendOnly, 8)
			c.request(us, 5, wire.RCSendOnly, 8) // it shares its ring slot with 37, for rings of 16 and 32
			c.answer(us, 1, wire.NakPSNSeq, 0)
			for i := range uint32(37) {
				c.request(us, 1+i, wire.RCSendOnly, 8)
			}
		}, "PSN 37 RC SEND Only, message 2 packet 1, 8 bytes, repeats 2 after a sequence NAK"},
		"a gap that is acknowledged": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(us, 7, wire.RCSendOnly, 8)
			c.answer(10*us, 7, ack, 3)
		}, "WRONG packet 2: PSN 6 is missing before packet 2, and acknowledged in packet 3"},
		"a gap that is filled when it is asked for": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(us, 7, wire.RCSendOnly, 8)
			c.answer(10*us, 6, wire.NakPSNSeq, 1)
			c.request(100*us, 6, wire.RCSendOnly, 8)
			c.request(us, 7, wire.RCSendOnly, 8)
			c.answer(10*us, 7, ack, 3)
		}, ""},
		"out of order": {func(c *rc) {
			c.request(0, 5, wire.RCSendOnly, 8)
			c.request(us, 7, wire.RCSendOnly, 8)
			c.request(us, 6, wire.RCSendOnly, 8)
		}, "NOTE packet 3: reordered: PSN 6 comes after PSN 7 of packet 2"},
	}
	for name, test := range tests {
		c := &rc{t: t}
		test.packets(c)
		a, out := traced(t, new(Command), c.packets)
		if test.want == "" && a.counts.Wrong+a.counts.Doubtful != 0 || !strings.Contains(out, test.want) {
			t.Errorf("%s: want %q\n%s", name, test.want, out)
		}
	}
}
