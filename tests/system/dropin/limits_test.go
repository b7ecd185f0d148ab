//go:build linux && amd64

package dropin

import (
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestLimits: a process that may not have what the engine takes has no devices, and is told why. It
// goes on.
func TestLimits(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_devinfo", "ibverbs-utils")
	dir := shared(t)
	for limit, why := range map[string]string{
		"--as=800000000":  "address space (ulimit -v)", // less than Go's runtime reserves, more than ibv_devinfo has
		"--as=850000000":  "memory (ulimit -d or -v)",
		"--data=50000000": "memory (ulimit -d or -v)",
		"--data=90000000": "8 threads",
		"--nproc=1":       "8 threads",
	} {
		out, _ := runner(t.Context(), t, dir, "--link pipe --addr 10.9.0.1/24 --sysfs off", "prlimit", limit, "ibv_devinfo").CombinedOutput()
		if !strings.Contains(string(out), "cannot have") || !strings.Contains(string(out), why) ||
			!strings.Contains(string(out), "Failed to get IB devices list") {
			t.Errorf("%s: want a sentence with %q and no devices:\n%s", limit, why, out)
		}
	}
}
