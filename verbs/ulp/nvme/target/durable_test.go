package target_test

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/tests/stacktest"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

// disk is a backend whose Sync fails once with err, as that of a file system, and takes as long as
// the test wants.
type disk struct {
	content  *target.Memory
	err      atomic.Pointer[error]
	entered  chan struct{} // nil: Sync does not wait
	leave    chan struct{}
	syncs    atomic.Int32
	at, most atomic.Int32 // calls of Sync at the same time
	noWrites atomic.Bool
}

func newDisk() *disk { return &disk{content: target.NewMemory(1 << 20)} }

func (d *disk) ReadAt(p []byte, off int64) (int, error) { return d.content.ReadAt(p, off) }
func (d *disk) Size() int64                             { return d.content.Size() }
func (d *disk) Discard(off, n int64) error              { return d.content.Discard(off, n) }

func (d *disk) WriteAt(p []byte, off int64) (int, error) {
	if d.noWrites.Load() {
		return 0, syscall.EIO
	}
	return d.content.WriteAt(p, off)
}

func (d *disk) fail(err error) { d.err.Store(&err) }

func (d *disk) Sync() error {
	d.syncs.Add(1)
	n := d.at.Add(1)
	defer d.at.Add(-1)
	for m := d.most.Load(); n > m && !d.most.CompareAndSwap(m, n); m = d.most.Load() {
	}
	err := d.err.Swap(nil)
	if d.entered != nil {
		d.entered <- struct{}{}
		<-d.leave
	}
	if err != nil {
		return *err
	}
	return nil
}

// write returns a Write of a block with its data in the capsule.
func write(flags uint32) nvme.Command {
	w := rw(nvme.Write, 1, 1)
	w.SGL = nvme.InCapsule(512)
	w.CDW12 |= flags
	return w
}

func writeZeroes(flags uint32) nvme.Command {
	z := rw(nvme.WriteZeroes, 4, 2)
	z.CDW12 |= flags
	return z
}

var block = make([]byte, 512)

const shutDown = nvme.CCEnable | nvme.CCEntrySizes | nvme.CCShutNormal

// shutdown shuts the controller down. It returns CSTS when that says how it has ended.
func (a *association) shutdown() uint64 {
	a.t.Helper()
	a.admin.want(nvme.PropertySetCommand(nvme.PropertyCC, shutDown), nil, nvme.Success)
	for end := time.Now().Add(30 * time.Second); ; {
		csts := a.admin.do(nvme.PropertyGetCommand(nvme.PropertyCSTS), nil).Result
		if csts&(3<<2|nvme.CSTSFatal) != 0 {
			return csts
		}
		if time.Now().After(end) {
			a.t.Fatalf("the shutdown does not end: CSTS is %#x", csts)
		}
	}
}

// promises are the replies that say that data is durable. Each returns its status. prepare, if not
// nil, is called before the failure.
var promises = []struct {
	name           string
	prepare, reply func(a *association) nvme.Status
}{
	{"Flush", nil, func(a *association) nvme.Status { return a.io[0].do(rw(nvme.Flush, 0, 1), nil).Status }},
	{"Flush of all namespaces", nil, func(a *association) nvme.Status {
		return a.io[0].do(nvme.Command{Opcode: nvme.Flush, NSID: nvme.AllNamespaces}, nil).Status
	}},
	{"Write with FUA", nil, func(a *association) nvme.Status { return a.io[0].do(write(nvme.ForceUnitAccess), block).Status }},
	{"Write by key with FUA", nil, func(a *association) nvme.Status {
		w := write(nvme.ForceUnitAccess)
		w.SGL = a.io[0].keyed(0, 512)
		return a.io[0].do(w, nil).Status
	}},
	{"Write Zeroes with FUA", nil, func(a *association) nvme.Status { return a.io[0].do(writeZeroes(nvme.ForceUnitAccess), nil).Status }},
	{"Write without a cache", cacheOff, func(a *association) nvme.Status { return a.io[0].do(write(0), block).Status }},
	{"Write Zeroes without a cache", cacheOff, func(a *association) nvme.Status { return a.io[0].do(writeZeroes(0), nil).Status }},
	{"deallocation without a cache", cacheOff, func(a *association) nvme.Status {
		c := nvme.Command{Opcode: nvme.DatasetManagement, NSID: 1, CDW11: nvme.DSMDeallocate, SGL: nvme.InCapsule(nvme.DSMRangeLen)}
		r := nvme.DSMRange{SLBA: 4, Blocks: 4}
		return a.io[0].do(c, r.Append(nil)).Status
	}},
	{"the cache is disabled", nil, cacheOff},
	{"shutdown", nil, func(a *association) nvme.Status {
		if csts := a.shutdown(); csts&nvme.CSTSFatal != 0 && csts&(3<<2) != nvme.CSTSShutComplete {
			return nvme.WriteFault | nvme.DoNotRetry // it has no status
		}
		return nvme.Success
	}},
}

