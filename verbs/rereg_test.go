package verbs_test

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/softrnic/softrnic/verbs"
)

func TestRereg(t *testing.T) {
	r := newRig(t)
	other := must(r.dev.AllocPD())(t)
	a, b := make([]byte, 64), make([]byte, 128)
	mr := must(r.pd.RegMR(a, verbs.AccessLocalWrite))(t)
	for _, c := range []struct {
		want   string
		flags  verbs.ReregFlags
		pd     *verbs.PD
		buf    []byte
		access verbs.Access
	}{
		{"flags", 0, nil, nil, 0},
		{"flags", 8, nil, nil, 0},
		{"PD is nil", verbs.ReregPD, nil, nil, 0},
		{"another device", verbs.ReregPD, newRig(t).pd, nil, 0},
		{"need LOCAL_WRITE", verbs.ReregAccess, nil, nil, verbs.AccessRemoteWrite},
	} {
		err := mr.Rereg(c.flags, c.pd, c.buf, c.access)
		if !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
	first := mr.LKey()
	check(t, mr.Rereg(verbs.ReregTranslation, nil, b, 0))
	if mr.Length() != 128 || mr.Addr() != uint64(uintptr(unsafe.Pointer(&b[0]))) || mr.Access() != verbs.AccessLocalWrite {
		t.Errorf("%d bytes at %#x, %v", mr.Length(), mr.Addr(), mr.Access())
	}
	if mr.LKey() == first {
		t.Error("the key has not changed")
	}
	lkey, rkey := mr.LKey(), mr.RKey()
	check(t, mr.Rereg(verbs.ReregAccess|verbs.ReregPD, other, nil, verbs.AccessLocalWrite|verbs.AccessRemoteWrite))
	if mr.LKey() != lkey || mr.RKey() != rkey || mr.PD() != other || mr.Access() != verbs.AccessLocalWrite|verbs.AccessRemoteWrite {
		t.Errorf("keys %#x and %#x, want %#x and %#x; %v", mr.LKey(), mr.RKey(), lkey, rkey, mr.Access())
	}
	check(t, mr.Rereg(verbs.ReregAccess|verbs.ReregPD, other, nil, verbs.AccessZeroBased))
	if mr.PD() != other || mr.Addr() != 0 || mr.Access() != verbs.AccessZeroBased || mr.Length() != 128 {
		t.Errorf("%d bytes at %#x, %v", mr.Length(), mr.Addr(), mr.Access())
	}
	check(t, r.qp.Close())
	check(t, r.pd.Close()) // the region is no longer in it
	if err := other.Close(); !errors.Is(err, verbs.ErrBusy) {
		t.Errorf("got %v, want ErrBusy", err)
	}
	if !registered(mr).AddWindow() {
		t.Fatal("AddWindow failed")
	}
	for what, err := range map[string]error{"Close": mr.Close(), "Rereg": mr.Rereg(verbs.ReregAccess, nil, nil, 0)} {
		if !errors.Is(err, verbs.ErrBusy) || !strings.Contains(err.Error(), "1 memory windows") {
			t.Errorf("%s: got %v, want ErrBusy", what, err)
		}
	}
	registered(mr).RemoveWindow()
	check(t, mr.Close())
	check(t, other.Close())
	if err := mr.Rereg(verbs.ReregAccess, nil, nil, 0); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	if registered(mr).AddWindow() {
		t.Error("AddWindow of a deregistered region succeeded")
	}
}

func TestNullMR(t *testing.T) {
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	mr := must(r.pd.AllocNullMR())(t)
	if !registered(mr).Null() || mr.Length() != 0 || mr.Access() != verbs.AccessLocalWrite {
		t.Errorf("got %+v", mr)
	}
	if err := mr.Rereg(verbs.ReregAccess, nil, nil, 0); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	r.lq.hold = true
	check(t, r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline,
		SGList: []verbs.SGE{{Addr: 1 << 60, Length: 8, LKey: mr.LKey()}}}))
	r.lq.locked(func() {
		if got := r.lq.Send(0).Inline(); string(got) != strings.Repeat("\x00", 8) {
			t.Errorf("inline data of a null MR: %x", got)
		}
	})

	// It does not keep its PD open.
	pd := must(r.dev.AllocPD())(t)
	last := must(pd.AllocNullMR())(t)
	check(t, pd.Close())
	if _, err := pd.AllocNullMR(); !errors.Is(err, verbs.ErrClosed) {
		t.Errorf("got %v, want ErrClosed", err)
	}
	before := r.dev.Resources().MR
	check(t, last.Close())
	check(t, mr.Close())
	if now := r.dev.Resources().MR; now != before-2 {
		t.Errorf("%d MRs after two of %d were closed", now, before)
	}
}

