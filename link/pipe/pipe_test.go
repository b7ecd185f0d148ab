package pipe

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
)

// inbox is a host that keeps copies of received frames.
type inbox struct {
	mu      sync.Mutex
	frames  []link.Frame
	batches int
}

func (in *inbox) receive(frames []link.Frame) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.batches++
	for _, f := range frames {
		f.Data = bytes.Clone(f.Data)
		in.frames = append(in.frames, f)
	}
}

func (in *inbox) take() []link.Frame {
	in.mu.Lock()
	defer in.mu.Unlock()
	f := in.frames
	in.frames = nil
	return f
}

func attach(t testing.TB, p *Port) *inbox {
	in := new(inbox)
	p.Attach(in.receive)
	t.Cleanup(func() { p.Close() })
	return in
}

func frame(dst, src net.HardwareAddr, payload string) link.Frame {
	d := append(append(bytes.Clone(dst), src...), 0x88, 0xb5)
	return link.Frame{Data: append(d, payload...)}
}

func write(t testing.TB, p *Port, frames ...link.Frame) {
	t.Helper()
	if n, err := p.Write(frames); n != len(frames) || err != nil {
		t.Fatalf("Write = %d, %v; want %d, nil", n, err, len(frames))
	}
}

func TestUnicastReachesItsAddresseeOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sw := new(Switch)
		a, b, c := sw.Port(), sw.Port(), sw.Port()
		ina, inb, inc := attach(t, a), attach(t, b), attach(t, c)
		write(t, a, frame(b.MAC(), a.MAC(), "one"), frame(b.MAC(), a.MAC(), "two"),
			frame(net.HardwareAddr{2, 9, 9, 9, 9, 9}, a.MAC(), "no port"), frame(a.MAC(), a.MAC(), "self"))
		synctest.Wait()
		got := inb.take()
		if len(got) != 2 || string(got[0].Data[14:]) != "one" || string(got[1].Data[14:]) != "two" {
			t.Errorf("b received %d frames, want one, two", len(got))
		}
		if n := len(ina.take()) + len(inc.take()); n != 0 {
			t.Errorf("%d frames reached wrong ports", n)
		}
	})
}

func TestBroadcastReachesAllOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sw := new(Switch)
		a, b, c := sw.Port(), sw.Port(), sw.Port()
		ina, inb, inc := attach(t, a), attach(t, b), attach(t, c)
		write(t, a, frame(net.HardwareAddr{255, 255, 255, 255, 255, 255}, a.MAC(), "all"),
			frame(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, a.MAC(), "group"))
		synctest.Wait()
		if x, y, z := len(ina.take()), len(inb.take()), len(inc.take()); x != 0 || y != 2 || z != 2 {
			t.Errorf("a, b, c received %d, %d, %d frames; want 0, 2, 2", x, y, z)
		}
		a.Close()
		b.Close()
		c.Close()
	})
}

func TestSuperframeInPiecesArrivesUntouched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sw := new(Switch)
		a, b := sw.Port(), sw.Port()
		in := attach(t, b)
		f := linktest.Superframe(b.MAC(), a.MAC(), false, 15, 4112)
		whole := bytes.Clone(f.Data)
		f.More = [][]byte{f.Data[50:1000], nil, f.Data[1000:]}
		f.Data = f.Data[:50]
		write(t, a, f)
		clear(whole[:0])
		synctest.Wait()
		got := in.take()
		if len(got) != 1 || !bytes.Equal(got[0].Data, whole) || got[0].More != nil {
			t.Fatal("the superframe was changed in transit")
		}
		g := got[0]
		if g.Segmentation != link.UDP || g.SegmentSize != 4112 || g.HeaderLen != 42 || !g.NeedsChecksum ||
			g.ChecksumStart != 34 || g.ChecksumOffset != 6 {
			t.Errorf("description changed: %+v", g)
		}
		b.Close()
	})
}

func TestFullQueueDropsTail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sw := new(Switch)
		a, b := sw.Port(), sw.Port()
		gate := make(chan struct{})
		var got []uint32
		largest := 0
		b.Attach(func(frames []link.Frame) {
			<-gate
			largest = max(largest, len(frames))
			for _, f := range frames {
				got = append(got, binary.BigEndian.Uint32(f.Data[14:]))
			}
		})
		send := func(i uint32) {
			f := frame(b.MAC(), a.MAC(), "")
			f.Data = binary.BigEndian.AppendUint32(f.Data, i)
			write(t, a, f)
		}
		send(0)
		synctest.Wait() // b's host holds frame 0
		for i := uint32(1); i <= queueFrames+7; i++ {
			send(i)
		}
		if d := b.Dropped(); d != 7 {
			t.Errorf("Dropped = %d, want 7", d)
		}
		close(gate)
		synctest.Wait()
		b.Close()
		if len(got) != queueFrames+1 {
			t.Fatalf("received %d frames, want %d", len(got), queueFrames+1)
		}
		for i, v := range got {
			if v != uint32(i) {
				t.Fatalf("frame %d arrived as number %d", v, i)
			}
		}
		if largest != batchFrames {
			t.Errorf("largest batch %d, want %d", largest, batchFrames)
		}
	})
}