func cacheOff(a *association) nvme.Status {
	return a.admin.do(nvme.Command{Opcode: nvme.SetFeatures, CDW10: uint32(nvme.FeatureVolatileCache)}, nil).Status
}

// Each reply that promises that data is durable fails if it is not. From then on all of them do, to
// each host, also to one that connects afterwards.
func TestLostData(t *testing.T) {
	const lost = nvme.WriteFault | nvme.DoNotRetry
	for _, first := range promises {
		t.Run(first.name, func(t *testing.T) {
			t.Parallel()
			d := newDisk()
			l := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{{Backend: d}, {Backend: newDisk()}}})
			a, b := l.associate(1, 0), l.associate(1, 0)
			for _, h := range []*association{a, b} {
				h.io[0].want(write(0), block, nvme.Success)
			}
			if first.prepare != nil {
				ok(t, first.prepare(a).Err())
			}
			d.fail(syscall.EIO)
			if s := first.reply(a); s != lost {
				t.Fatalf("%v (%#x), want %v, not to be repeated", s, uint16(s), nvme.WriteFault)
			}
			for i, then := range promises {
				h := b
				if i%2 == 1 {
					h = l.associate(1, 0)
				}
				if then.prepare != nil {
					_ = then.prepare(h) // it fails too
				}
				if s := then.reply(h); s != lost {
					t.Errorf("then %s: %v (%#x)", then.name, s, uint16(s))
				}
			}
			// Other namespaces and replies that promise nothing of the kind are as before.
			c := l.associate(1, 0)
			c.io[0].want(write(0), block, nvme.Success)
			c.io[0].want(nvme.Command{Opcode: nvme.Flush, NSID: 2}, nil, nvme.Success)
			if _, done := c.io[0].reads(rw(nvme.Read, 1, 1), 512); done.Status != nvme.Success {
				t.Errorf("read: %v", done.Status)
			}
			if s := l.target.Stats(); s.Lost != 1 {
				t.Errorf("%d namespaces have lost data", s.Lost)
			}
			p := nvme.LogParams{Page: nvme.LogSMART, Length: nvme.SMARTLen}
			page, _ := c.admin.reads(p.Command(), nvme.SMARTLen)
			if s := must(nvme.ParseSMART(page))(t); s.CriticalWarning != nvme.WarnReliability {
				t.Errorf("critical warning %#x", s.CriticalWarning)
			}
		})
	}
}

// The status of a full file system is that of Linux's target. A write that fails at once loses
// nothing that was acknowledged: later flushes succeed.
func TestWriteFails(t *testing.T) {
	d := newDisk()
	a := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{{Backend: d}}}).associate(1, 0)
	q := a.io[0]
	d.noWrites.Store(true)
	for _, c := range []nvme.Command{write(0), write(nvme.ForceUnitAccess), writeZeroes(0)} {
		if s := q.do(c, block[:c.SGL.Length]).Status; s != nvme.WriteFault|nvme.DoNotRetry {
			t.Errorf("%s: %v (%#x)", c.Opcode.Name(false), s, uint16(s))
		}
	}
	d.noWrites.Store(false)
	q.want(rw(nvme.Flush, 0, 1), nil, nvme.Success)
	d.fail(fmt.Errorf("sync disk: %w", syscall.ENOSPC))
	for range 2 {
		if s := q.do(rw(nvme.Flush, 0, 1), nil).Status; s != nvme.CapacityExceeded|nvme.DoNotRetry {
			t.Errorf("%v (%#x)", s, uint16(s))
		}
	}
}

