//go:build linux && amd64

package dropin

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
)

// TestTreeOfContainer: programs find the devices' directory whatever they do with SIGCHLD, their
// children, standard descriptors and user. The command is replaced by a script, which answers as
// testdata/tree.c describes.
func TestTreeOfContainer(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/gcc", "gcc")
	if os.Geteuid() != 0 {
		t.Skip("must be root, to change the user")
	}
	dir, err := os.MkdirTemp("", "dropin") // unlike those of testing, every user may read it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	program, script := filepath.Join(dir, "tree"), filepath.Join(dir, "command")
	if out, err := exec.Command("gcc", "-O1", "-Wall", "-Wextra", "-Werror", "-pthread", "-o", program, "testdata/tree.c",
		"../../../cmd/dropin/libsysfs/tree.c").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const answer = `#!/bin/sh -p
if [ "$2" = --netlink ]; then exec dd bs=64 count=1 >&0; fi
case $(id -u) in 3) exit 1;; *) echo /of-$(id -u);; esac
`
	if err := os.WriteFile(script, []byte(answer), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, test := range []string{"signal", "ignored", "closed", "user"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		cmd := exec.CommandContext(ctx, program, test)
		cmd.Env, cmd.WaitDelay = []string{"PATH=/usr/bin:/bin", "SOFTRNIC_COMMAND=" + script}, time.Second
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", test, err, out)
		}
		cancel()
	}
}

// TestCountersOfContainer: in a container, the counters in sysfs count from the first program on,
// although none has looked at sysfs before.
func TestCountersOfContainer(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	if os.Geteuid() != 0 {
		t.Skip("must be root, to mount")
	}
	const script = `
		mount -t tmpfs none /opt && mount -t tmpfs none /dev/shm && mkdir -p /opt/softrnic/lib/softrnic /opt/softrnic/bin &&
		mount --bind "$1" /opt/softrnic/lib/softrnic && cp "$2" /opt/softrnic/bin && ip link set lo up || exit 1
		export LD_LIBRARY_PATH=/opt/softrnic/lib/softrnic SOFTRNIC_LINK=kernel:lo SOFTRNIC_ADDR=127.0.0.1
		ibv_rc_pingpong -g 0 >/dev/null & server=$!
		until grep -q ":$(printf %04X 18515) .* 0A " /proc/net/tcp*; do sleep 0.02; done
		ibv_rc_pingpong -g 0 127.0.0.1 >/dev/null && wait $server &&
		LD_PRELOAD=/opt/softrnic/lib/softrnic/libsoftrnic-sysfs.so cat /sys/class/infiniband/softrnic0/ports/1/counters/port_xmit_data`
	libs := build(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh",
		libs, command(t))
	cmd.Env, cmd.WaitDelay = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin"}, time.Second
	out, err := cmd.CombinedOutput()
	if n, bad := strconv.Atoi(strings.TrimSpace(string(out))); err != nil || bad != nil || n < 2*1000*4096/4 {
		t.Errorf("port_xmit_data: %v: %s, want what both programs sent", err, out)
	}
}
