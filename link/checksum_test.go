package link

import (
	"bytes"
	"testing"

	"gvisor.dev/gvisor/pkg/tcpip"
	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
)

func TestTransportChecksum(t *testing.T) {
	src, dst := [4]byte{10, 0, 0, 1}, [4]byte{10, 0, 0, 2}
	segment := bytes.Repeat([]byte{0xab, 3}, 30)
	want := ^checksum.Checksum(segment, header.PseudoHeaderChecksum(17, tcpip.AddrFrom4(src), tcpip.AddrFrom4(dst), uint16(len(segment))))
	if got := transportChecksum(append(src[:], dst[:]...), 17, segment); got != want {
		t.Errorf("%#x, want %#x", got, want)
	}
	if got := transportChecksum(make([]byte, 8), 0, []byte{0xff, 0xfd}); got != 0xffff {
		t.Errorf("checksum of a sum of 0xffff: %#x, want 0xffff", got)
	}
}
