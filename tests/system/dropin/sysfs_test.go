//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// sysfsModes are the values of --sysfs with which a user without privileges sees the devices here.
func sysfsModes(t *testing.T) []string {
	t.Helper()
	if out, err := runner(t.Context(), t, shared(t), "--link pipe --sysfs on", "true").CombinedOutput(); err != nil {
		t.Logf("no mount namespace for a user without privileges: %s", out)
		return []string{"preload"}
	}
	return []string{"on", "preload"}
}

// changeable creates a network namespace with an interface whose addresses and state change on
// demand: it runs the lines that it reads.
const changeable = `set -e
ip link set lo up
ip link add veth0 type veth peer name veth1
ip address add 10.44.0.1/24 dev veth0
ip link set veth1 up
ip link set veth0 addrgenmode none up
echo $$ $$
while read line; do $line; done`

// TestSysfsFollows: while a program runs, the files of a port in sysfs follow the interface, and
// iproute2's rdma says the same. An index without a GID has files, too: reading its type fails with
// EINVAL, as NCCL expects.
func TestSysfsFollows(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/sbin/ip", "iproute2")
	needs(t, "/usr/bin/ibv_devinfo", "ibverbs-utils")
	w := &network{dirs: [2]string{shared(t), shared(t)}}
	w.create(t, changeable)
	const look = `cd /sys/class/infiniband/softrnic0/ports/1
		port() { until grep -q "$1" state && grep -q "$2" phys_state; do sleep 0.01; done; echo "port $(cat state), $(cat phys_state)"; rdma link; }
		gid() {
			until test "$(cat gids/$1)" = "$2"; do sleep 0.01; done
			while test $2 = $zero && cat gid_attrs/types/$1 gid_attrs/ndevs/$1 2>/dev/null; do sleep 0.01; done
			echo "gid $1 $2 $(cat gid_attrs/types/$1 gid_attrs/ndevs/$1 2>&1)"
		}
		zero=0000:0000:0000:0000:0000:0000:0000:0000
		port ACTIVE LinkUp; gid 2 $zero; ls gids | wc -l; echo ready
		gid 2 0000:0000:0000:0000:0000:ffff:0a2c:0009; ibv_devinfo -v -d softrnic0; echo added
		gid 2 $zero; echo removed
		port DOWN Polling; echo lost
		port DOWN Disabled; echo down
		port ACTIVE LinkUp; gid 1 0000:0000:0000:0000:0000:ffff:0a2c:0001; ibv_devinfo -d softrnic0; echo up`
	for _, sysfs := range sysfsModes(t) {
		t.Run(sysfs, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			said, ended := proc.Start(t, w.command(ctx, 0, command(t), "run", "--link", "kernel:veth0", "--no-shared", "--sysfs", sysfs,
				"--", "sh", "-c", look))
			for _, step := range []struct {
				change, until string
				wants         []string // since the last step
			}{
				{"", "ready\n", []string{"port 4: ACTIVE, 5: LinkUp", "state ACTIVE physical_state LINK_UP netdev veth0", "Invalid argument",
					"Invalid argument", "128"}},
				{"ip address add 10.44.0.9/24 dev veth0", "added\n", []string{"RoCE v2\nveth0", "::ffff:10.44.0.9"}},
				{"ip address del 10.44.0.9/24 dev veth0", "removed\n", []string{"Invalid argument", "Invalid argument"}},
				{"ip link set veth1 down", "lost\n", []string{"port 1: DOWN, 2: Polling", "state DOWN physical_state POLLING"}},
				{"ip link set veth0 down", "down\n", []string{"port 1: DOWN, 3: Disabled", "state DOWN physical_state DISABLED"}},
				{"ip link set veth1 up\nip link set veth0 up", "up\n", []string{"port 4: ACTIVE, 5: LinkUp", "PORT_ACTIVE"}},
			} {
				before := len(said.String())
				if _, err := fmt.Fprintln(w.stdin, step.change); err != nil {
					t.Fatal(err)
				}
				if err := said.WaitFor("\n"+step.until, ended); err != nil {
					t.Fatalf("after %q: %v\n%s", step.change, err, said.String())
				}
				rest := said.String()[before:]
				for _, want := range step.wants {
					var ok bool
					if _, rest, ok = strings.Cut(rest, want); !ok {
						t.Errorf("after %q the program does not print %q, or not in the order of %q:\n%s", step.change, want, step.wants,
							said.String()[before:])
						break
					}
				}
			}
			if err := <-ended; err != nil {
				t.Errorf("%v\n%s", err, said.String())
			}
		})
	}
}

