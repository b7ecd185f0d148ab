//go:build linux && amd64

package dropin

import (
	"os/exec"
	"testing"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestAnswers runs testdata/answers.c, which describes its checks, within a process and over shared
// memory. Most of them come from test suites of others: SUITES.md.
func TestAnswers(t *testing.T) {
	gate.System(t)
	onLinks(t, compile(t, "answers"), func(link string, command func(args ...string) *exec.Cmd) {
		if out, err := command().CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", link, err, out)
		}
	})
}
