package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"runtime"
	"testing"
	"unsafe"

	"github.com/softrnic/softrnic/link"
)

// alloc returns zeroed memory for a ring, aligned as mmap aligns it.
func alloc(n int) []byte {
	b := make([]byte, MemoryLen(n)+recordsAt)
	skip := -int(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) & (recordsAt - 1)
	return b[skip:][:MemoryLen(n):MemoryLen(n)]
}

func pair(t testing.TB, n int) (b []byte, p *Producer, c *Consumer) {
	t.Helper()
	b = alloc(n)
	p, err := NewProducer(b)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = NewConsumer(b); err != nil {
		t.Fatal(err)
	}
	return b, p, c
}

func put(t testing.TB, p *Producer, f link.Frame) bool {
	t.Helper()
	ok, err := p.Put(&f)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// take takes the next frame. It returns false if there is none.
func take(t testing.TB, c *Consumer) (f link.Frame, ok bool) {
	t.Helper()
	n, err := c.Next()
	if err != nil {
		t.Fatal(err)
	}
	if n == 0 {
		return f, false
	}
	return c.Take(make([]byte, n)), true
}

func payload(seed, n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(seed + i*7)
	}
	return b
}

// TestFrames checks that frames of all lengths, in pieces and with all fields, come out unchanged,
// also when the ring wraps.
func TestFrames(t *testing.T) {
	_, p, c := pair(t, MinLen)
	lengths := []int{14, 31, 32, 33, 60, 1514, 4214, 9000, 65535, MaxFrame}
	for i := range 500 {
		f := link.Frame{Segmentation: link.Segmentation(i % 4), SegmentSize: uint16(i * 3), HeaderLen: uint16(i * 5),
			NeedsChecksum: i%2 == 0, ChecksumStart: uint16(i * 7), ChecksumOffset: uint16(i * 11), ChecksumValid: i%3 == 0}
		data := payload(i, lengths[i%len(lengths)])
		cut := min(15, len(data))
		f.Data, f.More = data[:14], [][]byte{data[14:cut], {}, data[cut:]}
		if !put(t, p, f) {
			t.Fatalf("frame %d does not fit into an empty ring", i)
		}
		if _, ok := take(t, c); ok {
			t.Fatal("the consumer sees a frame before Publish")
		}
		p.Publish()
		g, ok := take(t, c)
		if !ok || !bytes.Equal(g.Data, data) {
			t.Fatalf("frame %d of %d bytes arrived as %d bytes", i, len(data), len(g.Data))
		}
		f.Data, f.More, g.Data = nil, nil, nil
		same := f.Segmentation == g.Segmentation && f.SegmentSize == g.SegmentSize && f.HeaderLen == g.HeaderLen
		same = same && f.NeedsChecksum == g.NeedsChecksum && f.ChecksumValid == g.ChecksumValid
		same = same && f.ChecksumStart == g.ChecksumStart && f.ChecksumOffset == g.ChecksumOffset
		if !same || g.Polled || g.TCI != 0 {
			t.Fatalf("frame %d arrived as %+v, want %+v", i, g, f)
		}
		c.Release()
	}
	if ok, err := p.Put(&link.Frame{Data: make([]byte, MaxFrame+1)}); ok || !errors.Is(err, link.ErrTooLong) {
		t.Errorf("Put of a frame that is too long: %t, %v", ok, err)
	}
}