// However many hosts flush and shut down, one Sync runs, and those who come meanwhile share the
// next. Its error is theirs too.
func TestSyncsAtOnce(t *testing.T) {
	d := newDisk()
	d.entered, d.leave = make(chan struct{}), make(chan struct{})
	l := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{{Backend: d}}})
	a, b := l.associate(1, 0), l.associate(1, 0)
	first := a.io[0].send(rw(nvme.Flush, 0, 1), nil)
	<-d.entered
	const many = 20
	for range many {
		a.io[0].send(rw(nvme.Flush, 0, 1), nil)
		b.io[0].send(rw(nvme.Flush, 0, 1), nil)
	}
	for range 200 {
		b.admin.want(nvme.PropertySetCommand(nvme.PropertyCC, shutDown), nil, nvme.Success)
		b.admin.want(nvme.PropertySetCommand(nvme.PropertyCC, nvme.CCEnable|nvme.CCEntrySizes), nil, nvme.Success)
	}
	for _, q := range []*queue{a.io[0], b.io[0]} { // they have been received before this one is answered
		q.reads(rw(nvme.Read, 1, 1), 512)
	}
	d.fail(syscall.EIO) // of the next
	d.leave <- struct{}{}
	if done, err := a.io[0].response(); err != nil || done.CID != first || done.Status != nvme.Success {
		t.Errorf("the first: %+v, %v", done, err)
	}
	<-d.entered
	d.leave <- struct{}{}
	for range many {
		for _, q := range []*queue{a.io[0], b.io[0]} {
			if done, err := q.response(); err != nil || done.Status.Code() != nvme.WriteFault {
				t.Fatalf("%+v, %v", done, err)
			}
		}
	}
	if csts := b.shutdown(); csts&nvme.CSTSFatal == 0 {
		t.Errorf("CSTS is %#x after data was lost", csts)
	}
	if n, most := d.syncs.Load(), d.most.Load(); n != 2 || most != 1 {
		t.Errorf("%d calls of Sync, %d at the same time", n, most)
	}
}

// A shutdown that begins while another one of the controller is flushed is complete when writes of
// between are durable.
func TestShutdownAgain(t *testing.T) {
	d := newDisk()
	d.entered, d.leave = make(chan struct{}), make(chan struct{})
	a := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{{Backend: d}}}).associate(1, 0)
	status := func() uint64 { return a.admin.do(nvme.PropertyGetCommand(nvme.PropertyCSTS), nil).Result }
	for range 3 {
		a.admin.want(nvme.PropertySetCommand(nvme.PropertyCC, nvme.CCEnable|nvme.CCEntrySizes), nil, nvme.Success)
		a.admin.want(nvme.PropertySetCommand(nvme.PropertyCC, shutDown), nil, nvme.Success)
	}
	for range 2 {
		<-d.entered
		if csts := status(); csts != nvme.CSTSReady {
			t.Errorf("CSTS is %#x before writes are durable", csts)
		}
		d.leave <- struct{}{}
	}
	if csts := a.shutdown(); csts != nvme.CSTSReady|nvme.CSTSShutComplete {
		t.Errorf("CSTS is %#x", csts)
	}
	if n := d.syncs.Load(); n != 2 {
		t.Errorf("%d calls of Sync", n)
	}
}

// A connection whose Flush, or shutdown, waits for a slow disk counts until that has ended,
// although its host has left. Otherwise hosts that connect again and again would take any amount of
// memory.
func TestLeavesDuringSync(t *testing.T) {
	for name, begin := range map[string]func(a *association){
		"Flush":    func(a *association) { a.io[0].send(rw(nvme.Flush, 0, 1), nil) },
		"shutdown": func(a *association) { a.admin.send(nvme.PropertySetCommand(nvme.PropertyCC, shutDown), nil) },
	} {
		t.Run(name, func(t *testing.T) {
			d := newDisk()
			d.entered, d.leave = make(chan struct{}), make(chan struct{})
			l := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{{Backend: d}}})
			a := l.associate(1, 0)
			begin(a)
			<-d.entered
			defer close(d.leave)
			a.io[0].close()
			a.admin.close()
			stacktest.AwaitWaiting(t, "target.(*queue).close", "sync.WaitGroup.Wait")
			if n := l.target.Stats().Queues; n == 0 {
				t.Error("the connection does not count")
			}
		})
	}
}

// Blocks that are in many ranges of a list are discarded once.
func TestDeallocateMuch(t *testing.T) {
	const size = 64 << 20
	d := &counting{Memory: target.NewMemory(size)}
	q := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{{Backend: d}}}).associate(1, 0).io[0]
	var list []byte
	for i := range uint64(256) {
		r := nvme.DSMRange{SLBA: i, Blocks: size/512 - uint32(i)}
		list = r.Append(list)
	}
	c := nvme.Command{Opcode: nvme.DatasetManagement, NSID: 1, CDW10: 255, CDW11: nvme.DSMDeallocate, SGL: nvme.InCapsule(uint32(len(list)))}
	q.want(c, list, nvme.Success)
	if n := d.bytes.Load(); n != size {
		t.Errorf("%d bytes are discarded, want %d", n, size)
	}
}

// counting counts the bytes that are discarded.
type counting struct {
	*target.Memory
	bytes  atomic.Int64
	inside chan struct{} // nil: Discard does not wait
	leave  chan struct{}
}

