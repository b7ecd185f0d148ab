package ethswitch

import (
	"bytes"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/packet"
	"github.com/softrnic/softrnic/link/tap"
	"github.com/softrnic/softrnic/tests/interfaces"
)

// TestTAP: a superframe from a TAP interface is segmented for a stream. The kernel receives frames
// from the stream on the interface.
func TestTAP(t *testing.T) {
	interfaces.Namespace(t)
	interfaces.TUN(t)
	b, hosts := newSwitch(t, 1)
	l, err := tap.Open("t0", &tap.Config{MTU: 4200})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Add(l); err != nil {
		t.Fatal(err)
	}
	k, err := packet.Open("t0", &packet.Config{InterfaceMAC: true})
	if err != nil {
		t.Fatal(err)
	}
	defer k.Close()
	toKernel := linktest.Receive(k)
	super := linktest.Superframe(hosts[0].MAC(), k.MAC(), false, 5, 1040)
	if _, err := k.Write([]link.Frame{super}); err != nil {
		t.Fatal(err)
	}
	for p := range new(link.Cutter).Packets(&super) {
		hosts[0].expect(t, link.Frame{Data: bytes.Clone(p)})
	}
	f := linktest.Plain(k.MAC(), hosts[0].MAC(), 4200, "to the kernel")
	hosts[0].send(t, f)
	select {
	case g := <-toKernel:
		if !bytes.Equal(g.Data, f.Data) {
			t.Errorf("the kernel received %d bytes", len(g.Data))
		}
	case <-time.After(20 * time.Second):
		t.Error("the kernel received nothing")
	}
}