// TestInlineFault: a request whose inline data faults is rejected. The function of
// BeforeMappedAccess is called before each copy.
func TestInlineFault(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no mmap on this system")
	}
	r := newRig(t)
	r.moveTo(t, verbs.StateRTS)
	f := must(os.Create(filepath.Join(t.TempDir(), "f")))(t)
	defer f.Close()
	page := int64(os.Getpagesize())
	check(t, f.Truncate(2*page))
	for _, c := range []struct{ off, n int64 }{{1, page}, {0, 0}, {-page, page}, {0, -1}} {
		if _, err := r.pd.RegMREx(&verbs.MRInitAttr{File: f, FileOffset: c.off, FileLength: int(c.n)}); !errors.Is(err, verbs.ErrInvalid) {
			t.Errorf("offset %d, length %d: %v", c.off, c.n, err)
		}
	}
	var calls int
	r.dev.BeforeMappedAccess(func() { calls++ })
	mr := must(r.pd.RegMREx(&verbs.MRInitAttr{File: f, FileLength: int(2 * page), Access: verbs.AccessLocalWrite}))(t)
	if !registered(mr).BeginAccess() {
		t.Error("BeginAccess is false for a mapping")
	}
	if err := mr.Rereg(verbs.ReregTranslation, nil, make([]byte, 1), 0); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	post := func() error {
		return r.qp.PostSend(&verbs.SendWR{Opcode: verbs.Send, Flags: verbs.SendInline,
			SGList: []verbs.SGE{mr.SGE(int(page), 8)}})
	}
	check(t, post())
	check(t, f.Truncate(page))
	if calls != 2 { // of BeginAccess above, and of the post
		t.Errorf("the function was called %d times, want 2", calls)
	}
	if err := post(); !errors.Is(err, verbs.ErrInvalid) || !strings.Contains(err.Error(), "faults") {
		t.Errorf("got %v", err)
	}
	check(t, mr.Close())
}

// TestPersist: Close waits for running calls of Persist, and later calls fail.
func TestPersist(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there is no mmap on this system")
	}
	r := newRig(t)
	f := must(os.Create(filepath.Join(t.TempDir(), "f")))(t)
	defer f.Close()
	const size = 1 << 20
	check(t, f.Truncate(size))
	plain := must(r.pd.RegMR(make([]byte, 8), 0))(t)
	if err := registered(plain).Persist(plain.Buf()); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("memory without a file: %v", err)
	}
	check(t, plain.Close())
	for range 20 {
		mr := must(r.pd.RegMREx(&verbs.MRInitAttr{File: f, FileLength: size, Access: verbs.AccessLocalWrite}))(t)
		b := mr.Buf()[5000:10_000]
		check(t, registered(mr).Persist(nil))
		check(t, registered(mr).Persist(b))
		begun, ended := make(chan bool), make(chan error)
		go func() {
			close(begun)
			for {
				if err := registered(mr).Persist(b); err != nil {
					ended <- err
					return
				}
			}
		}()
		<-begun
		check(t, mr.Close())
		if err := <-ended; !errors.Is(err, verbs.ErrClosed) {
			t.Fatalf("Persist during Close: %v", err)
		}
	}
}
