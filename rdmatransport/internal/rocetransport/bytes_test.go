package rocetransport_test

// In these tests, the packets of the peer are bytes written from the specification. No code of
// rdmatransport/wire encodes, parses or seals them.

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/stack"
)

// icrc computes the ICRC of a packet after IPv4 and UDP headers, bit by bit, as in IBTA A17.3.3.
// Eight bytes of ones precede the packet. The IPv4 fields TOS, TTL and checksum, the UDP checksum
// and the BTH's fifth byte count as ones.
func icrc(header, packet []byte) []byte {
	all := append(bytes.Clone(header), packet...)
	for _, i := range []int{1, 8, 10, 11, 26, 27, 28 + 4} {
		all[i] = 0xff
	}
	crc := ^uint32(0)
	for _, x := range append(bytes.Repeat([]byte{0xff}, 8), all...) {
		crc ^= uint32(x)
		for range 8 {
			crc = crc>>1 ^ 0xedb88320&-(crc&1)
		}
	}
	return binary.LittleEndian.AppendUint32(nil, ^crc)
}

// unspace decodes hexadecimal digits with spaces between fields.
func unspace(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// giveBytes passes a packet to the engine: the bytes before the ICRC, with Q for the QP's number.
func (r *rig) giveBytes(format string, args ...any) {
	r.t.Helper()
	b := unspace(r.t, strings.ReplaceAll(fmt.Sprintf(format, args...), "Q", fmt.Sprintf("%06x", r.qp.Num())))
	h := make([]byte, 28)
	putHeader(h, r.them, r.us, 50000, 0, len(b)+4)
	b = append(b, icrc(h, b)...)
	r.port.receive(&stack.Datagram{Src: r.them, Dst: r.us, SrcPort: 50000, SegmentSize: len(b), Header: h, Payload: b})
}

// expectBytes checks the bytes that the engine has sent, in the format of giveBytes.
func (r *rig) expectBytes(want ...string) {
	r.t.Helper()
	r.port.mu.Lock()
	sent := r.port.frames
	r.port.frames, r.port.sent = nil, nil
	r.port.mu.Unlock()
	var got, plain []string
	for _, f := range sent {
		n := len(f) - 4
		if !bytes.Equal(f[n:], icrc(f[:28], f[28:n])) {
			r.t.Fatalf("%x is sent with a wrong ICRC", f[28:])
		}
		got = append(got, hex.EncodeToString(f[28:n]))
	}
	for _, w := range want {
		plain = append(plain, strings.ReplaceAll(w, " ", ""))
	}
	if !slices.Equal(got, plain) {
		r.t.Fatalf("the engine sent\n\t%s\nwant\n\t%s", strings.Join(got, "\n\t"), strings.Join(plain, "\n\t"))
	}
}
