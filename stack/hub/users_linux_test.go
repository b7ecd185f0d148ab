package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/stack"
)

// Users of the tests.
const (
	alice    = 65530
	bob      = 65531
	hubsUser = 65532
)

// as calls f as another user, on a thread that ends then.
func as(t testing.TB, uid int, f func()) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("this test acts as other users: it needs root")
	}
	done := make(chan bool)
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			t.Error(errno)
			return
		}
		f()
	}()
	<-done
}

// systemHub runs a hub of the machine in this process until the end of the test.
func systemHub(t *testing.T) (dir string) {
	t.Helper()
	return systemHubCounting(t, new(Counters))
}

func systemHubCounting(t *testing.T, c *Counters) (dir string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a hub of the machine for other users: it needs root")
	}
	runtimeDirectory(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Serve(ctx, Config{System: true, Classifier: everything{}, Quarantine: time.Nanosecond, Counters: c})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	awaitTrue(t, "the hub is up", func() bool { return Running(SystemDirectory()) })
	return SystemDirectory()
}

// runtimeDirectory replaces /run.
func runtimeDirectory(t *testing.T) {
	t.Helper()
	own, err := os.MkdirTemp("", "r")
	if err == nil {
		err = os.Chmod(own, 0o755)
	}
	if err != nil {
		t.Fatal(err)
	}
	old := systemRuntime
	systemRuntime = own
	t.Cleanup(func() {
		systemRuntime = old
		_ = os.RemoveAll(own)
	})
}

// joinAs is joinHostile as a user.
func joinAs(t *testing.T, uid int, dir string) (h *hostile) {
	t.Helper()
	as(t, uid, func() { h = joinHostile(t, dir) })
	if h == nil {
		t.Fatalf("user %d: the hub refuses the client", uid)
	}
	t.Cleanup(h.close)
	return h
}

// sendingSocket returns a socket that sends to the hub's address.
func sendingSocket(t *testing.T) *net.UDPConn {
	t.Helper()
	at := netip.MustParseAddr(hostileAddr)
	c, err := net.DialUDP("udp", &net.UDPAddr{IP: at.AsSlice()}, &net.UDPAddr{IP: at.AsSlice(), Port: stack.RoCEPort})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// fdOf returns a descriptor of a socket that stays open.
func fdOf(t *testing.T, c *net.UDPConn) int {
	t.Helper()
	f, err := c.File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return int(f.Fd())
}

// TestUsersShareNothing checks that a client can take nothing of another user's client of the hub
// of the machine: no QPNs, no services, no sockets, no memory.
func TestUsersShareNothing(t *testing.T) {
	dir := systemHub(t)
	own := netip.MustParseAddr(hostileAddr)
	a, b, second := joinAs(t, alice, dir), joinAs(t, bob, dir), joinAs(t, alice, dir)

	nobody := uint32(1)
	for nobody == a.qpnSlot || nobody == b.qpnSlot || nobody == second.qpnSlot {
		nobody++
	}
	var said []string
	for i, slot := range []uint32{a.qpnSlot, nobody} {
		err := b.ask(t, &request{kind: pair, number: uint32(i + 1), addr: own, own: own, qpn: slot << slotBits})
		if !errors.Is(err, unix.ENOENT) {
			t.Errorf("rings with another user's client: %v", err)
		}
		said = append(said, strings.ReplaceAll(err.Error(), fmt.Sprintf("%#x", slot<<slotBits), "N"))
	}
	if said[0] != said[1] {
		t.Errorf("the hub tells whether there is another user's client: %q and %q", said[0], said[1])
	}
	if err := second.ask(t, &request{kind: pair, number: 3, addr: own, own: own, qpn: a.qpnSlot << slotBits}); err != nil {
		t.Errorf("rings of two clients of one user: %v", err)
	}
	both, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(both[0])
	defer unix.Close(both[1])
	if err := b.ask(t, &request{kind: keepPair, number: 4, qpn: a.qpnSlot << slotBits, serial: 9}, both[0]); !errors.Is(err, unix.ENOENT) {
		t.Errorf("rings of an earlier hub with another user's client: %v", err)
	}

	its := stack.Service{ID: 0x1234, Mask: ^uint64(0)}
	if err := a.ask(t, &request{kind: serve, number: 5, service: its}); err != nil {
		t.Fatal(err)
	}
	for s, want := range map[stack.Service]error{its: unix.EADDRNOTAVAIL, {ID: its.ID, Mask: its.Mask, Addr: own}: unix.EADDRNOTAVAIL,
		{Mask: 0}: unix.EADDRNOTAVAIL, {ID: 1 << 40, Mask: ^uint64(0xffff)}: unix.EPERM} {
		if err := b.ask(t, &request{kind: serve, number: 6, service: s}); !errors.Is(err, want) {
			t.Errorf("service %+v: %v, want %v", s, err, want)
		}
	}
	if err := b.ask(t, &request{kind: useSocket, number: 7, addr: own}); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a socket of the hub's: %v", err)
	}
	if err := b.ask(t, &request{kind: mixedFlow, number: 8, own: own, addr: own, qpn: 5000}); !errors.Is(err, unix.EINVAL) {
		t.Errorf("a flow at a socket of the hub's: %v", err)
	}

	out := sendingSocket(t)
	if !a.speaksFrom(t, out) {
		t.Fatal("a client cannot register its socket")
	}
	if err := b.ask(t, &request{kind: addSourceSocket, number: 9}, fdOf(t, out)); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("another client's socket: %v", err)
	}
}

