package hostile

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/stack/hub"
	"github.com/softrnic/softrnic/stack/kernel"
	"github.com/softrnic/softrnic/verbs"
)

// Users of the hub of the machine: of a server, of its good client, and of hostile processes; and
// the user that the hub runs as.
const (
	alice    = 65530
	carol    = 65529
	bob      = 65531
	hubsUser = 65532
)

// publicDirectory returns a new directory that every user can read.
func publicDirectory(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hostile")
	ok(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	ok(t, os.Chmod(dir, 0o755))
	return dir
}

// runtimeDirectory returns a new directory of a user.
func runtimeDirectory(t *testing.T, uid int) string {
	t.Helper()
	dir := publicDirectory(t)
	ok(t, errors.Join(os.Chmod(dir, 0o700), os.Chown(dir, uid, uid)))
	return dir
}

// as makes a command that of a user.
func as(t *testing.T, uid int, cmd *exec.Cmd, env ...string) *exec.Cmd {
	cmd.Env, cmd.Dir = append(append(os.Environ(), "XDG_RUNTIME_DIR="+runtimeDirectory(t, uid)), env...), "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	return cmd
}

// startHub starts the hub of the machine, and behind it a server of alice. The good client is a
// process of carol: what it exchanges with the server goes through the hub.
func startHub(t *testing.T, program string) ([]*server, *good) {
	t.Helper()
	services := filepath.Dir(hub.SystemDirectory())
	if err := os.Mkdir(services, 0o755); err != nil {
		t.Fatalf("the directory of the hub of the machine, which a killed run of this test leaves: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(services) })
	ok(t, os.Chown(services, hubsUser, hubsUser))
	h := startServer(t, "hub --system", hubAddr, as(t, hubsUser, exec.Command(program, "hub", "--system", "--addr", hubAddr)))
	behind := startServer(t, "serve, behind the hub", "127.83.0.10", as(t, alice,
		exec.Command(program, "serve", "--shared", "--link", "kernel:lo", "--addr", hubAddr)))
	member := exec.Command("/proc/self/exe", "-test.run", "^TestMember$")
	return []*server{h, behind}, startWorker(t, "hub --system", as(t, carol, member, asMember+"=1"))
}

// startWorker starts a process of a good client. It says that it is ready, then does an operation
// for each byte of its input, and says "ok" or an error after each.
func startWorker(t *testing.T, name string, cmd *exec.Cmd) *good {
	t.Helper()
	in, err := cmd.StdinPipe()
	ok(t, err)
	pipe, err := cmd.StdoutPipe()
	ok(t, err)
	var log journal
	cmd.Stderr = &log
	ok(t, cmd.Start())
	out := bufio.NewReader(pipe)
	t.Cleanup(func() {
		_ = in.Close()
		_, _ = io.Copy(io.Discard, out)
		if err := cmd.Wait(); err != nil {
			t.Errorf("the good client of %s: %v\n%s", name, err, &log)
		}
	})
	for line := ""; line != "ready"; {
		if line, err = out.ReadString('\n'); err != nil {
			t.Fatalf("the good client of %s: %v\n%s", name, err, &log)
		}
		line = strings.TrimSpace(line)
	}
	return &good{name: name, do: func(context.Context) error {
		if _, err := in.Write([]byte("x")); err != nil {
			return err
		}
		line, err := out.ReadString('\n') // the process has the patience
		if line = strings.TrimSpace(line); err == nil && line != "ok" {
			err = errors.New(line)
		}
		return err
	}}
}

// asMember is the environment variable that makes TestMember be a good client of the hub.
const asMember = "SOFTRNIC_HOSTILE_MEMBER"

// member is a node of the hub with a connection to rping.
type member struct {
	host *kernel.Host
	dev  *verbs.Device
	*pinger
}

// Close implements io.Closer.
func (m member) Close() error {
	return errors.Join(m.pinger.Close(), m.dev.Close(), m.host.Close())
}

// textLen is the length of its texts.
const textLen = 32 << 10

// TestMember is a good client of the hub: see startWorker. It also joins the hub again from time to
// time.
func TestMember(t *testing.T) {
	if os.Getenv(asMember) == "" {
		t.Skip("this is the process of a good client of TestHostile")
	}
	c := connected[member]{dial: func(ctx context.Context) (m member, err error) {
		if m.host, err = kernel.New(&kernel.Config{Interface: "lo", Addrs: []string{hubAddr}, Sharing: new(kernel.Sharing)}); err != nil {
			return m, err
		}
		if m.dev, err = rdmatransport.Open(m.host, nil); err != nil {
			return m, errors.Join(err, m.host.Close())
		}
		if m.pinger, err = newPinger(ctx, m.dev, hubAddr, textLen); err != nil {
			return m, errors.Join(err, m.dev.Close(), m.host.Close())
		}
		return m, nil
	}}
	defer c.close()
	fmt.Println("ready")
	for in := bufio.NewReader(os.Stdin); ; {
		if _, err := in.ReadByte(); err != nil {
			return
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		if err := c.do(ctx, func(ctx context.Context, m member) error { return m.ping(ctx) }); err != nil {
			fmt.Println(strings.ReplaceAll(err.Error(), "\n", "; "))
		} else {
			fmt.Println("ok")
		}
		cancel()
	}
}

// Messages to a hub: see package hub.
const (
	helloLen, requestLen = 33, 80
	kindAddAddr          = 1
	kindServe            = 3
	kindEndServe         = 4
	kindSocket           = 5
	kindPair             = 6
	kindKeepPair         = 8
	kinds                = 10
)

func dialHub() (*net.UnixConn, error) {
	c, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(hub.SystemDirectory(), "socket"), Net: "unixpacket"})
	if err == nil {
		_ = c.SetDeadline(time.Now().Add(patience))
	}
	return c, err
}

func hello() []byte {
	b := binary.BigEndian.AppendUint32([]byte("SRNIChub"), 4)
	return append(binary.BigEndian.AppendUint32(b, ring.MinLen), make([]byte, helloLen-16)...)
}

func ask(kind, number uint32, addr, own netip.Addr, id, mask uint64, qpn uint32) []byte {
	b := make([]byte, requestLen)
	binary.BigEndian.PutUint32(b, kind)
	binary.BigEndian.PutUint32(b[4:], number)
	wide, wideOwn := addr.As16(), own.As16()
	copy(b[8:], wide[:])
	binary.BigEndian.PutUint64(b[24:], id)
	binary.BigEndian.PutUint64(b[32:], mask)
	copy(b[40:], "lo")
	binary.BigEndian.PutUint32(b[56:], qpn)
	copy(b[64:], wideOwn[:])
	return b
}

// hostileMember is a client of the hub that follows no rules.
type hostileMember struct {
	conn   *net.UnixConn
	fd     int
	memory []byte
	slot   byte // of its QPNs
}

// Close implements io.Closer.
func (m *hostileMember) Close() error {
	return errors.Join(m.conn.Close(), unix.Munmap(m.memory), unix.Close(m.fd))
}

func joinHub() (*hostileMember, error) {
	conn, err := dialHub()
	if err != nil {
		return nil, err
	}
	fd, memory, err := ring.NewMemory(ring.MinLen)
	if err != nil {
		_ = conn.Close()
		return nil, err
	}
	m := &hostileMember{conn: conn, fd: fd, memory: memory}
	b := make([]byte, 1000)
	n := 0
	if err = ring.Send(conn, hello(), fd); err == nil {
		n, err = conn.Read(b)
	}
	if err == nil && (n < 41 || binary.BigEndian.Uint32(b[12:]) != 0) {
		err = errors.New("refused")
	}
	if err == nil {
		m.slot = b[35]
		_, err = conn.Write(ask(kindAddAddr, 1, netip.MustParseAddr(hubAddr), netip.IPv6Unspecified(), 0, 0, 0))
	}
	if err == nil {
		_, err = conn.Read(b)
	}
	if err != nil {
		return nil, errors.Join(err, m.Close())
	}
	return m, nil
}

// datagrams sends superframes to the hub's address: for the QPNs of a slot, or of all if it is 0.
func datagrams(out *net.UDPConn, slot byte, mads bool) error {
	const size, segments = 1000, 60
	b := make([]byte, size*segments)
	for i := range segments {
		h := b[i*size:]
		h[0], h[5], h[6], h[7] = 0x0a, slot, byte(rand.Uint32()), byte(rand.Uint32())
		if slot == 0 {
			h[5] = byte(rand.Uint32())
		}
		if mads {
			h[0], h[5], h[6], h[7] = 0x64, 0, 0, 1
			for j := 8; j < 300; j++ {
				h[j] = byte(rand.Uint32())
			}
		}
	}
	raw, err := out.SyscallConn()
	if err != nil {
		return err
	}
	if e := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.IPPROTO_UDP, unix.UDP_SEGMENT, size) }); e != nil {
		return e
	}
	if err == nil {
		_, err = out.Write(b)
	}
	return err
}

