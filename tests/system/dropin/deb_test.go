//go:build linux && amd64

package dropin

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestDebianPackage builds the package in two directories, with the same bytes. It unpacks it, and
// runs a program with its content. It needs a tool from the Go module proxy.
func TestDebianPackage(t *testing.T) {
	gate.Long(t)
	needs(t, "/usr/bin/dpkg-deb", "dpkg")
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	dir := shared(t)
	deb := filepath.Join(dir, "softrnic.deb")
	elsewhere := filepath.Join(t.TempDir(), "of another length")
	if out, err := exec.Command("cp", "-a", "../../..", elsewhere).CombinedOutput(); err != nil {
		t.Fatalf("cp: %v\n%s", err, out)
	}
	var sums [][32]byte
	for _, source := range []string{elsewhere, "../../.."} {
		cmd := exec.Command("go", "run", "./cmd/dropin/build", "-deb", deb)
		cmd.Dir = source
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		b, err := os.ReadFile(deb)
		if err != nil {
			t.Fatal(err)
		}
		sums = append(sums, sha256.Sum256(b))
	}
	if sums[0] != sums[1] {
		t.Error("the same sources in two directories make different packages")
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
	unit := filepath.Join(dir, "usr/lib/systemd/system/softrnic-hub.service")
	if b, err := os.ReadFile(unit); err != nil || !strings.Contains(string(b), "\nExecStart=/usr/bin/softrnic hub --system\n") {
		t.Errorf("the unit of the hub of the machine: %v\n%s", err, b)
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

// TestSetup runs the step of a pipeline, and a program in the environment that later steps get. A
// pipeline that evaluates the output of a failed step ends.
func TestSetup(t *testing.T) {
	gate.Long(t)
	needs(t, "/usr/bin/ibv_devices", "ibverbs-utils")
	dir := t.TempDir()
	environment, path := filepath.Join(dir, "env"), filepath.Join(dir, "path")
	const setup = "../../../cmd/dropin/setup.sh"
	cmd := exec.Command(setup, "ibverbs-utils")
	cmd.Env = append(os.Environ(), "PREFIX="+dir, "GITHUB_ENV="+environment, "GITHUB_PATH="+path, "LD_LIBRARY_PATH=/of/others")
	printed, err := cmd.Output()
	if err != nil {
		t.Fatalf("setup.sh: %v", err)
	}
	for name, want := range map[string]string{
		environment: "LD_LIBRARY_PATH=" + dir + "/lib/softrnic:/of/others\n",
		path:        dir + "/bin\n",
	} {
		if b, err := os.ReadFile(name); err != nil || string(b) != want {
			t.Errorf("%s: %q (%v), want %q", name, b, err, want)
		}
	}
	out, err := exec.Command("sh", "-c", string(printed)+"softrnic --version && ibv_devices").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "softrnic0_iw") {
		t.Errorf("%v\n%s", err, out)
	}
	fails := exec.Command("sh", "-ec", `eval "$(`+setup+`)"`)
	fails.Env = append(os.Environ(), "PREFIX=/dev/null/prefix")
	if out, err := fails.CombinedOutput(); err == nil {
		t.Errorf("without a directory to install to, the pipeline goes on:\n%s", out)
	}
}