// TestFull checks that a full ring refuses frames until Release, and loses none.
func TestFull(t *testing.T) {
	_, p, c := pair(t, MinLen)
	f := link.Frame{Data: payload(0, 1000)}
	n := 0
	for ; put(t, p, f); n++ {
		p.Publish()
		f.Data = payload(n+1, 1000)
	}
	if want := MinLen / int(recordLen(1000)); n != want {
		t.Errorf("%d frames, want %d", n, want)
	}
	if sleep, err := p.sleep(1000); !sleep || err != nil {
		t.Errorf("Sleep with a full ring: %t, %v", sleep, err)
	}
	for i := range n {
		g, ok := take(t, c)
		if !ok || !bytes.Equal(g.Data, payload(i, 1000)) {
			t.Fatalf("frame %d is missing or wrong", i)
		}
		if i == 0 {
			if put(t, p, f) {
				t.Error("Put succeeds before Release")
			}
			if !c.Release() {
				t.Error("Release does not ask to wake the producer")
			}
			if c.Release() {
				t.Error("the second Release asks to wake the producer")
			}
			if sleep, err := p.sleep(1000); sleep || err != nil {
				t.Errorf("Sleep with room in the ring: %t, %v", sleep, err)
			}
			if c.Release() {
				t.Error("Release asks to wake a producer that does not sleep")
			}
		}
	}
	if _, ok := take(t, c); ok {
		t.Error("the ring has one frame too many")
	}
}

// TestSleep checks that the consumer is woken if it sleeps, and only then.
func TestSleep(t *testing.T) {
	_, p, c := pair(t, MinLen)
	f := link.Frame{Data: payload(0, 100)}
	if p.Publish() {
		t.Error("Publish asks to wake a consumer that does not sleep")
	}
	if !c.sleep() {
		t.Error("Sleep fails with an empty ring")
	}
	put(t, p, f)
	if !p.Publish() {
		t.Error("Publish does not ask to wake the consumer")
	}
	if put(t, p, f); p.Publish() {
		t.Error("the second Publish asks to wake the consumer")
	}
	if c.sleep() {
		t.Error("Sleep succeeds with a frame in the ring")
	}
	take(t, c)
	take(t, c)
	c.sleep()
	c.awake()
	if put(t, p, f); p.Publish() {
		t.Error("Publish asks to wake a consumer that is awake")
	}
}

