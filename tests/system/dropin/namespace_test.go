//go:build linux && amd64

package dropin

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
	"github.com/softrnic/softrnic/tests/system/internal/programs"
)

// network is a pair of network namespaces connected by a cable, like two containers. Each has an
// IPv6 address and an IPv4 address. The names server.test and client.test stand for the IPv4
// addresses in both.
type network struct {
	enter []string // the command that enters the namespaces of a process, without its number
	pids  [2]string
	dirs  [2]string   // XDG_RUNTIME_DIR of each
	said  proc.Output // of the script that created the namespaces
	stdin io.Writer
	ended chan error
}

// addresses of the two.
var addresses = [2]string{"10.44.0.1", "10.44.0.2"}

// setUp creates the namespaces. It prints the number of its own process, in the server's
// namespaces, and of another in the client's. It ends with its standard input.
const setUp = `set -e
mount --bind "$0" /etc/hosts
unshare --net sleep infinity & other=$!
while [ "$(readlink /proc/$other/ns/net)" = "$(readlink /proc/$$/ns/net)" ]; do sleep 0.01; done
ip link add veth0 type veth peer name veth0 netns $other
ip link set lo up
ip address add 10.44.0.1/24 dev veth0
ip address add fd44::1/64 dev veth0 nodad
ip link set veth0 up
nsenter --net --target $other sh -ec 'ip link set lo up; ip address add 10.44.0.2/24 dev veth0; ip address add fd44::2/64 dev veth0 nodad; ip link set veth0 up'
echo $$ $other
read end || kill $other`

// newNetwork creates the namespaces as an unprivileged user or, if such a user may create none, as
// root. Commands in them run as an unprivileged user in both cases.
func newNetwork(t *testing.T) *network {
	t.Helper()
	needs(t, "/usr/sbin/ip", "iproute2")
	w := &network{dirs: [2]string{shared(t), shared(t)}}
	hosts := filepath.Join(w.dirs[0], "hosts")
	if err := os.WriteFile(hosts, fmt.Appendf(nil, "127.0.0.1 localhost\n%s server.test\n%s client.test\n", addresses[0], addresses[1]),
		0o644); err != nil {
		t.Fatal(err)
	}
	w.create(t, setUp, hosts)
	return w
}

// create runs a script that creates the namespaces and prints their processes.
func (w *network) create(t *testing.T, script string, args ...string) {
	t.Helper()
	as := asNobody()
	unshare := []string{"unshare", "--net", "--mount"}
	if try := exec.Command("unshare", "--user", "--net", "true"); as.try(try) {
		unshare = append(unshare, "--user", "--map-current-user", "--keep-caps")
		w.enter = []string{"nsenter", "--user", "--preserve-credentials", "--net", "--mount", "--target"}
	} else if os.Getuid() == 0 {
		as = user{}
		w.enter = []string{"nsenter", "--setuid", fmt.Sprint(nobody), "--setgid", fmt.Sprint(nobody), "--net", "--mount", "--target"}
	} else {
		t.Skip("this user may make no namespaces")
	}
	cmd := exec.Command(unshare[0], slices.Concat(unshare[1:], []string{"sh", "-c", script}, args)...)
	cmd.SysProcAttr = as.attr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	var errors proc.Output
	cmd.Stdout, cmd.Stderr = &w.said, &errors
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.stdin, w.ended = stdin, make(chan error, 1)
	go func() { w.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		for _, pid := range w.pids {
			endOthers(t, pid)
		}
		_ = stdin.Close()
		<-w.ended
	})
	if err := w.said.WaitFor("\n", w.ended); err != nil {
		t.Fatalf("no namespaces: %v\n%s", err, errors.String())
	}
	copy(w.pids[:], strings.Fields(w.said.String()))
}

// user is the user of a command.
type user struct{ attr *syscall.SysProcAttr }

// asNobody returns a user without privileges.
func asNobody() user {
	if os.Getuid() != 0 {
		return user{}
	}
	return user{&syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}}
}

// try reports whether a command succeeds.
func (u user) try(cmd *exec.Cmd) bool {
	cmd.SysProcAttr = u.attr
	return cmd.Run() == nil
}

// command returns a command in one of the namespaces, as a user without privileges.
func (w *network) command(ctx context.Context, side int, args ...string) *exec.Cmd {
	line := append(append(w.enter[1:len(w.enter):len(w.enter)], w.pids[side]), args...)
	cmd := exec.CommandContext(ctx, w.enter[0], line...)
	cmd.Env = []string{"PATH=/usr/bin:/bin:/usr/sbin:/sbin", "XDG_RUNTIME_DIR=" + w.dirs[side], "TMPDIR=" + w.dirs[side]}
	cmd.Dir, cmd.WaitDelay = "/", time.Second
	if w.enter[1] == "--user" {
		cmd.SysProcAttr = asNobody().attr
	}
	return cmd
}

