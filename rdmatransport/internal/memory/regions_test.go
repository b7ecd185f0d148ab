package memory_test

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/verbs"
)

// device is a provider with memory regions and nothing else.
type device struct {
	verbs.Provider
	*memory.Regions
	made *verbs.QPHandle // the last QP's
}

func (d device) QueryDevice() verbs.DeviceAttr {
	return verbs.DeviceAttr{MaxMRSize: 1 << 40, MaxMR: 1 << 20, MaxPD: 10, MaxMW: 100, MaxQP: 10, MaxCQ: 10, MaxCQE: 10}
}
func (d device) RegMR(mr *verbs.MR) (lkey, rkey uint32, err error) { return d.Register(mr) }
func (d device) DeregMR(mr *verbs.MR)                              { d.Deregister(mr) }

func (d device) Watch(func(verbs.AsyncEventType, uint8)) {}
func (d device) AllocMW(mw *verbs.MW) (uint32, error)    { return d.AllocWindow(mw) }
func (d device) DeallocMW(mw *verbs.MW)                  { d.DeallocWindow(mw) }

func (d device) CreateQP(h verbs.QPHandle, _ *verbs.QPInitAttr) (verbs.ProviderQP, uint32, error) {
	*d.made = h
	return nil, 1, nil
}

const all = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead | verbs.AccessRemoteAtomic

// setup returns regions and two protection domains.
func setup(t testing.TB, random io.Reader) (r *memory.Regions, pd, other *verbs.PD) {
	t.Helper()
	r = memory.NewRegions(random)
	dev, err := verbs.Open(device{Regions: r, made: &made})
	if err != nil {
		t.Fatal(err)
	}
	var pds [2]*verbs.PD
	for i := range pds {
		if pds[i], err = dev.AllocPD(); err != nil {
			t.Fatal(err)
		}
	}
	return r, pds[0], pds[1]
}

// made returns the handle of the last QP. The tests of this package do not run in parallel.
var made verbs.QPHandle

// newQP creates a QP that has a PD and nothing else.
func newQP(t testing.TB, pd *verbs.PD) verbs.QPHandle {
	t.Helper()
	cq, err := pd.Device().CreateCQ(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, SendCQ: cq, RecvCQ: cq}); err != nil {
		t.Fatal(err)
	}
	return made
}

func register(t testing.TB, pd *verbs.PD, buf []byte, access verbs.Access) *verbs.MR {
	t.Helper()
	mr, err := pd.RegMR(buf, access)
	if err != nil {
		t.Fatal(err)
	}
	return mr
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*13 + i>>8)
	}
	return b
}

func TestKeys(t *testing.T) {
	r, pd, _ := setup(t, nil)
	seen := make(map[uint32]bool)
	var last *verbs.MR
	for range 10_000 {
		mr := register(t, pd, make([]byte, 1), all)
		for _, key := range []uint32{mr.LKey(), mr.RKey()} {
			if key == 0 {
				t.Fatal("key 0")
			}
			seen[key] = true
		}
		if last != nil && (mr.LKey()-last.LKey()+1 <= 2 || mr.RKey()-last.RKey()+1 <= 2) {
			t.Errorf("keys %#x, %#x follow %#x, %#x", mr.LKey(), mr.RKey(), last.LKey(), last.RKey())
		}
		last = mr
	}
	if len(seen) < 19_990 { // of 20,000 random numbers of 32 bits, 0.05 are expected twice
		t.Errorf("only %d keys are different", len(seen))
	}
	if r.Len() != 10_000 {
		t.Errorf("Len %d", r.Len())
	}
}

func TestRegisterFails(t *testing.T) {
	// The source fails after 128 numbers: one table has enough, the other none.
	r, pd, _ := setup(t, io.LimitReader(rand.NewChaCha8([32]byte{}), 512))
	if _, err := pd.RegMR(make([]byte, 1), all); !errors.Is(err, io.EOF) {
		t.Errorf("RegMR without randomness: %v", err)
	}
	if r.Len() != 0 {
		t.Errorf("%d regions remain", r.Len())
	}
}

