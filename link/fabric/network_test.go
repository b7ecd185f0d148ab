package fabric_test

import (
	"bytes"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/pcapgo"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/capture"
	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
)

// TestFlightTime: a frame takes its time on each cable, twice, and the delays.
func TestFlightTime(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(3), Link: fabric.Link{Rate: 10e9, Delay: 2 * time.Microsecond}})
	a, b := f.Hosts()[0], f.Hosts()[1]
	var at []time.Duration
	b.Attach(func(frames []link.Frame) { at = append(at, f.Now()) })
	frame := linktest.Plain(b.MAC(), a.MAC(), 1002, "")
	must(a.Write([]link.Frame{frame, frame}))(t)
	f.Run(time.Millisecond)
	one := time.Duration(frame.Len()+24) * 8 / 10 // ns
	if want := 2*one + 4*time.Microsecond; len(at) != 2 || at[0] != want || at[1] != want+one {
		t.Errorf("frames of %v at %v, want at %v", one, at, want)
	}
	if f.Now() != time.Millisecond {
		t.Errorf("the time is %v", f.Now())
	}
}

// TestBroadcast: all hosts but the sender receive a broadcast, across switches too.
func TestBroadcast(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.FatTree(4)})
	got := make([]int, len(f.Hosts()))
	for i, h := range f.Hosts() {
		h.Attach(func(frames []link.Frame) { got[i] += len(frames) })
	}
	all := []byte{255, 255, 255, 255, 255, 255}
	must(f.Hosts()[5].Write([]link.Frame{linktest.Plain(all, f.Hosts()[5].MAC(), 100, "")}))(t)
	f.Run(time.Millisecond)
	for i, n := range got {
		if want := min(1, max(i-5, 5-i)); n != want {
			t.Errorf("host %d has received %d", i, n)
		}
	}
}

// incast has n senders to host 0.
func incast(t testing.TB, f *fabric.Fabric, cfg roce.Config, n int, mtu verbs.MTU) (streams []*stream, nodes []*node) {
	for _, h := range f.Hosts()[:n+1] {
		nodes = append(nodes, onStatic(t, f, h, cfg))
	}
	for _, from := range nodes[1:] {
		x, y := connect(from, nodes[0], mtu)
		streams = append(streams, x.write(y, 256<<10, -1))
	}
	return streams, nodes
}

// TestPFC: with PFC nothing is lost, at the edge or across a spine. Without it, most senders lose.
func TestPFC(t *testing.T) {
	for _, c := range []struct {
		name     string
		topology fabric.Topology
	}{{"star", fabric.Star(9)}, {"leaf-spine", fabric.LeafSpine(3, 3, 2)}} {
		t.Run(c.name, func(t *testing.T) {
			for _, pfc := range []bool{true, false} {
				cfg := fabric.Config{Topology: c.topology, Switch: fabric.Switch{Queue: 200e3}}
				if pfc {
					cfg.Switch.PFC = fabric.PFC{Classes: 1, Xoff: 100e3}
				}
				f := newFabric(t, &cfg)
				streams, _ := incast(t, f, roce.Config{}, 8, verbs.MTU4096)
				f.Run(time.Millisecond)
				n, sum := f.Counters(), int64(0)
				for _, s := range streams {
					sum += s.bytes
				}
				if pfc != (n.Dropped == 0) || pfc != (n.Pauses > 0) || pfc && gbps(sum, f.Now()) < 80 {
					t.Errorf("PFC %t: %d dropped, %d pauses, %.1f Gbit/s", pfc, n.Dropped, n.Pauses, gbps(sum, f.Now()))
				}
			}
		})
	}
}

