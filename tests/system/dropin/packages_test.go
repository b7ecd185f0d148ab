//go:build linux && amd64

package dropin

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// TestPackages names the packages of this release that depend on a library of rdma-core, and of
// which PROGRAMS.md says nothing. They do not fail the test: Debian may have a new one each day.
func TestPackages(t *testing.T) {
	gate.Long(t)
	index, err := exec.Command("apt-cache", "dumpavail").Output()
	if err != nil {
		t.Fatalf("apt-cache dumpavail: %v", err)
	}
	untried, err := programs.Untried(bytes.NewReader(index), "../internal/programs")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("result: %d packages were not tried: %s", len(untried), strings.Join(untried, " "))
}
