package target_test

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/softrnic/softrnic/link/impair"
	"github.com/softrnic/softrnic/link/pipe"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/netstack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

const page = 64 << 10

// Data of a Memory is not copied, except parts of pages that are written, and what is in capsules.
func TestCopiedBytes(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		l := newLab(t, transport, nil)
		q := l.associate(1, 0).io[0]
		for _, c := range []struct {
			op              nvme.Opcode
			off, n          int
			inline          bool
			copied, handled uint64
		}{
			{nvme.Read, 0, 512, false, 0, 512},
			{nvme.Read, 0, 1 << 20, false, 0, 1 << 20},
			{nvme.Read, page - 512, 1 << 20, false, 0, 1 << 20},
			{nvme.Write, 0, 512, false, 512, 512},
			{nvme.Write, 0, 512, true, 512, 512},
			{nvme.Write, page - 512, 1024, false, 1024, 1024},
			{nvme.Write, page - 512, page, false, page, page},
			{nvme.Write, page, page, false, 0, page},
			{nvme.Write, page, 1 << 20, false, 0, 1 << 20},
			{nvme.Write, page - 512, 1 << 20, false, page, 1 << 20},
			{nvme.Compare, 0, 1 << 20, false, 0, 0},
			{nvme.Read, 0, 1 << 20, false, 0, 1 << 20}, // from pages in several slabs
		} {
			before := l.target.Stats()
			cmd := rw(c.op, uint64(c.off/512), uint32(c.n/512))
			cmd.SGL = q.keyed(0, c.n)
			var inline []byte
			if c.inline {
				cmd.SGL, inline = nvme.InCapsule(uint32(c.n)), make([]byte, c.n)
			}
			clear(q.data.Buf())
			q.want(cmd, inline, nvme.Success)
			after := l.target.Stats()
			copied := after.CopiedBytes - before.CopiedBytes
			handled := after.ReadBytes + after.WrittenBytes - before.ReadBytes - before.WrittenBytes
			if copied != c.copied || handled != c.handled {
				t.Errorf("%s of %d bytes at %d: %d are counted and %d copied, want %d and %d", c.op.Name(false), c.n, c.off, handled,
					copied, c.handled, c.copied)
			}
		}
	})
}

// Blocks of overlapping commands have the data of one Write each, in a subsystem with little memory
// too.
func TestOverlap(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		const block, size = 4096, 4 * page
		for _, memory := range []int{1 << 20, 64 << 20} {
			l := newLab(t, transport, &target.Config{Memory: memory,
				Namespaces: []target.Namespace{{Backend: target.NewMemory(size), BlockSize: block}}})
			var hosts sync.WaitGroup
			for i := range uint64(4) {
				q := l.associate(1, 0).io[0]
				random := rand.New(rand.NewPCG(i, 0))
				hosts.Go(func() {
					for k := range 50 {
						first, n := random.IntN(size/block), 1
						if random.IntN(2) == 0 {
							first = first / (page / block) * (page / block)
							n = min(size/block-first, (1+random.IntN(2))*page/block)
						}
						data := q.data.Buf()[:n*block]
						op := nvme.Read
						if i%2 == 0 {
							op = nvme.Write
							for at := range data {
								data[at] = byte(1 + i + uint64(k))
							}
						}
						cmd := rw(op, uint64(first), uint32(n))
						cmd.SGL = q.keyed(0, len(data))
						q.want(cmd, nil, nvme.Success)
						for b := 0; b < len(data); b += block {
							if bytes.Count(data[b:b+block], data[b:b+1]) != block {
								t.Errorf("block %d of a %s has data of several Writes", first+b/block, op.Name(false))
							}
						}
					}
				})
			}
			hosts.Wait()
		}
	})
}

// A Read has the content of when it was executed, although another host changes it before the data
// arrives. The other host does not wait for that.
func TestSlowRead(t *testing.T) { synctest.Test(t, slowRead) }

// slowLab is a lab whose host gets no data while cut is set.
func slowLab(t *testing.T, lan *pipe.Switch, cut *atomic.Bool, cfg *target.Config) *lab {
	t.Helper()
	wire, err := impair.New(lan.Port(), &impair.Config{
		In: impair.Direction{Rules: []impair.Rule{{Match: func(frame []byte) bool { return cut.Load() && len(frame) > 1000 }, Count: -1}}}})
	ok(t, err)
	host, err := netstack.New(wire, &netstack.Config{Addrs: []string{"10.0.0.2/24"}})
	ok(t, err)
	from, err := rdmatransport.Open(host, nil)
	ok(t, err)
	t.Cleanup(func() {
		from.Close()
		host.Close()
	})
	return labOn(t, open(t, lan, "10.0.0.1/24"), from, netip.MustParseAddr("10.0.0.1"), verbs.RoCEv2, cfg)
}

