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
if [ "$CALLS" ]; then echo "$*" >>"$CALLS"; fi
case $(id -u) in 3) exit 1;; *) echo /of-$(id -u);; esac
`
	if err := os.WriteFile(script, []byte(answer), 0o755); err != nil {
		t.Fatal(err)
	}
	calls := filepath.Join(dir, "calls")
	for _, test := range []string{"signal", "ignored", "closed", "user", "changed"} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		cmd := exec.CommandContext(ctx, program, test)
		cmd.Env, cmd.WaitDelay = []string{"PATH=/usr/bin:/bin", "SOFTRNIC_COMMAND=" + script}, time.Second
		if test == "changed" {
			cmd.Env = append(cmd.Env, "CALLS="+calls)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", test, err, out)
		}
		cancel()
	}
	if got, err := os.ReadFile(calls); string(got) != "run --describe\nrun --describe --tree /of-0\n" {
		t.Errorf("the command has run with %q, %v", got, err)
	}
}

// inContainer runs a script as root of a container with a device: in namespaces of its own, with
// the libraries and the command in their places.
func inContainer(t *testing.T, script string) (string, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("must be root, to mount")
	}
	const begin = `
		mount -t tmpfs none /opt && mount -t tmpfs none /dev/shm && mkdir -p /opt/softrnic/lib/softrnic /opt/softrnic/bin &&
		mount --bind "$1" /opt/softrnic/lib/softrnic && cp "$2" /opt/softrnic/bin && ip link set lo up || exit 1
		export LD_LIBRARY_PATH=/opt/softrnic/lib/softrnic
`
	libs := build(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c",
		begin+script, "sh", libs, command(t))
	cmd.Env, cmd.WaitDelay = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin"}, time.Second
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TestSysfsFollowsInContainer: while a program runs in a container, the files of a port follow the
// interface, although nothing in the container describes them but the program's own library.
func TestSysfsFollowsInContainer(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/sbin/ip", "iproute2")
	const script = `
		ip link add veth0 type veth peer name veth1 && ip address add 10.44.0.1/24 dev veth0 && ip link set veth1 up &&
		ip link set veth0 addrgenmode none up || exit 1
		export SOFTRNIC_LINK=kernel:veth0
		export LD_PRELOAD=/opt/softrnic/lib/softrnic/libsoftrnic-sysfs.so
		exec sh -c '
			has() { until read -r got <$at/$1 && test "$got" = "$2"; do sleep 0.02; done; }
			at=/sys/class/infiniband/softrnic0/ports/1 zero=0000:0000:0000:0000:0000:0000:0000:0000
			has state "4: ACTIVE"; has gids/2 $zero
			ip address add 10.44.0.9/24 dev veth0; has gids/2 0000:0000:0000:0000:0000:ffff:0a2c:0009
			read -r got <$at/gid_attrs/types/2; echo "type $got"
			ip link set veth1 down; has state "1: DOWN"; has phys_state "2: Polling"
			ip address del 10.44.0.9/24 dev veth0; has gids/2 $zero; read -r got <$at/gid_attrs/types/2 || echo "no type"
			ip link set veth1 up; has state "4: ACTIVE"; echo end'`
	out, err := inContainer(t, script)
	if said := strings.Fields(out); err != nil || !strings.Contains(out, "type RoCE v2\n") || !strings.Contains(out, "no type\n") ||
		said[len(said)-1] != "end" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestCountersOfContainer: in a container, the counters in sysfs count from the first program on,
// although none has looked at sysfs before.
func TestCountersOfContainer(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/ibv_rc_pingpong", "ibverbs-utils")
	const script = `
		export SOFTRNIC_LINK=kernel:lo SOFTRNIC_ADDR=127.0.0.1
		ibv_rc_pingpong -g 0 >/dev/null & server=$!
		until grep -q ":$(printf %04X 18515) .* 0A " /proc/net/tcp*; do sleep 0.02; done
		ibv_rc_pingpong -g 0 127.0.0.1 >/dev/null && wait $server &&
		LD_PRELOAD=/opt/softrnic/lib/softrnic/libsoftrnic-sysfs.so cat /sys/class/infiniband/softrnic0/ports/1/counters/port_xmit_data`
	out, err := inContainer(t, script)
	if n, bad := strconv.Atoi(strings.TrimSpace(out)); err != nil || bad != nil || n < 2*1000*4096/4 {
		t.Errorf("port_xmit_data: %v: %s, want what both programs sent", err, out)
	}
}
