package stream_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/stream"
)

// socket returns the path of a unix socket that does not exist yet.
func socket(t testing.TB) string {
	t.Helper()
	// T.TempDir is too long for a socket path if the test's name is long.
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "socket")
}

func open(t testing.TB, address string, cfg *stream.Config) *stream.Link {
	t.Helper()
	l, err := stream.Open(address, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// states returns a channel of the states that Watch reports.
func states(l *stream.Link) <-chan link.State {
	c := make(chan link.State, 16)
	l.Watch(func() { c <- l.State() })
	return c
}

func receive[T any](t testing.TB, c <-chan T, what string) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(20 * time.Second):
		t.Fatalf("no %s", what)
	}
	return v
}

func want(t testing.TB, c <-chan link.State, s link.State) {
	t.Helper()
	if got := receive(t, c, "change of state"); got != s {
		t.Errorf("the link is %v, want %v", got, s)
	}
}

// raw connects to a listening link, and returns the socket once the link has carrier.
func raw(t testing.TB, path string, notified <-chan link.State) net.Conn {
	t.Helper()
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	want(t, notified, link.Up)
	return c
}

// readFrame reads a frame as QEMU does.
func readFrame(t testing.TB, c net.Conn) []byte {
	t.Helper()
	var length [4]byte
	if err := c.SetReadDeadline(time.Now().Add(20 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(c, length[:]); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, binary.BigEndian.Uint32(length[:]))
	if _, err := io.ReadFull(c, b); err != nil {
		t.Fatal(err)
	}
	return b
}

func framed(frames ...[]byte) (b []byte) {
	for _, f := range frames {
		b = append(binary.BigEndian.AppendUint32(b, uint32(len(f))), f...)
	}
	return b
}

var macs = [2]net.HardwareAddr{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}}

// TestSends checks that each packet follows its length, that pieces are joined, and that
// superframes are cut.
func TestSends(t *testing.T) {
	path := socket(t)
	l := open(t, path, &stream.Config{Listening: true})
	c := raw(t, path, states(l))
	plain := linktest.Plain(macs[1], macs[0], 100, "whole")
	pieces := link.Frame{Data: plain.Data[:20], More: [][]byte{plain.Data[20:21], {}, plain.Data[21:]}}
	super, tcp := linktest.Superframe(macs[1], macs[0], true, 3, 1040), linktest.TCPSuperframe(3000, 1400)
	frames := []link.Frame{plain, pieces, super, tcp}
	var all [][]byte
	for _, f := range frames {
		for p := range new(link.Cutter).Packets(&f) {
			all = append(all, bytes.Clone(p))
		}
	}
	if len(all) != 2+3+3 {
		t.Fatalf("%d packets", len(all))
	}
	if n, err := l.Write(frames); n != len(frames) || err != nil {
		t.Fatal(n, err)
	}
	for i, p := range all {
		if got := readFrame(t, c); !bytes.Equal(got, p) {
			t.Errorf("packet %d is %x, want %x", i, got, p)
		}
	}
	if n, err := l.Write([]link.Frame{plain, linktest.Plain(macs[1], macs[0], 1501, "")}); n != 1 || !errors.Is(err, link.ErrTooLong) {
		t.Errorf("Write of a valid and a too long frame: %d, %v", n, err)
	}
	if got := readFrame(t, c); !bytes.Equal(got, plain.Data) {
		t.Errorf("the valid frame arrived as %x", got)
	}
}

// TestReceives checks that frames arrive whole, however the stream is chunked, and that none is
// lost before Attach.
func TestReceives(t *testing.T) {
	path := socket(t)
	l := open(t, path, &stream.Config{Listening: true})
	c := raw(t, path, states(l))
	var frames [][]byte
	for i := range 200 {
		frames = append(frames, linktest.Plain(macs[0], macs[1], 2+i*7, string(rune('A'+i))).Data)
	}
	frames = append(frames, linktest.Plain(macs[0], macs[1], link.MaxSuperframe+2*link.TagLen, "largest").Data)
	b := framed(frames...)
	if _, err := c.Write(b[:1001]); err != nil {
		t.Fatal(err)
	}
	got := linktest.Receive(l)
	go func() {
		for b, n := b[1001:], 1; len(b) > 0; n = n%5003 + 1 {
			n = min(n, len(b))
			if _, err := c.Write(b[:n]); err != nil {
				t.Error(err)
			}
			b = b[n:]
		}
	}()
	for i, f := range frames {
		if g := receive(t, got, "frame"); !bytes.Equal(g.Data, f) {
			t.Fatalf("frame %d of %d bytes arrived as %d bytes", i, len(f), len(g.Data))
		}
	}
}

