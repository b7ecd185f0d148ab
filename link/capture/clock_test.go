package capture_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// TestClock: the times of packets are those of the link's clock.
func TestClock(t *testing.T) {
	var file bytes.Buffer
	sim, lan := stacktest.NewClock(1), new(pipe.Switch)
	l, err := capture.New(sim.On(lan.Port()), &file)
	if err != nil {
		t.Fatal(err)
	}
	var want []time.Time
	for range 2 {
		sim.Advance(1500 * time.Microsecond)
		want = append(want, sim.Now())
		if _, err := l.Write([]link.Frame{{Data: make([]byte, 60)}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(&file, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range want {
		if _, ci, err := r.ReadPacketData(); err != nil || !ci.Timestamp.Equal(at) {
			t.Errorf("a packet at %v, %v; want %v", ci.Timestamp, err, at)
		}
	}
}
