//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestDebianPackage builds the package, unpacks it, and runs a program with its content. It needs a
// tool from the Go module proxy.
func TestDebianPackage(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/dpkg-deb", "dpkg")
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	dir := shared(t)
	deb := filepath.Join(dir, "softrnic.deb")
	cmd := exec.Command("go", "run", "./cmd/libsoftrnic/build", "-deb", deb)
	cmd.Dir = "../../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command("dpkg-deb", "--field", deb, "Package", "Architecture", "Depends").CombinedOutput()
	if want := "Package: softrnic\nArchitecture: amd64\nDepends: libc6 (>= " + oldestGlibc + ")\n"; err != nil || string(out) != want {
		t.Errorf("the package says %s(%v), want %s", out, err, want)
	}
	if out, err := exec.Command("dpkg-deb", "--extract", deb, dir).CombinedOutput(); err != nil {
		t.Fatalf("dpkg-deb: %v\n%s", err, out)
	}
	if out, err := exec.Command("grep", "-r", "-l", os.TempDir(), filepath.Join(dir, "usr/lib/softrnic/pkgconfig")).Output(); err == nil {
		t.Errorf("%s name a directory that is not there later", out)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	freePort++
	program := func(addr string, args ...string) *exec.Cmd {
		line := append(strings.Fields("run --link kernel:lo --addr "+addr+" -- ibv_rc_pingpong -n 200 -g 1 -p "+fmt.Sprint(freePort)),
			args...)
		cmd := exec.CommandContext(ctx, filepath.Join(dir, "usr/bin/softrnic"), line...)
		cmd.Env, cmd.Dir, cmd.WaitDelay = []string{"PATH=/usr/bin:/bin", "XDG_RUNTIME_DIR=" + dir, "TMPDIR=" + dir}, "/", time.Second
		cmd.SysProcAttr = asNobody().attr
		return cmd
	}
	if said := run(t, program("127.18.2.1"), program("127.18.2.2", "127.0.0.1"), freePort); strings.Count(said, "200 iters in") != 2 {
		t.Errorf("it did not run to its end:\n%s", said)
	}
}
