//go:build linux

package peer

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/vishvananda/netns"

	"github.com/softrnic/softrnic/tests/internal/namespace"
)

const netnsPrefix = "softrnic-test-"

// Netns is a network namespace with a bridge in it, br0, that has the addresses 10.77.0.1/24 and
// fd77::1/64. The namespace, its processes and Dir are removed when this process ends, in any way.
type Netns struct {
	Name   string
	Bridge string
	MTU    int
	// Dir is a temporary directory that lives as long as the namespace.
	Dir string

	reaper      *exec.Cmd
	reaperInput io.Closer // the reaper's input: the reaper acts when it closes
	veths       atomic.Int32
}

func newNetns(mtu int) (*Netns, error) {
	removeStale()
	n := &Netns{Name: fmt.Sprintf("%s%d-%d", netnsPrefix, os.Getpid(), mtu), Bridge: "br0", MTU: mtu}
	var err error
	if n.Dir, err = os.MkdirTemp("", netnsPrefix); err != nil {
		return nil, err
	}
	n.reaper = exec.Command("sh", "-c", "cat >/dev/null; "+removal(n.Name)+"; rm -rf "+n.Dir)
	n.reaper.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // so that ^C does not reach it
	if n.reaperInput, err = n.reaper.StdinPipe(); err != nil {
		return nil, err
	}
	if err := n.reaper.Start(); err != nil {
		return nil, err
	}
	if err := run("ip", "netns", "add", n.Name); err != nil {
		n.close()
		return nil, err
	}
	for _, args := range []string{
		"link set lo up",
		"link add br0 type bridge mcast_snooping 0",
		fmt.Sprintf("link set br0 mtu %d up", mtu),
		"addr add 10.77.0.1/24 dev br0",
		"addr add fd77::1/64 dev br0 nodad",
	} {
		if err := n.ip(args); err != nil {
			n.close()
			return nil, err
		}
	}
	return n, nil
}

// removal returns the shell command that removes a namespace with all its processes.
func removal(name string) string {
	return fmt.Sprintf("for p in $(ip netns pids %s); do kill -9 $p; done; ip netns del %s", name, name)
}

// removeStale removes the namespaces of processes that have ended and whose reaper was killed too.
var removeStale = sync.OnceFunc(func() {
	entries, err := os.ReadDir("/run/netns")
	if err != nil {
		return
	}
	for _, e := range entries {
		rest, ours := strings.CutPrefix(e.Name(), netnsPrefix)
		pid, _, _ := strings.Cut(rest, "-")
		if n, err := strconv.Atoi(pid); ours && err == nil && syscall.Kill(n, 0) == syscall.ESRCH {
			_ = exec.Command("sh", "-c", removal(e.Name())).Run()
		}
	}
})

func (n *Netns) close() {
	_ = n.reaperInput.Close()
	_ = n.reaper.Wait()
}

// ip runs `ip` on the namespace.
func (n *Netns) ip(args string) error {
	return run("ip", append([]string{"-n", n.Name}, strings.Fields(args)...)...)
}

// Command is exec.CommandContext for a program in the namespace.
func (n *Netns) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", n.Name, name}, args...)...)
}

// Do calls f on a thread in the namespace. Sockets and devices that f opens are in it too.
func (n *Netns) Do(f func() error) error {
	inside, err := netns.GetFromName(n.Name)
	if err != nil {
		return err
	}
	defer inside.Close()
	return namespace.Do(inside, f)
}

// Veth creates a pair of virtual Ethernet devices, one end of it in the bridge, and returns the
// other's name. It has no address and lives until the test ends.
func (n *Netns) Veth(t testing.TB) string {
	t.Helper()
	i := n.veths.Add(1)
	free, bridged := fmt.Sprintf("veth%d", i), fmt.Sprintf("veth%d-br", i)
	for _, args := range []string{
		fmt.Sprintf("link add %s mtu %d type veth peer name %s mtu %d", free, n.MTU, bridged, n.MTU),
		fmt.Sprintf("link set %s master %s up", bridged, n.Bridge),
		fmt.Sprintf("link set %s addrgenmode none up", free),
	} {
		if err := n.ip(args); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		if err := n.ip("link del " + free); err != nil {
			t.Error(err)
		}
	})
	return free
}

// run runs a command and returns its output as an error if it fails.
func run(name string, args ...string) error {
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