// TestConcurrent runs a producer and a consumer at the same time. Each sleeps when it has nothing
// to do.
func TestConcurrent(t *testing.T) {
	_, p, c := pair(t, MinLen)
	const frames = 20000
	toConsumer, toProducer := make(chan struct{}, 1), make(chan struct{}, 1)
	wake := func(c chan struct{}) {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	go func() {
		r := rand.New(rand.NewPCG(1, 2))
		for i := range frames {
			n := 22 + r.IntN(9000)
			f := link.Frame{Data: payload(i, n)}
			binary.NativeEndian.PutUint64(f.Data[14:], uint64(i))
			for !put(t, p, f) {
				if p.Publish() {
					wake(toConsumer)
				}
				if sleep, _ := p.sleep(n); sleep {
					<-toProducer
				}
			}
			if i%7 == 0 && p.Publish() {
				wake(toConsumer)
			}
		}
		if p.Publish() {
			wake(toConsumer)
		}
	}()
	r := rand.New(rand.NewPCG(1, 2))
	for i := 0; i < frames; {
		f, ok := take(t, c)
		if !ok {
			if c.Release() {
				wake(toProducer)
			}
			if c.sleep() {
				<-toConsumer
			}
			continue
		}
		want := payload(i, 22+r.IntN(9000))
		binary.NativeEndian.PutUint64(want[14:], uint64(i))
		if !bytes.Equal(f.Data, want) {
			t.Fatalf("frame %d is wrong", i)
		}
		if i++; i%5 == 0 && c.Release() {
			wake(toProducer)
		}
	}
	runtime.KeepAlive(p)
}

// TestHostile checks that impossible values from the other side are detected, and that the ring
// then stays corrupt.
func TestHostile(t *testing.T) {
	put8 := func(at int, v uint64) func([]byte) {
		return func(b []byte) { binary.NativeEndian.PutUint64(b[at:], v) }
	}
	tail := func(v uint64) func([]byte) { // with a valid frame
		return func(b []byte) {
			binary.NativeEndian.PutUint32(b[recordsAt:], 50)
			binary.NativeEndian.PutUint32(b[recordsAt+16:], recordAlign*4)
			binary.NativeEndian.PutUint64(b[tailAt:], v)
		}
	}
	length := func(v uint32) func([]byte) {
		return func(b []byte) {
			binary.NativeEndian.PutUint32(b[recordsAt:], v)
			binary.NativeEndian.PutUint32(b[recordsAt+16:], recordAlign*4)
			binary.NativeEndian.PutUint64(b[tailAt:], recordAlign*4)
		}
	}
	size := func(length, v uint32) func([]byte) {
		return func(b []byte) {
			binary.NativeEndian.PutUint32(b[recordsAt:], length)
			binary.NativeEndian.PutUint32(b[recordsAt+16:], v)
			binary.NativeEndian.PutUint64(b[tailAt:], recordAlign*4)
		}
	}
	for name, spoil := range map[string]func([]byte){
		"tail beyond the ring":       tail(MinLen + recordAlign),
		"tail far beyond the ring":   tail(1 << 63),
		"tail before the head":       tail(1<<64 - recordAlign),
		"tail between records":       tail(recordAlign*4 + 1),
		"record of no size":          size(0, 0),
		"record of 1 byte":           size(0, 1),
		"record of 33 bytes":         size(1, 33),
		"record longer than is left": size(0, recordAlign*5),
		"record of 4 GiB":            size(14, 1<<32-recordAlign),
		"record before its frame":    size(60, recordAlign*2),
		"frame of 13 bytes":          length(13),
		"frame longer than record":   length(recordAlign*3 + 1),
		"frame longer than any":      length(MaxFrame + 1),
		"frame of 4 GiB":             length(1<<32 - 1),
		"frame of 2 GiB":             length(1 << 31),
	} {
		b, _, c := pair(t, MinLen)
		spoil(b)
		if n, err := c.Next(); n != 0 || !errors.Is(err, errCorrupt) {
			t.Errorf("%s: %d, %v, want ErrCorrupt", name, n, err)
		}
		put8(tailAt, 0)(b)
		if n, err := c.Next(); n != 0 || !errors.Is(err, errCorrupt) {
			t.Errorf("%s, repaired: %d, %v, want ErrCorrupt", name, n, err)
		}
		if c.sleep() {
			t.Errorf("%s: Sleep succeeds", name)
		}
	}
	for name, head := range map[string]uint64{
		"head before its old value": 1<<64 - recordAlign,
		"head beyond the tail":      MinLen + recordAlign,
		"head between records":      1,
	} {
		b, p, _ := pair(t, MinLen)
		f := link.Frame{Data: payload(0, 1000)}
		for put(t, p, f) {
		}
		put8(headAt, head)(b)
		if ok, err := p.Put(&f); ok || !errors.Is(err, errCorrupt) {
			t.Errorf("%s: %t, %v, want ErrCorrupt", name, ok, err)
		}
		put8(headAt, 0)(b)
		if ok, err := p.Put(&f); ok || !errors.Is(err, errCorrupt) {
			t.Errorf("%s, repaired: %t, %v, want ErrCorrupt", name, ok, err)
		}
		if sleep, err := p.sleep(1000); sleep || !errors.Is(err, errCorrupt) {
			t.Errorf("%s: Sleep: %t, %v, want ErrCorrupt", name, sleep, err)
		}
	}
}

// TestReserve builds frames in the ring concurrently and commits them in any order. They must come
// out in the order of their reservations and of the frames put between them. Unused room is
// skipped.
func TestReserve(t *testing.T) {
	_, p, c := pair(t, MinLen)
	r := rand.New(rand.NewPCG(3, 4))
	type open struct {
		at    uint64
		room  []byte
		frame int
	}
	var opened []open
	var want []int // numbers of the expected frames, in order; -1 for an unused reservation
	number, next := 0, 0
	length := func(i int) int { return 22 + i*37%9000 }
	for step := range 20000 {
		switch r.IntN(5) {
		case 0, 1:
			if len(opened) == 5 {
				continue
			}
			if at, room := p.reserve(length(number) + r.IntN(3)*1000); room != nil {
				opened, want = append(opened, open{at, room, number}), append(want, number)
				number++
			}
		case 2:
			if put(t, p, link.Frame{Data: payload(number, length(number))}) {
				want = append(want, number)
				number++
			}
		case 3:
			if len(opened) == 0 {
				continue
			}
			i := r.IntN(len(opened))
			o, n := opened[i], length(opened[i].frame)
			opened = append(opened[:i], opened[i+1:]...)
			if r.IntN(4) == 0 {
				want[o.frame], n = -1, 0
			} else {
				copy(o.room, payload(o.frame, n))
			}
			p.commit(o.at, &link.Frame{HeaderLen: uint16(o.frame), NoICRC: true}, n)
		case 4:
			p.Publish()
			for {
				f, ok := take(t, c)
				if !ok {
					break
				}
				for want[next] < 0 {
					next++
				}
				if !bytes.Equal(f.Data, payload(want[next], length(want[next]))) || f.NoICRC && int(f.HeaderLen) != want[next]&0xffff {
					t.Fatalf("step %d: wrong frame, want number %d", step, want[next])
				}
				next++
			}
			c.Release()
		}
	}
	for _, o := range opened {
		p.commit(o.at, &link.Frame{}, 0)
		want[o.frame] = -1
	}
	p.Publish()
	for _, ok := take(t, c); ok; _, ok = take(t, c) {
		next++
	}
	if c.Release(); p.reservations() != 0 || number < 5000 {
		t.Errorf("%d frames, %d reservations are left", number, p.reservations())
	}
	if ok, err := p.room(MinLen); !ok || err != nil {
		t.Errorf("the ring still has bytes in use: %v", err)
	}
}

// TestTakeHeaders checks that the headers of a frame in place are copied, and that the remainder
// stays in the ring.
func TestTakeHeaders(t *testing.T) {
	_, p, c := pair(t, MinLen)
	if p.InPlace() {
		t.Error("InPlace is true before AllowInPlace")
	}
	if c.AllowInPlace(); !p.InPlace() {
		t.Error("InPlace is false after AllowInPlace")
	}
	data := payload(0, 1000)
	at, room := p.reserve(2000)
	copy(room, data)
	p.commit(at, &link.Frame{HeaderLen: 42, NoICRC: true}, len(data))
	p.Publish()
	if n, err := c.Next(); n != len(data) || err != nil || c.HeaderLen() != 42 {
		t.Fatal(n, err, c.HeaderLen())
	}
	var more [1][]byte
	f := c.TakeHeaders(make([]byte, 42), 42, &more)
	if !bytes.Equal(f.Data, data[:42]) || !bytes.Equal(f.More[0], data[42:]) || cap(f.More[0]) != 1000-42 || !f.NoICRC {
		t.Errorf("%+v", f)
	}
	if room[41]++; f.Data[41] != data[41] {
		t.Error("the headers were not copied")
	}
	if room[42]++; f.More[0][0] != data[42]+1 {
		t.Error("the remainder was copied")
	}
}

// TestHeaderIsReadOnce checks that changing a header after Next has no effect on Take.
func TestHeaderIsReadOnce(t *testing.T) {
	b, p, c := pair(t, MinLen)
	put(t, p, link.Frame{Data: payload(0, 100)})
	p.Publish()
	n, err := c.Next()
	if n != 100 || err != nil {
		t.Fatal(n, err)
	}
	binary.NativeEndian.PutUint32(b[recordsAt:], MaxFrame)
	b[recordsAt+4] = byte(link.UDP)
	buf := make([]byte, n)
	if f := c.Take(buf); len(f.Data) != n || f.Segmentation != link.NoSegmentation {
		t.Errorf("a frame of %d bytes, segmentation %d", len(f.Data), f.Segmentation)
	}
	if n, err := c.Next(); n != 0 || err != nil {
		t.Errorf("Next after Take: %d, %v", n, err)
	}
}

func TestMemory(t *testing.T) {
	for _, b := range [][]byte{nil, make([]byte, recordsAt), alloc(MinLen)[:MemoryLen(MinLen)-1], alloc(MinLen * 2)[:MemoryLen(MinLen*3/2)],
		alloc(MinLen / 2), alloc(MinLen * 2)[1 : MemoryLen(MinLen)+1]} {
		if _, err := NewProducer(b); err == nil {
			t.Errorf("a producer on memory of %d bytes", len(b))
		}
		if _, err := NewConsumer(b); err == nil {
			t.Errorf("a consumer on memory of %d bytes", len(b))
		}
	}
}

// FuzzHostile runs both sides while arbitrary bytes are written anywhere into the memory. Neither
// side may leave its memory, return an invalid frame or continue after an error.
func FuzzHostile(f *testing.F) {
	f.Add([]byte{0, 0, 0, 64, 0, 0, 255, 1, 2, 0, 0, 0})
	f.Add(bytes.Repeat([]byte{7, 0, 16, 1}, 40))
	shared := alloc(MinLen)
	f.Fuzz(func(t *testing.T, script []byte) {
		clear(shared[:recordsAt+64<<10])
		p, err := NewProducer(shared)
		if err != nil {
			t.Fatal(err)
		}
		c, err := NewConsumer(shared)
		if err != nil {
			t.Fatal(err)
		}
		frame := link.Frame{Data: payload(1, 3000)}
		buf := make([]byte, MaxFrame)
		var corrupt bool
		for ; len(script) >= 4; script = script[4:] {
			at, v := int(binary.BigEndian.Uint16(script[1:])), script[3]
			switch script[0] % 8 {
			case 0:
				shared[at%256] = v // an index, or a flag
			case 1:
				shared[recordsAt+at] = v
			case 2:
				binary.NativeEndian.PutUint64(shared[tailAt:], uint64(at)*recordAlign)
			case 3:
				binary.NativeEndian.PutUint64(shared[headAt:], uint64(at)*recordAlign)
			case 4:
				if ok, err := p.Put(&frame); ok && err != nil {
					t.Fatal("Put returned true and an error:", err)
				}
				p.Publish()
			default:
				n, err := c.Next()
				if corrupt && err == nil || err != nil && n != 0 || n != 0 && (n < link.EthernetHeaderLen || n > MaxFrame) {
					t.Fatalf("Next: %d, %v; failed before: %t", n, err, corrupt)
				}
				corrupt = err != nil
				if n > 0 {
					f := c.Take(buf)
					if len(f.Data) != n {
						t.Fatalf("%d bytes, want %d", len(f.Data), n)
					}
					_ = f.Validate(4200, link.Offloads{USO: true, TSO: true, Checksum: true})
				}
				c.Release()
			}
		}
	})
}

func BenchmarkRing(b *testing.B) {
	for name, n := range map[string]int{"64B": 64, "4KiB": 4 << 10, "64KiB": 64 << 10} {
		b.Run(name, func(b *testing.B) {
			_, p, c := pair(b, 1<<20)
			f := link.Frame{Data: payload(0, min(n, link.MaxSuperframe))}
			buf := make([]byte, MaxFrame)
			b.SetBytes(int64(n))
			b.ReportAllocs()
			for b.Loop() {
				if ok, err := p.Put(&f); !ok || err != nil {
					b.Fatal(ok, err)
				}
				p.Publish()
				if n, err := c.Next(); n == 0 || err != nil {
					b.Fatal(n, err)
				}
				c.Take(buf)
				c.Release()
			}
		})
	}
}
