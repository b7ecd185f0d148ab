package stream_test

import (
	"bytes"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/stream"
)

// TestQEMU: frames pass through a QEMU that has no machine, only a hub between two streams. It listens on one of them, and
// connects to the other.
func TestQEMU(t *testing.T) {
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("needs qemu-system-x86_64")
	}
	paths := [2]string{socket(t), socket(t)}
	a := open(t, paths[0], stream.Listening(), stream.MTU(4200))
	told := states(a)
	toA := linktest.Receive(a)
	cmd := exec.Command(qemu, "-machine", "none", "-nodefaults", "-display", "none",
		"-netdev", "stream,id=a,server=off,addr.type=unix,addr.path="+paths[0],
		"-netdev", "stream,id=b,server=on,addr.type=unix,addr.path="+paths[1],
		"-netdev", "hubport,id=ha,hubid=0,netdev=a", "-netdev", "hubport,id=hb,hubid=0,netdev=b")
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := false
	end := func() {
		if !ended {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			ended = true
		}
	}
	defer func() {
		end()
		if t.Failed() {
			t.Logf("qemu said: %s", &said)
		}
	}()
	want(t, told, link.Up)
	var b *stream.Link
	for deadline := time.Now().Add(20 * time.Second); b == nil; time.Sleep(time.Millisecond) {
		// QEMU opens its sockets by threads of their own, and may not have got there.
		if b, err = stream.Open(paths[1], stream.MTU(4200)); err != nil && time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	defer b.Close()
	toB := linktest.Receive(b)
	for i := range 100 {
		// QEMU drops what is for b until it has accepted b's connection, and then it reads what b has sent: so b is first.
		f := linktest.Plain(a.MAC(), b.MAC(), 46+i*41, "to a")
		if _, err := b.Write([]link.Frame{f}); err != nil {
			t.Fatal(err)
		}
		if g := receive(t, toA, "frame at a"); !bytes.Equal(g.Data, f.Data) {
			t.Fatalf("a received %x, want %x", g.Data, f.Data)
		}
		f = linktest.Plain(b.MAC(), a.MAC(), 46+i*41, "to b")
		if _, err := a.Write([]link.Frame{f}); err != nil {
			t.Fatal(err)
		}
		if g := receive(t, toB, "frame at b"); !bytes.Equal(g.Data, f.Data) {
			t.Fatalf("b received %x, want %x", g.Data, f.Data)
		}
	}
	super := linktest.Superframe(b.MAC(), a.MAC(), false, 20, 1040)
	if _, err := a.Write([]link.Frame{super}); err != nil {
		t.Fatal(err)
	}
	for p := range new(link.Cutter).Packets(&super) {
		if g := receive(t, toB, "packet at b"); !bytes.Equal(g.Data, p) {
			t.Fatalf("b received %x, want %x", g.Data, p)
		}
	}
	end()
	want(t, told, link.NoCarrier)
}
