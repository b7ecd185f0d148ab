#!/bin/sh
# Versions: github.com/gopacket/gopacket v1.7.5, Go 1.26.
#
# Guess: pcapgo's NgReader gives each packet the time that the file states, in whatever resolution
# (option if_tsresol of the interface) the file has.
#
# Seen: it does so for 10^-3, 10^-6 and 10^-9. A time in powers of two is up to 0.4 ms too early,
# and one in whole seconds is read as microseconds. There is no error. Each file below says half
# past second 1700000000, the last one second 1700000000:
#
#   10^-6: 1700000000.500000 <nil>
#   2^-20: 1700000000.499646 <nil>
#   2^-10: 1700000000.499999 <nil>
#   10^0: 1700.000000 <nil>
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
cd "$dir"
cat >go.mod <<'EOF'
module finding

go 1.25

require github.com/gopacket/gopacket v1.7.5
EOF
cat >main.go <<'EOF'
package main

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/gopacket/gopacket/pcapgo"
)

// file returns a capture of one packet: units is its time in units of the resolution.
func file(resolution byte, units uint64) []byte {
	var b bytes.Buffer
	put := func(v ...any) {
		for _, v := range v {
			_ = binary.Write(&b, binary.LittleEndian, v)
		}
	}
	put(uint32(0x0a0d0d0a), uint32(28), uint32(0x1a2b3c4d), uint16(1), uint16(0), int64(-1), uint32(28))
	put(uint32(1), uint32(32), uint16(1), uint16(0), uint32(65535))
	put(uint16(9), uint16(1), [4]byte{resolution}, uint16(0), uint16(0), uint32(32))
	put(uint32(6), uint32(36), uint32(0), uint32(units>>32), uint32(units), uint32(4), uint32(4), [4]byte{1, 2, 3, 4}, uint32(36))
	return b.Bytes()
}

func main() {
	const s = 1700000000
	for _, c := range []struct {
		name       string
		resolution byte
		units      uint64
	}{
		{"10^-6", 6, s*1e6 + 5e5},
		{"2^-20", 0x80 | 20, s<<20 + 1<<19},
		{"2^-10", 0x80 | 10, s<<10 + 1<<9},
		{"10^0", 0, s},
	} {
		r, err := pcapgo.NewNgReader(bytes.NewReader(file(c.resolution, c.units)), pcapgo.DefaultNgReaderOptions)
		if err != nil {
			fmt.Println(c.name, err)
			continue
		}
		_, ci, err := r.ReadPacketData()
		fmt.Printf("%s: %.6f %v\n", c.name, float64(ci.Timestamp.UnixMicro())/1e6, err)
	}
}
EOF
go mod tidy >log 2>&1 || { cat log >&2; exit 2; }
go run . >seen
cat seen
cat >expected <<'EOF'
10^-6: 1700000000.500000 <nil>
2^-20: 1700000000.499646 <nil>
2^-10: 1700000000.499999 <nil>
10^0: 1700.000000 <nil>
EOF
cmp seen expected