// dcqcn has the parameters of the paper (Zhu et al., SIGCOMM 2015).
func dcqcn() *roce.DCQCN {
	return &roce.DCQCN{RPGMaxRate: 40e9, RPGMinRate: 40e6, RPGAIRate: 40e6, RPGHAIRate: 400e6, RPGTimeReset: 55 * time.Microsecond,
		RPGByteReset: 10e6, RPGThreshold: 5, RPGMinDecFac: 50, DCETCPG: 4, DCETCPRTT: 55 * time.Microsecond}
}

// TestDCQCN: the senders of an incast share the rate, and the queue stays short. Nothing is lost.
func TestDCQCN(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes long with the race detector")
	}
	for _, n := range []int{2, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			f := newFabric(t, &fabric.Config{Topology: fabric.Star(n + 1), Seed: 1, Link: fabric.Link{Rate: 40e9},
				Switch: fabric.Switch{ECN: fabric.ECN{Min: 5e3, Max: 200e3, P: 0.01}}})
			streams, _ := incast(t, f, roce.Config{DCQCN: dcqcn()}, n, verbs.MTU1024)
			half := time.Duration(stacktest.Size(15, 15, 100)) * time.Millisecond
			f.Run(half)
			before := make([]int64, n)
			for i, s := range streams {
				before[i] = s.bytes
			}
			queued, samples := 0, 0
			for range 300 {
				f.Run(half / 300)
				queued += f.Port("switch", "host0").Queued()
				samples++
			}
			var sum, squares float64
			for i, s := range streams {
				r := gbps(s.bytes-before[i], half)
				sum, squares = sum+r, squares+r*r
			}
			fairness := sum * sum / float64(n) / squares
			if c := f.Counters(); sum < 34 || fairness < 0.97 || queued/samples > 250e3 || c.Dropped > 0 || c.Marked == 0 {
				t.Errorf("%.2f Gbit/s, Jain %.4f, %d bytes queued on average, %+v", sum, fairness, queued/samples, c)
			}
			t.Logf("result: DCQCN %d:1: %.2f Gbit/s, Jain %.4f, %d bytes queued on average", n, sum, fairness, queued/samples)
		})
	}
}

// TestECMP: flows are spread over the spines by their hash, and packets by spraying. A cable that
// is cut loses what is on it only.
func TestECMP(t *testing.T) {
	for _, c := range []struct {
		ecmp  fabric.ECMP
		least float64 // share of the least used of 4 ways
	}{{fabric.HashFlow, 0.05}, {fabric.HashQP, 0.05}, {fabric.Spray, 0.24}} {
		f := newFabric(t, &fabric.Config{Topology: fabric.LeafSpine(2, 8, 4), Seed: 3, Switch: fabric.Switch{ECMP: c.ecmp}})
		var nodes []*node
		for _, h := range f.Hosts() {
			nodes = append(nodes, onStatic(t, f, h, roce.Config{}))
		}
		var streams []*stream
		for i := range 8 {
			for range 4 {
				x, y := connect(nodes[i], nodes[8+i], verbs.MTU4096)
				streams = append(streams, x.write(y, 32<<10, 10))
			}
		}
		used := func() (each [4]uint64, least float64) {
			sum := uint64(0)
			for i := range each {
				each[i] = f.Port("leaf0", fmt.Sprint("spine", i)).Counters().Bytes
				sum += each[i]
			}
			return each, float64(min(each[0], each[1], each[2], each[3])) / float64(sum)
		}
		f.Run(50 * time.Microsecond)
		f.Port("leaf0", "spine2").SetDown(true)
		f.Run(200 * time.Microsecond) // what was in its queue is lost too
		cut, _ := used()
		f.Run(100 * time.Millisecond)
		after, _ := used()
		for i, s := range streams {
			if s.bytes != 320<<10 {
				t.Errorf("%d: %d bytes of stream %d are acknowledged", c.ecmp, s.bytes, i)
			}
		}
		if after[2] != cut[2] || f.Counters().Lost == 0 {
			t.Errorf("%d: %d bytes on a cable that is cut, %+v", c.ecmp, after[2]-cut[2], f.Counters())
		}
		f.Port("spine2", "leaf0").SetDown(false)
		for _, s := range streams {
			s.left = 10
			s.post()
			s.post()
		}
		f.Run(100 * time.Millisecond)
		again, _ := used()
		for i := range again {
			again[i] -= after[i]
		}
		if least := float64(min(again[0], again[1], again[2], again[3])) / float64(again[0]+again[1]+again[2]+again[3]); least < c.least {
			t.Errorf("%d: ways were used for %d bytes", c.ecmp, again)
		}
	}
}

