package impair

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"math/bits"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/pipe"
)

// arrival is a numbered packet, and when it came after the start of the test.
type arrival struct {
	n  int
	at time.Duration
}

// lab is an impaired host a and a host b that listens, in a synctest bubble.
type lab struct {
	t     *testing.T
	a     *Link
	b     *pipe.Port
	start time.Time

	mu     sync.Mutex
	came   []arrival
	frames [][]byte
}

func (l *lab) arrivals() []arrival {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.came)
}

func newLab(t *testing.T, cfg Config) *lab {
	t.Helper()
	sw := pipe.New()
	a, err := New(sw.Port(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := &lab{t: t, a: a, b: sw.Port(), start: time.Now()}
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

func (l *lab) close() {
	l.a.Close()
	l.b.Close()
}

// numbered is a packet of size bytes with a number.
func (l *lab) numbered(n, size int) link.Frame {
	d := append(append(bytes.Clone(l.b.MAC()), l.a.MAC()...), 0x88, 0xb5)
	d = binary.BigEndian.AppendUint32(d, uint32(n))
	return link.Frame{Data: append(d, make([]byte, size-len(d))...)}
}

func (l *lab) send(from, to, size int) {
	l.t.Helper()
	for n := from; n < to; n++ {
		if _, err := l.a.Write([]link.Frame{l.numbered(n, size)}); err != nil {
			l.t.Fatal(err)
		}
		if n%256 == 255 {
			synctest.Wait() // or the pipe's queue overflows
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

func TestNothingAskedNothingDone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, Config{})
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

func TestSameSeedSameFate(t *testing.T) {
	run := func(text string) (out []arrival) {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, parse(t, text))
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
		t.Error("the same seed did different things")
	}
	if slices.Equal(first, run(all+"8")) {
		t.Error("another seed did the same")
	}
	// One impairment more leaves what the others do as it was.
	lossy := numbers(run("loss=10%,seed=3"))
	both := numbers(run("loss=10%,dup=20%,seed=3"))
	if !slices.Equal(lossy, slices.Compact(both)) || len(both) == len(lossy) {
		t.Error("duplication changed which packets are lost")
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
		{"burst=1%/24%", 0.04, func(c Counters) uint64 { return c.Lost }}, // 1/(1+24) of the time in the bad state
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(t, parse(t, c.text+",seed=1"))
			l.send(0, n, 60)
			_, out := l.a.Counters()
			if got := float64(c.got(out)) / n; math.Abs(got-c.want) > c.want/5 {
				t.Errorf("%s: %v of the packets", c.text, got)
			}
			l.close()
		})
	}
}

func TestBurstsAreBursts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, parse(t, "burst=0.5%/10%,seed=2"))
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
		l := newLab(t, parse(t, "delay=3ms"))
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
		l := newLab(t, parse(t, "delay=3ms±1ms"))
		l.send(0, 500, 60)
		time.Sleep(10 * time.Millisecond)
		synctest.Wait()
		all := l.arrivals()
		first, last := all[0].at, all[len(all)-1].at
		if len(all) != 500 || first < 2*time.Millisecond || first > 2100*time.Microsecond || last > 4*time.Millisecond || last < 3900*time.Microsecond {
			t.Errorf("%d arrived, from %v to %v", len(all), first, last)
		}
		l.close()
	})
}

func TestRateAndLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, parse(t, "rate=8mbit,limit=10")) // 1000 bytes a millisecond
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
			l := newLab(t, parse(t, c.text))
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
		l := newLab(t, parse(t, "corrupt=1,seed=4"))
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
		// The first quarter includes the address: frames with a flipped address go nowhere.
		if len(places) != 4 || len(l.frames) == 400 {
			t.Errorf("flips in %d of 4 quarters of the frame; %d of 400 frames found their way", len(places), len(l.frames))
		}
		l.close()
	})
}

