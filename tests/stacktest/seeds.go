package stacktest

import (
	"flag"
	"fmt"
	"testing"
	"testing/synctest"
)

var (
	seedFlag  = flag.Uint64("seed", 0, "run only this seed, in tests that use seeds")
	seedsFlag = flag.Int("seeds", 0, "number of seeds to run, in tests that use seeds; 0: the test's own number")
)

// Seeds runs f in virtual time with the seeds 1 to n, in parallel, or as the flags require. It
// returns their number. A seed determines the random values that f draws, but not how goroutines
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
					t.Logf("repeat with: go test -run '^%s$' -seed %d", test, first+i)
				}
			})
		}
	})
	return n
}
