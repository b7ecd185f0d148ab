package impair

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
)

// arrival is a numbered packet and the time of its arrival since the start of the test.
type arrival struct {
	n  int
	at time.Duration
}

// testNet is an impaired host a and a receiving host b, in a synctest bubble.
type testNet struct {
	t     *testing.T
	a     *Link
	b     *pipe.Port
	start time.Time

	mu     sync.Mutex
	came   []arrival
	frames [][]byte
}

func (l *testNet) arrivals() []arrival {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.came)
}

func newTestNet(t *testing.T, cfg Config) *testNet {
	t.Helper()
	sw := new(pipe.Switch)
	a, err := New(sw.Port(), &cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := &testNet{t: t, a: a, b: sw.Port(), start: time.Now()}
	l.b.Attach(func(frames []link.Frame) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, f := range frames {
			l.came = append(l.came, arrival{int(binary.BigEndian.Uint32(f.Data[14:])), time.Since(l.start)})
			l.frames = append(l.frames, bytes.Clone(f.Data))
		}
	})
	return l
}

func (l *testNet) close() {
	l.a.Close()
	l.b.Close()
}

// numbered returns a packet of size bytes with a number.
func (l *testNet) numbered(n, size int) link.Frame {
	d := append(append(bytes.Clone(l.b.MAC()), l.a.MAC()...), 0x88, 0xb5)
	d = binary.BigEndian.AppendUint32(d, uint32(n))
	return link.Frame{Data: append(d, make([]byte, size-len(d))...)}
}

func (l *testNet) send(from, to, size int) {
	l.t.Helper()
	for n := from; n < to; n++ {
		if _, err := l.a.Write([]link.Frame{l.numbered(n, size)}); err != nil {
			l.t.Fatal(err)
		}
		if n%256 == 255 {
			synctest.Wait() // otherwise the pipe's queue overflows
		}
	}
	synctest.Wait()
}

func numbers(as []arrival) (ns []int) {
	for _, a := range as {
		ns = append(ns, a.n)
	}
	return ns
}

func parse(t *testing.T, text string) Config {
	t.Helper()
	c, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestZeroConfigPassesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestNet(t, Config{})
		l.send(0, 100, 60)
		if got := numbers(l.arrivals()); len(got) != 100 || !slices.IsSorted(got) {
			t.Errorf("arrived: %v", got)
		}
		if _, out := l.a.Counters(); out != (Counters{Packets: 100}) {
			t.Errorf("counters %+v", out)
		}
		l.close()
	})
}

func TestSeedIsDeterministic(t *testing.T) {
	run := func(text string) (out []arrival) {
		synctest.Test(t, func(t *testing.T) {
			l := newTestNet(t, parse(t, text))
			l.send(0, 1000, 60)
			time.Sleep(time.Second)
			synctest.Wait()
			out = l.arrivals()
			l.close()
		})
		return out
	}
	const all = "loss=5%,dup=3%,reorder=2%,delay=5ms+-2ms,burst=1%/30%,rate=10mbit,seed="
	first := run(all + "7")
	if !slices.Equal(first, run(all+"7")) {
		t.Error("the same seed had different effects")
	}
	if slices.Equal(first, run(all+"8")) {
		t.Error("another seed had the same effect")
	}
	// An additional impairment does not change the effect of the others.
	lossy := numbers(run("loss=10%,seed=3"))
	both := numbers(run("loss=10%,dup=20%,seed=3"))
	if !slices.Equal(lossy, slices.Compact(both)) || len(both) == len(lossy) {
		t.Error("duplication changed the lost packets")
	}
}

func TestRates(t *testing.T) {
	const n = 20000
	for _, c := range []struct {
		text string
		want float64
		got  func(Counters) uint64
	}{
		{"loss=2%", 0.02, func(c Counters) uint64 { return c.Lost }},
		{"dup=3%", 0.03, func(c Counters) uint64 { return c.Duplicated }},
		{"corrupt=4%", 0.04, func(c Counters) uint64 { return c.Corrupted }},
		{"reorder=5%,limit=100000", 0.05, func(c Counters) uint64 { return c.Reordered }},
		// 1/(1+24) of the time in the bad state.
		{"burst=1%/24%", 0.04, func(c Counters) uint64 { return c.Lost }},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newTestNet(t, parse(t, c.text+",seed=1"))
			l.send(0, n, 60)
			_, out := l.a.Counters()
			if got := float64(c.got(out)) / n; math.Abs(got-c.want) > c.want/5 {
				t.Errorf("%s: %v of the packets", c.text, got)
			}
			l.close()
		})
	}
}

func TestBurstLength(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestNet(t, parse(t, "burst=0.5%/10%,seed=2"))
		l.send(0, 20000, 60)
		last, gaps, lost := -1, 0, 0
		for _, a := range l.arrivals() {
			if a.n != last+1 {
				gaps++
				lost += a.n - last - 1
			}
			last = a.n
		}
		if mean := float64(lost) / float64(gaps); mean < 7 || mean > 13 {
			t.Errorf("%d lost in %d bursts, %.1f each; want about 10", lost, gaps, mean)
		}
		l.close()
	})
}

func TestDelayAndJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestNet(t, parse(t, "delay=3ms"))
		l.send(0, 5, 60)
		time.Sleep(3*time.Millisecond - 1)
		synctest.Wait()
		if len(l.arrivals()) != 0 {
			t.Errorf("arrived early: %v", l.arrivals())
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := numbers(l.arrivals()); !slices.Equal(got, []int{0, 1, 2, 3, 4}) {
			t.Errorf("arrived: %v", got)
		}
		l.close()
	})
	synctest.Test(t, func(t *testing.T) {
		l := newTestNet(t, parse(t, "delay=3ms±1ms"))
		l.send(0, 500, 60)
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		all := l.arrivals()
		first, last := all[0].at, all[len(all)-1].at
		if len(all) != 500 || first < 2*time.Millisecond || first > 2100*time.Microsecond ||
			last > 4*time.Millisecond || last < 3900*time.Microsecond {
			t.Errorf("%d arrived, from %v to %v", len(all), first, last)
		}
		l.close()
	})
}

func TestRateAndLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestNet(t, parse(t, "rate=8mbit,limit=10")) // 1000 bytes per millisecond
		l.send(0, 12, 1000)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := len(l.arrivals()); got != 10 {
			t.Fatalf("%d arrived, want 10", got)
		}
		for i, a := range l.arrivals() {
			if want := time.Duration(i+1) * time.Millisecond; a.at != want {
				t.Errorf("packet %d at %v, want %v", a.n, a.at, want)
			}
		}
		if _, out := l.a.Counters(); out.Overflowed != 2 {
			t.Errorf("Overflowed = %d, want 2", out.Overflowed)
		}
		l.close()
	})
}

func TestRules(t *testing.T) {
	for _, c := range []struct {
		text string
		want []int
	}{
		{"drop=any", []int{1, 2, 3, 4, 5}},
		{"drop=any:3", []int{0, 1, 3, 4, 5}},
		{"drop=any:3-4", []int{0, 1, 4, 5}},
		{"drop=any:3-", []int{0, 1}},
		{"drop=any:*", nil},
		{"drop=any:2,drop=any:5", []int{0, 2, 3, 5}},
		{"dup=any:2", []int{0, 1, 1, 2, 3, 4, 5}},
		{"reorder=any:2", []int{0, 2, 3, 4, 5, 1}},
		{"drop=roce:*", []int{0, 1, 2, 3, 4, 5}},
		{"in.drop=any:*", []int{0, 1, 2, 3, 4, 5}},
		{"out.drop=any:*", nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newTestNet(t, parse(t, c.text))
			l.send(0, 6, 60)
			time.Sleep(time.Second)
			synctest.Wait()
			if got := numbers(l.arrivals()); !slices.Equal(got, c.want) {
				t.Errorf("%s: arrived %v, want %v", c.text, got, c.want)
			}
			l.close()
		})
	}
}

func TestCorruptionIsOneBitAnywhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestNet(t, parse(t, "corrupt=1,seed=4"))
		sent := l.numbered(0, 64).Data
		places := map[int]bool{}
		for range 400 {
			l.send(0, 1, 64)
		}
		for _, f := range l.frames {
			flipped := 0
			for i := range f {
				if n := bits.OnesCount8(f[i] ^ sent[i]); n > 0 {
					flipped += n
					places[i/16] = true
				}
			}
			if flipped != 1 {
				t.Fatalf("%d bits flipped", flipped)
			}
		}
		// The first quarter contains the address: frames with a flipped destination are not
		// delivered.
		if len(places) != 4 || len(l.frames) == 400 {
			t.Errorf("flips in %d of 4 quarters of the frame; %d of 400 frames arrived", len(places), len(l.frames))
		}
		l.close()
	})
}

func TestSuperframesAreCutBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sw := new(pipe.Switch)
		a, err := New(sw.Port(), new(parse(t, "drop=write:2")))
		if err != nil {
			t.Fatal(err)
		}
		b := sw.Port()
		var atA, atB [][]byte
		keep := func(to *[][]byte) link.Receiver {
			return func(frames []link.Frame) {
				for _, f := range frames {
					if f.Segmentation != link.NoSegmentation || f.NeedsChecksum {
						t.Error("arrived uncut or with a partial checksum")
					}
					*to = append(*to, bytes.Clone(f.Data))
				}
			}
		}
		a.Attach(keep(&atA))
		b.Attach(keep(&atB))
		if _, err := a.Write([]link.Frame{roce(b.MAC(), a.MAC(), 4, 0x07)}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Write([]link.Frame{roce(a.MAC(), b.MAC(), 4, 0x07)}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, at := range [][][]byte{atA, atB} {
			var ids []int
			for _, p := range at {
				ids = append(ids, int(binary.BigEndian.Uint16(p[18:])))
			}
			if !slices.Equal(ids, []int{0, 2, 3}) {
				t.Errorf("segments %v arrived, want all but the second", ids)
			}
		}
		a.Close()
		b.Close()
	})
}