// TestPortOfLivingClient checks that no process gets the port of a client's socket that is closed,
// while the hub of the machine takes datagrams from there for the client's.
func TestPortOfLivingClient(t *testing.T) {
	dir := systemHub(t)
	a := joinAs(t, alice, dir)
	out := sendingSocket(t)
	from := out.LocalAddr().(*net.UDPAddr)
	if !a.speaksFrom(t, out) {
		t.Fatal("a client cannot register its socket")
	}
	_ = out.Close()
	steal := func() (err error) {
		as(t, bob, func() {
			var c *net.UDPConn
			if c, err = net.ListenUDP("udp", from); err == nil {
				_ = c.Close()
			}
		})
		return err
	}
	if err := steal(); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("another user binds the port: %v", err)
	}
	if err := a.ask(t, &request{kind: dropAddr, number: 5, addr: netip.MustParseAddr(hostileAddr)}); err != nil {
		t.Fatal(err)
	}
	if err := steal(); err != nil {
		t.Errorf("after the client has left the address: %v", err)
	}
}

// TestNoSocketForUsers checks that the hub of the machine passes no socket to a client that takes
// one, because Linux lets it take the datagrams of others.
func TestNoSocketForUsers(t *testing.T) {
	dir := systemHub(t)
	b := joinAs(t, bob, dir)
	for i, a := range []string{"127.31.1.2", "::1"} {
		q := request{kind: addAddr, number: uint32(5 + i), addr: netip.MustParseAddr(a), zone: "lo", takesSocket: true}
		if _, err := b.conn.Write(q.encode()); err != nil {
			t.Fatal(err)
		}
		m := make([]byte, maxMessage)
		for {
			n, fds, err := ring.Receive(b.conn, m)
			if err != nil || len(fds) > 0 {
				t.Fatalf("%d descriptors, %v", len(fds), err)
			}
			if a, err := decodeAnswer(m[:n]); err == nil && a.number == q.number {
				break
			}
		}
	}
}

