//go:build linux && amd64

package dropin

import (
	"context"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestWalk runs testdata/walk.c, which describes its checks, on the device of each transport.
func TestWalk(t *testing.T) {
	gate.System(t)
	program := compile(t, "walk")
	for _, transport := range []string{"roce", "iwarp"} {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		n, _ := pair(t, 0)
		n.env = append(n.env, "SOFTRNIC_LINK=pipe", "SOFTRNIC_TRANSPORT="+transport)
		if out, err := n.program(ctx, t, program, "10.9.0.1").CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", transport, err, out)
		}
		cancel()
	}
}