func slowRead(t *testing.T) {
	const n = 1 << 20 // bytes
	lan := new(pipe.Switch)
	var cut atomic.Bool
	disk := target.NewMemory(n)
	slow := slowLab(t, lan, &cut, &target.Config{Namespaces: []target.Namespace{{Backend: disk}}})
	quick := *slow
	quick.from = open(t, lan, "10.0.0.3/24")
	a, b := slow.associate(1, 0).io[0], quick.associate(1, 0).io[0]
	old := bytes.Repeat([]byte("old "), n/4)
	_, err := disk.WriteAt(old, 0)
	ok(t, err)

	cut.Store(true)
	read := rw(nvme.Read, 0, n/512)
	read.SGL = a.keyed(0, n)
	a.send(read, nil)
	synctest.Wait()
	if s := slow.target.Stats(); s.Reads != 1 || s.CopiedBytes != 0 {
		t.Fatalf("%+v", s)
	}
	want := bytes.Clone(old)
	for off, data := range map[int][]byte{0: bytes.Repeat([]byte("new "), n/8), n/2 + 512: bytes.Repeat([]byte("part"), 3*512/4)} {
		write := rw(nvme.Write, uint64(off/512), uint32(len(data)/512))
		write.SGL = b.keyed(0, len(data))
		copy(b.data.Buf(), data)
		b.want(write, nil, nvme.Success)
		copy(want[off:], data)
	}
	const zeros = n/2 + 3*page
	b.want(rw(nvme.WriteZeroes, zeros/512, 300), nil, nvme.Success)
	clear(want[zeros:][:300*512])
	if got, done := b.reads(rw(nvme.Read, 0, n/512), n); done.Status != nvme.Success || !bytes.Equal(got, want) {
		t.Errorf("the other host's Read: %v, the data is right: %v", done.Status, bytes.Equal(got, want))
	}
	disk.Resize(0)
	disk.Resize(n)

	cut.Store(false)
	done, err := a.response()
	ok(t, err)
	if done.Status != nvme.Success || !bytes.Equal(a.data.Buf()[:n], old) {
		t.Errorf("%v, or data that was written after the Read", done.Status)
	}
}

// A Read that waits for memory has the data of one Write on each page.
func TestAtomicRead(t *testing.T) { synctest.Test(t, atomicRead) }

func atomicRead(t *testing.T) {
	const n = 1 << 20 // bytes, of the content and of Config.Memory
	var cut atomic.Bool
	disk := target.NewMemory(n)
	l := slowLab(t, new(pipe.Switch), &cut, &target.Config{Memory: n, Namespaces: []target.Namespace{{Backend: disk}}})
	q := l.associate(1, 0).io[0]

	cut.Store(true)
	for _, c := range []struct{ off, n int }{
		{0, n},               // uses as many pages as commands may
		{0, n - page},        // uses the pool but for one chunk
		{page / 2, 2 * page}, // waits, after its first part
	} {
		read := rw(nvme.Read, uint64(c.off/512), uint32(c.n/512))
		read.SGL = q.keyed(0, c.n)
		q.send(read, nil)
		synctest.Wait()
	}
	if s := l.target.Stats(); s.Reads != 3 || s.CopiedBytes == 0 || s.CopiedBytes >= n+page {
		t.Fatalf("%+v", s)
	}
	_, err := disk.WriteAt(bytes.Repeat([]byte{1}, n), 0)
	ok(t, err)
	cut.Store(false)
	for range 3 {
		done, err := q.response()
		ok(t, err)
		ok(t, done.Status.Err())
	}
	if got := q.data.Buf()[page/2:][:page]; bytes.Count(got, got[:1]) != page {
		t.Errorf("%d of %d bytes of a page are new", bytes.Count(got, []byte{1}), page)
	}
}

// A Write changes all of its part of a page, or nothing if the host's memory ends before.
func TestAtomicWrite(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		const at = page / 2 // of the Write, in the content
		disk := target.NewMemory(4 * page)
		l := newLab(t, transport, &target.Config{Namespaces: []target.Namespace{{Backend: disk}}})
		for n := page + 4096; n < 3*page; n += page / 4 { // bytes
			q := l.associate(1, 0).io[0]
			copy(q.data.Buf(), bytes.Repeat([]byte{1}, q.data.Length()))
			write := rw(nvme.Write, at/512, uint32(n/512))
			write.SGL = q.keyed(q.data.Length()-n+512, n)
			q.send(write, nil)
			q.ended()
			got := make([]byte, 4*page)
			_, err := disk.ReadAt(got, 0)
			ok(t, err)
			last := got[(at+n-1)/page*page : at+n]
			if k := bytes.Count(last, []byte{1}); k != 0 && k != len(last) {
				t.Errorf("Write of %d bytes: %d of %d bytes of the last page are new", n, k, len(last))
			}
			ok(t, disk.Zero(0, 4*page))
		}
	})
}

// Data beyond a smaller size is lost, and the rest is not.
func TestResize(t *testing.T) {
	m := target.NewMemory(10 * page)
	want := bytes.Repeat([]byte{7}, 10*page)
	_, err := m.WriteAt(want, 0)
	ok(t, err)
	for _, size := range []int{9*page + 5, 4 * page, 4*page - 1, 100, 0} {
		m.Resize(size)
		m.Resize(10 * page)
		clear(want[size:])
		got := make([]byte, 10*page)
		if n, err := m.ReadAt(got, 0); n != len(got) || err != nil || !bytes.Equal(got, want) {
			t.Errorf("after %d bytes: %d bytes, %v, the data is right: %v", size, n, err, bytes.Equal(got, want))
		}
	}
	if m.Resize(5); m.Size() != 5 {
		t.Errorf("the size is %d", m.Size())
	}
}
