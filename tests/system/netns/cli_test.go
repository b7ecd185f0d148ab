//go:build linux

package netns

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/tests/internal/gate"
	"github.com/softrnic/softrnic/tests/system/internal/libraries"
	"github.com/softrnic/softrnic/tests/system/internal/proc"
)

// softrnic returns the program, and creates a network namespace for the test's programs.
func softrnic(t *testing.T) (program string) {
	t.Helper()
	interfaces.Root(t)
	interfaces.TUN(t)
	program, err := libraries.Program()
	if err != nil {
		t.Fatal(err)
	}
	interfaces.Namespace(t)
	return program
}

func TestMain(m *testing.M) {
	if at, dir, ok := strings.Cut(os.Getenv(hostileEnv), " "); ok {
		if err := attack(at, dir); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	code := m.Run()
	libraries.Remove()
	os.Exit(code)
}

// running is a program and its output.
type running struct {
	*proc.Output
	t     *testing.T
	cmd   *exec.Cmd
	ended chan error
}

func startProgram(t *testing.T, program string, args ...string) *running {
	t.Helper()
	return startCommand(t, exec.CommandContext(t.Context(), program, args...))
}

func startCommand(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	r := &running{t: t, cmd: cmd}
	r.Output, r.ended = proc.Start(t, cmd)
	return r
}

// await waits until the program has printed a text.
func (r *running) await(what string) {
	r.t.Helper()
	if err := r.WaitFor(what, r.ended); err != nil {
		r.t.Fatalf("%v\n%s", err, r)
	}
}

// exit returns the exit code of a program that ends by itself.
func (r *running) exit() int {
	r.t.Helper()
	select {
	case <-r.ended:
		return r.cmd.ProcessState.ExitCode()
	case <-time.After(time.Minute):
		said := r.String()
		r.t.Fatalf("is still running:\n%s", said)
		return -1
	}
}

// TestProgramWithoutItsInterface: programs that wait for peers on an interface report its deletion,
// and end.
func TestProgramWithoutItsInterface(t *testing.T) {
	gate.System(t)
	program := softrnic(t)
	interfaces.Veth(t, 1500)
	for _, c := range []struct{ args, waits, ifce string }{
		{"serve --link tap:rnic0 --addr 10.7.0.1/24", "msg=serving", "rnic0"},
		{"perf write bw --link tap:rnic0 --addr 10.7.0.1/24", "Waiting for a client", "rnic0"},
		{"pingpong rc --link tap:rnic0 --addr 10.7.0.1/24", "local address", "rnic0"},
		{"rping -s -d --link tap:rnic0 --addr 10.7.0.1/24", "msg=listening", "rnic0"},
		{"mckey -m 239.1.2.3 --link packet:v0 --addr 10.7.0.1/24", "joined", "v0"},
	} {
		p := startProgram(t, program, strings.Fields(c.args)...)
		p.await(c.waits)
		if err := netlink.LinkDel(interfaces.ByName(t, c.ifce)); err != nil {
			t.Fatal(err)
		}
		code := p.exit()
		said := p.String()
		lines := strings.Split(strings.TrimSpace(said), "\n")
		if want := "softrnic: link " + c.ifce + ": the interface was removed"; code != 1 || lines[len(lines)-1] != want {
			t.Errorf("%s: exit code %d, want 1 and in the end %q:\n%s", c.args, code, want, said)
		}
		for _, want := range []string{`level=WARN msg="the port is down" event=PORT_ERR`,
			`level=ERROR msg="the interface was removed" link=` + c.ifce} {
			if !strings.Contains(said, want) {
				t.Errorf("%s: does not print %q:\n%s", c.args, want, said)
			}
		}
	}
}

// TestProgramLeavesInterface: no command changes an interface that existed before, not even
// temporarily.
func TestProgramLeavesInterface(t *testing.T) {
	gate.System(t)
	program := softrnic(t)
	interfaces.Bridge(t, "br0", 0)
	interfaces.Bridge(t, "br1", 0)
	if err := netlink.LinkAdd(&netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "rnic0"}, Mode: netlink.TUNTAP_MODE_TAP}); err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetMaster(interfaces.ByName(t, "rnic0"), interfaces.ByName(t, "br1")); err != nil {
		t.Fatal(err)
	}
	// Every change of an interface is reported.
	changes, quit := make(chan netlink.LinkUpdate, 100), make(chan struct{})
	defer close(quit)
	if err := netlink.LinkSubscribe(changes, quit); err != nil {
		t.Fatal(err)
	}
	before := interfaces.ByName(t, "rnic0").Attrs()
	for _, args := range []string{"devinfo --link tap:rnic0,bridge=br0 --mtu 4200",
		"serve --link tap:rnic0,bridge=br0 --mtu 4200 --addr 10.7.0.1/24"} {
		out, err := exec.CommandContext(t.Context(), program, strings.Fields(args)...).CombinedOutput()
		if err == nil || !strings.HasSuffix(string(out), "first run, as root: ip link set dev rnic0 mtu 4200 master br0 up\n") {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
	at := interfaces.ByName(t, "rnic0").Attrs()
	if at.MTU != before.MTU || at.MasterIndex != before.MasterIndex || at.RawFlags != before.RawFlags {
		t.Errorf("MTU, bridge and flags were %d, %d, %#x and are %d, %d, %#x", before.MTU, before.MasterIndex, before.RawFlags, at.MTU,
			at.MasterIndex, at.RawFlags)
	}
	for len(changes) > 0 {
		// Attaching to it and detaching are reported too.
		if at := (<-changes).Attrs(); at.Name == "rnic0" && (at.MTU != before.MTU || at.MasterIndex != before.MasterIndex) {
			t.Errorf("it temporarily had MTU %d and was in %d", at.MTU, at.MasterIndex)
		}
	}
}

// TestProgramHints: a server that its clients cannot reach says so.
func TestProgramHints(t *testing.T) {
	gate.System(t)
	program := softrnic(t)
	interfaces.Bridge(t, "br0", 0)
	own, err := netlink.ParseAddr("10.7.0.9/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(interfaces.ByName(t, "br0"), own); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args, waits, hint string
	}{
		{"serve --link tap:rnic0,bridge=br0", "msg=serving", "without --addr the node has only a link-local address"},
		{"perf write bw --link tap:rnic0,bridge=br0", "Waiting for a client", "without --addr"},
		{"pingpong rc --link tap:rnic0,bridge=br0", "local address", "without --addr"},
		{"rping -s -d --link tap:rnic0,bridge=br0", "msg=listening", "without --addr"},
		{"serve --link tap:rnic0,bridge=br0 --addr 10.7.0.9/24", "msg=serving", "--addr is this machine's own address"},
		{"serve --link tap:rnic0,bridge=br0 --addr 10.7.0.1/24", "msg=serving", ""},
	} {
		p := startProgram(t, program, strings.Fields(c.args)...)
		p.await(c.waits)
		said := p.String()
		if c.hint == "" && strings.Contains(said, "WARN") || c.hint != "" && !strings.Contains(said, c.hint) {
			t.Errorf("%s: wants the hint %q:\n%s", c.args, c.hint, said)
		}
		if strings.Contains(c.hint, "own") && !strings.Contains(said, netip.MustParseAddr("10.7.0.9").String()+" interface=br0") {
			t.Errorf("%s: does not say which:\n%s", c.args, said)
		}
		_ = p.cmd.Process.Kill()
		<-p.ended
	}
}
