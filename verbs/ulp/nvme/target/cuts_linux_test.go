package target_test

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/softrnic/softrnic/tests/powercut"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

// TestPowerCuts: hosts change a namespace at random while the power fails at random moments. Then
// it has all that responses have promised to be durable: after a Flush of any host, all that was
// completed when it began.
func TestPowerCuts(t *testing.T) {
	const perSeed = 100
	cuts := stacktest.Size(0, 16, 1000)
	if cuts == 0 {
		t.Skip("it takes seconds: .ci/run long power-cuts, or SOFTRNIC_SYSTEM=1")
	}
	all, commands := cuts, 0
	for seed := uint64(1); cuts > 0 && !t.Failed(); seed++ {
		n := min(cuts, perSeed, max(cuts/4, 4))
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { commands += powerCuts(t, seed, n) })
		cuts -= n
	}
	t.Logf("result: %d power cuts during %d commands", all-cuts, commands)
}

const (
	cutHosts  = 4
	cutBlocks = 8192 // of the namespace, of which each host writes to a quarter
)

// powerCuts makes n cuts, and returns the number of commands meanwhile.
func powerCuts(t *testing.T, seed uint64, n int) (commands int) {
	inFile, transport := seed%2 == 0, []verbs.Transport{verbs.RoCEv2, verbs.IWARP}[seed/2%2]
	size := cutBlocks * 512
	if inFile {
		size *= 4
	}
	durable := &durableBlocks{}
	c := powercut.NewCuts(t, size, n, seed, func() func([]byte) error {
		expected := durable.clone()
		return func(image []byte) error {
			if !inFile {
				return expected.check(image)
			}
			return powercut.Mounted(t, image, func(dir string) error {
				content, err := os.ReadFile(filepath.Join(dir, "file"))
				if err != nil {
					return err
				}
				return expected.check(append(content, make([]byte, cutBlocks*512-len(content))...))
			})
		}
	})
	name := c.Disk.Device
	if inFile {
		name = filepath.Join(c.Disk.Mount(t), "file")
	}
	file, err := target.OpenFile(name, &target.FileConfig{Size: cutBlocks * 512})
	ok(t, err)
	defer func() { ok(t, file.Close()) }()
	l := newLab(t, transport, &target.Config{Namespaces: []target.Namespace{{Backend: file}}})
	defer func() { ok(t, l.target.Close()) }()
	var writers []*blockWriter
	for i := range cutHosts {
		w := &blockWriter{association: l.associate(1, 0), cuts: c, durable: durable, first: i * cutBlocks / cutHosts}
		w.random = rand.New(rand.NewPCG(seed, uint64(i+1)))
		writers = append(writers, w)
	}
	c.Start()
	var running sync.WaitGroup
	for _, w := range writers {
		running.Go(func() {
			for !c.Ended() && !t.Failed() {
				w.change()
			}
		})
	}
	running.Wait()
	c.Wait()
	for _, w := range writers {
		commands += w.commands
	}
	all := durable.begin()
	if csts := writers[0].shutdown(); csts&nvme.CSTSFatal != 0 {
		t.Errorf("CSTS is %#x", csts)
	}
	durable.flushed(all)
	if image := c.Disk.Cut(rand.New(rand.NewPCG(seed, 0))); !inFile {
		ok(t, durable.check(image))
	}
	return commands
}

// durableBlocks is what the blocks of a namespace may contain after a power failure.
type durableBlocks struct {
	blocks  [cutBlocks]blockState
	version uint32 // of the last write
	replies int
}

// blockState is a block: what is durable, and what was written since then.
type blockState struct {
	durable uint32 // the version
	since   []blockVersion
}

type blockVersion struct {
	version uint32 // 0: zeros
	reply   int    // the number of the response; 0: there is none yet
}

func (d *durableBlocks) clone() *durableBlocks {
	c := *d
	for i := range c.blocks {
		c.blocks[i].since = slices.Clone(c.blocks[i].since)
	}
	return &c
}

// begin returns the number of the last response.
func (d *durableBlocks) begin() int { return d.replies }

// written is called when a block is being written. With the response, its number is set.
func (d *durableBlocks) written(block int, version uint32) {
	b := &d.blocks[block]
	b.since = append(b.since, blockVersion{version: version})
}

// completed is called with the response of a write.
func (d *durableBlocks) completed(block int, durable bool) {
	b := &d.blocks[block]
	last := &b.since[len(b.since)-1]
	if last.reply = d.replies; durable {
		b.durable, b.since = last.version, nil
	}
}

// flushed is called when all that was completed up to a response is durable.
func (d *durableBlocks) flushed(reply int) {
	for i := range d.blocks {
		b := &d.blocks[i]
		for len(b.since) > 0 && b.since[0].reply != 0 && b.since[0].reply <= reply {
			b.durable, b.since = b.since[0].version, b.since[1:]
		}
	}
}

// check returns an error unless the namespace may have the content.
func (d *durableBlocks) check(content []byte) error {
	want := make([]byte, 512)
	for i, b := range d.blocks {
		got := content[i*512:][:512]
		if fillBlock(want, i, b.durable); slices.Equal(got, want) {
			continue
		}
		if !slices.ContainsFunc(b.since, func(v blockVersion) bool {
			fillBlock(want, i, v.version)
			return slices.Equal(got, want)
		}) {
			return fmt.Errorf("block %d is %#x…, not of version %d, nor of %v", i, got[:8], b.durable, b.since)
		}
	}
	return nil
}