func TestQueueIsBoundedInBytes(t *testing.T) {
	var q queue
	q.wake.L = &q.mu
	q.open(func() {})
	s := new(Switch)
	f := linktest.Superframe(make([]byte, 6), make([]byte, 6), false, 15, 4112)
	for q.dropped.Load() == 0 {
		q.put(s, &f)
	}
	if q.bytes > queueBytes || q.bytes+f.Len() <= queueBytes {
		t.Errorf("queue holds %d bytes at its first drop, want the bound, %d", q.bytes, queueBytes)
	}
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sw := new(Switch)
		a, b := sw.Port(), sw.Port()
		inside, gate, returned := make(chan struct{}), make(chan struct{}), false
		b.Attach(func([]link.Frame) {
			close(inside)
			<-gate
			returned = true
		})
		write(t, a, frame(b.MAC(), a.MAC(), "x"))
		<-inside
		closed := make(chan struct{})
		go func() {
			b.Close()
			if !returned {
				t.Error("Close returned before the receiver did")
			}
			close(closed)
		}()
		synctest.Wait()
		close(gate)
		<-closed
		b.Close()
		write(t, a, frame(b.MAC(), a.MAC(), "to a closed port"))
		a.Close() // never attached
		if _, err := a.Write([]link.Frame{frame(b.MAC(), a.MAC(), "x")}); !errors.Is(err, net.ErrClosed) {
			t.Errorf("Write after Close = %v, want net.ErrClosed", err)
		}
		a.Attach(func([]link.Frame) {})
		mac := a.MAC()
		if p, err := sw.PortWithMAC(mac); err != nil {
			t.Errorf("the address of a closed port is still in use: %v", err)
		} else {
			p.Close()
		}
	})
}

func TestPollReceivesOnTheCallersGoroutine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sw := new(Switch)
		a, b := sw.Port(), sw.Port()
		if b.Poll() {
			t.Error("Poll before Attach received something")
		}
		inside, gate, got := make(chan struct{}, 1), make(chan struct{}), 0
		b.Attach(func(frames []link.Frame) {
			got += len(frames)
			inside <- struct{}{}
			<-gate
		})
		if b.Poll() {
			t.Error("Poll received an unsent frame")
		}
		write(t, a, frame(b.MAC(), a.MAC(), "one"))
		<-inside // the port's goroutine is inside the receiver
		write(t, a, frame(b.MAC(), a.MAC(), "two"))
		if b.Poll() {
			t.Error("Poll received while another goroutine did")
		}
		gate <- struct{}{}
		synctest.Wait() // the port's goroutine receives the second frame, too
		<-inside
		close(gate)
		synctest.Wait()
		if got != 2 {
			t.Errorf("received %d frames, want 2", got)
		}
		a.Close()
		b.Close()
		if b.Poll() {
			t.Error("Poll after Close received something")
		}
	})
}

// TestPollersAndGoroutine checks that frames arrive in order and in one call at a time, with
// concurrent pollers.
func TestPollersAndGoroutine(t *testing.T) {
	sw := new(Switch)
	a, b := sw.Port(), sw.Port()
	const frames = 3000
	var busy atomic.Bool
	var got atomic.Uint32
	b.Attach(func(fs []link.Frame) {
		if busy.Swap(true) {
			t.Error("concurrent calls of the receiver")
		}
		for _, f := range fs {
			if i := binary.BigEndian.Uint32(f.Data[14:]); i != got.Load() {
				t.Errorf("frame %d, want %d", i, got.Load())
			}
			got.Add(1)
		}
		busy.Store(false)
	})
	for range 2 {
		go func() {
			for got.Load() < frames {
				b.Poll()
			}
		}()
	}
	f := frame(b.MAC(), a.MAC(), "0000")
	for i := range uint32(frames) {
		binary.BigEndian.PutUint32(f.Data[14:], i)
		write(t, a, f)
	}
	for got.Load() < frames {
		runtime.Gosched()
	}
	b.Close()
	a.Close()
}