func TestGatherScatter(t *testing.T) {
	r, pd, _ := setup(t, nil)
	src, dst := pattern(1000), make([]byte, 1000)
	from, to := register(t, pd, src, 0), register(t, pd, dst, verbs.AccessLocalWrite)
	list := func(mr *verbs.MR) []verbs.SGE {
		return []verbs.SGE{mr.SGE(500, 100), mr.SGE(0, 0), {Length: 0, LKey: 1}, mr.SGE(0, 1), mr.SGE(7, 250), mr.SGE(999, 1)}
	}
	var want []byte
	for _, e := range list(from) {
		if e.Length > 0 {
			off := int(e.Addr - from.Addr())
			want = append(want, src[off:off+int(e.Length)]...)
		}
	}
	for off := range len(want) + 1 {
		for _, n := range []int{0, 1, 2, 99, 100, 101, 102, 256, len(want)} {
			got := make([]byte, n)
			status := r.Gather(got, pd, list(from), uint64(off), nil)
			if off+n > len(want) {
				if status != verbs.WCLocLenErr {
					t.Fatalf("Gather %d at %d: %v", n, off, status)
				}
				if status := r.Scatter(got, pd, list(to), uint64(off)); status != verbs.WCLocLenErr {
					t.Fatalf("Scatter %d at %d: %v", n, off, status)
				}
				continue
			}
			if status != verbs.WCSuccess || !bytes.Equal(got, want[off:off+n]) {
				t.Fatalf("Gather %d at %d: %v, %x want %x", n, off, status, got, want[off:off+n])
			}
			clear(dst)
			if status := r.Scatter(got, pd, list(to), uint64(off)); status != verbs.WCSuccess {
				t.Fatalf("Scatter %d at %d: %v", n, off, status)
			}
			back, where := make([]byte, len(want)), make([]byte, len(want))
			copy(where[off:], got)
			if r.Gather(back, pd, list(to), 0, nil); !bytes.Equal(back, where) {
				t.Fatalf("Scatter %d at %d placed %x want %x", n, off, back, where)
			}
		}
	}
}

func TestLocalProtection(t *testing.T) {
	r, pd, other := setup(t, nil)
	buf := make([]byte, 100)
	mr := register(t, pd, buf, all)
	readOnly := register(t, pd, buf, verbs.AccessRemoteRead)
	zero, err := pd.RegMR(buf, verbs.AccessLocalWrite|verbs.AccessZeroBased)
	if err != nil {
		t.Fatal(err)
	}
	// Ends at 2^64.
	top, err := pd.RegMREx(&verbs.MRInitAttr{Buf: buf, IOVA: new(uint64(1<<64 - 100)), Access: verbs.AccessLocalWrite})
	if err != nil {
		t.Fatal(err)
	}
	gone := register(t, pd, buf, all)
	stale := gone.SGE(0, 10)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	const ok, prot = verbs.WCSuccess, verbs.WCLocProtErr
	for _, c := range []struct {
		name            string
		pd              *verbs.PD
		sge             verbs.SGE
		gather, scatter verbs.WCStatus
	}{
		{"all of it", pd, mr.SGE(0, 100), ok, ok},
		{"one byte too many", pd, mr.SGE(0, 101), prot, prot},
		{"one byte after", pd, mr.SGE(100, 1), prot, prot},
		{"one byte before", pd, mr.SGE(-1, 1), prot, prot},
		{"address wraps", pd, verbs.SGE{Addr: 1<<64 - 1, Length: 1<<32 - 1, LKey: mr.LKey()}, prot, prot},
		{"address 0", pd, verbs.SGE{Length: 1, LKey: mr.LKey()}, prot, prot},
		{"other PD", other, mr.SGE(0, 1), prot, prot},
		{"rkey for lkey", pd, verbs.SGE{Addr: mr.Addr(), Length: 1, LKey: mr.RKey()}, prot, prot},
		{"key 0", pd, verbs.SGE{Addr: mr.Addr(), Length: 1}, prot, prot},
		{"deregistered", pd, stale, prot, prot},
		{"no local write", pd, readOnly.SGE(0, 1), ok, prot},
		{"zero-based", pd, verbs.SGE{Addr: 99, Length: 1, LKey: zero.LKey()}, ok, ok},
		{"zero-based, after the end", pd, verbs.SGE{Addr: 100, Length: 1, LKey: zero.LKey()}, prot, prot},
		{"top of the address space", pd, top.SGE(99, 1), ok, ok},
		{"beyond the address space", pd, top.SGE(99, 2), prot, prot},
		{"nothing, of no region", other, verbs.SGE{Addr: 1}, ok, ok},
	} {
		// Also after a valid SGE.
		for _, sgl := range [][]verbs.SGE{{c.sge}, {readOnly.SGE(0, 3), c.sge}} {
			if c.pd != pd && len(sgl) == 2 {
				continue
			}
			total := 0
			for _, e := range sgl {
				total += int(min(e.Length, 1000))
			}
			if got := r.Gather(make([]byte, total), c.pd, sgl, 0, nil); got != c.gather {
				t.Errorf("%s (of %d): Gather %v, want %v", c.name, len(sgl), got, c.gather)
			}
		}
		if got := r.Scatter(make([]byte, min(c.sge.Length, 1000)), c.pd, []verbs.SGE{c.sge}, 0); got != c.scatter {
			t.Errorf("%s: Scatter %v, want %v", c.name, got, c.scatter)
		}
	}
}

