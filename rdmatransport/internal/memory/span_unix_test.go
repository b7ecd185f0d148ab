//go:build unix

package memory_test

import (
	"bytes"
	"hash/crc32"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/verbs"
)

// TestUnmappedDuringCopy unmaps memory before or during a copy, in either direction and with or
// without a CRC. Only the copy ends. The bytes copied without a fault have the right CRC.
func TestUnmappedDuringCopy(t *testing.T) {
	const page, pages = 4096, 16
	r, pd, _ := setup(t, nil)
	b, err := unix.Mmap(-1, 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(b) }()
	copy(b, pattern(len(b)))
	mr, err := pd.RegMREx(&verbs.MRInitAttr{Buf: b, Access: verbs.AccessLocalWrite, Mapped: true})
	if err != nil {
		t.Fatal(err)
	}
	protect := func(prot int) {
		if err := unix.Mprotect(b[pages/2*page:], prot); err != nil {
			t.Error(err)
		}
	}
	sgl := []verbs.SGE{mr.SGE(0, len(b))}
	there := make([]byte, len(b))
	gather := func(n, off int) bool {
		sum := uint32(7)
		status := r.Gather(there[:n], pd, sgl, uint64(off), &sum)
		if status == verbs.WCSuccess && sum != crc32.Update(7, crc32.IEEETable, there[:n]) {
			t.Fatalf("%d bytes at %d: the CRC is not that of the copied bytes", n, off)
		}
		if plain := r.Gather(there[:n], pd, sgl, uint64(off), nil); (plain != status) && off+n <= pages/2*page {
			t.Fatalf("%d bytes at %d: %v with, %v without a CRC", n, off, status, plain)
		}
		return status == verbs.WCSuccess
	}

	protect(unix.PROT_NONE)
	for _, n := range []int{1, 100, 256, 257, 1024, 4096, 6000} {
		for off := pages/2*page - n - 70; off < pages/2*page+70; off += 7 {
			fits := off+n <= pages/2*page
			if got := gather(n, off); got != fits {
				t.Fatalf("Gather %d bytes at %d: %t, with %d left", n, off, got, pages/2*page)
			}
			if got := r.Scatter(there[:n], pd, sgl, uint64(off)); (got == verbs.WCSuccess) != fits {
				t.Fatalf("Scatter %d bytes at %d: %v", n, off, got)
			}
		}
	}
	protect(unix.PROT_READ | unix.PROT_WRITE)

	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() { // mapped and unmapped repeatedly
		for {
			select {
			case <-done:
				return
			default:
				protect(unix.PROT_NONE)
				protect(unix.PROT_READ | unix.PROT_WRITE)
			}
		}
	})
	failed, copied := 0, 0
	for try := 0; try < 200_000 && (failed < 50 || copied < 50); try++ {
		if gather(len(b), 0) {
			copied++
		} else {
			failed++
		}
		_ = r.Scatter(there, pd, sgl, 0)
	}
	close(done)
	wg.Wait()
	if failed == 0 || copied == 0 {
		t.Errorf("%d copies failed, %d did not: no copy failed in the middle", failed, copied)
	}
	protect(unix.PROT_READ | unix.PROT_WRITE)
	if !gather(len(b), 0) || !bytes.Equal(there, b) {
		t.Error("the memory is mapped again, and cannot be copied")
	}
}

// TestBeforeMappedAccess: the function of Device.BeforeMappedAccess is called before each access to
// mapped memory of a region that was registered since, and for no other region.
func TestBeforeMappedAccess(t *testing.T) {
	r, pd, _ := setup(t, nil)
	buf := make([]byte, 64)
	earlier, err := pd.RegMREx(&verbs.MRInitAttr{Buf: buf, Access: all, Mapped: true})
	if err != nil {
		t.Fatal(err)
	}
	var calls int
	pd.Device().BeforeMappedAccess(func() { calls++ })
	plain, err := pd.RegMR(buf, all)
	if err != nil {
		t.Fatal(err)
	}
	mapped, err := pd.RegMREx(&verbs.MRInitAttr{Buf: buf, Access: all, Mapped: true})
	if err != nil {
		t.Fatal(err)
	}
	var qp verbs.QPHandle
	data := make([]byte, 8)
	for name, access := range map[string]func(mr *verbs.MR) bool{
		"gather": func(mr *verbs.MR) bool {
			return r.Gather(data, pd, []verbs.SGE{mr.SGE(0, 8)}, 0, nil) == verbs.WCSuccess
		},
		"scatter": func(mr *verbs.MR) bool {
			return r.Scatter(data, pd, []verbs.SGE{mr.SGE(0, 8)}, 0) == verbs.WCSuccess
		},
		"remote write": func(mr *verbs.MR) bool {
			s, denial := r.RemoteIn(pd, qp, mr.RKey(), mr.Addr(), 8, verbs.AccessRemoteWrite)
			return denial == memory.Allowed && s.Write(data, qp, 0)
		},
		"atomic": func(mr *verbs.MR) bool {
			s, denial := r.RemoteIn(pd, qp, mr.RKey(), mr.Addr(), 8, verbs.AccessRemoteAtomic)
			return denial == memory.Allowed && s.Store(1)
		},
	} {
		for _, c := range []struct {
			region string
			mr     *verbs.MR
			want   int
		}{{"registered earlier", earlier, 0}, {"of Go", plain, 0}, {"mapped", mapped, 1}} {
			if calls = 0; !access(c.mr) || calls != c.want {
				t.Errorf("%s, memory %s: called %d times, want %d", name, c.region, calls, c.want)
			}
		}
	}
}