// roce returns a superframe of n packets of 32 bytes from their BTH on, which begins with the
// opcode.
func roce(dst, src net.HardwareAddr, n int, opcode byte) link.Frame {
	d := append(append(bytes.Clone(dst), src...), 8, 0, 0x45, 0, 0, byte(28+32*n), 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
		0xc0, 0, 4791>>8, 4791&0xff, 0, byte(8+32*n), 0, 0)
	for range n {
		d = append(append(d, opcode), make([]byte, 31)...)
	}
	return link.Frame{Data: d, Segmentation: link.UDP, SegmentSize: 32, HeaderLen: 42,
		NeedsChecksum: true, ChecksumStart: 34, ChecksumOffset: 6}
}

func TestReceptionIsImpaired(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestNet(t, parse(t, "in.delay=5ms,in.drop=any:2"))
		var at []time.Duration
		l.a.Attach(func(frames []link.Frame) {
			for range frames {
				at = append(at, time.Since(l.start))
			}
		})
		f := append(append(bytes.Clone(l.a.MAC()), l.b.MAC()...), make([]byte, 50)...)
		for range 3 {
			if _, err := l.b.Write([]link.Frame{{Data: f}}); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		if !slices.Equal(at, []time.Duration{5 * time.Millisecond, 5 * time.Millisecond}) {
			t.Errorf("received at %v", at)
		}
		in, out := l.a.Counters()
		if in != (Counters{Packets: 3, Lost: 1}) || out != (Counters{}) {
			t.Errorf("counters %+v, %+v", in, out)
		}
		l.close()
		l.close()
	})
}

func TestCloseDropsDelayedPackets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestNet(t, parse(t, "delay=1s"))
		l.send(0, 3, 60)
		l.a.Close()
		time.Sleep(2 * time.Second)
		if len(l.arrivals()) != 0 {
			t.Errorf("%v arrived after Close", l.arrivals())
		}
		l.close()
	})
}

func TestWriteReturnsInnerErrors(t *testing.T) {
	sw, err := pipe.New(&pipe.Config{MTU: 1500})
	if err != nil {
		t.Fatal(err)
	}
	p := sw.Port()
	l, err := New(p, &Config{})
	if err != nil {
		t.Fatal(err)
	}
	if l.Name() != p.Name() || l.MTU() != 1500 || l.MAC().String() != p.MAC().String() || !l.Offloads().USO {
		t.Error("properties differ from the inner link's")
	}
	if n, err := l.Write([]link.Frame{{Data: make([]byte, 60)}, {Data: make([]byte, 1600)}}); n != 1 || !errors.Is(err, link.ErrTooLong) {
		t.Errorf("Write over the MTU = %d, %v", n, err)
	}
	p.Close()
	if n, err := l.Write([]link.Frame{{Data: make([]byte, 60)}}); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write to a closed link = %d, %v", n, err)
	}
}

func TestNewRefusesInvalidConfig(t *testing.T) {
	p := new(pipe.Switch).Port()
	for _, d := range []Direction{
		{Loss: 1.01}, {Loss: -0.1}, {Corrupt: math.NaN()}, {Reorder: 2}, {Duplicate: 2}, {Burst: Burst{Enter: 2, Leave: 1}},
		{Burst: Burst{Enter: 0.1}}, {Delay: -1}, {Jitter: 1}, {Hold: -1}, {Rate: -1}, {Limit: -1},
		{Queue: 1}, {Rate: 1, Queue: -1}, {Rate: 1, ECN: ECN{Min: 2, Max: 1}}, {Rate: 1, ECN: ECN{Min: -1}}, {ECN: ECN{Min: 1}},
		{Rules: []Rule{{Nth: -1}}}, {Rules: []Rule{{Action: 9}}},
	} {
		for _, c := range []Config{{In: d}, {Out: d}} {
			if _, err := New(p, &c); err == nil {
				t.Errorf("New accepted %+v", c)
			}
		}
	}
}

// TestSet changes the configuration while packets are delayed. They arrive when they are due.
func TestSet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newTestNet(t, Config{})
		defer l.close()
		set := func(spec string) {
			t.Helper()
			cfg, err := Parse(spec)
			if err == nil {
				err = l.a.Set(&cfg)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		l.send(0, 2, 100)
		set("loss=1")
		l.send(2, 4, 100)
		set("delay=1ms")
		l.send(4, 6, 100)
		set("none")
		l.send(6, 8, 100)
		if err := l.a.Set(&Config{Out: Direction{Loss: 2}}); err == nil {
			t.Error("a probability of 2 was accepted")
		}
		l.send(8, 9, 100)
		var numbers []int
		for _, a := range l.arrivals() {
			numbers = append(numbers, a.n)
		}
		if want := []int{0, 1, 6, 7, 8}; !slices.Equal(numbers, want) {
			t.Errorf("%v arrived at once, want %v", numbers, want)
		}
		time.Sleep(time.Millisecond)
		if came := l.arrivals(); len(came) != 7 || came[5].n != 4 || came[6].at != time.Millisecond {
			t.Errorf("after the delay: %v", came)
		}
		if _, out := l.a.Counters(); out.Packets != 9 || out.Lost != 2 {
			t.Errorf("%+v", out)
		}
	})
}
