package stacktest

import (
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run this seed alone, of a test that draws from seeds")
	seedsFlag = flag.Int("seeds", 0, "run so many seeds, of a test that draws from seeds; 0: as many as the test says")
)

// Seeds runs f in virtual time with n seeds, which begin with 1, beside each other, or as the flags
// say. It returns how many there were. A seed fixes what f draws from it, and not how goroutines
// interleave.
func Seeds(t *testing.T, n int, f func(t *testing.T, seed uint64)) int {
	t.Helper()
	test, first := t.Name(), uint64(1)
	switch {
	case *seedFlag != 0:
		first, n = *seedFlag, 1
	case *seedsFlag != 0:
		n = *seedsFlag
	}
	t.Run("seed", func(t *testing.T) {
		for i := range uint64(n) {
			t.Run(fmt.Sprint(first+i), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) { f(t, first+i) })
				if t.Failed() {
					t.Logf("again: go test -run '^%s$' -seed %d", test, first+i)
				}
			})
		}
	})
	return n
}