func TestWriteRefusesInvalidFrames(t *testing.T) {
	sw, err := New(&Config{MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	a := sw.Port()
	ok := frame(a.MAC(), a.MAC(), strings.Repeat("x", 1500))
	long := frame(a.MAC(), a.MAC(), strings.Repeat("x", 1501))
	n, err := a.Write([]link.Frame{ok, long, ok})
	if n != 1 || !errors.Is(err, link.ErrTooLong) {
		t.Errorf("Write of a packet over the MTU = %d, %v; want 1, ErrTooLong", n, err)
	}
	if n, err := a.Write([]link.Frame{{Data: make([]byte, 13)}}); n != 0 || err == nil {
		t.Errorf("Write of 13 bytes = %d, %v; want an error", n, err)
	}
	if f := linktest.Superframe(a.MAC(), a.MAC(), false, 2, 1473); true {
		if _, err := a.Write([]link.Frame{f}); !errors.Is(err, link.ErrTooLong) {
			t.Errorf("Write of a superframe of packets over the MTU: %v, want ErrTooLong", err)
		}
	}
}

func TestOptions(t *testing.T) {
	for _, n := range []int{link.MinMTU, 1500, link.MaxSuperframe} {
		if sw, err := New(&Config{MTU: n}); err != nil || sw.Port().MTU() != n {
			t.Errorf("MTU %d: %v, %v", n, sw, err)
		}
	}
	for _, n := range []int{-5, link.MinMTU - 1, link.MaxSuperframe + 1, 1 << 20} {
		want := fmt.Sprintf("pipe: MTU %d: must be %d to %d", n, link.MinMTU, link.MaxSuperframe)
		if _, err := New(&Config{MTU: n}); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("MTU %d: %v, want %q", n, err, want)
		}
	}
	sw := new(Switch)
	if got := sw.Port().MTU(); got != DefaultMTU {
		t.Errorf("MTU = %d, want %d", got, DefaultMTU)
	}
	mac := net.HardwareAddr{2, 'S', 'R', 0, 0, 2} // the next address that Port would choose
	p, err := sw.PortWithMAC(mac)
	if err != nil || p.MAC().String() != mac.String() {
		t.Fatalf("PortWithMAC = %v, %v", p, err)
	}
	if q := sw.Port(); q.MAC().String() == mac.String() {
		t.Error("Port returned an address that is in use")
	}
	for _, bad := range []net.HardwareAddr{mac, nil, {1, 2, 3, 4, 5, 6}, make([]byte, 6), make([]byte, 8)} {
		if _, err := sw.PortWithMAC(bad); err == nil || !strings.HasPrefix(err.Error(), "pipe: MAC ") {
			t.Errorf("PortWithMAC(%v) = %v, want an error", bad, err)
		}
	}
}

func TestManyWritersOneReader(t *testing.T) {
	sw := new(Switch)
	dst := sw.Port()
	const writers, each = 4, 900
	var seen [writers]int
	all := make(chan struct{})
	total := 0
	dst.Attach(func(frames []link.Frame) {
		for _, f := range frames {
			w, i := f.Data[14], int(binary.BigEndian.Uint16(f.Data[15:]))
			if i != seen[w] {
				t.Errorf("writer %d: frame %d, want %d", w, i, seen[w])
			}
			seen[w] = i + 1
			if total++; total == writers*each {
				close(all)
			}
		}
	})
	for w := range writers {
		go func() {
			p := sw.Port()
			f := []link.Frame{frame(dst.MAC(), p.MAC(), string([]byte{byte(w), 0, 0}))}
			for i := range each {
				binary.BigEndian.PutUint16(f[0].Data[15:], uint16(i))
				p.Write(f)
			}
		}()
	}
	<-all
	dst.Close()
}

// BenchmarkWriteReceive measures Write and the other host's reception, with at most 256 frames in
// flight.
func BenchmarkWriteReceive(b *testing.B) {
	for _, c := range []struct {
		name           string
		segments, size int
	}{{"64B", 1, 64}, {"4112B", 1, 4112}, {"15x4112B", 15, 4112}} {
		b.Run(c.name, func(b *testing.B) {
			sw := new(Switch)
			p, q := sw.Port(), sw.Port()
			window := make(chan int, 256)
			q.Attach(func(frames []link.Frame) { window <- len(frames) })
			defer q.Close()
			f := []link.Frame{linktest.Superframe(q.MAC(), p.MAC(), false, c.segments, c.size)}
			b.SetBytes(int64(c.segments * c.size))
			b.ReportAllocs()
			out := 0
			for b.Loop() {
				for out >= 256 {
					out -= <-window
				}
				p.Write(f)
				out++
			}
			for out > 0 {
				out -= <-window
			}
		})
	}
}
