//go:build linux

package netns

import (
	"encoding/binary"
	"hash/crc32"
	"os"
	"path/filepath"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/tests/captures"
	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestRoCEv1 records all operations of RC, and SENDs of UC and UD, over RoCE v1 on every medium.
// Wireshark dissects every frame and finds nothing malformed, and every ICRC is that of the
// specification.
func TestRoCEv1(t *testing.T) {
	gate.System(t)
	tshark := needTshark(t)
	for _, m := range media {
		for gid, family := range []string{"link-local", "IPv4", "IPv6"} {
			t.Run(m.name+"/"+family, func(t *testing.T) {
				interfaces.Namespace(t)
				file := filepath.Join(t.TempDir(), "v1.pcapng")
				record(t, m, roce.V1Index+gid, file)
				frames := checkV1(t, file)
				seen := dissect(t, tshark, file)
				if n := seen["_ws.malformed"]; n != 0 {
					t.Errorf("tshark finds %d malformed packets", n)
				}
				if grh, bth, icrc := seen["infiniband.grh"], seen["infiniband.bth"], seen["infiniband.invariant.crc"]; grh != frames ||
					bth != frames || icrc != frames {
					t.Errorf("tshark finds a GRH in %d packets, a BTH in %d and an ICRC in %d of %d frames", grh, bth, icrc, frames)
				}
				for _, name := range []string{"infiniband.reth.va", "infiniband.aeth.msn", "infiniband.atomiceth.cmpdt",
					"infiniband.atomicacketh.origremdt", "infiniband.immdt", "infiniband.deth"} {
					if seen[name] == 0 {
						t.Errorf("tshark finds no %s", name)
					}
				}
			})
		}
	}
}

// checkV1 counts the frames of RoCE v1, whose ICRCs must be those of IBTA Vol 1 §7.8.1 and annex
// A16. This is the CRC of Ethernet, sent with the lowest byte first, over four parts: 8 bytes of
// ones for the missing LRH; the GRH with traffic class, flow label and hop limit set to ones; the
// BTH with its reserved byte 4 set to ones; and the rest. No frame may be RoCEv2.
func checkV1(t *testing.T, file string) (frames int) {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for n, b := range captures.Frames(t, f) {
		at := link.NetworkOffset(b)
		etherType := binary.BigEndian.Uint16(b[at-2:])
		b = b[at:]
		if etherType == 0x0800 && b[9] == 17 || etherType == 0x86dd && b[6] == 17 {
			t.Errorf("packet %d is UDP", n)
		}
		if etherType != 0x8915 {
			continue
		}
		frames++
		length := int(binary.BigEndian.Uint16(b[4:]))
		p := append([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, b[:40+length]...)
		grh, bth := p[8:48], p[48:]
		grh[0] |= 0x0f
		grh[1], grh[2], grh[3], grh[7] = 0xff, 0xff, 0xff, 0xff
		bth[4] = 0xff
		end := len(p) - 4
		if got, want := binary.LittleEndian.Uint32(p[end:]), crc32.ChecksumIEEE(p[:end]); got != want {
			t.Errorf("packet %d has ICRC %08x, want %08x", n, got, want)
		}
	}
	return frames
}