// fillBlock makes the data of a version of a block.
func fillBlock(b []byte, block int, version uint32) {
	if clear(b); version == 0 {
		return
	}
	for i := 0; i < len(b); i += 8 {
		binary.BigEndian.PutUint32(b[i:], version)
		binary.BigEndian.PutUint32(b[i+4:], uint32(block<<8|i/8))
	}
}

// blockWriter is a host that changes its part of the namespace. The mutex of cuts protects durable.
type blockWriter struct {
	*association
	cuts     *powercut.Cuts
	durable  *durableBlocks
	random   *rand.Rand
	first    int // of its blocks
	commands int
	noCache  bool // all its writes are durable
}

// pending is a command without a response.
type pending struct {
	blocks  []int
	durable bool
	flush   bool
	begun   int
}

// change sends some commands at a time, and waits for the responses.
func (w *blockWriter) change() {
	if w.random.IntN(50) == 0 {
		w.setCache()
	}
	waiting, used := map[uint16]pending{}, map[int]bool{}
	for slot := range 1 + w.random.IntN(8) {
		c, inline, p, version := w.command(slot)
		if slices.ContainsFunc(p.blocks, func(b int) bool { return used[b] }) {
			continue // two writes to a block at a time have no order
		}
		for _, b := range p.blocks {
			used[b] = true
		}
		w.cuts.Lock()
		p.begun = w.durable.begin()
		for _, b := range p.blocks {
			w.durable.written(b, version)
		}
		w.cuts.Unlock()
		waiting[w.io[0].send(c, inline)] = p
		w.commands++
	}
	for len(waiting) > 0 {
		done, err := w.io[0].response()
		ok(w.t, err)
		ok(w.t, done.Status.Err())
		p, sent := waiting[done.CID]
		if !sent {
			w.t.Errorf("a response to command %d, not to one of %v", done.CID, slices.Sorted(maps.Keys(waiting)))
			return
		}
		delete(waiting, done.CID)
		w.cuts.Lock()
		w.durable.replies++
		for _, b := range p.blocks {
			w.durable.completed(b, p.durable)
		}
		if p.flush {
			w.durable.flushed(p.begun)
		}
		w.cuts.Reply()
		w.cuts.Unlock()
	}
}

// setCache turns the write cache off or on. Off is a Flush too.
func (w *blockWriter) setCache() {
	w.cuts.Lock()
	begun := w.durable.begin()
	w.cuts.Unlock()
	w.noCache = !w.noCache
	c := nvme.Command{Opcode: nvme.SetFeatures, CDW10: uint32(nvme.FeatureVolatileCache)}
	if !w.noCache {
		c.CDW11 = 1
	}
	w.admin.want(c, nil, nvme.Success)
	w.cuts.Lock()
	defer w.cuts.Unlock()
	if w.noCache {
		w.durable.flushed(begun)
	}
	w.cuts.Reply()
}

// command returns a random command. Its data is in a slot of the queue's memory, or in the capsule.
func (w *blockWriter) command(slot int) (c nvme.Command, inline []byte, p pending, version uint32) {
	const slotLen = 64 << 10
	span := func(most int) (at, n int) {
		n = 1 + w.random.IntN(most)
		at = w.first + w.random.IntN(cutBlocks/cutHosts-n)
		for i := range n {
			p.blocks = append(p.blocks, at+i)
		}
		return at, n
	}
	p.durable = w.noCache
	fua := uint32(0)
	if w.random.IntN(5) == 0 {
		fua, p.durable = nvme.ForceUnitAccess, true
	}
	switch k := w.random.IntN(20); {
	case k < 11:
		w.cuts.Lock()
		w.durable.version++
		version = w.durable.version
		w.cuts.Unlock()
		most := slotLen / 512
		if k < 6 {
			most = 16
		}
		at, n := span(most)
		data := make([]byte, n*512)
		for i := range n {
			fillBlock(data[i*512:][:512], at+i, version)
		}
		c = rw(nvme.Write, uint64(at), uint32(n))
		if k < 6 {
			c.SGL, inline = nvme.InCapsule(uint32(len(data))), data
		} else {
			copy(w.io[0].data.Buf()[slot*slotLen:], data)
			c.SGL = w.io[0].keyed(slot*slotLen, len(data))
		}
		c.CDW12 |= fua
	case k < 14:
		at, n := span(64)
		c = rw(nvme.WriteZeroes, uint64(at), uint32(n))
		c.CDW12 |= fua
		if w.random.IntN(2) == 0 {
			c.CDW12 |= nvme.Deallocate
		}
	case k < 17:
		p.durable = w.noCache // there is no ForceUnitAccess
		ranges := 1 + w.random.IntN(3)
		for len(inline) < ranges*nvme.DSMRangeLen {
			at, n := span(64)
			r := nvme.DSMRange{SLBA: uint64(at), Blocks: uint32(n)}
			inline = r.Append(inline)
		}
		slices.Sort(p.blocks)
		p.blocks = slices.Compact(p.blocks)
		c = nvme.Command{Opcode: nvme.DatasetManagement, NSID: 1, CDW10: uint32(ranges - 1), CDW11: nvme.DSMDeallocate,
			SGL: nvme.InCapsule(uint32(len(inline)))}
	default:
		p.flush, c = true, rw(nvme.Flush, 0, 1)
		if k == 19 {
			c = nvme.Command{Opcode: nvme.Flush, NSID: nvme.AllNamespaces}
		}
	}
	return c, inline, p, version
}