// TestMarks: by the length of the queue at arrival the last packets of a burst are marked, and by
// that at departure the first ones.
func TestMarks(t *testing.T) {
	const burst, n, size = 10, 2 * 10, 1000 + 24
	for _, atDeparture := range []bool{false, true} {
		f := newFabric(t, &fabric.Config{Topology: fabric.Star(3), Switch: fabric.Switch{
			ECN: fabric.ECN{Min: 5*size - 1, Max: 5*size - 1, AtDeparture: atDeparture}}})
		to, marks := f.Hosts()[2], ""
		to.Attach(func(frames []link.Frame) { marks += fmt.Sprint(frames[0].Data[15] & 3) })
		for _, h := range f.Hosts()[:2] {
			fr := linktest.Plain(to.MAC(), h.MAC(), 1000-14, "")
			copy(fr.Data[12:], []byte{8, 0, 0x45, 2}) // ECT(0)
			for range burst {
				must(h.Write([]link.Frame{fr}))(t)
			}
		}
		f.Run(time.Millisecond)
		// Two come while one leaves: before the packets that come there are 0, 0, 1, 2, 2, 3, 3, 4, 4, 5,
		// and so on, and after those that leave 0, 2, 3, 4, 5 and so on up to 10, then 9, 8 and so on.
		want := strings.Repeat("2", n/2-1) + strings.Repeat("3", n/2+1)
		if atDeparture {
			want = strings.Repeat("2", 4) + strings.Repeat("3", n/2+1) + strings.Repeat("2", n/2-5)
		}
		if marks != want {
			t.Errorf("at departure: %t: ECN fields %s, want %s", atDeparture, marks, want)
		}
	}
}

// TestClasses: of two classes with weights each gets its share, and one without goes first.
func TestClasses(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(4), Switch: fabric.Switch{Weights: [8]int{3, 1}}})
	to := f.Hosts()[3]
	var got [3]int
	to.Attach(func(frames []link.Frame) { got[frames[0].Data[15]>>5]++ })
	for class := range 3 {
		h := f.Hosts()[class]
		fr := linktest.Plain(to.MAC(), h.MAC(), 1000-14, "")
		copy(fr.Data[12:], []byte{8, 0, 0x45, byte(class << 5)})
		for range 1000 {
			must(h.Write([]link.Frame{fr}))(t)
		}
	}
	one := time.Duration(1000+24) * 8 / 100
	f.Run(500 * one)
	if got[2] < 450 || got[0]+got[1] > 10 {
		t.Errorf("packets of the classes: %d; that without weight goes first", got)
	}
	f.Run(700 * one)
	if got[2] != 1000 {
		t.Errorf("%d", got)
	}
	before := got
	f.Run(400 * one)
	if a, b := got[0]-before[0], got[1]-before[1]; a < 290 || a > 310 || b < 90 || b > 110 {
		t.Errorf("packets of the classes with weights 3 and 1: %d and %d", a, b)
	}
}

