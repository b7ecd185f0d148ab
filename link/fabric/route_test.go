package fabric_test

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/verbs"
)

// choices returns for each leaf the ways of flows with the same addresses and ports.
func choices(t *testing.T, seed uint64) (all []string) {
	const leaves, flows = 16, 64
	f := newFabric(t, &fabric.Config{Topology: fabric.LeafSpine(leaves, 1, 2), Seed: seed})
	for i := range leaves {
		ways := make([]byte, flows)
		for s := range 2 {
			f.Port(fmt.Sprint("leaf", i), fmt.Sprint("spine", s)).Mirror().Attach(func(frames []link.Frame) {
				if b := frames[0].Data; b[11] == byte(i+1) {
					ways[binary.BigEndian.Uint16(b[34:])] = byte('0' + s)
				}
			})
		}
		h, to := f.Hosts()[i], f.Hosts()[(i+1)%leaves]
		for flow := range uint16(flows) {
			fr := linktest.Plain(to.MAC(), h.MAC(), 100, "")
			copy(fr.Data[12:], []byte{8, 0, 0x45})
			copy(fr.Data[20:], []byte{0, 0, 64, 17})
			binary.BigEndian.PutUint16(fr.Data[34:], flow)
			must(h.Write([]link.Frame{fr}))(t)
		}
		f.Run(time.Millisecond)
		all = append(all, string(ways))
	}
	return all
}

// TestSalts: each switch has a hash of its own with each seed.
func TestSalts(t *testing.T) {
	var seen []string
	for seed := range uint64(8) {
		for _, ways := range choices(t, seed) {
			if slices.Contains(seen, ways) {
				t.Errorf("two switches have the same hash: %s", ways)
			}
			seen = append(seen, ways)
		}
	}
}

// TestIndependent: what happens at a switch does not depend on what others do, their random numbers
// and the order of their events included.
func TestIndependent(t *testing.T) {
	run := func(others bool) (digest []string, c fabric.PortCounters) {
		f := newFabric(t, &fabric.Config{Topology: fabric.Dumbbell(3), Switch: fabric.Switch{ECN: fabric.ECN{Max: 200e3, P: 0.2}}})
		var nodes []*node
		for _, h := range f.Hosts() {
			nodes = append(nodes, onStatic(t, f, h, roce.Config{DCQCN: &roce.DCQCN{RPGMaxRate: 100e9}}))
		}
		begin := func(from, to int) {
			x, y := connect(nodes[from], nodes[to], verbs.MTU1024)
			x.write(y, 256<<10, -1)
		}
		if others {
			begin(3, 4)
			begin(5, 4)
		}
		begin(0, 1)
		begin(2, 1)
		f.Hosts()[1].Port().Peer().Mirror().Attach(func(frames []link.Frame) {
			digest = append(digest, fmt.Sprintf("%v %x", f.Now(), frames[0].Data[:60]))
		})
		f.Run(300 * time.Microsecond)
		return digest, f.Port("left", "host1").Counters()
	}
	alone, c := run(false)
	among, _ := run(true)
	if c.Marked == 0 || !slices.Equal(alone, among) {
		t.Errorf("%+v; %d frames, and when another switch has traffic too %d other ones", c, len(alone), len(among))
	}
}

// TestManySwitches: routes that nothing has used take no memory, and the others little.
func TestManySwitches(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := heap()
	const leaves = 1000
	f := newFabric(t, &fabric.Config{Topology: fabric.LeafSpine(leaves, 1, 2)})
	got := 0
	for _, h := range f.Hosts() {
		h.Attach(func([]link.Frame) { got++ })
	}
	for i := range leaves { // routes to half of the switches
		h, to := f.Hosts()[i], f.Hosts()[(i+i%2+1)%leaves]
		must(h.Write([]link.Frame{linktest.Plain(to.MAC(), h.MAC(), 100, "")}))(t)
	}
	f.Run(time.Millisecond)
	if grown := heap() - before; got != leaves || grown > 16<<20 {
		t.Errorf("%d of %d frames arrive; the fabric has %d bytes", got, leaves, grown)
	}
	runtime.KeepAlive(f)
}