func TestRemote(t *testing.T) {
	r, pd, other := setup(t, nil)
	buf := pattern(100)
	mr := register(t, pd, buf, all)
	reader := register(t, pd, buf, verbs.AccessRemoteRead)
	gone := register(t, pd, buf, all)
	if err := gone.Close(); err != nil {
		t.Fatal(err)
	}
	const write, read = verbs.AccessRemoteWrite, verbs.AccessRemoteRead
	a := mr.Addr()
	qps := map[*verbs.PD]verbs.QPHandle{pd: newQP(t, pd), other: newQP(t, other)}
	for _, c := range []struct {
		name    string
		pd      *verbs.PD
		rkey    uint32
		addr, n uint64
		need    verbs.Access
		ok      bool
	}{
		{"all of it", pd, mr.RKey(), a, 100, write, true},
		{"the last byte", pd, mr.RKey(), a + 99, 1, read, true},
		{"one byte too many", pd, mr.RKey(), a, 101, write, false},
		{"one byte after", pd, mr.RKey(), a + 100, 1, write, false},
		{"one byte before", pd, mr.RKey(), a - 1, 1, write, false},
		{"range wraps", pd, mr.RKey(), a + 1, 1<<64 - 1, write, false},
		{"range wraps to the end", pd, mr.RKey(), a - 50, 1<<64 - 1, write, false},
		{"address wraps", pd, mr.RKey(), 1<<64 - 1, 2, write, false},
		{"unknown key", pd, mr.RKey() ^ 1, a, 1, write, false},
		{"lkey for rkey", pd, mr.LKey(), a, 1, write, false},
		{"deregistered", pd, gone.RKey(), a, 1, read, false},
		{"other PD", other, mr.RKey(), a, 1, write, false},
		{"may read", pd, reader.RKey(), a, 100, read, true},
		{"may not write", pd, reader.RKey(), a, 1, write, false},
		{"may not do both", pd, reader.RKey(), a, 1, read | write, false},
		{"may not do atomics", pd, reader.RKey(), a, 8, verbs.AccessRemoteAtomic, false},
		{"nothing, of no region", other, 0, 1, 0, write, true},
	} {
		span, denial := r.Remote(qps[c.pd], c.rkey, c.addr, c.n, c.need)
		b, _ := span.Bytes()
		ok := denial == memory.Allowed
		if ok != c.ok || ok && uint64(len(b)) != c.n || !ok && b != nil {
			t.Errorf("%s: %d bytes, %v", c.name, len(b), ok)
		}
		if ok && c.n > 0 && (&b[0] != &buf[c.addr-a] || cap(b) != len(b)) {
			t.Errorf("%s: other bytes than requested", c.name)
		}
	}
}

// words returns memory, and a function that returns eight bytes of it at an offset from an aligned
// address, as a peer's span.
func words(t testing.TB, n int) (mem []uint64, at func(off, n int) memory.Span) {
	t.Helper()
	r, pd, _ := setup(t, nil)
	mem = make([]uint64, n)
	mr := register(t, pd, unsafe.Slice((*byte)(unsafe.Pointer(&mem[0])), 8*n), all)
	qp := newQP(t, pd)
	return mem, func(off, n int) memory.Span {
		s, denial := r.Remote(qp, mr.RKey(), mr.Addr()+uint64(off), uint64(n), verbs.AccessRemoteAtomic)
		if denial != memory.Allowed {
			t.Fatal(denial)
		}
		return s
	}
}

