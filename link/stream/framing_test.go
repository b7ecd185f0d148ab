package stream

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"path/filepath"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
)

// chunkedConn is a connection whose reads return chunks of the given sizes.
type chunkedConn struct {
	net.Conn
	b    []byte
	size int
}

func (p *chunkedConn) Read(b []byte) (int, error) {
	if len(p.b) == 0 {
		return 0, io.EOF
	}
	n := copy(b[:min(p.size, len(b))], p.b)
	p.b = p.b[n:]
	return n, nil
}

// FuzzReceive compares the received frames of arbitrary bytes with those of a simple reader.
func FuzzReceive(f *testing.F) {
	frame := append([]byte{0, 0, 0, 14}, "destinsourcety"...)
	f.Add(bytes.Repeat(frame, 100), uint16(7))
	f.Add(append(frame, 0, 0, 0, 13), uint16(1))
	f.Add([]byte{0, 0, 0, 0, 0, 1, 0, 21, 1}, uint16(1000))
	f.Add([]byte{0x80, 0, 0, 0, 1}, uint16(2))
	f.Fuzz(func(t *testing.T, b []byte, size uint16) {
		var want [][]byte
		malformed := uint64(0)
		for r := bytes.NewReader(b); ; {
			var n uint32
			if binary.Read(r, binary.BigEndian, &n) != nil {
				break
			}
			if n > maxFrame {
				malformed++
				break
			}
			data := make([]byte, n)
			if _, err := io.ReadFull(r, data); err != nil && n > 0 {
				break
			}
			if n < link.EthernetHeaderLen {
				malformed++
				continue
			}
			want = append(want, data)
		}
		l := &Link{}
		l.recv = func(frames []link.Frame) {
			for _, f := range frames {
				if len(want) == 0 || !bytes.Equal(f.Data, want[0]) {
					t.Fatalf("received %x, want the first frame of %x", f.Data, want)
				}
				want = want[1:]
				clear(f.Data) // the receiver may modify the frames
			}
		}
		l.receive(&chunkedConn{b: b, size: int(size) + 1})
		if len(want) > 0 {
			t.Errorf("did not receive %x", want)
		}
		if n := l.Malformed(); n != malformed {
			t.Errorf("%d malformed, want %d", n, malformed)
		}
	})
}

// halfClosed is a connection to which nothing can be written any more.
type halfClosed struct{ net.Conn }

func (halfClosed) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func (halfClosed) CloseWrite() error { return nil }

// TestReadsOn checks that a link does not read for ever from a peer to which it cannot write.
func TestReadsOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		l := newLink("", &Config{MTU: DefaultMTU}, noSource{}, halfClosed{here})
		l.Attach(func([]link.Frame) {})
		began := time.Now()
		if _, err := l.Write([]link.Frame{{Data: make([]byte, link.EthernetHeaderLen)}}); err != nil {
			t.Fatal(err)
		}
		frame := append([]byte{0, 0, 0, 14}, "destinsourcety"...)
		for time.Since(began) < 3*readsOn {
			if _, err := there.Write(frame); err != nil {
				break
			}
			time.Sleep(300 * time.Millisecond)
		}
		if d := time.Since(began).Truncate(time.Second); d != readsOn {
			t.Errorf("the link has read for %v, want %v", d, readsOn)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
}

// BenchmarkLink sends packets of the MTU's size from one link to another, in batches of 32, and
// waits for them.
func BenchmarkLink(b *testing.B) {
	path := filepath.Join(b.TempDir(), "s")
	to, err := Open(path, &Config{Listening: true, MTU: 4200})
	if err != nil {
		b.Fatal(err)
	}
	defer to.Close()
	from, err := Open(path, &Config{MTU: 4200})
	if err != nil {
		b.Fatal(err)
	}
	defer from.Close()
	const batch = 32
	n, all := 0, make(chan struct{}, 1)
	to.Attach(func(frames []link.Frame) {
		if n += len(frames); n == batch {
			n = 0
			all <- struct{}{}
		}
	})
	frames := make([]link.Frame, batch)
	for i := range frames {
		frames[i].Data = make([]byte, link.EthernetHeaderLen+4200)
	}
	b.ReportAllocs()
	b.SetBytes(batch * 4200)
	for b.Loop() {
		if _, err := from.Write(frames); err != nil {
			b.Fatal(err)
		}
		<-all
	}
	if d := from.Dropped(); d > 0 {
		b.Errorf("%d dropped", d)
	}
}