// TestClassesOfQP: packets to one QP may have several classes.
func TestClassesOfQP(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	a, b := f.Hosts()[0], f.Hosts()[1]
	var got []byte
	b.Attach(func(frames []link.Frame) { got = append(got, frames[0].Data[15]>>5) })
	for _, class := range []byte{1, 1, 4, 1} {
		fr := linktest.Plain(b.MAC(), a.MAC(), 100, "")
		copy(fr.Data[12:], []byte{8, 0, 0x45, class << 5})
		fr.Data[23] = 17
		copy(fr.Data[36:], []byte{4791 >> 8, 4791 & 0xff})
		must(a.Write([]link.Frame{fr}))(t)
	}
	f.Run(time.Millisecond)
	if !bytes.Equal(got, []byte{1, 4, 1, 1}) {
		t.Errorf("packets of classes %d have arrived", got)
	}
}

// TestCut: a cable that is cut loses what is on it, and what is sent before it is mended.
func TestCut(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.Star(2)})
	a, b := f.Hosts()[0], f.Hosts()[1]
	n := 0
	b.Attach(func([]link.Frame) { n++ })
	send := func() { must(a.Write([]link.Frame{linktest.Plain(b.MAC(), a.MAC(), 100, "")}))(t) }
	send()
	f.Run(500 * time.Nanosecond)
	a.Port().SetDown(true)
	if link.StateOf(a) != link.NoCarrier {
		t.Errorf("the state is %v", link.StateOf(a))
	}
	send()
	f.Run(500 * time.Nanosecond)
	a.Port().SetDown(false)
	send()
	f.Run(time.Millisecond)
	if n != 1 || f.Counters().Lost != 2 || a.Port().Counters().Lost != 2 {
		t.Errorf("%d frames have arrived, %+v", n, f.Counters())
	}
}

// TestMirror: a capture of a switch's port has the frames that pass, with their times.
func TestMirror(t *testing.T) {
	f := newFabric(t, &fabric.Config{Topology: fabric.LeafSpine(2, 1, 1)})
	var file bytes.Buffer
	c := must(capture.New(f.Port("spine0", "leaf1").Mirror(), &file))(t)
	c.Attach(func([]link.Frame) {})
	a, b := onStatic(t, f, f.Hosts()[0], roce.Config{}), onStatic(t, f, f.Hosts()[1], roce.Config{})
	x, y := connect(a, b, verbs.MTU4096)
	x.write(y, 10000, 1)
	f.Run(time.Millisecond)
	ok(t, c.Close())
	r := must(pcapgo.NewNgReader(&file, pcapgo.DefaultNgReaderOptions))(t)
	n, last := 0, time.Time{}
	for {
		data, ci, err := r.ReadPacketData()
		if err != nil {
			break
		}
		n++
		if ci.Timestamp.Before(last) || len(data) < 60 {
			t.Errorf("%v after %v", ci.Timestamp, last)
		}
		last = ci.Timestamp
	}
	if n != 4 || last.Year() != 2000 {
		t.Errorf("%d packets up to %v: want three of data and an acknowledgement", n, last)
	}
}

// TestDigest: a seed gives the same frames at the same times, whatever GOMAXPROCS is.
func TestDigest(t *testing.T) {
	run := func(seed uint64) string {
		f := newFabric(t, &fabric.Config{Topology: fabric.LeafSpine(3, 3, 2), Seed: seed, Link: fabric.Link{Rate: 40e9},
			Switch: fabric.Switch{Queue: 300e3, ECN: fabric.ECN{Min: 5e3, Max: 200e3, P: 0.01}}})
		incast(t, f, roce.Config{DCQCN: &roce.DCQCN{}}, 8, verbs.MTU1024)
		f.Run(500 * time.Microsecond)
		if c := f.Counters(); c.Dropped == 0 || c.Marked == 0 {
			t.Fatalf("%+v", c)
		}
		return f.Digest()
	}
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	first := run(1)
	for i := range stacktest.Size(4, 9, 99) {
		runtime.GOMAXPROCS(1 + i%3)
		if d := run(1); d != first {
			t.Fatalf("digest %s, then %s", first, d)
		}
	}
	if run(2) == first {
		t.Error("another seed has the same digest")
	}
}
