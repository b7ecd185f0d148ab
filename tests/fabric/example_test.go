package fabric

import (
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/softrnic/softrnic/tests/stacktest"
)

// TestReplicated: the example, a module of its own, compiles without other modules than this one
// has, and passes its tests.
func TestReplicated(t *testing.T) {
	seeds := strconv.Itoa(stacktest.Size(20, 200, 2000))
	for _, args := range [][]string{{"vet", "."}, {"test", "-count=1", "-timeout=0", "-v", ".", "-seeds", seeds}} {
		cmd := exec.Command("go", args...)
		cmd.Dir = "replicated"
		cmd.Env = append(os.Environ(), "GOPROXY=off", "GOWORK=off")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("go %v: %v\n%s", args, err, out)
		}
		t.Logf("%s", out)
	}
}
