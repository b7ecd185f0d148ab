//go:build linux

package netns

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/tests/interfaces"
	"github.com/softrnic/softrnic/tests/internal/gate"
)

// Users of the hub of the machine, and the user that the hub runs as.
const (
	alice    = 65530
	bob      = 65531
	hubsUser = 65532
)

// hostileEnv has the address that a hostile process attacks, and the directory of the hub.
const hostileEnv = "SOFTRNIC_NETNS_HOSTILE"

// startAs runs softrnic in a namespace as a user without capabilities, with a runtime directory of
// that user.
func (m *machines) startAs(i int, uid uint32, args string) *running {
	m.t.Helper()
	return startCommand(m.t, m.commandAs(i, uid, m.program, strings.Fields(args)...))
}

func (m *machines) commandAs(i int, uid uint32, program string, args ...string) *exec.Cmd {
	m.t.Helper()
	dir, err := os.MkdirTemp("", "r")
	if err == nil {
		err = os.Chown(dir, int(uid), int(uid))
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m.enter(i)
	cmd := exec.CommandContext(m.t.Context(), program, args...)
	cmd.Env, cmd.Dir = append(os.Environ(), "XDG_RUNTIME_DIR="+dir), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	return cmd
}

// ofServices is the directory of the hub's user.
const ofServices = "/run/softrnic"

// makeSystemDirectory makes the directory of the hub's user, as systemd does.
func makeSystemDirectory(t *testing.T) {
	t.Helper()
	switch err := os.Mkdir(ofServices, 0o755); {
	case errors.Is(err, fs.ErrExist):
		t.Skipf("%s: a hub of this machine has it", ofServices)
	case err != nil:
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(ofServices) })
	if err := os.Chown(ofServices, hubsUser, hubsUser); err != nil {
		t.Fatal(err)
	}
}

// startHub starts the hub of the machine, with addresses that it has from the beginning.
func (m *machines) startHub(addrs ...string) *running {
	m.t.Helper()
	h := m.startAs(0, hubsUser, strings.Join(append([]string{"hub --system"}, addrs...), " --addr "))
	h.await("the hub is up")
	return h
}

