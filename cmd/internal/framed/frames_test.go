//go:build linux

package framed_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/framed"
	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/tests/stacktest"
)

// altering is a link that alters the frames it passes on.
type altering struct {
	link.Link
	in, out atomic.Pointer[func(*link.Frame)] // or nil
	refused error                             // by the link below, of the last Write
	written []link.Frame                      // without Data
}

func alter(how *atomic.Pointer[func(*link.Frame)], f *link.Frame) {
	if alter := how.Load(); alter != nil {
		(*alter)(f)
	}
}

func (l *altering) Write(frames []link.Frame) (n int, err error) {
	for i := range frames {
		alter(&l.out, &frames[i])
		f := frames[i]
		f.Data = nil
		l.written = append(l.written, f)
	}
	n, l.refused = l.Link.Write(frames)
	return n, l.refused
}

func (l *altering) Attach(recv link.Receiver) {
	l.Link.Attach(func(frames []link.Frame) {
		for i := range frames {
			alter(&l.in, &frames[i])
		}
		recv(frames)
	})
}

// behind opens a host on a loopback address whose frames pass an altering link.
func behind(t *testing.T, l *altering, opts ...framed.Option) (stack.DatagramPort, stacktest.End) {
	t.Helper()
	end := stacktest.OnLoopback(t, nil)
	host := must(framed.New(end.Host.(framed.Stack), func(m link.Link) (link.Link, error) { l.Link = m; return l, nil }, opts...))(t)
	t.Cleanup(func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	})
	return host.NICs()[0].Datagrams(), end
}

// payloads passes on what a port receives, cut into datagrams.
func payloads(p stack.DatagramPort) <-chan []byte {
	c := make(chan []byte, 64)
	p.Receive(func(d *stack.Datagram) {
		for b, ok := d.Next(); ok; b, ok = d.Next() {
			c <- bytes.Clone(b)
		}
	})
	return c
}

func next(t *testing.T, c <-chan []byte) []byte {
	t.Helper()
	select {
	case b := <-c:
		return b
	case <-time.After(20 * time.Second):
		t.Fatal("no datagram arrived")
		return nil
	}
}

// send sends payloads as one sender's datagrams.
func send(t *testing.T, from stack.DatagramPort, p stack.Path, data ...[]byte) {
	t.Helper()
	s := from.Sender()
	defer s.Flush()
	for _, d := range data {
		_, b := s.Datagram(p, len(d))
		if len(b) != len(d) {
			t.Fatalf("room for %d bytes, want %d", len(b), len(d))
		}
		copy(b, d)
	}
}

// TestAlteredFrames checks a link that alters a frame so that it is no packet between two known
// hosts. The frame is lost, and the next one arrives.
func TestAlteredFrames(t *testing.T) {
	const ip, udp = link.EthernetHeaderLen, link.EthernetHeaderLen + 20
	frames := map[string]func(*link.Frame){
		"EtherType":                func(f *link.Frame) { f.Data[12] ^= 1 },
		"version":                  func(f *link.Frame) { f.Data[ip] ^= 0x10 },
		"IPv6":                     func(f *link.Frame) { binary.BigEndian.PutUint16(f.Data[12:], 0x86dd); f.Data[ip] = 6 << 4 },
		"source address":           func(f *link.Frame) { f.Data[ip+15] ^= 1 },
		"length":                   func(f *link.Frame) { f.Data = f.Data[:len(f.Data)-1] },
		"less than the headers":    func(f *link.Frame) { f.Data = f.Data[:udp] },
		"destination port":         func(f *link.Frame) { f.Data[udp+2] ^= 1 },
		"length of UDP":            func(f *link.Frame) { f.Data[udp+5] ^= 1 },
		"protocol, right checksum": func(f *link.Frame) { f.Data[ip+9] ^= 1; f.Data[ip+11] ^= 1 },
	}
	first := func(alter func(*link.Frame)) *func(*link.Frame) { // of the frame with bad
		how := func(f *link.Frame) {
			if f.Data[udp+8] == 1 {
				alter(f)
			}
		}
		return &how
	}
	var l altering
	port, near := behind(t, &l)
	far := stacktest.OnLoopback(t, nil)
	t.Cleanup(func() { _ = far.Host.Close() })
	farPort := far.Host.NICs()[0].Datagrams()
	toFar := must(port.Path(stack.PathAttr{Src: near.Addr, Dst: far.Addr, SrcPort: 50000}))(t)
	defer toFar.Close()
	toNear := must(farPort.Path(stack.PathAttr{Src: far.Addr, Dst: near.Addr, SrcPort: 50001}))(t)
	defer toNear.Close()
	atFar, atNear := payloads(farPort), payloads(port)
	bad, good := bytes.Repeat([]byte{1}, 40), bytes.Repeat([]byte{2}, 40)
	for what, f := range frames {
		l.out.Store(first(f))
		send(t, port, toFar, bad)
		if l.refused != nil {
			t.Errorf("%s: %v", what, l.refused)
		}
		send(t, port, toFar, good)
		if got := next(t, atFar); !bytes.Equal(got, good) {
			t.Errorf("%s, sent: %x arrives", what, got)
		}
		l.in.Store(first(f))
		send(t, farPort, toNear, bad)
		send(t, farPort, toNear, good)
		if got := next(t, atNear); !bytes.Equal(got, good) {
			t.Errorf("%s, received: %x arrives", what, got)
		}
	}
	// No checksum but the ICRC covers the source port. On the way out no path has the altered one.
	l.out.Store(first(func(f *link.Frame) { f.Data[udp] ^= 1 }))
	send(t, port, toFar, bad)
	send(t, port, toFar, good)
	if got := next(t, atFar); !bytes.Equal(got, good) || l.refused != nil {
		t.Errorf("source port, sent: %x arrives, %v", got, l.refused)
	}
}

