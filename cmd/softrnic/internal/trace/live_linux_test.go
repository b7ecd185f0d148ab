package trace

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/packet"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/tests/interfaces"
)

// counted passes only RoCE frames and ends the capture after a number of them, as the kernel sends
// its own packets on a new interface.
type counted struct {
	*live
	left int
}

func (c *counted) next() (data []byte, info gopacket.CaptureInfo, link layers.LinkType, err error) {
	if c.left == 0 {
		return nil, info, 0, io.EOF
	}
	for {
		data, info, link, err = c.live.next()
		if err != nil || len(data) > 14+20+4 && binary.BigEndian.Uint16(data[12:]) == 0x0800 &&
			binary.BigEndian.Uint16(data[14+20+2:]) == 4791 {
			c.left--
			return data, info, link, err
		}
	}
}

// TestLive: a superframe on an interface is segmented by its virtio-net header, even if its first
// packet is damaged.
func TestLive(t *testing.T) {
	interfaces.Namespace(t)
	interfaces.Veth(t, 4200)
	var spec node.LinkSpec
	if err := spec.UnmarshalText([]byte("packet:v1")); err != nil {
		t.Fatal(err)
	}
	s, err := listen(&spec)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	l, err := packet.Open("v0", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()

	c := &rc{t: t}
	const size = 1024
	for i := range uint32(6) {
		c.request(0, 5+i, wire.RCSendOnly, size)
	}
	packets := []record{joined(c.packets[:3]), joined(c.packets[3:])}
	packets[1].data[14+20+8+100] ^= 1
	for _, p := range packets {
		f := link.Frame{Data: p.data, Segmentation: link.UDP, SegmentSize: size + wire.BTHLen + wire.ICRCLen, HeaderLen: 14 + 20 + 8,
			NeedsChecksum: true, ChecksumStart: 14 + 20, ChecksumOffset: 6}
		if n, err := l.Write([]link.Frame{f}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	var b bytes.Buffer
	a, err := new(Command).trace(context.Background(), &counted{s, len(packets)}, &b, "test")
	if err != nil {
		t.Fatal(err)
	}
	out := b.String()
	if a.counts.RoCE != 6 || a.counts.Superframes != 2 || a.counts.Wrong != 2 || a.counts.Dropped != 0 ||
		!strings.Contains(out, "WRONG packet 2: the ICRC is wrong") {
		t.Errorf("%+v\n%s", a.counts, out)
	}
}
