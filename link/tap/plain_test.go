package tap

import (
	"bytes"
	"errors"
	"net"
	"testing"

	"github.com/songgao/water"

	"github.com/softrnic/softrnic/link"
)

// TestPlain tests the link of systems without virtio-net headers, over a descriptor with separate
// reads and writes.
func TestPlain(t *testing.T) {
	own, far := net.Pipe()
	p := newPlain(&water.Interface{ReadWriteCloser: own}, 1500)
	got := make(chan []byte, 1)
	p.Attach(func(frames []link.Frame) {
		for i := range frames {
			got <- bytes.Clone(frames[i].Data)
		}
	})
	frame := bytes.Repeat([]byte{1, 2, 3}, 100)
	for _, b := range [][]byte{frame[:13], frame} { // the first is too short
		if _, err := far.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if b := <-got; !bytes.Equal(b, frame) {
		t.Errorf("received %x, want %x", b, frame)
	}
	go func() {
		frames := []link.Frame{{Data: frame}, {Data: frame[:20], More: [][]byte{frame[20:50], {}, frame[50:]}}}
		if n, err := p.Write(frames); n != 2 || err != nil {
			t.Error(n, err)
		}
	}()
	buf := make([]byte, 1600)
	for range 2 {
		if n, err := far.Read(buf); err != nil || !bytes.Equal(buf[:n], frame) {
			t.Errorf("sent %x, %v; want %x", buf[:n], err, frame)
		}
	}
	if n, err := p.Write([]link.Frame{{Data: make([]byte, 1600)}}); n != 0 || !errors.Is(err, link.ErrTooLong) {
		t.Errorf("Write of a too long frame: %d, %v, want ErrTooLong", n, err)
	}
	if s := p.carrier.State(); s != link.Up {
		t.Errorf("the link is %v", s)
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if s := p.carrier.State(); s != link.Up { // closing the link is not a loss of carrier
		t.Errorf("the closed link is %v", s)
	}
	if _, err := p.Write([]link.Frame{{Data: frame}}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write after Close: %v, want net.ErrClosed", err)
	}
}

// TestPlainRemoved checks that an interface that cannot be read any more is reported as removed,
// once.
func TestPlainRemoved(t *testing.T) {
	own, far := net.Pipe()
	p := newPlain(&water.Interface{ReadWriteCloser: own}, 1500)
	notified := make(chan link.State, 2)
	p.carrier.Watch(func() { notified <- p.carrier.State() })
	p.Attach(func([]link.Frame) {})
	if err := far.Close(); err != nil {
		t.Fatal(err)
	}
	if s := <-notified; s != link.Removed {
		t.Errorf("the link is %v, want removed", s)
	}
	p.carrier.Close()
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	if len(notified) > 0 {
		t.Error("reported more than once")
	}
}