func (c *counting) Discard(off, n int64) error {
	c.bytes.Add(n)
	if c.inside != nil {
		c.inside <- struct{}{}
		<-c.leave
	}
	return c.Memory.Discard(off, n)
}

// Close does not wait for all that hosts have asked for: what has begun ends soon, and what waits
// does not begin.
func TestCloseWhileBusy(t *testing.T) {
	const size, once = 256 << 20, 16 << 20
	d := &counting{Memory: target.NewMemory(size), inside: make(chan struct{}), leave: make(chan struct{})}
	l := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{{Backend: d}}})
	q := l.associate(1, 0).io[0]
	r := nvme.DSMRange{Blocks: size / 512}
	c := nvme.Command{Opcode: nvme.DatasetManagement, NSID: 1, CDW11: nvme.DSMDeallocate, SGL: nvme.InCapsule(nvme.DSMRangeLen)}
	q.send(c, r.Append(nil))
	<-d.inside
	closed := make(chan error, 1)
	go func() { closed <- l.target.Close() }()
	ok(t, l.target.Wait())
	close(d.leave)
	ok(t, <-closed)
	if n := d.bytes.Load(); n != once {
		t.Errorf("%d bytes are discarded, want %d", n, once)
	}
}

// slowReads is a backend whose reads take as long as the test wants.
type slowReads struct {
	*disk
	most, at atomic.Int32
	leave    chan struct{}
}

func (s *slowReads) ReadAt(p []byte, off int64) (int, error) {
	n := s.at.Add(1)
	for m := s.most.Load(); n > m && !s.most.CompareAndSwap(m, n); m = s.most.Load() {
	}
	<-s.leave
	s.at.Add(-1)
	return 0, errors.New("it is slow")
}

// TestBlockedReadsOfAll: nine hosts do not have more operations that block than a target may have,
// and another host is served beside them.
func TestBlockedReadsOfAll(t *testing.T) {
	const limit = 512
	s := &slowReads{disk: newDisk(), leave: make(chan struct{})}
	lan := new(pipe.Switch)
	l := labOn(t, open(t, lan, "10.0.0.1/24"), open(t, lan, "10.0.0.2/24"), netip.MustParseAddr("10.0.0.1"), verbs.RoCEv2,
		&target.Config{Namespaces: []target.Namespace{{Backend: s}, {Backend: target.NewMemory(1 << 20)}}})
	good := l.associate(1, 0).io[0]
	var all []*queue
	const many = testDepth - 2
	for i := range 9 {
		l.from = open(t, lan, fmt.Sprintf("10.0.0.%d/24", 10+i))
		for _, q := range l.associate(3, 0).io {
			all = append(all, q)
			for range many {
				read := rw(nvme.Read, 0, 1)
				read.SGL = q.keyed(0, 512)
				q.send(read, nil)
			}
		}
	}
	for end := time.Now().Add(30 * time.Second); s.at.Load() < limit; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d reads at the same time", s.at.Load())
		}
	}
	w := rw(nvme.Write, 0, 1)
	w.NSID, w.SGL = 2, good.keyed(0, 512)
	good.want(w, nil, nvme.Success)
	close(s.leave)
	for _, q := range all {
		for range many {
			if done, err := q.response(); err != nil || done.Status.Code() != nvme.UnrecoveredReadError {
				t.Fatalf("%+v, %v", done, err)
			}
		}
	}
	if most := s.most.Load(); most != limit || l.target.Stats().WaitedForWorkers == 0 {
		t.Errorf("%d reads at the same time, want %d", most, limit)
	}
}

// Reads that block occupy a limited number of threads, whatever the number of queues.
func TestBlockedReads(t *testing.T) {
	const limit = 64
	s := &slowReads{disk: newDisk(), leave: make(chan struct{})}
	l := newLab(t, verbs.RoCEv2, &target.Config{Namespaces: []target.Namespace{{Backend: s}}})
	a := l.associate(4, 0)
	const many = testDepth - 2
	for _, q := range a.io {
		for range many {
			read := rw(nvme.Read, 0, 1)
			read.SGL = q.keyed(0, 512)
			q.send(read, nil)
		}
	}
	for end := time.Now().Add(30 * time.Second); s.at.Load() < limit; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d reads at the same time", s.at.Load())
		}
	}
	close(s.leave)
	for _, q := range a.io {
		for range many {
			if done, err := q.response(); err != nil || done.Status.Code() != nvme.UnrecoveredReadError {
				t.Fatalf("%+v, %v", done, err)
			}
		}
	}
	if l.target.Stats().WaitedForWorkers == 0 {
		t.Error("no operation has waited")
	}
	if most := s.most.Load(); most != limit {
		t.Errorf("%d reads at the same time, want %d", most, limit)
	}
}
