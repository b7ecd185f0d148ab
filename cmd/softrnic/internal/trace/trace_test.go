package trace

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
)

// captured returns the project's captures between kernels, by file name.
func captured(t testing.TB) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, dir := range []string{"wire", "mad", "rdmap"} {
		files, err := filepath.Glob("../../../../rdmatransport/" + dir + "/testdata/*.pcap.gz")
		if err != nil || len(files) == 0 {
			t.Fatalf("no captures of %s: %v", dir, err)
		}
		for _, name := range files {
			packed, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			z, err := gzip.NewReader(bytes.NewReader(packed))
			if err != nil {
				t.Fatal(err)
			}
			b, err := io.ReadAll(z)
			if err != nil {
				t.Fatal(err)
			}
			all[dir+"/"+strings.TrimSuffix(filepath.Base(name), ".pcap.gz")] = b
		}
	}
	return all
}

// record is a packet of a capture.
type record struct {
	info gopacket.CaptureInfo
	data []byte
}

// records returns the packets of an Ethernet capture.
func records(t testing.TB, capture []byte) (all []record) {
	t.Helper()
	src, err := open(bytes.NewReader(capture))
	if err != nil {
		t.Fatal(err)
	}
	for {
		data, info, link, err := src.next()
		if err == io.EOF {
			return all
		}
		if err != nil || link != layers.LinkTypeEthernet {
			t.Fatal(link, err)
		}
		all = append(all, record{info, bytes.Clone(data)})
	}
}

// sequence is a source of given packets.
type sequence struct {
	records []record
	link    layers.LinkType
}

func (s *sequence) next() ([]byte, gopacket.CaptureInfo, layers.LinkType, error) {
	if len(s.records) == 0 {
		return nil, gopacket.CaptureInfo{}, 0, io.EOF
	}
	r := s.records[0]
	s.records = s.records[1:]
	return r.data, r.info, s.link, nil
}

// traced runs the command over packets.
func traced(t testing.TB, c *Command, packets []record) (*analysis, string) {
	t.Helper()
	var out bytes.Buffer
	a, err := c.trace(context.Background(), &sequence{packets, layers.LinkTypeEthernet}, &out, "test")
	if err != nil {
		t.Fatal(err)
	}
	return a, out.String()
}

// TestCapturesAreRight: captures between kernels have no findings, and each packet is analysed.
func TestCapturesAreRight(t *testing.T) {
	roce, iwarp := 0, 0
	for name, capture := range captured(t) {
		a, out := traced(t, &Command{}, records(t, capture))
		c := a.counts
		if c.Wrong != 0 || c.Doubtful != 0 || c.Unchecked != 0 || c.Packets != c.RoCE+c.IWARP+c.TCP ||
			!strings.Contains(out, "nothing is wrong\n") {
			t.Errorf("%s: %+v\n%s", name, c, out)
		}
		if strings.Contains(out, "does not have") || strings.Contains(out, "not followed") {
			t.Errorf("%s: not all of it is followed\n%s", name, out)
		}
		if lines := strings.Count(out, "\n"); lines < c.RoCE {
			t.Errorf("%s: %d lines for %d packets", name, lines, c.RoCE)
		}
		roce, iwarp = roce+c.RoCE, iwarp+c.IWARP
	}
	if roce < 2000 || iwarp < 500 {
		t.Errorf("%d packets of RoCE and %d of iWARP in all", roce, iwarp)
	}
}

// TestFormats: the same packets are read from pcap of either byte order and resolution, from
// pcapng, and from compressed files.
func TestFormats(t *testing.T) {
	packets := records(t, captured(t)["wire/rc-send"])
	_, want := traced(t, &Command{}, packets)
	var micro, nano, ng, zipped bytes.Buffer
	for _, w := range []*pcapgo.Writer{pcapgo.NewWriter(&micro), pcapgo.NewWriterNanos(&nano)} {
		if err := w.WriteFileHeader(0, layers.LinkTypeEthernet); err != nil {
			t.Fatal(err)
		}
		for _, r := range packets {
			if err := w.WritePacket(r.info, r.data); err != nil {
				t.Fatal(err)
			}
		}
	}
	w, err := pcapgo.NewNgWriter(&ng, layers.LinkTypeEthernet)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range packets {
		r.info.InterfaceIndex = 0
		if err := w.WritePacket(r.info, r.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(&zipped)
	if _, err := z.Write(ng.Bytes()); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"microseconds": micro.Bytes(), "nanoseconds": nano.Bytes(), "pcapng": ng.Bytes(),
		"gzip": zipped.Bytes()} {
		src, err := open(bytes.NewReader(b))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var out bytes.Buffer
		if _, err := new(Command).trace(context.Background(), src, &out, name); err != nil || out.String() != want {
			t.Errorf("%s: %v\n%s", name, err, out.String())
		}
	}
}

// TestHostileRecord: memory is not allocated by a header's length alone, and a truncated file is an
// error.
func TestHostileRecord(t *testing.T) {
	var file bytes.Buffer
	if err := pcapgo.NewWriter(&file).WriteFileHeader(0xffffffff, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	header := bytes.Clone(file.Bytes())
	for name, rest := range map[string][]byte{
		"4 GB":       append(append(make([]byte, 8), 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f), make([]byte, 1000)...),
		"half":       append(append(make([]byte, 8), 100, 0, 0, 0, 100, 0, 0, 0), make([]byte, 50)...),
		"more in it": append(append(make([]byte, 8), 100, 0, 0, 0, 50, 0, 0, 0), make([]byte, 100)...),
	} {
		src, err := open(bytes.NewReader(append(bytes.Clone(header), rest...)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err = new(Command).trace(context.Background(), src, io.Discard, name); err == nil ||
			!strings.Contains(err.Error(), "after packet 0") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