// TestLastFrames: what the other side sent before it disconnected arrives, also if the link has
// since failed to send.
func TestLastFrames(t *testing.T) {
	path := socket(t)
	l := open(t, path, &stream.Config{Listening: true})
	notified := states(l)
	c := raw(t, path, notified)
	got, goOn := make(chan byte, 2), make(chan struct{})
	l.Attach(func(frames []link.Frame) {
		for _, f := range frames {
			got <- f.Data[link.EthernetHeaderLen]
			<-goOn
		}
	})
	send := func(content string) {
		if _, err := c.Write(framed(linktest.Plain(macs[0], macs[1], 100, content).Data)); err != nil {
			t.Fatal(err)
		}
	}
	send("1")
	first := receive(t, got, "first frame")
	send("2")
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the socket tells the first
		if _, err := l.Write([]link.Frame{linktest.Plain(macs[1], macs[0], 100, "")}); err != nil {
			t.Error(err)
		}
	}
	if n := l.Dropped(); n != 1 {
		t.Errorf("%d frames were dropped, want the second", n)
	}
	close(goOn)
	if second := receive(t, got, "second frame"); first != '1' || second != '2' {
		t.Errorf("received %q and %q", first, second)
	}
	want(t, notified, link.NoCarrier)
}

// TestHostileLengths checks that a length that is too short is skipped. One that is too large ends
// the connection after the earlier frames have arrived, and the next connection works.
func TestHostileLengths(t *testing.T) {
	path := socket(t)
	l := open(t, path, &stream.Config{Listening: true})
	notified, got := states(l), linktest.Receive(l)
	f := linktest.Plain(macs[0], macs[1], 50, "good").Data
	for i, length := range []uint32{1<<32 - 1, 1 << 31, link.MaxSuperframe + 14 + 8 + 1} {
		c := raw(t, path, notified)
		b := append(framed(f, f[:13], nil, f), framed(make([]byte, 4))...)
		b = binary.BigEndian.AppendUint32(b, length)
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if g := receive(t, got, "frame"); !bytes.Equal(g.Data, f) {
				t.Errorf("received %x", g.Data)
			}
		}
		want(t, notified, link.NoCarrier)
		if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
			t.Errorf("length %d: the connection is still open: %d, %v", length, n, err)
		}
		if n := l.Malformed(); n != uint64(4*(i+1)) {
			t.Errorf("%d malformed, want %d", n, 4*(i+1))
		}
	}
}

// TestReconnects checks that each side survives a restart of the other.
func TestReconnects(t *testing.T) {
	path := socket(t)
	listening, err := stream.Open(path, &stream.Config{Listening: true})
	if err != nil {
		t.Fatal(err)
	}
	if s := listening.State(); s != link.NoCarrier {
		t.Errorf("without a peer the link is %v", s)
	}
	f := linktest.Plain(macs[1], macs[0], 50, "x")
	if n, err := listening.Write([]link.Frame{f}); n != 1 || err != nil {
		t.Errorf("Write without carrier: %d, %v", n, err)
	}
	notified := states(listening)
	linktest.Receive(listening)
	connecting := open(t, path, nil)
	if s := connecting.State(); s != link.Up {
		t.Errorf("with a peer the link is %v", s)
	}
	toldConnecting, got := states(connecting), linktest.Receive(connecting)
	want(t, notified, link.Up)
	if err := listening.Close(); err != nil {
		t.Error(err)
	}
	want(t, toldConnecting, link.NoCarrier)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket still exists: %v", err)
	}

	listening = open(t, path, &stream.Config{Listening: true})
	want(t, toldConnecting, link.Up)
	for len(got) == 0 { // the listening side may not have noticed yet
		if _, err := listening.Write([]link.Frame{f}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Millisecond)
	}
	if g := receive(t, got, "frame"); !bytes.Equal(g.Data, f.Data) {
		t.Errorf("received %x", g.Data)
	}

	notified = states(listening)
	linktest.Receive(listening)
	if err := connecting.Close(); err != nil {
		t.Error(err)
	}
	want(t, notified, link.NoCarrier)
	if _, err := connecting.Write([]link.Frame{f}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write after Close: %v", err)
	}
	raw(t, path, notified)
}

// TestSecondIsRefused checks that a second client is disconnected while the first is connected, and
// that the first is not disturbed.
func TestSecondIsRefused(t *testing.T) {
	path := socket(t)
	l := open(t, path, &stream.Config{Listening: true})
	first := raw(t, path, states(l))
	second, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if n, err := second.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Errorf("the second connection has %d, %v", n, err)
	}
	f := linktest.Plain(macs[1], macs[0], 50, "x")
	if _, err := l.Write([]link.Frame{f}); err != nil {
		t.Error(err)
	}
	if got := readFrame(t, first); !bytes.Equal(got, f.Data) {
		t.Errorf("the first has %x", got)
	}
}