// endOthers kills the hub, which stays for a while for the next program: it kills all processes in
// the network namespace of a process, except for that process and its creator.
func endOthers(t *testing.T, pid string) {
	t.Helper()
	namespace, err := os.Readlink("/proc/" + pid + "/ns/net")
	if err != nil {
		return // it has not been created
	}
	all, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range all {
		other := strings.Split(file, "/")[2]
		if of, err := os.Readlink(file); err != nil || of != namespace || other == pid {
			continue
		}
		if n, err := strconv.Atoi(other); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
}

// TestNamespaces: programs under softrnic run in two network namespaces, without capabilities,
// reach each other by host name or IPv6 address. They use the addresses of the namespaces, through
// a hub in each, as by default, and on their own sockets.
func TestNamespaces(t *testing.T) {
	gate.System(t)
	needs(t, "/usr/bin/rping", "rdmacm-utils")
	needs(t, "/usr/bin/ib_write_bw", "perftest")
	softrnic := command(t)
	w := newNetwork(t)
	for side := range w.pids {
		status, err := w.command(t.Context(), side, "sh", "-c",
			"id -u; grep -E 'Cap(Prm|Eff|Amb)' /proc/self/status; ip -brief address show veth0").CombinedOutput()
		if err != nil || strings.Count(string(status), "0000000000000000") != 3 || !strings.Contains(string(status), addresses[side]) {
			t.Fatalf("a program is not without capabilities at %s: %v\n%s", addresses[side], err, status)
		}
	}
	for i, p := range []struct {
		server, client, transport, link string
		bytes                           uint64 // minimum that crosses the cable
	}{
		{"rping -s -a server.test -v -V -C 20 -S 1000", "rping -c -a server.test -I client.test -v -V -C 20 -S 1000", "roce", "",
			2 * 20 * 1000},
		{"rping -s -a server.test -v -V -C 20 -S 1000", "rping -c -a server.test -v -V -C 20 -S 1000", "iwarp", "", 2 * 20 * 1000},
		{"ib_write_bw -R -n 500 -F", "ib_write_bw -R -n 500 -F server.test", "roce", "--link kernel:veth0 --no-shared", 500 * 65536},
		{"rstream -b fd44::1 -S 4096 -C 50 -T v", "rstream -s fd44::1 -S 4096 -C 50 -T v", "roce", "--link kernel:veth0 --no-shared",
			2 * 50 * 4096},
		{"rstream -b fd44::1 -S 4096 -C 50 -T v", "rstream -s fd44::1 -S 4096 -C 50 -T v", "iwarp", "--link kernel:veth0 --no-shared",
			2 * 50 * 4096},
		{"riostream -b fd44::1 -S 4096 -C 50 -T v", "riostream -s fd44::1 -S 4096 -C 50 -T v", "roce", "", 2 * 50 * 4096},
	} {
		t.Run(p.client+" "+p.transport, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
			defer cancel()
			var counters [2]string
			for side, dir := range w.dirs {
				counters[side] = filepath.Join(dir, fmt.Sprintf("counters%d", i))
			}
			start := func(side int, line string) *exec.Cmd {
				cmd := w.command(ctx, side, slices.Concat([]string{softrnic, "run", "--log-level", "debug"}, strings.Fields(p.link),
					[]string{"--"}, strings.Fields(line))...)
				cmd.Env = append(cmd.Env, "SOFTRNIC_TRANSPORT="+p.transport, "SOFTRNIC_COUNTERS="+counters[side])
				return cmd
			}
			s := start(0, p.server)
			said, ended := proc.Start(t, s)
			if err := said.WaitFor("rdma_cm listens", ended); err != nil {
				t.Fatalf("%v\n%s", err, said.String())
			}
			out, err := start(1, p.client).CombinedOutput()
			if err != nil {
				t.Errorf("the client: %v\n%s", err, out)
				cancel()
			}
			if err := <-ended; err != nil {
				t.Fatalf("the server: %v\n%s", err, said.String())
			}
			carried(t, counters, p.bytes)
		})
	}
}

// carried checks with the counter files that the devices of both sides have carried at least the
// given number of bytes.
func carried(t *testing.T, counters [2]string, bytes uint64) {
	t.Helper()
	for side, file := range counters {
		c, err := programs.Counted(file)
		if err != nil {
			t.Fatal(err)
		}
		if sum := 4*(c["port_xmit_data"]+c["port_rcv_data"]) + c["iwarp_xmit_bytes"] + c["iwarp_rcv_bytes"]; sum < bytes {
			t.Errorf("the device at %s carried %d bytes, want %d at least: %v", addresses[side], sum, bytes, c)
		}
	}
}
