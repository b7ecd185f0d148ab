package rocetransport_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// TestRxeFlush: the ICRC of RC FLUSHes with RxeFlush and without it, in both directions. Each
// device has one, and drops the other.
func TestRxeFlush(t *testing.T) {
	both := func(b []byte) []byte { return append(bytes.Clone(b), b...) } // what rxe covers after the IP and UDP headers
	once := func(b []byte) []byte { return b }
	for _, rxe := range []bool{true, false} {
		own, other := once, both
		if rxe {
			own, other = both, once
		}
		for _, unseen := range []bool{false, true} { // as from sockets, with another identification than is guessed
			run(t, fmt.Sprintf("RxeFlush %t, identification unseen %t, responder", rxe, unseen), config{rxeFlush: rxe, goBackN: true},
				func(t *testing.T, r *rig) {
					give := func(covered func([]byte) []byte) {
						b := unspace(t, fmt.Sprintf("1c00 ffff 00%06x 80000000 00000001 %016x %08x %08x", r.qp.Num(), r.mr.Addr(), r.mr.RKey(), 100))
						h := make([]byte, 28)
						putHeader(h, r.them, r.us, 50000, 0x1234, len(b)+4)
						b = append(b, icrc(h, covered(b))...)
						if unseen {
							binary.BigEndian.PutUint16(h[4:], 0)
						}
						r.port.receive(&stack.Datagram{Src: r.them, Dst: r.us, SrcPort: 50000, SegmentSize: len(b), Header: h, Payload: b,
							IDGuessed: unseen})
					}
					give(other)
					r.expectBytes()
					if n := r.counter("icrc_errors"); n != 1 {
						t.Errorf("icrc_errors is %d, want 1", n)
					}
					give(own)
					r.expectBytes("1040 ffff 0000abcd 00000000 1f000001")
				})
		}
		run(t, fmt.Sprintf("RxeFlush %t, requester", rxe), config{rxeFlush: rxe, goBackN: true}, func(t *testing.T, r *rig) {
			r.post(&verbs.SendWR{WRID: 1, Opcode: verbs.Flush, FlushType: verbs.FlushGlobal, FlushLength: 100, Flags: verbs.SendSignaled,
				RemoteAddr: peerAddr, RKey: peerKey})
			r.port.mu.Lock()
			sent := r.port.frames
			r.port.frames, r.port.sent = nil, nil
			r.port.mu.Unlock()
			if len(sent) != 1 || len(sent[0]) != 28+36 {
				t.Fatalf("the engine sent %x", sent)
			}
			if f := sent[0]; f[28] != 0x1c || !bytes.Equal(f[60:], icrc(f[:28], own(f[28:60]))) {
				t.Errorf("%x is no FLUSH, or has another ICRC", f)
			}
			r.giveBytes("1000 ffff 00Q 00000000 1f000001") // rxe's answer has the usual ICRC
			r.completions(r.scq, "1 SUCCESS FLUSH 0")
		})
	}
	// rxe has no XRC. Its FLUSHes have the ICRC of the standard.
	run(t, "XRC", config{rxeFlush: true, goBackN: true, service: verbs.XRCSend}, func(t *testing.T, r *rig) {
		r.post(&verbs.SendWR{WRID: 1, Opcode: verbs.Flush, FlushType: verbs.FlushGlobal, FlushLength: 100, RemoteAddr: peerAddr, RKey: peerKey,
			RemoteSRQN: 0x77})
		r.expectBytes(fmt.Sprintf("bc40 ffff 0000abcd 80000000 00000077 00000001 %016x %08x 00000064", uint64(peerAddr), uint32(peerKey)))
	})
}
