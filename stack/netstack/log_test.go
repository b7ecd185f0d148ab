package netstack_test

import (
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"testing"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack/netstack"
)

// TestGVisorWritesNothing checks that gVisor writes nothing to stderr, whatever peers send. gVisor
// keeps the descriptor that stderr had when the process began, so the test runs in a separate
// process.
func TestGVisorWritesNothing(t *testing.T) {
	const child = "SOFTRNIC_MARTIANS"
	if os.Getenv(child) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), child+"=1")
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		if err := cmd.Run(); err != nil {
			t.Errorf("%v: %s", err, &stdout)
		}
		if stderr.Len() > 0 {
			t.Errorf("stderr has %q", &stderr)
		}
		return
	}
	w := &arpWire{wire: newWire(), asked: make(chan bool, 1)}
	h, err := netstack.New(w, &netstack.Config{Addrs: []string{a4.String() + "/24"}})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	loopback := netip.MustParseAddr("127.0.0.1")
	for _, way := range [][2]netip.Addr{{loopback, a4}, {b4, loopback}} {
		w.arrive(link.Frame{Data: ping4(way[0], way[1], w)})
	}
	w.arrive(link.Frame{Data: ping4(b4, a4, w)})
	<-w.asked // so gVisor has processed the others too
}

// arpWire is a wire that reports when the host resolves the MAC address of b4.
type arpWire struct {
	*wire
	asked chan bool
}

func (w *arpWire) Write(frames []link.Frame) (int, error) {
	for i := range frames {
		b := slices.Concat(append([][]byte{frames[i].Data}, frames[i].More...)...)
		if len(b) >= 42 && b[12] == 0x08 && b[13] == 0x06 && bytes.Equal(b[38:42], b4.AsSlice()) && len(w.asked) == 0 {
			w.asked <- true
		}
	}
	return w.wire.Write(frames)
}

// ping4 returns an ICMP echo request.
func ping4(src, dst netip.Addr, w *arpWire) []byte {
	b := frame4(src, dst, w.mac, 0)
	b[23] = 1
	fixChecksum(b)
	copy(b[34:], []byte{8, 0, 0xf7, 0xff, 0, 0, 0, 0}) // type 8; the checksum of the rest is 0
	return b
}