// TestStalled checks that Write returns at once and drops whole frames while the other side does
// not read, and that queued frames arrive.
func TestStalled(t *testing.T) {
	path := socket(t)
	l := open(t, path, &stream.Config{Listening: true})
	c := raw(t, path, states(l))
	written := uint64(0)
	for l.Dropped() == 0 {
		f := linktest.Plain(macs[1], macs[0], 1500, "")
		binary.BigEndian.PutUint64(f.Data[14:], written)
		if _, err := l.Write([]link.Frame{f}); err != nil {
			t.Fatal(err)
		}
		if written++; written > 100_000 {
			t.Fatal("no frame was dropped, although the peer does not read")
		}
	}
	for i := range written - 1 {
		if b := readFrame(t, c); len(b) != 1514 || binary.BigEndian.Uint64(b[14:]) != i {
			t.Fatalf("frame %d is %d bytes, %x", i, len(b), b[:min(len(b), 24)])
		}
	}
	f := linktest.Plain(macs[1], macs[0], 50, "there is room again")
	if _, err := l.Write([]link.Frame{f}); err != nil {
		t.Fatal(err)
	}
	if b := readFrame(t, c); !bytes.Equal(b, f.Data) {
		t.Fatalf("received %x", b)
	}
}

// TestListener checks that each connection is a link, which is removed when the connection ends.
func TestListener(t *testing.T) {
	ln, err := stream.Listen("tcp:127.0.0.1:0", &stream.Config{MTU: 4200})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		far := open(t, "tcp:"+ln.Addr().String(), &stream.Config{MTU: 4200})
		l, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		notified, got := states(l), linktest.Receive(l)
		f := linktest.Plain(l.MAC(), far.MAC(), 4200, "TCP")
		if n, err := far.Write([]link.Frame{f}); n != 1 || err != nil {
			t.Error(n, err)
		}
		if g := receive(t, got, "frame"); !bytes.Equal(g.Data, f.Data) {
			t.Errorf("received %x", g.Data)
		}
		if err := far.Close(); err != nil {
			t.Error(err)
		}
		want(t, notified, link.NoCarrier)
		want(t, notified, link.Removed)
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := ln.Close(); err != nil {
		t.Error(err)
	}
	if _, err := ln.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept after Close: %v", err)
	}
}

// TestAbandonedSocket checks that the socket of a killed program is replaced, but not a file or a
// socket in use.
func TestAbandonedSocket(t *testing.T) {
	path := socket(t)
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Open(path, &stream.Config{Listening: true}); err == nil || !strings.Contains(err.Error(), "another program") {
		t.Errorf("Open of a socket in use: %v", err)
	}
	ln.SetUnlinkOnClose(false)
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Open(path, nil); err == nil || !strings.Contains(err.Error(), "no process listens") {
		t.Errorf("Open of a socket without a listener: %v", err)
	}
	open(t, path, &stream.Config{Listening: true})

	file := socket(t)
	if err := os.WriteFile(file, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Open(file, &stream.Config{Listening: true}); err == nil {
		t.Error("Open replaced a file")
	}
	if b, err := os.ReadFile(file); string(b) != "precious" {
		t.Errorf("the file has %q, %v", b, err)
	}
}

func TestErrors(t *testing.T) {
	path := socket(t)
	for _, test := range []struct {
		address string
		cfg     stream.Config
		want    string
	}{
		{path, stream.Config{MTU: 1279}, "MTU 1279"},
		{path, stream.Config{MTU: 65536}, "MTU 65536"},
		{path, stream.Config{MAC: net.HardwareAddr{1, 0, 0, 0, 0, 0}}, "01:00:00:00:00:00"},
		{path, stream.Config{MTU: 1500}, "no process listens"},
		{"", stream.Config{Listening: true}, "empty"},
		{"tcp:localhost", stream.Config{Listening: true}, "tcp:HOST:PORT"},
		{"/" + strings.Repeat("x", 108), stream.Config{Listening: true}, "shorter"},
		{filepath.Join(path, "no", "such"), stream.Config{Listening: true}, "no such file"},
	} {
		if l, err := stream.Open(test.address, &test.cfg); err == nil ||
			!strings.Contains(err.Error(), test.want) || strings.Count(err.Error(), "stream") != 1 {
			t.Errorf("%q: %v, want an error with %q", test.address, err, test.want)
			if l != nil {
				_ = l.Close()
			}
		}
	}
}