func TestAtomics(t *testing.T) {
	mem, at := words(t, 2)
	word, b := &mem[0], at(0, 8)
	*word = 10
	if got, ok := b.CompareSwap(11, 20); !ok || got != 10 || *word != 10 {
		t.Errorf("CompareSwap with another value: %d, now %d", got, *word)
	}
	if got, ok := b.CompareSwap(10, 20); !ok || got != 10 || *word != 20 {
		t.Errorf("CompareSwap: %d, now %d", got, *word)
	}
	if got, ok := b.FetchAdd(1<<64 - 21); !ok || got != 20 || *word != 1<<64-1 {
		t.Errorf("FetchAdd: %d, now %#x", got, *word)
	}
	if got, ok := b.FetchAdd(2); !ok || got != 1<<64-1 || *word != 1 {
		t.Errorf("FetchAdd beyond 64 bits: %#x, now %d", got, *word)
	}
	if !b.Aligned() || at(0, 7).Aligned() || (memory.Span{}).Aligned() {
		t.Error("Aligned is wrong for a length")
	}
	for off := range 9 {
		if got := at(off, 8).Aligned(); got != (off%8 == 0) {
			t.Errorf("Aligned at offset %d: %v", off, got)
		}
	}
}

// TestAtomicsAreAtomicToLocalCode: both sides count, and nothing is lost.
func TestAtomicsAreAtomicToLocalCode(t *testing.T) {
	mem, at := words(t, 1)
	word, b := &mem[0], at(0, 8)
	const rounds = 20_000
	var wg sync.WaitGroup
	wg.Go(func() {
		for range rounds {
			b.FetchAdd(1)
		}
	})
	wg.Go(func() {
		for range rounds {
			for v := uint64(0); ; {
				got, _ := b.CompareSwap(v, v+1)
				if got == v {
					break
				}
				v = got
			}
		}
	})
	wg.Go(func() {
		for range rounds {
			atomic.AddUint64(word, 1)
		}
	})
	wg.Wait()
	if *word != 3*rounds {
		t.Errorf("%d, want %d", *word, 3*rounds)
	}
}

func BenchmarkGather(b *testing.B) {
	for _, sges := range []int{1, 32} {
		b.Run(map[int]string{1: "1 SGE", 32: "32 SGEs"}[sges], func(b *testing.B) {
			r, pd, _ := setup(b, nil)
			mr := register(b, pd, make([]byte, 4096), all)
			sgl := make([]verbs.SGE, sges)
			for i := range sgl {
				sgl[i] = mr.SGE(i*4096/sges, 4096/sges)
			}
			dst := make([]byte, 1024)
			b.ReportAllocs()
			b.SetBytes(1024)
			for b.Loop() {
				if r.Gather(dst, pd, sgl, 3072, nil) != verbs.WCSuccess {
					b.Fatal("failed")
				}
			}
		})
	}
}

func BenchmarkScatter(b *testing.B) {
	r, pd, _ := setup(b, nil)
	sgl := []verbs.SGE{register(b, pd, make([]byte, 4096), all).SGE(0, 4096)}
	src := make([]byte, 1024)
	b.ReportAllocs()
	b.SetBytes(1024)
	for b.Loop() {
		if r.Scatter(src, pd, sgl, 3072) != verbs.WCSuccess {
			b.Fatal("failed")
		}
	}
}

func BenchmarkRemote(b *testing.B) {
	r, pd, _ := setup(b, nil)
	mr := register(b, pd, make([]byte, 4096), all)
	qp := newQP(b, pd)
	b.ReportAllocs()
	for b.Loop() {
		if _, denial := r.Remote(qp, mr.RKey(), mr.Addr()+1024, 1024, verbs.AccessRemoteWrite); denial != memory.Allowed {
			b.Fatal("failed")
		}
	}
}

