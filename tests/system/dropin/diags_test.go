//go:build linux && amd64

package dropin

import (
	"strings"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// TestDiags: ibstat and ibstatus, which read the kernel's description of devices, see the device.
func TestDiags(t *testing.T) {
	gate.Long(t)
	needs(t, "/usr/sbin/ibstat", "infiniband-diags")
	for command, wants := range map[string][]string{
		"ibstat softrnic0":   {"CA 'softrnic0'", "State: Active", "Physical state: LinkUp", "Link layer: Ethernet"},
		"ibstatus softrnic0": {"4: ACTIVE", "5: LinkUp", "40 Gb/sec (4X QDR)"},
	} {
		programs.Ran(t, command, "shared memory (RoCEv2)")
		cmd := runner(t.Context(), t, shared(t), "--link shm:diags --addr 10.9.0.1/24", strings.Fields(command)...)
		cmd.Env = append(cmd.Env, "PATH=/usr/bin:/bin:/usr/sbin:/sbin")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", command, err, out)
		}
		for _, want := range wants {
			if !strings.Contains(string(out), want) {
				t.Errorf("%s does not print %q:\n%s", command, want, out)
			}
		}
	}
}
