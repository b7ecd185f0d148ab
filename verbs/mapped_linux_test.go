package verbs_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestRegMappedFaults: registration fails if the memory is not mapped or its protection does not
// allow the access.
func TestRegMappedFaults(t *testing.T) {
	r := newRig(t)
	const page = 4096
	pages := must(syscall.Mmap(-1, 0, 8*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_PRIVATE|syscall.MAP_ANON))(t)
	t.Cleanup(func() { check(t, syscall.Munmap(pages)) })
	check(t, syscall.Mprotect(pages[2*page:3*page], syscall.PROT_READ)) // rw rw r- rw -- rw rw rw
	check(t, syscall.Mprotect(pages[4*page:5*page], syscall.PROT_NONE))
	const write = verbs.AccessLocalWrite
	for _, c := range []struct {
		name    string
		from, n int
		access  verbs.Access
		fault   bool
	}{
		{"writable", 0, 2 * page, write, false},
		{"0 bytes", 4 * page, 0, write, false},
		{"read-only, for reading", 0, 4 * page, 0, false},
		{"read-only, for writing", 2*page - 1, 2, write, true},
		{"read-only, for writing on demand", 0, 4 * page, write | verbs.AccessOnDemand, false},
		{"start inaccessible", 4*page - 1, 2, 0, true},
		{"end inaccessible", 0, 4*page + 1, 0, true},
		{"first byte inaccessible", 5*page - 1, 2, write, true},
		{"after it", 5 * page, 3 * page, write, false},
	} {
		mr, err := r.pd.RegMREx(&verbs.MRInitAttr{Buf: pages[c.from:][:c.n], Access: c.access, Mapped: true})
		if c.fault != errors.Is(err, syscall.EFAULT) || (err == nil) == c.fault {
			t.Errorf("%s: %v", c.name, err)
		}
		if mr != nil {
			check(t, mr.Close())
		}
	}
	mr := must(r.pd.RegMREx(&verbs.MRInitAttr{Buf: pages[:2*page], Mapped: true}))(t)
	if err := mr.Rereg(verbs.ReregTranslation, nil, pages[:5*page], 0); !errors.Is(err, syscall.EFAULT) || mr.Length() != 2*page {
		t.Errorf("new memory: %v", err)
	}
	check(t, mr.Rereg(verbs.ReregTranslation, nil, pages[2*page:3*page], 0))
	if err := mr.Rereg(verbs.ReregAccess, nil, nil, write); !errors.Is(err, syscall.EFAULT) || mr.Access() != 0 {
		t.Errorf("new rights: %v", err)
	}
	check(t, syscall.Mprotect(pages[2*page:3*page], syscall.PROT_READ|syscall.PROT_WRITE))
	check(t, mr.Rereg(verbs.ReregAccess, nil, nil, write))
}