// TestShareOfNumbers checks that no user can exclude the others by taking QP numbers, and that a
// user who takes and leaves numbers ends no other user's quarantine.
func TestShareOfNumbers(t *testing.T) {
	now := time.Now()
	table := &leases{path: filepath.Join(t.TempDir(), "leases"), fair: true}
	first, err := table.take(secret{}, 0, alice, process{}, now, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	table.end(first, now)
	for user := range uint32(5) {
		n := 0
		for ; ; n++ {
			if _, err := table.take(secret{}, 0, user, process{}, now, time.Minute); errors.Is(err, syscall.EAGAIN) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if n < 126>>user || n > 126 {
			t.Errorf("the user after %d others has %d slots", user, n)
		}
	}
	if !slices.Contains(table.all, first) {
		t.Error("others have ended the quarantine of a user's numbers")
	}
	for range 5 { // its own are in quarantine
		l, err := table.take(secret{}, 0, alice, process{}, now, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		table.end(l, now)
	}
	mine, err := table.take(secret{}, 0, alice, process{}, now, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	mine.held = false // the hub has ended
	if l, err := table.take(mine.secret, 0, bob, process{}, now, time.Minute); err == nil && l == mine {
		t.Error("another user with the secret gets the lease")
	}
	if l, err := table.take(mine.secret, 0, alice, process{}, now, time.Minute); err != nil || l != mine {
		t.Errorf("its user gets %+v, %v", l, err)
	}
}

// TestShareOfConnections checks that each of several users that open as many connections as they
// can leaves half of the rest to the others.
func TestShareOfConnections(t *testing.T) {
	s := &server{cfg: Config{System: true}, conns: map[*net.UnixConn]bool{}, users: map[uint32]*user{}}
	for uid := range uint32(5) {
		n := 0
		for s.enter(uid) != nil {
			s.conns[new(net.UnixConn)] = true
			n++
		}
		if n < maxConns>>(uid+1) || n > maxConns/2 {
			t.Errorf("the user after %d others has %d connections", uid, n)
		}
	}
	if s.leave(s.users[1]); s.enter(1) != nil {
		t.Error("a connection that still exists was given to another")
	}
}

// TestHostileJoins: while as many clients as a process may have, and refused ones, join and leave
// without end, a client of another user does not wait for all of these.
func TestHostileJoins(t *testing.T) {
	if os.Getenv("SOFTRNIC_LONG") == "" {
		t.Skip("this test belongs to the long run: .ci/run long hub-hostile")
	}
	dir := systemHub(t)
	const threads, joins, most = 64, 400, 14.5 // without turns 15.5 and more, with them at most 13.6
	var others atomic.Int64
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	for range threads {
		all.Go(func() {
			as(t, bob, func() {
				for ctx.Err() == nil {
					if h := joinHostile(t, dir); h != nil {
						others.Add(1)
						h.close()
					}
				}
			})
		})
	}
	awaitTrue(t, "they join", func() bool { return others.Load() > threads })
	var during int64
	for range joins {
		as(t, alice, func() {
			before := others.Load()
			h := joinHostile(t, dir)
			during += others.Load() - before
			if h == nil {
				t.Fatal("a client was refused")
			}
			h.close()
		})
	}
	n := float64(during) / joins
	t.Logf("result: during a join, %.1f of %d threads of another user join", n, threads)
	if n > most {
		t.Errorf("that is more than %v", most)
	}
}

// TestLimitsOfUser checks the numbers of services and addresses of a user's clients together, and
// the size of rings.
func TestLimitsOfUser(t *testing.T) {
	var c Counters
	dir := systemHubCounting(t, &c)
	a, b := joinAs(t, bob, dir), joinAs(t, bob, dir)
	next := uint32(100)
	ask := func(h *hostile, q request) error {
		next++
		q.number = next
		return h.ask(t, &q)
	}
	serves := func(h *hostile, i int) error {
		return ask(h, request{kind: serve, service: stack.Service{ID: uint64(i), Mask: ^uint64(0)}})
	}
	for i := range maxUserServices {
		if err := serves([]*hostile{a, b}[i%2], i); err != nil {
			t.Fatalf("service %d: %v", i, err)
		}
	}
	if err := serves(a, maxUserServices); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("one more service: %v", err)
	}
	receives := func(h *hostile, i int) error {
		return ask(h, request{kind: addAddr, addr: netip.AddrFrom4([4]byte{127, 31, 4, byte(i)}), zone: "lo"})
	}
	for i := range maxUserAddrs - 1 { // they have hostileAddr
		if err := receives([]*hostile{a, b}[i%2], i); err != nil {
			t.Fatalf("address %d: %v", i, err)
		}
	}
	if err := receives(b, 0); err != nil {
		t.Errorf("an address of the user's other client: %v", err)
	}
	if err := receives(a, 200); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("one more address: %v", err)
	}
	if n := c.Refused.Load(); n != 2 {
		t.Errorf("%d requests were refused", n)
	}
	other := joinAs(t, alice, dir)
	if err := errors.Join(receives(other, 200), serves(other, maxUserServices)); err != nil {
		t.Errorf("another user: %v", err)
	}
	as(t, bob, func() {
		conn := dialHub(dir)
		defer conn.Close()
		fd, memory, err := ring.NewMemory(2 * defaultRing)
		if err != nil {
			t.Error(err)
			return
		}
		defer unix.Close(fd)
		defer unix.Munmap(memory)
		h := hello{ring: 2 * defaultRing}
		_ = ring.Send(conn, h.encode(), fd)
		m := make([]byte, maxMessage)
		n, err := conn.Read(m)
		if w, wrong := decodeWelcome(m[:n]); err != nil || wrong != nil || !errors.Is(w.err, unix.EINVAL) {
			t.Errorf("a larger ring: %v, %v, %v", err, wrong, w.err)
		}
	})
}

// TestFindingHub checks which hub a client finds: the user's own first, and that of the machine
// only where no other user can have made it.
func TestFindingHub(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("a hub of the machine: it needs root")
	}
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	var work sync.WaitGroup
	runtimeDirectory(t)
	if find() != Directory() || Running("") {
		t.Errorf("without a hub, clients find %s", find())
	}
	ctx, cancel := context.WithCancel(t.Context())
	serveIn := func(c Config) {
		c.Classifier = everything{}
		work.Go(func() {
			if err := Serve(ctx, c); err != nil {
				t.Error(err)
			}
		})
	}
	serveIn(Config{System: true})
	awaitTrue(t, "clients find the hub of the machine", func() bool { return find() == SystemDirectory() && Running("") })
	as(t, alice, func() {
		if find() != SystemDirectory() {
			t.Error("another user does not find the hub of the machine")
		}
	})
	for _, d := range []string{systemRuntime, filepath.Dir(SystemDirectory()), SystemDirectory()} {
		if err := os.Chmod(d, 0o777); err != nil {
			t.Fatal(err)
		}
		if find() == SystemDirectory() {
			t.Errorf("clients trust a hub although others can write to %s", d)
		}
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
		if d == systemRuntime {
			continue
		}
		if err := os.Chown(d, bob, -1); err != nil {
			t.Fatal(err)
		}
		if find() == SystemDirectory() {
			t.Errorf("clients trust a hub of another user than that of %s", d)
		}
		if err := os.Chown(d, 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	if find() != SystemDirectory() {
		t.Error("clients do not find the hub of the machine any more")
	}
	serveIn(Config{})
	awaitTrue(t, "clients find the user's own hub", func() bool { return find() == Directory() })
	cancel()
	work.Wait()
}
