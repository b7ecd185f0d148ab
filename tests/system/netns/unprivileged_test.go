//go:build linux

package netns

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/tests/internal/gate"
)

// machines is a pair of network namespaces with a cable between them, v0 in the first and v1 in the
// second.
type machines struct {
	t       *testing.T
	program string
	ns      [2]netns.NsHandle
}

func newMachines(t *testing.T) *machines {
	t.Helper()
	m := &machines{t: t, program: softrnic(t)}
	if err := os.Chmod(filepath.Dir(m.program), 0o755); err != nil { // nobody runs it
		t.Fatal(err)
	}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	interfaces.Veth(t, mtu)
	var err error
	m.ns[0], err = netns.Get()
	check(err)
	m.ns[1], err = netns.New() // and this thread is in it
	check(err)
	t.Cleanup(func() {
		for _, ns := range m.ns {
			_ = ns.Close()
		}
	})
	m.enter(0)
	check(netlink.LinkSetNsFd(interfaces.ByName(t, "v1"), int(m.ns[1])))
	for i, name := range []string{"v0", "v1"} {
		m.enter(i)
		check(netlink.LinkSetUp(interfaces.ByName(t, "lo")))
		for _, cidr := range addrs[i] {
			a, err := netlink.ParseAddr(cidr)
			check(err)
			a.Flags = syscall.IFA_F_NODAD
			check(netlink.AddrAdd(interfaces.ByName(t, name), a))
		}
		check(netlink.LinkSetUp(interfaces.ByName(t, name)))
	}
	return m
}

// enter moves this thread to one of the namespaces. The thread ends with the goroutine.
func (m *machines) enter(i int) {
	m.t.Helper()
	runtime.LockOSThread()
	if err := netns.Set(m.ns[i]); err != nil {
		m.t.Fatal(err)
	}
}

// start runs softrnic in a namespace, as nobody and without capabilities.
func (m *machines) start(i int, args string) *running { return m.startWith(i, nil, args) }

// startWith is start with a standard input.
func (m *machines) startWith(i int, stdin io.Reader, args string) *running {
	m.t.Helper()
	m.enter(i)
	cmd := exec.CommandContext(m.t.Context(), m.program, strings.Fields(args)...)
	cmd.Stdin = stdin
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	return startCommand(m.t, cmd)
}

// runtimeDir sets a directory of nobody's in $XDG_RUNTIME_DIR for the programs of a test.
func runtimeDir(t *testing.T) {
	t.Helper()
	dir, err := os.MkdirTemp("", "r") // a socket's path is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chown(dir, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	t.Setenv("XDG_RUNTIME_DIR", dir)
}

// loopback adds addresses to lo of the first namespace, and a route by which it receives packets to
// the groups of IPv6.
func (m *machines) loopback(cidrs ...string) {
	m.t.Helper()
	m.enter(0)
	lo := interfaces.ByName(m.t, "lo")
	for _, cidr := range cidrs {
		a, err := netlink.ParseAddr(cidr)
		if err == nil {
			err = netlink.AddrAdd(lo, a)
		}
		if err != nil {
			m.t.Fatal(err)
		}
	}
	groups := &net.IPNet{IP: net.ParseIP("ff00::"), Mask: net.CIDRMask(8, 128)}
	if err := netlink.RouteAdd(&netlink.Route{LinkIndex: lo.Attrs().Index, Dst: groups, Table: syscall.RT_TABLE_LOCAL,
		Type: syscall.RTN_LOCAL}); err != nil {
		m.t.Fatal(err)
	}
}

