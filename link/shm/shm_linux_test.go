package shm

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/linktest"
	"github.com/softrnic/softrnic/link/ring"
)

// childEnv holds the directory for a process that TestKilled starts.
const childEnv = "SOFTRNIC_SHM_TEST_CHILD"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		if os.Getenv("SOFTRNIC_FLOOD") != "" {
			flood(dir)
		}
		child(dir)
	}
	os.Exit(m.Run())
}

// directory returns a directory for segments with a short path.
func directory(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

func join(t testing.TB, dir string, cfg *Config) *Link {
	t.Helper()
	c := Config{}
	if cfg != nil {
		c = *cfg
	}
	c.Directory = dir
	l, err := Open("x", &c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// await waits until ok returns true.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("timeout: %s", what)
		}
	}
}

func send(t testing.TB, l *Link, frames ...link.Frame) {
	t.Helper()
	if n, err := l.Write(frames); n != len(frames) || err != nil {
		t.Fatal(n, err)
	}
}

func expect(t testing.TB, got <-chan link.Frame, want link.Frame) {
	t.Helper()
	select {
	case g := <-got:
		if !bytes.Equal(g.Data, want.Data) {
			t.Fatalf("received %d bytes %x, want %d bytes", len(g.Data), g.Data[:min(len(g.Data), 40)], len(want.Data))
		}
		g.Data, want.Data = nil, nil
		if fmt.Sprint(g) != fmt.Sprint(want) {
			t.Fatalf("received %+v, want %+v", g, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("received nothing")
	}
}

var broadcast = net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// TestFrames checks that unicast frames reach one host and broadcast frames all others. Superframes
// stay whole, and their checksums partial.
func TestFrames(t *testing.T) {
	dir := directory(t)
	a, b, c := join(t, dir, nil), join(t, dir, nil), join(t, dir, nil)
	await(t, "three are connected", func() bool { return len(a.Peers()) == 2 && len(b.Peers()) == 2 && len(c.Peers()) == 2 })
	early := linktest.Plain(b.MAC(), a.MAC(), 100, "before Attach")
	send(t, a, early)
	toA, toB, toC := linktest.Receive(a), linktest.Receive(b), linktest.Receive(c)
	expect(t, toB, early)
	super := linktest.Superframe(b.MAC(), a.MAC(), true, 60, 1040)
	plain := linktest.Plain(b.MAC(), a.MAC(), 4200, "largest")
	pieces := plain
	pieces.Data, pieces.More = plain.Data[:50], [][]byte{plain.Data[50:60], plain.Data[60:]}
	for range 200 { // wraps around the ring many times
		send(t, a, super, pieces)
		expect(t, toB, super)
		expect(t, toB, plain)
	}
	send(t, b, linktest.Plain(net.HardwareAddr{2, 9, 9, 9, 9, 9}, b.MAC(), 50, "to no host"))
	all := linktest.Plain(broadcast, b.MAC(), 50, "to all")
	send(t, b, all)
	expect(t, toA, all)
	expect(t, toC, all)
	if len(toA)+len(toB)+len(toC) > 0 {
		t.Error("a host received a frame for another")
	}
	if n, err := a.Write([]link.Frame{plain, linktest.Plain(b.MAC(), a.MAC(), 4201, "")}); n != 1 || !errors.Is(err, link.ErrTooLong) {
		t.Errorf("Write of a frame that is too long: %d, %v", n, err)
	}
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	if n, err := a.Write([]link.Frame{plain}); n != 0 && err == nil || !errors.Is(err, net.ErrClosed) {
		t.Errorf("Write after Close: %d, %v", n, err)
	}
	await(t, "the others have noticed the departure", func() bool { return len(b.Peers()) == 1 && len(c.Peers()) == 1 })
}

// TestAllConnect checks that of many processes that join together, each pair connects, once.
func TestAllConnect(t *testing.T) {
	const n = 12
	dir := directory(t)
	links, joined := make([]*Link, n), sync.WaitGroup{}
	for i := range links {
		joined.Go(func() {
			var err error
			if links[i], err = Open("x", &Config{Directory: dir}); err != nil {
				t.Error(err)
			}
		})
	}
	joined.Wait()
	if t.Failed() {
		return
	}
	got := make([]<-chan link.Frame, n)
	for i, l := range links {
		got[i] = linktest.Receive(l)
	}
	for _, l := range links {
		await(t, "all are connected", func() bool { return len(l.Peers()) == n-1 })
	}
	await(t, "each pair has chosen one of its connections", func() bool {
		return !slices.ContainsFunc(links, func(l *Link) bool {
			s := l.medium.(*segment)
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.handshaking) > 0
		})
	})
	for i, l := range links {
		f := linktest.Plain(broadcast, l.MAC(), 50, strconv.Itoa(i))
		send(t, l, f)
		for j := range got {
			if j != i {
				expect(t, got[j], f)
			}
		}
	}
	for i, l := range links {
		if len(got[i]) > 0 {
			t.Error("a frame arrived twice")
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(dir, "shm-x")); len(left) > 0 || err != nil {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

// TestReconnect checks that a pair which has ended connects again while both processes run.
func TestReconnect(t *testing.T) {
	t.Parallel()
	dir := directory(t)
	a, b := join(t, dir, nil), join(t, dir, nil)
	await(t, "two are connected", func() bool { return len(a.Peers()) == 1 && len(b.Peers()) == 1 })
	first := a.medium.(*segment).peers.Load().all[0]
	a.Attach(func([]link.Frame) {})
	toB := linktest.Receive(b)
	first.Shutdown()
	await(t, "they are connected again", func() bool {
		p, q := a.medium.(*segment).peers.Load().all, b.medium.(*segment).peers.Load().all
		return len(p) == 1 && p[0] != first && len(q) == 1 && !q[0].Ended()
	})
	f := linktest.Plain(b.MAC(), a.MAC(), 50, "again")
	for len(toB) == 0 { // b may see the new pair a moment later
		send(t, a, f)
		time.Sleep(time.Millisecond)
	}
	expect(t, toB, f)
}

// TestBackpressure checks that frames which do not fit into the ring are queued, and that none is
// lost while the queue has room.
func TestBackpressure(t *testing.T) {
	dir := directory(t)
	a, b := join(t, dir, nil), join(t, dir, &Config{Ring: 256 << 10})
	await(t, "two are connected", func() bool { return len(a.Peers()) == 1 && len(b.Peers()) == 1 })
	stuck, next, all := make(chan struct{}), uint64(0), make(chan struct{})
	const frames = ring.QueueBytes / 8000
	b.Attach(func(batch []link.Frame) {
		<-stuck
		for i := range batch {
			if n := binary.BigEndian.Uint64(batch[i].Data[14:]); n != next {
				t.Errorf("frame %d arrived, want %d", n, next)
			}
			if next++; next == frames {
				close(all)
			}
		}
	})
	a.Attach(func([]link.Frame) {})
	f := linktest.Plain(b.MAC(), a.MAC(), 4200, "")
	for i := range uint64(frames) {
		binary.BigEndian.PutUint64(f.Data[14:], i)
		send(t, a, f)
	}
	close(stuck)
	select {
	case <-all:
	case <-time.After(20 * time.Second):
		t.Fatal("frames are missing")
	}
	if d := a.Dropped(); d != 0 {
		t.Errorf("%d dropped", d)
	}
}

// flood is a process that opens as many connections as it can to every link of a segment, until it
// is killed.
func flood(dir string) {
	var links []*Link
	for len(links) < maxLinks+4 {
		l, err := Open("x", &Config{Directory: dir})
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		l.Attach(func([]link.Frame) {})
		links = append(links, l)
	}
	fmt.Println("up")
	select {}
}

// start starts a child. kill kills it, at the latest when the test ends.
func start(t testing.TB, dir string, env ...string) (kill func()) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(append(os.Environ(), childEnv+"="+dir), env...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = sync.OnceFunc(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	t.Cleanup(kill)
	return kill
}

// TestFlood checks that one process cannot use up another's connections.
func TestFlood(t *testing.T) {
	dir := directory(t)
	l := join(t, dir, &Config{Ring: ring.MinLen})
	l.Attach(func([]link.Frame) {})
	start(t, dir, "SOFTRNIC_FLOOD=1")
	await(t, "the process has reached its limit", func() bool { return len(l.Peers()) == maxLinks })
	other := join(t, dir, &Config{Ring: ring.MinLen})
	await(t, "another is a peer", func() bool {
		return slices.ContainsFunc(l.Peers(), func(m net.HardwareAddr) bool { return bytes.Equal(m, other.MAC()) })
	})
	if n := len(l.Peers()); n != maxLinks+1 {
		t.Errorf("there are %d peers, want %d", n, maxLinks+1)
	}
}

// child is a process that joins a segment, and broadcasts until it is killed.
func child(dir string) {
	l, err := Open("x", &Config{Directory: dir})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	l.Attach(func([]link.Frame) {})
	super := linktest.Superframe(broadcast, l.MAC(), false, 60, 1040)
	fmt.Println("up")
	for {
		_, _ = l.Write([]link.Frame{super})
		time.Sleep(10 * time.Microsecond)
	}
}

// descriptorsOpen returns the number of this process's descriptors and of its ring mappings.
func descriptorsOpen(t testing.TB) (fds, maps int) {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	m, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return len(d), bytes.Count(m, []byte("memfd:softrnic-ring"))
}

// TestKilled checks that processes that are killed at any moment leak nothing, and that others
// continue. SOFTRNIC_SYSTEM kills 30, SOFTRNIC_LONG 1000.
func TestKilled(t *testing.T) {
	n := 2
	switch {
	case os.Getenv("SOFTRNIC_LONG") != "":
		n = 1000
	case os.Getenv("SOFTRNIC_SYSTEM") != "":
		n = 30
	}
	dir := directory(t)
	a, b := join(t, dir, nil), join(t, dir, nil)
	await(t, "two are connected", func() bool { return len(a.Peers()) == 1 && len(b.Peers()) == 1 })
	toB := linktest.Receive(b)
	a.Attach(func([]link.Frame) {})
	seen := make(chan struct{}, 1)
	b0 := toB
	forB := make(chan link.Frame, 16)
	go func() {
		for f := range b0 {
			if f.Segmentation == link.NoSegmentation {
				forB <- f
				continue
			}
			select {
			case seen <- struct{}{}:
			default:
			}
		}
	}()
	fds, maps := descriptorsOpen(t)
	for i := range n {
		kill := start(t, dir)
		select {
		case <-seen:
		case <-time.After(20 * time.Second):
			t.Fatal("no frame from the process")
		}
		time.Sleep(time.Duration(i%7) * 100 * time.Microsecond)
		kill()
		await(t, "the others have noticed its death", func() bool { return len(a.Peers()) == 1 && len(b.Peers()) == 1 })
		for len(seen) > 0 {
			<-seen
		}
		f := linktest.Plain(b.MAC(), a.MAC(), 50, "still here")
		send(t, a, f)
		expect(t, forB, f)
	}
	await(t, "descriptors and memory are released", func() bool {
		f, m := descriptorsOpen(t)
		return f <= fds && m <= maps
	})
	// Another process has died before it renamed its socket.
	for _, name := range []string{claimPrefix, socketPrefix} {
		if err := os.WriteFile(filepath.Join(dir, "shm-x", name+"02:09:09:09:09:09"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	join(t, dir, nil) // removes stale files
	left, err := os.ReadDir(filepath.Join(dir, "shm-x"))
	if len(left) != 2*3 || err != nil {
		t.Errorf("%d sockets and claims of 3 processes: %v", len(left), err)
	}
}

// dialRaw connects to a link's socket, and sends a hello with descriptors.
func dialRaw(t *testing.T, dir string, message []byte, fds ...int) *net.UnixConn {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "shm-x"))
	if err != nil || len(entries) == 0 {
		t.Fatal(entries, err)
	}
	entries = slices.DeleteFunc(entries, func(e os.DirEntry) bool { return e.Type() != os.ModeSocket })
	path := filepath.Join(dir, "shm-x", entries[0].Name())
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	if message != nil {
		if _, _, err := c.WriteMsgUnix(message, unix.UnixRights(fds...), nil); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// hold creates the claim and the socket of a hello.
func hold(t testing.TB, dir string, h hello) {
	t.Helper()
	f, err := claim(filepath.Join(dir, "shm-x"), net.HardwareAddr(h.mac[:]).String())
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unixpacket", filepath.Join(dir, "shm-x", hex.EncodeToString(h.id[:])))
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		_ = l.Close()
		_ = releaseClaims([]*os.File{f})
	})
}

// TestHostileHello checks that the link closes a connection without a valid hello and sealed
// memory, and that nothing leaks.
func TestHostileHello(t *testing.T) {
	dir := directory(t)
	l := join(t, dir, nil)
	good := hello{ring: ring.MinLen, mac: [6]byte{2, 1, 1, 1, 1, 1}, id: id{0xff, 0xff, 0xff, 0xff}}
	hold(t, dir, good)
	unclaimed, nowhere := good, good
	unclaimed.mac[5], nowhere.id[5] = 2, 2
	memfd := func(size int64, flags, seals int) int {
		fd, err := unix.MemfdCreate("hello", flags|unix.MFD_CLOEXEC)
		if err == nil {
			err = unix.Ftruncate(fd, size)
		}
		if err == nil && seals != 0 {
			_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals)
		}
		if err != nil {
			t.Fatal(err)
		}
		return fd
	}
	size := int64(ring.MemoryLen(ring.MinLen))
	sealed := memfd(size, unix.MFD_ALLOW_SEALING, ring.Seals)
	file, err := os.CreateTemp(dir, "")
	if err != nil || file.Truncate(size) != nil {
		t.Fatal(err)
	}
	// Kept open: the test uses its descriptor, which the garbage collector does not see.
	defer file.Close()
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	change := func(at int, b ...byte) []byte {
		h := good.encode()
		copy(h[at:], b)
		return h
	}
	own := good
	own.mac = [6]byte(l.MAC())
	fds, maps := descriptorsOpen(t)
	for name, test := range map[string]struct {
		message []byte
		fds     []int
	}{
		"nothing":            {nil, nil},
		"no descriptor":      {good.encode(), nil},
		"two descriptors":    {good.encode(), []int{sealed, sealed}},
		"many descriptors":   {good.encode(), bytesOf(sealed, 100)},
		"short":              {good.encode()[:helloLen-1], []int{sealed}},
		"long":               {append(good.encode(), 0), []int{sealed}},
		"another magic":      {change(0, 'X'), []int{sealed}},
		"another version":    {change(8, 0, 0, 0, 2), []int{sealed}},
		"a ring of 4 GiB":    {change(12, 0xff, 0xff, 0xff, 0xff), []int{sealed}},
		"a ring of 0 bytes":  {change(12, 0, 0, 0, 0), []int{sealed}},
		"a larger ring":      {change(12, 0, 8, 0, 0), []int{sealed}},
		"a group address":    {change(16, 1), []int{sealed}},
		"our own address":    {own.encode(), []int{sealed}},
		"no such claim":      {unclaimed.encode(), []int{sealed}},
		"no such socket":     {nowhere.encode(), []int{sealed}},
		"not sealed":         {good.encode(), []int{memfd(size, unix.MFD_ALLOW_SEALING, 0)}},
		"may shrink":         {good.encode(), []int{memfd(size, unix.MFD_ALLOW_SEALING, unix.F_SEAL_GROW)}},
		"may not be written": {good.encode(), []int{memfd(size, unix.MFD_ALLOW_SEALING, ring.Seals|unix.F_SEAL_WRITE)}},
		"too small":          {good.encode(), []int{memfd(size-1, unix.MFD_ALLOW_SEALING, ring.Seals)}},
		"a file":             {good.encode(), []int{int(file.Fd())}},
		"a device":           {good.encode(), []int{int(null.Fd())}},
	} {
		c := dialRaw(t, dir, test.message, test.fds...)
		_ = c.SetReadDeadline(time.Now().Add(20 * time.Second))
		b := make([]byte, 100)
		n, err := 1, error(nil)
		for n > 0 && err == nil { // its hello may come
			n, err = c.Read(b)
		}
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%s: the connection is still open", name)
		}
		_ = c.Close()
		if p := l.Peers(); len(p) > 0 {
			t.Errorf("%s: the process became a peer: %v", name, p)
		}
	}
	await(t, "all resources are released", func() bool { f, m := descriptorsOpen(t); return f <= fds+5 && m <= maps })

	// The valid hello makes a peer, until its ring is corrupt.
	l.Attach(func([]link.Frame) {})
	c := dialRaw(t, dir, good.encode(), sealed)
	defer c.Close()
	out, err := ring.ReceiveMemory(c, func(b []byte) (int, error) {
		theirs, err := decodeHello(b)
		return theirs.ring, err
	})
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the process is a peer", func() bool { return len(l.Peers()) == 1 })
	binary.NativeEndian.PutUint64(out, 1<<40) // the producer's index
	if _, err := c.Write([]byte{1}); err != nil {
		t.Fatal(err)
	}
	await(t, "the peer is dropped", func() bool { return len(l.Peers()) == 0 && l.Malformed() == 1 })
}

func bytesOf(fd, n int) (fds []int) {
	for range n {
		fds = append(fds, fd)
	}
	return fds
}

func TestErrors(t *testing.T) {
	dir := directory(t)
	open := filepath.Join(dir, "open")
	if err := os.Mkdir(open, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name string
		cfg  Config
		want string
	}{
		{"", Config{Directory: dir}, "not a segment name"},
		{"a/b", Config{Directory: dir}, "not a segment name"},
		{"..", Config{Directory: dir}, "not a segment name"},
		{"x", Config{MAC: net.HardwareAddr{2, 2, 3, 4, 5, 6}, Pick: choice(1)}, "MAC 02:02:03:04:05:06 and Pick"},
		{"x", Config{Directory: open}, "others cannot write to"},
		{"x", Config{Directory: filepath.Join(dir, strings.Repeat("x", 100))}, "shorter"},
		{"x", Config{MTU: 100}, "MTU 100"},
		{"x", Config{Ring: 1 << 17}, "Ring 131072"},
		{"x", Config{Ring: 1<<20 + 1}, "power of two"},
		{"x", Config{MAC: net.HardwareAddr{1, 2, 3, 4, 5, 6}}, "01:02:03:04:05:06"},
	} {
		if l, err := Open(test.name, &test.cfg); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: %v, want an error with %q", test.name, err, test.want)
			if l != nil {
				_ = l.Close()
			}
		}
	}
}

func BenchmarkLink(b *testing.B) {
	dir := directory(b)
	from, to := join(b, dir, nil), join(b, dir, nil)
	await(b, "two are connected", func() bool { return len(from.Peers()) == 1 && len(to.Peers()) == 1 })
	got := make(chan struct{}, 1)
	n := 0
	to.Attach(func(frames []link.Frame) {
		if n += len(frames); n == 8 {
			n = 0
			got <- struct{}{}
		}
	})
	from.Attach(func([]link.Frame) {})
	frames := make([]link.Frame, 8)
	for i := range frames {
		frames[i] = linktest.Superframe(to.MAC(), from.MAC(), false, 60, 1040)
	}
	b.SetBytes(8 * 60 * 1040)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := from.Write(frames); err != nil {
			b.Fatal(err)
		}
		<-got
	}
	if d := from.Dropped(); d > 0 {
		b.Errorf("%d dropped", d)
	}
}

// TestDirectoryElsewhere checks that Open does not follow a symbolic link in place of the parent
// directory.
func TestDirectoryElsewhere(t *testing.T) {
	elsewhere, place := t.TempDir(), filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(elsewhere, place); err != nil {
		t.Fatal(err)
	}
	if l, err := Open("lan", &Config{Directory: place}); err == nil {
		_ = l.Close()
		t.Error("the link was followed")
	}
	if made, err := os.ReadDir(elsewhere); err != nil || len(made) > 0 {
		t.Errorf("%v was created there, %v", made, err)
	}
}