// TestTwoUsers checks that programs of two users transfer data at one address at once, through the
// hub of the machine, without wrong data, while a third user attacks the hub and the address. Then
// the hub is killed during a transfer, and the next one goes on.
func TestTwoUsers(t *testing.T) {
	gate.Long(t)
	m := newMachines(t)
	makeSystemDirectory(t)
	at := []string{"10.7.0.1", "2001:db8:7::1"}
	h := m.startHub(at...)
	dirs, _ := filepath.Glob(filepath.Join(ofServices, "hub-*"))
	if len(dirs) != 1 {
		t.Fatalf("the hub's directories: %v", dirs)
	}
	m.enter(1)
	for _, cidr := range []string{"10.7.0.3/24", "2001:db8:7::3/64"} { // the second peer's
		a, err := netlink.ParseAddr(cidr)
		if err == nil {
			a.Flags = syscall.IFA_F_NODAD
			err = netlink.AddrAdd(interfaces.ByName(t, "v1"), a)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, at := range at {
		began := time.Now()
		m.transfers(at, "")
		calm := time.Since(began)
		hostile := m.commandAs(0, bob+2, "/proc/self/exe")
		hostile.Env = append(hostile.Env, hostileEnv+"="+at+" "+dirs[0])
		stdin, err := hostile.StdinPipe()
		if err != nil {
			t.Fatal(err)
		}
		attacker := startCommand(t, hostile)
		attacker.await("attacking")
		began = time.Now()
		m.transfers(at, "attacked")
		attacked := time.Since(began)
		_ = stdin.Close()
		if code := attacker.exit(); code != 0 {
			t.Errorf("the hostile process has succeeded: %s", attacker)
		}
		t.Logf("result: %s: %v, attacked %v; %s", at, calm, attacked, strings.TrimSpace(attacker.String()))
	}
	server := m.startAs(0, alice, "rping -s -d -p 7300 --shared --link kernel:v0")
	server.await("listening")
	client := m.startAs(1, bob, "rping -c -a 10.7.0.1 -p 7300 -C 3000 -S 1000 -V -v --link kernel:v1 --addr 10.7.0.2")
	client.await("ping data: rdma-ping-9:")
	_ = h.cmd.Process.Kill()
	if said := client.String(); strings.Contains(said, "rdma-ping-2999:") {
		t.Error("the transfer had ended before the hub was killed")
	}
	h.exit()
	m.startHub(at...)
	if code := client.exit(); code != 0 {
		t.Errorf("after another hub has started, the client ends with %d:\n%.2000s", code, client)
	}
	server.exit()
}

// transfers transfers data between programs of two users at an address and one on the other
// machine.
func (m *machines) transfers(at, when string) {
	t := m.t
	t.Helper()
	var all []*running
	for i, uid := range []uint32{alice, bob} {
		port, peer := fmt.Sprint(7100+i), strings.TrimSuffix(at, "1")+fmt.Sprint(2+i)
		server := m.startAs(0, uid, "rping -s -d --counters --shared --link kernel:v0 -p "+port)
		server.await("listening")
		all = append(all, server, m.startAs(1, uid, "rping -c -C 300 -S 60000 -V --counters --link kernel:v1 --addr "+
			peer+" -a "+at+" -p "+port))
	}
	for _, p := range all {
		code, said := p.exit(), p.String()
		if code != 0 {
			t.Errorf("%s: it ends with %d:\n%s", when, code, said)
		}
		t.Logf("%s: QPs went back %d times, and duplicates of %d requests arrived", when, count(said, "completer_retry_err"),
			count(said, "duplicate_request"))
	}
}

// count returns a counter that --counters has printed.
func count(said, name string) int {
	found := regexp.MustCompile(`\b` + name + `\s+(\d+)`).FindStringSubmatch(said)
	if found == nil {
		return 0
	}
	n, _ := strconv.Atoi(found[1])
	return n
}

// attack attacks the hub of the machine until stdin ends. It returns an error if it gets something
// that is not its own.
func attack(at, dir string) error {
	var datagrams, conns, held atomic.Int64
	var work sync.WaitGroup
	var ended atomic.Bool
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		ended.Store(true)
	}()
	to := &net.UDPAddr{IP: net.ParseIP(at), Port: 4791}
	flood := func() { // superframes for all QPNs
		out, err := net.DialUDP("udp", &net.UDPAddr{IP: to.IP}, to)
		if err != nil {
			return
		}
		defer out.Close()
		const size, segments = 1000, 60
		raw, err := out.SyscallConn()
		if err == nil {
			_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size) })
		}
		b := make([]byte, size*segments)
		for slot := 0; !ended.Load(); slot++ {
			for i := range segments {
				h := b[i*size:]
				h[0], h[5], h[6], h[7] = 0x0a, byte(slot), byte(rand.Uint32()), byte(rand.Uint32())
				if slot%4 == 0 { // MADs
					h[0], h[5], h[6], h[7] = 0x64, 0, 0, 1
				}
			}
			if _, err := out.Write(b); err == nil {
				datagrams.Add(segments)
			}
		}
	}
	storm := func() { // connections, some silent, some with garbage
		var silent []*net.UnixConn
		for i := 0; !ended.Load(); i++ {
			c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(dir, "socket"), Net: "unixpacket"})
			if err != nil {
				time.Sleep(time.Millisecond)
				continue
			}
			conns.Add(1)
			_, _ = c.Write(make([]byte, rand.IntN(100)))
			if silent = append(silent, c); len(silent) > 200 {
				held.Store(int64(len(silent)))
				for _, c := range silent {
					_ = c.Close()
				}
				silent = nil
			}
		}
	}
	work.Go(flood)
	work.Go(flood)
	work.Go(storm)
	fmt.Println("attacking")
	var failed error
	mustFail := func(what string, err error) {
		if err == nil && failed == nil {
			failed = errors.New(what)
		}
	}
	for !ended.Load() {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
		if to.IP.To4() != nil {
			mustFail("a socket at the hub's port", unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte(to.IP.To4()), Port: 4791}))
			mustFail("a socket at the hub's port of all addresses", unix.Bind(fd, &unix.SockaddrInet4{Port: 4791}))
		}
		_ = unix.Close(fd)
		_, err = os.ReadFile(filepath.Join(dir, "leases"))
		mustFail("reading the leases", err)
		mustFail("removing the hub's socket", os.Remove(filepath.Join(dir, "socket")))
		mustFail("another directory for the hub", os.Rename(dir, dir+"x"))
		time.Sleep(10 * time.Millisecond)
	}
	work.Wait()
	fmt.Printf("%d datagrams, %d connections\n", datagrams.Load(), conns.Load())
	return failed
}

// TestUsersWithoutHubOfMachine checks that the error for the second user of an address names the
// cure, and that the cure works.
func TestUsersWithoutHubOfMachine(t *testing.T) {
	gate.System(t)
	m := newMachines(t)
	makeSystemDirectory(t)
	first := m.startAs(0, alice, "rping -s -d --shared --link kernel:v0 -p 7200")
	first.await("listening")
	const server = "rping -s -d --shared --link kernel:v0 -p 7201"
	refused := func(who string) {
		t.Helper()
		second := m.startAs(0, bob, server)
		if code, said := second.exit(), second.String(); code == 0 || !strings.Contains(said, "softrnic hub --system") ||
			!strings.Contains(said, "end that process") || !strings.Contains(said, fmt.Sprint(alice)) {
			t.Errorf("%s: it ends with %d, and does not name the cure:\n%s", who, code, said)
		}
	}
	refused("without a hub of the machine")
	m.startHub()
	refused("while the first user's own hub has the address")
	// The first user's own hub would go on for a while.
	_ = first.cmd.Process.Kill()
	first.exit()
	dirs := first.cmd.Env[len(first.cmd.Env)-1][len("XDG_RUNTIME_DIR="):]
	locks, _ := filepath.Glob(filepath.Join(dirs, "softrnic", "hub-*", "lock"))
	for _, l := range locks {
		b, err := os.ReadFile(l)
		if pid, err2 := strconv.Atoi(strings.TrimSpace(string(b))); err == nil && err2 == nil {
			_ = syscall.Kill(pid, syscall.SIGTERM)
		}
	}
	for give := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		second := m.startAs(0, bob, server)
		if err := second.WaitFor("listening", second.ended); err == nil {
			_ = second.cmd.Process.Kill()
			second.exit()
			break
		}
		if time.Now().After(give) {
			t.Fatalf("with the hub of the machine: %s", second)
		}
	}
}