func TestSuperframesAreCutBothWays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sw := pipe.New()
		a, err := New(sw.Port(), parse(t, "drop=write:2"))
		if err != nil {
			t.Fatal(err)
		}
		b := sw.Port()
		var atA, atB [][]byte
		keep := func(to *[][]byte) link.Receiver {
			return func(frames []link.Frame) {
				for _, f := range frames {
					if f.Segmentation != link.NoSegmentation || f.NeedsChecksum {
						t.Error("arrived uncut or unfinished")
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

// roce is a superframe of n packets of 32 bytes from their BTH on, which begin with the opcode.
func roce(dst, src net.HardwareAddr, n int, opcode byte) link.Frame {
	d := append(append(bytes.Clone(dst), src...), 8, 0, 0x45, 0, 0, byte(28+32*n), 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
		0xc0, 0, 4791>>8, 4791&0xff, 0, byte(8+32*n), 0, 0)
	for range n {
		d = append(append(d, opcode), make([]byte, 31)...)
	}
	return link.Frame{Data: d, Segmentation: link.UDP, SegmentSize: 32, HeaderLen: 42, NeedsChecksum: true, ChecksumStart: 34, ChecksumOffset: 6}
}

func TestClasses(t *testing.T) {
	mac := make(net.HardwareAddr, 6)
	packet := func(opcode, syndrome, qp byte) []byte {
		f := roce(mac, mac, 1, opcode).Data
		f[42+7], f[42+12] = qp, syndrome
		return f
	}
	v6 := append(append(make([]byte, 12), 0x86, 0xdd, 0x60, 0, 0, 0, 0, 40, 17), make([]byte, 33)...)
	v6 = append(v6, packet(0x0c, 0, 5)[34:]...)
	for _, c := range []struct {
		frame []byte
		want  []string
	}{
		{packet(0x04, 0, 5), []string{"any", "roce", "send"}},
		{packet(0x24, 0, 5), []string{"any", "roce", "send"}},
		{packet(0x64, 0, 1), []string{"any", "cm", "roce", "send"}},
		{packet(0x0a, 0, 5), []string{"any", "roce", "write"}},
		{packet(0x0c, 0, 5), []string{"any", "read-request", "roce"}},
		{v6, []string{"any", "read-request", "roce"}},
		{packet(0x0e, 0, 5), []string{"any", "read-response", "roce"}},
		{packet(0x13, 0, 5), []string{"any", "atomic", "roce"}},
		{packet(0x12, 0, 5), []string{"any", "atomic-ack", "roce"}},
		{packet(0x11, 0x1f, 5), []string{"ack", "any", "roce"}},
		{packet(0x11, 0x21, 5), []string{"any", "rnr-nak", "roce"}},
		{packet(0x11, 0x60, 5), []string{"any", "nak", "roce"}},
		{packet(0x81, 0, 5), []string{"any", "cnp", "roce"}},
		{packet(0x11, 0, 5)[:54], []string{"any", "roce"}},
		{packet(0x11, 0, 5)[:53], []string{"any"}},
		{append(packet(0, 0, 0)[:23], append([]byte{6}, packet(0, 0, 0)[24:]...)...), []string{"any", "tcp"}},
		{nil, []string{"any"}},
		{v6[:30], []string{"any"}},
	} {
		var got []string
		for name, match := range classes {
			if match(c.frame) {
				got = append(got, name)
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, c.want) {
			t.Errorf("%x is %v, want %v", c.frame, got, c.want)
		}
	}
}

func TestReceptionIsImpairedToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, parse(t, "in.delay=5ms,in.drop=any:2"))
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

func TestCloseDropsWhatIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(t, parse(t, "delay=1s"))
		l.send(0, 3, 60)
		l.a.Close()
		time.Sleep(2 * time.Second)
		if len(l.arrivals()) != 0 {
			t.Errorf("%v arrived after Close", l.arrivals())
		}
		l.close()
	})
}

func TestWriteErrorsComeThrough(t *testing.T) {
	p := pipe.New(pipe.WithMTU(1500)).Port()
	l, err := New(p, Config{})
	if err != nil {
		t.Fatal(err)
	}
	if l.Name() != p.Name() || l.MTU() != 1500 || l.MAC().String() != p.MAC().String() || !l.Offloads().USO {
		t.Error("properties are not the inner link's")
	}
	if n, err := l.Write([]link.Frame{{Data: make([]byte, 60)}, {Data: make([]byte, 1600)}}); n != 1 || !errors.Is(err, link.ErrTooLong) {
		t.Errorf("Write over the MTU = %d, %v", n, err)
	}
	p.Close()
	if n, err := l.Write([]link.Frame{{Data: make([]byte, 60)}}); n != 0 || !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write to a closed link = %d, %v", n, err)
	}
}

