package wire_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/tests/captures"
)

// frame is a captured datagram: IP and UDP headers, and the UDP payload.
type frame struct {
	header, payload []byte
}

// captured returns the RoCEv2 datagrams of one file in testdata.
func captured(t testing.TB, file string) (frames []frame) {
	t.Helper()
	for p := range captures.Packets(t, file) {
		if udp, ok := p.TransportLayer().(*layers.UDP); ok && udp.DstPort == 4791 {
			header := append(bytes.Clone(p.NetworkLayer().LayerContents()), udp.Contents...)
			frames = append(frames, frame{header, udp.Payload})
		}
	}
	return frames
}

func captureFiles(t testing.TB) []string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.pcap.gz")
	if err != nil || len(files) == 0 {
		t.Fatalf("no captures in testdata: %v", err)
	}
	return files
}

// TestCaptures checks that packets of rxe parse, have a valid ICRC, and encode to the same bytes.
func TestCaptures(t *testing.T) {
	seen := make(map[wire.Opcode]int)
	for _, file := range captureFiles(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			frames := captured(t, file)
			if len(frames) == 0 {
				t.Fatal("no RoCE frames")
			}
			var p wire.Packet // reused, as by a receiver
			for i, f := range frames {
				if err := p.Parse(f.payload); err != nil {
					t.Fatalf("frame %d: %v", i, err)
				}
				seen[p.Opcode]++
				if !wire.CheckICRC(f.header, f.payload) {
					t.Errorf("frame %d (%v): wrong ICRC", i, p.Opcode)
				}
				if p.Size() != len(f.payload) {
					t.Fatalf("frame %d (%v): Size is %d, want %d", i, p.Opcode, p.Size(), len(f.payload))
				}
				if got := encode(&p, f.header); !bytes.Equal(got, f.payload) {
					t.Errorf("frame %d (%v): encoded again\n%x\nwant\n%x", i, p.Opcode, got, f.payload)
				}
			}
		})
	}
	for _, o := range []wire.Opcode{
		wire.RCSendFirst, wire.RCSendMiddle, wire.RCSendLast, wire.RCSendOnly,
		wire.RCWriteFirst, wire.RCWriteMiddle, wire.RCWriteLast, wire.RCWriteOnly,
		wire.RCReadRequest, wire.RCReadResponseFirst, wire.RCReadResponseMiddle, wire.RCReadResponseLast,
		wire.RCReadResponseOnly, wire.RCAck, wire.RCAtomicAck, wire.RCCmpSwap,
		wire.UCSendFirst, wire.UCSendMiddle, wire.UCSendLast, wire.UDSendOnly, wire.UDSendOnlyImm,
	} {
		if seen[o] == 0 {
			t.Errorf("no capture has %v", o)
		}
	}
}

// encode fills the buffer with other bytes first, because every byte must be written.
func encode(p *wire.Packet, header []byte) []byte {
	b := bytes.Repeat([]byte{0xa5}, p.Size())
	p.Encode(header, b)
	return b
}
