//go:build unix

package verbs_test

import (
	"runtime"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

// TestGuardRecoversFaultsOfRegionsOnly: with BeginGuard and EndGuard, a fault of the given memory
// leaves ok false. All other panics continue, such as those of program errors and faults of other
// memory.
func TestGuardRecoversFaultsOfRegionsOnly(t *testing.T) {
	page := syscall.Getpagesize()
	pages, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_NONE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	check(t, err)
	defer func() { check(t, syscall.Munmap(pages)) }()
	region, other := pages[page:page+100], pages[2*page:]
	var none map[string]int
	var nothing *int
	var nilStruct *struct{ before, after int }
	index := len(pages)
	for name, c := range map[string]struct {
		f         func()
		recovered bool
	}{
		"its memory":                   {func() { copy(make([]byte, 8), region[50:]) }, true},
		"a write":                      {func() { region[99] = 1 }, true},
		"other memory":                 {func() { other[0] = 1 }, false},
		"memory before it":             {func() { pages[page-1] = 1 }, false},
		"an index out of range":        {func() { pages[index] = 1 }, false},
		"a map that is nil":            {func() { none["a"] = 1 }, false},
		"a pointer that is nil":        {func() { *nothing = 1 }, false},
		"a nil pointer with an offset": {func() { nilStruct.after = 1 }, false},
		"a wrong type":                 {func() { _ = any(index).(string) }, false},
		"another panic":                {func() { panic("mine") }, false},
	} {
		var panicked any
		ok := func() bool {
			defer func() { panicked = recover() }()
			return callGuarded(c.f, make([]byte, 10), region)
		}()
		if ok || (panicked == nil) != c.recovered {
			t.Errorf("%s: %v, panic %v", name, ok, panicked)
		}
		if _, is := panicked.(runtime.Error); panicked != nil && !is && name != "another panic" {
			t.Errorf("%s: the panic became %v", name, panicked)
		}
	}
	if !callGuarded(func() {}, region) {
		t.Error("ok is false without a fault")
	}
}

// callGuarded calls f between BeginGuard and EndGuard.
func callGuarded(f func(), mem ...[]byte) (ok bool) {
	defer verbs.EndGuard(verbs.BeginGuard(), &ok, mem...)
	f()
	return true
}
