//go:build unix

package verbs_test

import (
	"runtime"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestGuardTakesFaultsOfRegionsOnly: BeginGuard with EndGuard makes false of a fault of the memory
// that they were given. Every other panic goes on: of a wrong program, and of other memory.
func TestGuardTakesFaultsOfRegionsOnly(t *testing.T) {
	page := syscall.Getpagesize()
	pages, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	check(t, err)
	defer func() { check(t, syscall.Munmap(pages)) }()
	region, other := pages[page:page+100], pages[2*page:]
	var none map[string]int
	var nothing *int
	var near *struct{ before, behind int }
	index := len(pages)
	for name, c := range map[string]struct {
		f     func()
		taken bool
	}{
		"its memory":             {func() { copy(make([]byte, 8), region[50:]) }, true},
		"a write":                {func() { region[99] = 1 }, true},
		"other memory":           {func() { other[0] = 1 }, false},
		"memory before it":       {func() { pages[page-1] = 1 }, false},
		"an index out of range":  {func() { pages[index] = 1 }, false},
		"a map that is nil":      {func() { none["a"] = 1 }, false},
		"a pointer that is nil":  {func() { *nothing = 1 }, false},
		"a pointer near nothing": {func() { near.behind = 1 }, false},
		"a wrong type":           {func() { _ = any(index).(string) }, false},
		"another panic":          {func() { panic("mine") }, false},
	} {
		var panicked any
		ok := func() bool {
			defer func() { panicked = recover() }()
			return guarded(c.f, make([]byte, 10), region)
		}()
		if ok || (panicked == nil) != c.taken {
			t.Errorf("%s: %v, panic %v", name, ok, panicked)
		}
		if _, is := panicked.(runtime.Error); panicked != nil && !is && name != "another panic" {
			t.Errorf("%s: the panic became %v", name, panicked)
		}
	}
	if !guarded(func() {}, region) {
		t.Error("nothing has faulted")
	}
}

func guarded(f func(), mem ...[]byte) (ok bool) {
	defer verbs.EndGuard(verbs.BeginGuard(), &ok, mem...)
	f()
	return true
}