// toHub returns a socket that sends to the hub's address from it.
func toHub() (*net.UDPConn, error) {
	at := net.ParseIP(hubAddr)
	return net.DialUDP("udp", &net.UDPAddr{IP: at}, &net.UDPAddr{IP: at, Port: 4791})
}

// burst calls f with a socket to the hub many times.
func burst(f func(*net.UDPConn) error) (io.Closer, error) {
	out, err := toHub()
	if err != nil {
		return nil, err
	}
	defer out.Close()
	for range 20 {
		if err := f(out); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// asHostileMember makes a kind of client that joins the hub, calls f, and leaves.
func asHostileMember(f func(*hostileMember) error) func() (io.Closer, error) {
	return func() (io.Closer, error) {
		m, err := joinHub()
		if err != nil {
			return nil, err
		}
		return nil, errors.Join(f(m), m.Close())
	}
}

func random(b []byte) []byte {
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return b
}

// rights is a message with a number of descriptors.
func rights(fd, n int) []byte { return unix.UnixRights(slices.Repeat([]int{fd}, n)...) }

// localKind is a kind of hostile client of this machine: what it keeps is closed later.
type localKind struct {
	name string
	most int  // connections that it keeps
	busy bool // it pauses for a millisecond only
	do   func() (io.Closer, error)
}

// kept returns what the process keeps, unless there is an error.
func kept(c *net.UnixConn, err error) (io.Closer, error) {
	if err != nil {
		return nil, err
	}
	return c, nil
}

var hubKinds = []localKind{
	{"hub: silent", 20, false, func() (io.Closer, error) { return kept(dialHub()) }},
	{"hub: garbage", 20, false, func() (io.Closer, error) {
		c, err := dialHub()
		if err == nil {
			_, _ = c.Write(random(make([]byte, rand.IntN(200))))
		}
		return kept(c, err)
	}},
	{"hub: half-open", 20, false, func() (io.Closer, error) {
		c, err := dialHub()
		if err == nil {
			_ = c.CloseWrite()
		}
		return kept(c, err)
	}},
	{"hub: hello with other descriptors", 0, false, func() (io.Closer, error) {
		c, err := dialHub()
		if err != nil {
			return nil, err
		}
		defer c.Close()
		null, err := os.Open(os.DevNull)
		if err != nil {
			return nil, err
		}
		defer null.Close()
		_, _, err = c.WriteMsgUnix(hello(), rights(int(null.Fd()), rand.IntN(200)), nil)
		return nil, err
	}},
	{"hub: memory that shrinks", 0, false, func() (io.Closer, error) {
		c, err := dialHub()
		if err != nil {
			return nil, err
		}
		defer c.Close()
		fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		_ = unix.Ftruncate(fd, ring.MinLen)
		_, _, err = c.WriteMsgUnix(hello(), rights(fd, 1), nil)
		_ = unix.Ftruncate(fd, 0)
		return nil, err
	}},
	{"hub: joins and leaves", 0, true, asHostileMember(func(*hostileMember) error { return nil })},
	{"hub: connects without end", 0, true, func() (io.Closer, error) {
		c, err := dialHub()
		if err == nil {
			err = c.Close()
		}
		return nil, err
	}},
	{"hub: its ring is full", 6, false, func() (io.Closer, error) {
		m, err := joinHub()
		if err != nil {
			return nil, err
		}
		_, err = burst(func(out *net.UDPConn) error { return datagrams(out, m.slot, false) })
		return m, err
	}},
	{"hub: writes into its ring", 0, false, asHostileMember(func(m *hostileMember) error {
		_, err := burst(func(out *net.UDPConn) error {
			m.memory[rand.IntN(512)] = byte(rand.Uint32()) // indices
			return datagrams(out, m.slot, false)
		})
		return err
	})},
	{"hub: requests without end, no answer read", 0, false, asHostileMember(func(m *hostileMember) error {
		_ = m.conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
		own := netip.MustParseAddr(hubAddr)
		for i := range uint32(1000) {
			if _, err := m.conn.Write(ask(1+rand.Uint32N(kinds), i, own, own, rand.Uint64(), rand.Uint64(), rand.Uint32N(1<<24))); err != nil {
				break
			}
		}
		return nil
	})},
	{"hub: descriptors without end", 0, false, asHostileMember(func(m *hostileMember) error {
		_ = m.conn.SetDeadline(time.Now().Add(100 * time.Millisecond))
		own := netip.MustParseAddr(hubAddr)
		for i := range uint32(50) {
			if _, _, err := m.conn.WriteMsgUnix(ask(1+rand.Uint32N(kinds), i, own, own, 0, 0, 0), rights(m.fd, rand.IntN(250)), nil); err != nil {
				break
			}
		}
		return nil
	})},
	{"hub: others' addresses, services and rings", 0, false, asHostileMember(func(m *hostileMember) error {
		for i, addr := range []string{nvmeAddr, nfsAddr, agentAddr, goodAddr, "192.0.2.1", hubAddr} {
			at := netip.MustParseAddr(addr)
			for _, kind := range []uint32{kindAddAddr, kindServe, kindEndServe, kindPair} {
				// The service is that of rping's port.
				if _, err := m.conn.Write(ask(kind, uint32(i), at, at, 0x1060000+7174, ^uint64(0), rand.Uint32N(1<<24))); err != nil {
					return err
				}
			}
			_, _, _ = m.conn.WriteMsgUnix(ask(kindKeepPair, 1, at, at, 0, 0, rand.Uint32N(1<<24)), rights(m.fd, 1), nil)
		}
		return nil
	})},
	{"hub: datagrams of a member to all", 0, false, asHostileMember(func(m *hostileMember) error {
		_, err := burst(func(out *net.UDPConn) error {
			raw, err := out.SyscallConn()
			if err == nil {
				_ = raw.Control(func(fd uintptr) {
					_, _, err = m.conn.WriteMsgUnix(ask(kindSocket, 2, netip.IPv6Unspecified(), netip.IPv6Unspecified(), 0, 0, 0),
						rights(int(fd), 1), nil)
				})
			}
			return errors.Join(err, datagrams(out, 0, false))
		})
		return err
	})},
	{"hub: datagrams of a stranger to all", 0, false, func() (io.Closer, error) {
		return burst(func(out *net.UDPConn) error { return datagrams(out, 0, false) })
	}},
	{"hub: MADs of a stranger", 0, false, func() (io.Closer, error) {
		return burst(func(out *net.UDPConn) error { return datagrams(out, 0, true) })
	}},
}

// hostileProcesses is how many processes the user of hostile processes has.
const hostileProcesses = 2

// attackLocally starts the hostile clients of this machine, and returns how often those of each
// kind have done something.
func attackLocally(ctx context.Context, all *sync.WaitGroup) counters {
	counts := counters{}
	for _, k := range slices.Concat(hubKinds, agentKinds()) {
		n := counts.add(k.name)
		all.Go(func() {
			conns := held[io.Closer]{most: k.most}
			defer conns.close()
			for k.busy && ctx.Err() == nil || !k.busy && repeat(ctx) {
				c, err := k.do()
				if c != nil {
					conns.add(c)
				}
				if err == nil {
					n.Add(1)
				}
				if k.busy {
					time.Sleep(time.Millisecond)
				}
			}
		})
	}
	return counts
}