// TestLaterInterface: with --sysfs preload, an interface that is created while the program runs has
// its entry beside that of the card's.
func TestLaterInterface(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/sbin/ip", "iproute2")
	if os.Getuid() != 0 {
		t.Skip("it needs root, to mount")
	}
	script := `mount -t sysfs sysfs /sys && ip link set lo up && ip link add veth0 type veth peer name veth1 && ip address add 10.44.0.1/24 dev veth0 &&
		ip link set veth1 up && ip link set veth0 up || exit 1
		exec ` + command(t) + ` run --libs ` + build(t) + ` --link kernel:veth0 --no-shared --card connectx7 --sysfs preload -- sh -c '
			ip link add later mtu 1280 type veth peer name later1; cat /sys/class/net/later/mtu /sys/class/net/veth0/device/device'`
	cmd := exec.CommandContext(t.Context(), "unshare", "--mount", "--net", "sh", "-c", script)
	cmd.Env, cmd.Dir = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "XDG_RUNTIME_DIR=" + shared(t)}, "/"
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "1280\n0x1021\n" {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestNetlinkOfDescendants: iproute2's rdma is answered whoever starts it and by whatever path,
// also under a softrnic run in another, whose devices it then sees.
func TestNetlinkOfDescendants(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/rdma", "iproute2")
	needs(t, "/usr/bin/python3", "python3")
	rdma, err := exec.LookPath("rdma")
	if err != nil {
		t.Fatal(err)
	}
	for _, sysfs := range sysfsModes(t) {
		ways := map[string]string{
			"a shell":    "rdma link",
			"Python":     `python3 -c "import subprocess; print(subprocess.check_output(['rdma', 'link', 'show', '-j'], text=True))"`,
			"within one": command(t) + " run --link pipe --sysfs " + sysfs + " --device mlx5_0, -- sh -c 'rdma link; true'",
		}
		if sysfs == "on" { // preload needs the environment
			ways["without an environment"] = "env -i " + rdma + " link"
		}
		script := ""
		for name, command := range ways {
			script += fmt.Sprintf("echo; echo '%s:' $(%s)\n", name, command)
		}
		out, err := runner(t.Context(), t, shared(t), "--link pipe --device mlx5_0, --sysfs "+sysfs, "sh", "-c", script).CombinedOutput()
		for name := range ways {
			if _, said, _ := strings.Cut(string(out), "\n"+name+": "); err != nil || !regexp.MustCompile(`^.*mlx5_0.*ACTIVE`).MatchString(said) {
				t.Errorf("--sysfs %s: by %s: %v\n%s", sysfs, name, err, out)
			}
		}
	}
}

// TestRunOfRoot: under a softrnic run of root, whose umask is narrow, another user reads the
// devices' files and has /dev, and may start one of its own. Descriptors of the caller arrive.
func TestRunOfRoot(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/rdma", "iproute2")
	needs(t, "/usr/bin/setpriv", "util-linux")
	if os.Getuid() != 0 {
		t.Skip("it needs root, to change the user")
	}
	dir := shared(t)
	run := command(t) + " run --link pipe --sysfs on -- "
	own := run // of the other user
	if !slices.Contains(sysfsModes(t), "on") {
		own = ""
	}
	script := "umask 077; exec 3>" + filepath.Join(dir, "three") + "; exec " + run +
		`setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'echo three >&3
			cat /dev/null /sys/class/infiniband/softrnic0/ports/1/state && rdma link && ` + own + `rdma link show -j'`
	cmd := exec.CommandContext(t.Context(), "sh", "-c", script)
	cmd.Env, cmd.Dir = []string{"PATH=/usr/bin:/bin", "XDG_RUNTIME_DIR=" + dir, "TMPDIR=" + dir}, "/"
	out, err := cmd.CombinedOutput()
	if err != nil || !regexp.MustCompile(`(?s)^4: ACTIVE\nlink softrnic0/1 state ACTIVE.*\[.*"softrnic0".*\]`).Match(out) {
		t.Errorf("%v\n%s", err, out)
	}
	if said, err := os.ReadFile(filepath.Join(dir, "three")); err != nil || string(said) != "three\n" {
		t.Errorf("descriptor 3 has got %q, %v", said, err)
	}
}