// TestUnprivileged runs commands as nobody, without capabilities, over IPv4 and IPv6: each
// ping-pong, rping over both protocols, perf, mckey and serve. Programs in two network namespaces
// communicate by the kernel's own sockets, by a segment in shared memory, and by an unprivileged
// switch whose ports are connections to a unix socket. Programs in one namespace use the kernel's
// sockets on lo.
func TestUnprivileged(t *testing.T) {
	gate.System(t)
	m := newMachines(t)
	runtimeDir(t)
	m.loopback("127.7.0.1/32", "127.7.0.2/32", "2001:db8:8::1/128", "2001:db8:8::2/128")
	on := func(link string, i int) string {
		return " --link " + link + " --mtu 4200 --addr " + strings.Join(addrs[i], " --addr ")
	}
	socket := filepath.Join(os.Getenv("XDG_RUNTIME_DIR"), "lan")
	lan := m.start(0, "switch stream:"+socket+",listen --mtu 4200")
	lan.await("msg=listening")
	defer func() {
		_ = lan.cmd.Process.Signal(os.Interrupt)
		if code := lan.exit(); code != 0 {
			said := lan.String()
			t.Errorf("the switch ends with %d:\n%s", code, said)
		}
	}()
	veth := [2]string{"10.7.0.1", "2001:db8:7::1"}
	for _, medium := range []struct {
		name    string
		servers [2]string // addresses, of either family
		client  int       // its namespace; the server's is the first
		node    [2]string // the flags of the server's node, and of the client's
		// Each ICRC must be correct as it is, without a search for the IPv4 identification.
		strict string
	}{
		{"kernel", veth, 1, [2]string{" --link kernel:v0", " --link kernel" /* the interface that is not the loopback */}, "--strict-icrc"},
		{"lo", [2]string{"127.7.0.1", "2001:db8:8::1"}, 0, [2]string{" --link kernel:lo --addr 127.7.0.1 --addr 2001:db8:8::1",
			" --link kernel:lo --addr 127.7.0.2 --addr 2001:db8:8::2"}, "--strict-icrc"},
		{"shm", veth, 1, [2]string{on("shm", 0), on("shm", 1)}, ""},
		{"stream", veth, 1, [2]string{on("stream:"+socket, 0), on("stream:"+socket, 1)}, ""},
	} {
		for _, family := range []struct{ name, server, group string }{
			{"IPv4", medium.servers[0], "239.7.0.1"}, {"IPv6", medium.servers[1], "ff05::7:1"},
		} {
			for _, c := range []struct{ server, says, client, prints string }{
				{"pingpong rc -c -s 100000 -n 100 -m 4096", "local address", "pingpong rc -c -s 100000 -n 100 -m 4096 SERVER", "100 iters"},
				{"pingpong uc -c -n 100", "local address", "pingpong uc -c -n 100 SERVER", "100 iters"},
				{"pingpong ud -c -s 2000 -n 100", "local address", "pingpong ud -c -s 2000 -n 100 SERVER", "100 iters"},
				{"pingpong srq -c -n 100", "local address", "pingpong srq -c -n 100 SERVER", "100 iters"},
				{"pingpong xsrq -n 100", "waiting for 1", "pingpong xsrq -n 100 SERVER", ""},
				{"rping -s -d", "listening", "rping -c -a SERVER -C 50 -S 20000 -V -v", "ping data: rdma-ping-49"},
				{"rping -s -d --transport iwarp", "listening", "rping -c -a SERVER -C 50 -S 20000 -V -v --transport iwarp",
					"ping data: rdma-ping-49"},
				{"perf write bw", "Waiting", "perf write bw -D 200ms --transport rocev2 --transport iwarp SERVER", "65536"},
				{"perf send lat STRICT", "Waiting", "perf send lat -n 500 --verify STRICT SERVER", "500"},
				{"mckey -m GROUP", "joined", "mckey -m GROUP -s", "10 messages of 100 bytes sent"},
				{"serve --log-level info", "msg=serving", "rping -c -a SERVER -C 50 -V -v", "ping data: rdma-ping-49"},
			} {
				at := strings.NewReplacer("SERVER", family.server, "GROUP", family.group, "STRICT", medium.strict)
				t.Run(medium.name+"/"+family.name+"/"+c.server, func(t *testing.T) {
					m.t = t
					server := m.start(0, at.Replace(c.server)+" --counters"+medium.node[0])
					server.await(c.says)
					client := m.start(medium.client, at.Replace(c.client)+" --counters"+medium.node[1])
					code := client.exit()
					said := client.String()
					if code != 0 || !strings.Contains(said, c.prints) {
						t.Errorf("the client ends with %d, and does not print %q:\n%s", code, c.prints, said)
						_ = server.cmd.Process.Kill()
					}
					if strings.HasPrefix(c.server, "serve") {
						_ = server.cmd.Process.Signal(os.Interrupt)
					}
					code = server.exit()
					told := server.String()
					if code != 0 && !strings.HasPrefix(c.server, "serve") {
						t.Errorf("the server ends with %d:\n%s", code, told)
					}
					for _, bad := range []string{"icrc_", "malformed"} {
						if strings.Contains(said+told, bad) {
							t.Errorf("packets were counted as %s:\n%s\n%s", bad, said, told)
						}
					}
				})
			}
		}
	}
}
