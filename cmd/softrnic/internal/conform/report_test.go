package conform

import (
	"bytes"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// TestLadder: the report shows the packets of a failed case as a sequence diagram, and none of a
// passed case.
func TestLadder(t *testing.T) {
	packet := func(sent bool, p *wire.Packet) suite.Packet {
		src, dst := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("10.0.0.2")
		if !sent {
			src, dst = dst, src
		}
		b := make([]byte, 28+p.Size())
		// Without a checksum, as with checksum offload.
		copy(b, []byte{0x45, 0, byte(len(b) >> 8), byte(len(b)), 0, 1, 0x40, 0, 64, 17})
		copy(b[12:], src.AsSlice())
		copy(b[16:], dst.AsSlice())
		copy(b[20:], []byte{0xc0, 0, 4791 >> 8, 4791 & 0xff, byte((len(b) - 20) >> 8), byte(len(b) - 20)})
		p.Encode(b[:28], b[28:])
		return suite.Packet{Time: time.Unix(1, 0), Sent: sent, Data: b}
	}
	packets := []suite.Packet{
		packet(true, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCSendOnly, DestQP: 0x12, PSN: 77}, Payload: make([]byte, 8)}),
		packet(false, &wire.Packet{BTH: wire.BTH{Opcode: wire.RCAck, DestQP: 0x34, PSN: 77},
			AETH: wire.AETH{Syndrome: wire.NakRemoteAccess}}),
	}
	for verdict, want := range map[suite.Verdict]int{suite.Fail: 1, suite.Pass: 0} {
		r := &Report{Target: "10.0.0.2"}
		r.add(suite.Result{Verdict: verdict, Packets: packets})
		var b bytes.Buffer
		if err := page().Execute(&b, r); err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(b.String(), "<svg "); n != want {
			t.Errorf("%v: %d diagrams", verdict, n)
		}
		if want > 0 && (!strings.Contains(b.String(), "RC SEND Only, PSN 77") ||
			!strings.Contains(b.String(), "NAK remote access error, PSN 77")) {
			t.Errorf("the diagram does not show the packets:\n%s", b.String())
		}
	}
}
