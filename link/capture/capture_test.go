package capture

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"gvisor.dev/gvisor/pkg/tcpip/header"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/pipe"
)

type packet struct {
	data     []byte
	outbound bool
}

func read(t *testing.T, r io.Reader) (ps []packet) {
	t.Helper()
	ng, err := pcapgo.NewNgReader(r, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	if ng.LinkType() != layers.LinkTypeEthernet {
		t.Errorf("link type %v", ng.LinkType())
	}
	for {
		data, ci, opts, err := ng.ReadPacketDataWithOptions()
		if err == io.EOF {
			return ps
		}
		if err != nil {
			t.Fatal(err)
		}
		if ci.Timestamp.IsZero() || ci.Length != len(data) || opts.Flags == nil {
			t.Errorf("packet without time, length or direction: %+v", ci)
			continue
		}
		ps = append(ps, packet{data, opts.Flags.Direction == pcapgo.NgEpbFlagDirectionOutbound})
	}
}

// verify checks the checksums of IP and UDP.
func verify(t *testing.T, p gopacket.Packet) {
	t.Helper()
	if udp, ok := p.TransportLayer().(*layers.UDP); !ok {
		t.Fatalf("no UDP: %v", p)
	} else if err := udp.SetNetworkLayerForChecksum(p.NetworkLayer()); err != nil {
		t.Fatal(err)
	}
	if err, bad := p.VerifyChecksums(); err != nil || len(bad) != 0 || p.ErrorLayer() != nil {
		t.Errorf("%v %v %v", err, bad, p.ErrorLayer())
	}
}

func TestRoundTrip(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pcapng")
	sw := new(pipe.Switch)
	a := sw.Port()
	l, err := Create(a, path)
	if err != nil {
		t.Fatal(err)
	}
	if l.Name() != a.Name() || l.MTU() != a.MTU() || l.MAC().String() != a.MAC().String() || l.Offloads() != a.Offloads() {
		t.Error("the link's properties differ from the inner link's")
	}
	b := sw.Port()
	arrived := make(chan link.Frame, 2)
	answered := make(chan bool, 1)
	b.Attach(func(frames []link.Frame) {
		for _, f := range frames {
			f.Data = bytes.Clone(f.Data)
			arrived <- f
		}
	})
	l.Attach(func([]link.Frame) { answered <- true })

	out := linktest.Superframe(b.MAC(), a.MAC(), false, 3, 1040)
	out.Data = out.Data[:len(out.Data)-40] // the last segment is shorter
	ip := header.IPv4(out.Data[14:])
	ip.SetTotalLength(ip.TotalLength() - 40)
	ip.SetTOS(2, 0)
	ip.SetID(0xfffe)
	whole := bytes.Clone(out.Data)
	sent := out
	sent.Data, sent.More = out.Data[:42], [][]byte{out.Data[42:2000], out.Data[2000:]}
	if n, err := l.Write([]link.Frame{sent}); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if f := <-arrived; !bytes.Equal(f.Data, whole) || f.Segmentation != link.UDP {
		t.Error("the capture changed the frame")
	}
	answer := append(append(bytes.Clone(a.MAC()), b.MAC()...), 0x88, 0xb5, 1, 2, 3)
	if _, err := b.Write([]link.Frame{{Data: answer}}); err != nil {
		t.Fatal(err)
	}
	<-answered
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
	b.Close()

	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	ps := read(t, file)
	if len(ps) != 4 {
		t.Fatalf("%d packets in the file, want 3 segments and the answer", len(ps))
	}
	if last := ps[3]; last.outbound || !bytes.Equal(last.data, answer) {
		t.Errorf("answer: outbound %t, %x", last.outbound, last.data)
	}
	var payload []byte
	for i, p := range ps[:3] {
		g := gopacket.NewPacket(p.data, layers.LayerTypeEthernet, gopacket.Default)
		verify(t, g)
		ip := g.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
		udp := g.Layer(layers.LayerTypeUDP).(*layers.UDP)
		if want := uint16(0xfffe + i); ip.Id != want || ip.TOS != 2 || !p.outbound ||
			int(ip.Length) != len(p.data)-14 || int(udp.Length) != len(p.data)-34 {
			t.Errorf("segment %d: ID %#x (want %#x), TOS %d, outbound %t, lengths %d %d of %d",
				i, ip.Id, want, ip.TOS, p.outbound, ip.Length, udp.Length, len(p.data))
		}
		payload = append(payload, udp.Payload...)
	}
	if !bytes.Equal(payload, whole[42:]) {
		t.Error("the segments' payloads are not the superframe's")
	}
}

func TestPartialChecksumIsFilledIn(t *testing.T) {
	var file bytes.Buffer
	sw := new(pipe.Switch)
	a := sw.Port()
	l, err := New(a, &file)
	if err != nil {
		t.Fatal(err)
	}
	f := linktest.Superframe(sw.Port().MAC(), a.MAC(), false, 1, 64)
	f.Segmentation, f.SegmentSize, f.HeaderLen = 0, 0, 0
	if _, err := l.Write([]link.Frame{f}); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ps := read(t, &file)
	if len(ps) != 1 {
		t.Fatalf("%d packets", len(ps))
	}
	verify(t, gopacket.NewPacket(ps[0].data, layers.LayerTypeEthernet, gopacket.Default))
}

// failingWriter fails the first write, and counts later ones.
type failingWriter struct {
	room  int
	after int
}

func (h *failingWriter) Write(b []byte) (int, error) {
	switch {
	case h.room < 0:
		h.after++
	case h.room < len(b):
		h.room = -1
		return 0, errFull
	default:
		h.room -= len(b)
	}
	return len(b), nil
}

// TestCaptureEndsWithItsFirstError checks that nothing is written after a failed write. Later
// frames are neither cut nor checksummed.
func TestCaptureEndsWithItsFirstError(t *testing.T) {
	sw := new(pipe.Switch)
	a, b := sw.Port(), sw.Port()
	out := &failingWriter{room: 5000}
	l, err := New(a, out)
	if err != nil {
		t.Fatal(err)
	}
	frames := []link.Frame{linktest.Superframe(b.MAC(), a.MAC(), false, 20, 1040)}
	write := func() {
		if n, err := l.Write(frames); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	write()
	if err := l.Err(); !errors.Is(err, errFull) {
		t.Fatalf("Err = %v, want the disk's", err)
	}
	if allocs := testing.AllocsPerRun(100, write); allocs >= 1 {
		t.Errorf("%.0f allocations for a frame that is not recorded", allocs)
	}
	if err := l.Close(); !errors.Is(err, errFull) {
		t.Errorf("Close = %v, want the disk's error", err)
	}
	if out.after > 0 {
		t.Errorf("%d writes after the failed one", out.after)
	}
}

// TestCreateKeepsExistingFile checks that Create never truncates a file with content, and uses an
// empty one.
func TestCreateKeepsExistingFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pcapng")
	for _, content := range []string{"", "precious"} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		l, err := Create(new(pipe.Switch).Port(), path)
		if content == "" {
			if err != nil {
				t.Fatal(err)
			}
			if err := l.Close(); err != nil {
				t.Error(err)
			}
			continue
		}
		if !errors.Is(err, fs.ErrExist) || !strings.Contains(err.Error(), path) {
			t.Errorf("the error is %v", err)
		}
		if got, err := os.ReadFile(path); string(got) != content {
			t.Errorf("the file has %q, %v", got, err)
		}
	}
}

