package rsocket

import (
	"bytes"
	"net/netip"
	"testing"
)

// FuzzDatagramHeaders: parsing arbitrary bytes does not panic, and parsing an encoded header
// returns the same header.
func FuzzDatagramHeaders(f *testing.F) {
	for _, a := range []string{"10.0.0.1:7", "[fd00::1]:7"} {
		addr := netip.MustParseAddrPort(a)
		f.Add(append(appendSource(nil, addr), 1, 2))
		f.Add(append((&udpHeader{op: opData, qpn: 17, addr: addr.Addr()}).appendTo(nil), 1, 2))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if from, data, ok := parseSource(b); ok {
			if again, rest, ok := parseSource(append(appendSource(nil, from), data...)); !ok || again != from || !bytes.Equal(rest, data) {
				t.Errorf("%v, %x", again, rest)
			}
		}
		if i, data, ok := parseUDPHeader(b); ok {
			if again, rest, ok := parseUDPHeader(append(i.appendTo(nil), data...)); !ok || again != i || !bytes.Equal(rest, data) {
				t.Errorf("%+v, %x", again, rest)
			}
		}
	})
}