// TestCopy copies from list to list, between devices, in two parts.
func TestCopy(t *testing.T) {
	ra, pda, _ := setup(t, nil)
	rb, pdb, other := setup(t, nil)
	src, dst := pattern(1000), make([]byte, 1000)
	from, to := register(t, pda, src, 0), register(t, pdb, dst, verbs.AccessLocalWrite)
	readOnly := register(t, pdb, dst, 0)
	list := func(mr *verbs.MR, lengths ...int) (sgl []verbs.SGE) {
		at := 0
		for _, n := range lengths {
			sgl = append(sgl, mr.SGE(at, n), verbs.SGE{LKey: 1}) // an empty one in between
			at += n
		}
		return sgl
	}
	// carry copies 700 bytes, the first 500 of them as one part.
	carry := func(dst, src memory.Message) bool {
		for _, part := range [][2]uint64{{0, 500}, {500, 200}} {
			if !memory.Copy(dst, src, &verbs.PostedSend{}, part[0], part[1]) {
				return false
			}
		}
		return true
	}
	for _, in := range [][]int{{700}, {1, 699}, {300, 300, 100}, {100, 1, 599}} {
		for _, out := range [][]int{{700}, {699, 1}, {128, 256, 316}, {100, 1, 599, 300}} {
			clear(dst)
			if !carry(memory.Message{Regions: rb, PD: pdb, List: list(to, out...)},
				memory.Message{Regions: ra, PD: pda, List: list(from, in...)}) {
				t.Errorf("%v to %v: rejected", in, out)
			}
			if !bytes.Equal(dst[:700], src[:700]) || bytes.ContainsFunc(dst[700:], func(r rune) bool { return r != 0 }) {
				t.Errorf("%v to %v: other bytes", in, out)
			}
		}
	}
	good := memory.Message{Regions: rb, PD: pdb, List: list(to, 700)}
	for _, c := range []struct {
		name     string
		dst, src memory.Message
	}{
		{"source too short", good, memory.Message{Regions: ra, PD: pda, List: list(from, 699)}},
		{"sink too short", memory.Message{Regions: rb, PD: pdb, List: list(to, 699)},
			memory.Message{Regions: ra, PD: pda, List: list(from, 700)}},
		{"key of the other device", good, memory.Message{Regions: rb, PD: pdb, List: list(from, 700)}},
		{"sink of another PD", memory.Message{Regions: rb, PD: other, List: list(to, 700)},
			memory.Message{Regions: ra, PD: pda, List: list(from, 700)}},
		{"read-only sink", memory.Message{Regions: rb, PD: pdb, List: list(readOnly, 700)},
			memory.Message{Regions: ra, PD: pda, List: list(from, 700)}},
	} {
		if carry(c.dst, c.src) {
			t.Errorf("%s: not rejected", c.name)
		}
	}
}

// TestCheck: Check returns the status of Gather and Scatter, and changes nothing.
func TestCheck(t *testing.T) {
	r, pd, _ := setup(t, nil)
	buf := pattern(100)
	mr, readOnly := register(t, pd, buf, verbs.AccessLocalWrite), register(t, pd, buf, 0)
	for _, c := range []struct {
		n    uint64
		sgl  []verbs.SGE
		need verbs.Access
		want verbs.WCStatus
	}{
		{0, nil, 0, verbs.WCSuccess},
		{100, []verbs.SGE{mr.SGE(0, 40), readOnly.SGE(40, 60)}, 0, verbs.WCSuccess},
		{100, []verbs.SGE{mr.SGE(0, 40), readOnly.SGE(40, 60)}, verbs.AccessLocalWrite, verbs.WCLocProtErr},
		{40, []verbs.SGE{mr.SGE(0, 40), readOnly.SGE(40, 60)}, verbs.AccessLocalWrite, verbs.WCSuccess},
		{101, []verbs.SGE{mr.SGE(0, 100)}, 0, verbs.WCLocLenErr},
		{8, []verbs.SGE{{Addr: mr.Addr(), Length: 8, LKey: mr.LKey() ^ 1}}, 0, verbs.WCLocProtErr},
	} {
		if got := r.Check(c.n, pd, c.sgl, 0, c.need); got != c.want {
			t.Errorf("%d of %v: %v, want %v", c.n, c.sgl, got, c.want)
		}
	}
	if !bytes.Equal(buf, pattern(100)) {
		t.Error("Check wrote")
	}
}
