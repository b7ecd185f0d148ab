//go:build linux && amd64

package dropin

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// asRoot returns softrnic run with arguments, as root, with root's runtime directory.
func asRoot(ctx context.Context, t *testing.T, dir, args string, program ...string) *exec.Cmd {
	t.Helper()
	cmd := runner(ctx, t, dir, args, program...)
	cmd.SysProcAttr = nil
	return cmd
}

// rootDir creates a directory of root's, which others may enter but not write to.
func rootDir(t *testing.T) string {
	t.Helper()
	if os.Getuid() != 0 || exec.Command("unshare", "--mount", "true").Run() != nil {
		t.Skip("this needs root with CAP_SYS_ADMIN")
	}
	dir := shared(t)
	if err := os.Chown(dir, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o700); err != nil { // as XDG_RUNTIME_DIR
		t.Fatal(err)
	}
	return dir
}

// TestRunRoot: a program that root runs keeps root's rights, in all ways of showing its devices. A
// daemon locks memory, takes huge pages and raw sockets, gives files to others, drops its
// privileges, and uses RDMA before and after that. Mounts for it are not visible outside.
func TestRunRoot(t *testing.T) {
	gate.System(t)
	dir := rootDir(t)
	program, huge := compile(t, "daemon"), "1"
	if why := hugePages(t, 2); why != "" {
		t.Log("without huge pages:", why)
		huge = "0"
	}
	tmp := t.TempDir() // any user may write to it, as to /tmp
	if err := os.Chmod(tmp, 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	for parent := tmp; parent != os.TempDir() && parent != "/"; parent = filepath.Dir(parent) {
		if parent != tmp {
			if err := os.Chmod(parent, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, flags := range []string{"--link kernel:lo --addr 127.18.7.1", "--link pipe --addr 10.9.0.1/24 --sysfs preload",
		"--link pipe --addr 10.9.0.1/24"} {
		for _, opens := range []string{"after", "before"} {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			file := filepath.Join(tmp, "file")
			if err := os.WriteFile(file, nil, 0o644); err != nil {
				t.Fatal(err)
			}
			cmd := asRoot(ctx, t, dir, flags, program, opens, file, huge)
			cmd.Env = append(cmd.Env, "TMPDIR="+tmp)
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "all is so") {
				t.Errorf("%s, the device is opened %s: %v\n%s", flags, opens, err, out)
			}
			cancel()
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), " softrnic ") {
		t.Errorf("%v, mounts outside:\n%s", err, mounts)
	}
}

// TestRunRootNamespaces: a user with CAP_SYS_ADMIN gets only a mount namespace. A user with other
// capabilities gets no user namespace, in which it would have none.
func TestRunRootNamespaces(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/setpriv", "util-linux")
	dir := rootDir(t)
	const say = `echo $(readlink /proc/self/ns/user) $(readlink /proc/self/ns/mnt) $(grep CapEff /proc/self/status) ${SOFTRNIC_SYSFS:+preload}`
	outside, err := exec.Command("sh", "-c", say).Output()
	if err != nil {
		t.Fatal(err)
	}
	all := strings.Fields(string(outside))
	run := asRoot(t.Context(), t, dir, "--link pipe", "sh", "-c", say)
	out, err := run.Output()
	if got := strings.Fields(string(out)); err != nil || len(got) != 4 || got[0] != all[0] || got[1] == all[1] || got[3] != all[3] {
		t.Errorf("root: %v, inside %q, outside %q: want the user namespace and the capabilities that are outside, and another mount "+
			"namespace", err, out, outside)
	}
	less := exec.CommandContext(t.Context(), "setpriv", append([]string{"--bounding-set=-sys_admin"}, run.Args...)...)
	less.Env, less.Dir = run.Env, run.Dir
	out, err = less.Output()
	if got := strings.Fields(string(out)); err != nil || len(got) != 5 || got[0] != all[0] || got[1] != all[1] || got[4] != "preload" {
		t.Errorf("root without CAP_SYS_ADMIN: %v, inside %q, outside %q: want the same namespaces, and the library", err, out, outside)
	}
}