// TestRefusedFrames checks which frames the link refuses.
func TestRefusedFrames(t *testing.T) {
	var l altering
	_, _ = behind(t, &l)
	if n, err := l.Write([]link.Frame{{Data: make([]byte, link.EthernetHeaderLen+1<<16)}}); n != 0 || !errors.Is(err, link.ErrTooLong) {
		t.Errorf("64 KiB: %d, %v", n, err)
	}
	if n, err := l.Write([]link.Frame{{Data: make([]byte, 40)}, {Data: make([]byte, 40), More: [][]byte{{1}}}}); n != 1 || err == nil {
		t.Errorf("a frame in pieces after one of no host: %d, %v", n, err)
	}
}

// TestSuperframes checks which datagrams share a frame, and that a dropped one is in none.
func TestSuperframes(t *testing.T) {
	for _, c := range []struct {
		name   string
		opts   []framed.Option
		frames []uint16 // sizes of segments
	}{
		{"superframes", nil, []uint16{100, 0, 0}},
		{"single datagrams", []framed.Option{framed.SingleDatagramFrames()}, []uint16{0, 0, 0, 0, 0}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var l altering
			port, near := behind(t, &l, c.opts...)
			var second altering
			farPort, far := behind(t, &second)
			got := payloads(farPort)
			p := must(port.Path(stack.PathAttr{Src: near.Addr, Dst: far.Addr, SrcPort: 50000}))(t)
			defer p.Close()
			if p.MTU() < 300 || p.LocalNIC() != nil {
				t.Fatalf("a path with MTU %d, to %v", p.MTU(), p.LocalNIC())
			}
			var want [][]byte
			s := port.Sender()
			if _, b := s.Datagram(p, p.MTU()+1); b != nil {
				t.Error("a datagram longer than the MTU has room")
			}
			s.Drop() // nothing
			for i, n := range []int{100, 100, 100, 60, 200, 200, 200} {
				_, b := s.Datagram(p, n)
				for j := range b {
					b[j] = byte(i)
				}
				switch i {
				case 2: // dropped from behind two, which then share a frame with the shorter one
					s.Drop()
					s.Drop()
					continue
				case 4:
					s.Cut()
				case 5: // dropped as the first of a frame
					s.Drop()
					continue
				}
				want = append(want, bytes.Clone(b))
			}
			s.Flush()
			for i, w := range want {
				if b := next(t, got); !bytes.Equal(b, w) {
					t.Errorf("datagram %d: %d bytes of %d, want %d of %d", i, len(b), b[0], len(w), w[0])
				}
			}
			var sizes []uint16
			for _, f := range l.written {
				sizes = append(sizes, f.SegmentSize)
			}
			if !slices.Equal(sizes, c.frames) {
				t.Errorf("frames with segments of %v bytes, want %v", sizes, c.frames)
			}
		})
	}
}

// TestWrapFails checks that New closes the stack if it fails.
func TestWrapFails(t *testing.T) {
	end := stacktest.OnLoopback(t, nil)
	broken := errors.New("broken")
	h, err := framed.New(end.Host.(framed.Stack), func(m link.Link) (link.Link, error) { return nil, errors.Join(broken, m.Close()) })
	if h != nil || !errors.Is(err, broken) {
		t.Errorf("%v, %v", h, err)
	}
	if err := end.Host.Close(); err != nil {
		t.Error(err)
	}
}