func TestNewRefusesNonsense(t *testing.T) {
	p := pipe.New().Port()
	for _, d := range []Direction{
		{Loss: 1.01}, {Loss: -0.1}, {Corrupt: math.NaN()}, {Reorder: 2}, {Duplicate: 2}, {Burst: Burst{Enter: 2, Leave: 1}},
		{Burst: Burst{Enter: 0.1}}, {Delay: -1}, {Jitter: 1}, {Hold: -1}, {Rate: -1}, {Limit: -1},
		{Rules: []Rule{{Nth: -1}}}, {Rules: []Rule{{Action: 9}}},
	} {
		for _, c := range []Config{{In: d}, {Out: d}} {
			if _, err := New(p, c); err == nil {
				t.Errorf("New took %+v", c)
			}
		}
	}
}

func TestParse(t *testing.T) {
	c := parse(t, " loss=1%, in.reorder=0.005,out.delay=1ms±200us,burst=1%/20%,rate=100mbit,seed=7,corrupt=read-response:3-,limit=5,hold=2ms")
	if c.Seed != 7 || c.In.Loss != 0.01 || c.Out.Loss != 0.01 || c.In.Reorder != 0.005 || c.Out.Reorder != 0 ||
		c.Out.Delay != time.Millisecond || c.Out.Jitter != 200*time.Microsecond || c.In.Delay != 0 || c.In.Burst != (Burst{0.01, 0.2}) ||
		c.Out.Rate != 100e6 || c.In.Limit != 5 || c.In.Hold != 2*time.Millisecond {
		t.Errorf("%+v", c)
	}
	if r := c.In.Rules; len(r) != 1 || r[0].Nth != 3 || r[0].Count != -1 || r[0].Action != Corrupt {
		t.Errorf("rules %+v", r)
	}
	for text, want := range map[string]string{
		"loss":               "setting=value",
		"loss=":              "setting=value",
		"loss=150%":          `"150%" is not a probability`,
		"loss=x":             "not a probability",
		"loss=NaN":           "not a probability",
		"wobble=1":           `unknown setting "wobble"`,
		"in.seed=1":          `unknown setting "seed"`,
		"delay=5":            `"5" is not a time`,
		"delay=-5ms":         "not a time",
		"delay=1ms±x":        `"x" is not a time`,
		"delay=1ms±2ms":      "no more jitter than delay",
		"burst=1%":           "two probabilities",
		"burst=1%/0":         "never end",
		"rate=fast":          `"fast" is not a rate`,
		"rate=0":             "not a rate",
		"limit=0":            "1 or more",
		"seed=-1":            "not a number",
		"drop=5%":            "unknown class",
		"drop=reed-response": "read-response",
		"drop=ack:0":         "count from 1",
		"drop=ack:":          "count from 1",
		"drop=ack:5-3":       "not below the first",
	} {
		if _, err := Parse(text); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("Parse(%q) = %v, want %q in it", text, err, want)
		}
	}
}

// FuzzParse: what Parse takes, New takes.
func FuzzParse(f *testing.F) {
	f.Add("loss=1%,reorder=0.5%,delay=1ms±200us,seed=7")
	f.Add("in.rate=100mbit,out.burst=1%/20%,drop=read-response:3-5,dup=ack:*,corrupt=any:2-")
	p := pipe.New().Port()
	f.Fuzz(func(t *testing.T, text string) {
		if c, err := Parse(text); err == nil {
			if _, err := New(p, c); err != nil {
				t.Errorf("Parse took %q, New did not: %v", text, err)
			}
		}
	})
}

// FuzzClasses: no frame makes a class panic.
func FuzzClasses(f *testing.F) {
	f.Add(roce(make([]byte, 6), make([]byte, 6), 1, 0x11).Data)
	f.Fuzz(func(t *testing.T, frame []byte) {
		for _, match := range classes {
			match(frame)
		}
	})
}
