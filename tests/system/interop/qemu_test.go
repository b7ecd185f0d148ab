//go:build linux

package interop

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/stream"
	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestQEMU: frames pass through a QEMU without a machine, which is only a hub between two streams.
// It listens on one of them, and connects to the other.
func TestQEMU(t *testing.T) {
	gate.System(t)
	qemu, err := exec.LookPath("qemu-system-x86_64")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("needs qemu-system-x86_64")
	}
	dir, err := os.MkdirTemp("", "s") // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	paths := [2]string{filepath.Join(dir, "a"), filepath.Join(dir, "b")}
	a, err := stream.Open(paths[0], &stream.Config{Listening: true, MTU: 4200})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	told := make(chan link.State, 16)
	a.Watch(func() { told <- a.State() })
	want := func(s link.State) {
		t.Helper()
		select {
		case got := <-told:
			if got != s {
				t.Errorf("the link is %v, want %v", got, s)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("the link does not change to %v", s)
		}
	}
	var hello link.Frame
	receive := func(c <-chan link.Frame, what string) (f link.Frame) {
		t.Helper()
		late := time.After(20 * time.Second)
		for {
			select {
			case f = <-c:
			case <-late:
				t.Fatalf("no %s", what)
			}
			if !bytes.Equal(f.Data, hello.Data) {
				return f
			}
		}
	}
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
	want(link.Up)
	var b *stream.Link
	for deadline := time.Now().Add(20 * time.Second); b == nil; time.Sleep(time.Millisecond) {
		// QEMU opens its sockets on its own threads, and may not have done so yet.
		if b, err = stream.Open(paths[1], &stream.Config{MTU: 4200}); err != nil && time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	defer b.Close()
	toB := linktest.Receive(b)
	// QEMU drops packets to a side whose connection it has not noticed yet, whoever opened it. It
	// reads b's packets once it has accepted b's connection.
	hello = linktest.Plain(a.MAC(), b.MAC(), 46, "hello")
	for arrived, late := false, time.After(20*time.Second); !arrived; {
		if _, err := b.Write([]link.Frame{hello}); err != nil {
			t.Fatal(err)
		}
		select {
		case <-toA:
			arrived = true
		case <-time.After(10 * time.Millisecond):
		case <-late:
			t.Fatal("no frame at a")
		}
	}
	for i := range 100 {
		f := linktest.Plain(a.MAC(), b.MAC(), 46+i*41, "to a")
		if _, err := b.Write([]link.Frame{f}); err != nil {
			t.Fatal(err)
		}
		if g := receive(toA, "frame at a"); !bytes.Equal(g.Data, f.Data) {
			t.Fatalf("a received %x, want %x", g.Data, f.Data)
		}
		f = linktest.Plain(b.MAC(), a.MAC(), 46+i*41, "to b")
		if _, err := a.Write([]link.Frame{f}); err != nil {
			t.Fatal(err)
		}
		if g := receive(toB, "frame at b"); !bytes.Equal(g.Data, f.Data) {
			t.Fatalf("b received %x, want %x", g.Data, f.Data)
		}
	}
	super := linktest.Superframe(b.MAC(), a.MAC(), false, 20, 1040)
	if _, err := a.Write([]link.Frame{super}); err != nil {
		t.Fatal(err)
	}
	for p := range new(link.Cutter).Packets(&super) {
		if g := receive(toB, "packet at b"); !bytes.Equal(g.Data, p) {
			t.Fatalf("b received %x, want %x", g.Data, p)
		}
	}
	end()
	want(link.NoCarrier)
}