// fullDisk accepts n bytes.
type fullDisk struct{ n int }

var errFull = errors.New("disk full")

func (d *fullDisk) Write(b []byte) (int, error) {
	if d.n -= len(b); d.n < 0 {
		return 0, errFull
	}
	return len(b), nil
}

func TestWriteErrorLeavesTheLinkWorking(t *testing.T) {
	sw := new(pipe.Switch)
	a, b := sw.Port(), sw.Port()
	l, err := New(a, &fullDisk{1000})
	if err != nil {
		t.Fatal(err)
	}
	received := make(chan int, 100)
	b.Attach(func(frames []link.Frame) { received <- len(frames) })
	for range 20 {
		if n, err := l.Write([]link.Frame{linktest.Superframe(b.MAC(), a.MAC(), false, 1, 1040)}); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	for n := 0; n < 20; {
		n += <-received
	}
	if err := l.Err(); !errors.Is(err, errFull) {
		t.Errorf("Err = %v, want the disk's", err)
	}
	if err := l.Close(); !errors.Is(err, errFull) {
		t.Errorf("Close = %v, want the disk's error", err)
	}
	b.Close()
	if _, err := New(a, &fullDisk{}); !errors.Is(err, errFull) {
		t.Errorf("New on a full disk = %v", err)
	}
	if _, err := Create(a, filepath.Join(t.TempDir(), "none", "x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Create in a missing directory = %v", err)
	}
}
