package hub

import (
	"errors"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/stack"
)

// attack performs the actions of hostile processes. Its methods report whether the hub accepted
// them.
type attack struct {
	t   *testing.T
	r   *rand.Rand
	dir string
	// Connected to the hub; out belongs to a hostile client, unknown to no client.
	out, unknown *net.UDPConn
	victim       *victimProcess
}

// nonsense sends an invalid hello to the hub, with descriptors.
func (x *attack) nonsense() bool {
	conn := dialHub(x.dir)
	if conn == nil {
		return false
	}
	defer conn.Close()
	fd, memory, err := ring.NewMemory(ring.MinLen)
	if err != nil {
		x.t.Fatal(err)
	}
	defer unix.Close(fd)
	defer unix.Munmap(memory)
	h := hello{ring: ring.MinLen}
	b := h.encode()
	for range x.r.IntN(3) {
		b[x.r.IntN(len(b))] = byte(x.r.Uint32())
	}
	_, _, err = conn.WriteMsgUnix(b[:x.r.IntN(len(b)+1)], unix.UnixRights(many(fd, x.r.IntN(200))...), nil)
	return err == nil
}

func many(fd, n int) []int {
	fds := make([]int, n)
	for i := range fds {
		fds[i] = fd
	}
	return fds
}

// scribble makes datagrams arrive for a client that writes into its ring, to hit the time between
// check and use.
func (x *attack) scribble() bool {
	h := joinHostile(x.t, x.dir)
	if h == nil {
		return false
	}
	defer h.close()
	if !h.speaksFrom(x.t, x.out) {
		return false
	}
	b := make([]byte, 1000)
	b[0] = byte(h.qpnSlot)
	scribble(x.r, h.memory, func() { _, _ = x.out.Write(b) })
	stop := make(chan bool)
	var writing sync.WaitGroup
	seed := x.r.Uint64()
	writing.Go(func() {
		r := rand.New(rand.NewPCG(13, seed))
		for {
			select {
			case <-stop:
				return
			default:
				h.memory[r.IntN(512)] = byte(r.Uint32()) // indices
			}
		}
	})
	for range 50 {
		_, _ = x.out.Write(b)
	}
	close(stop)
	writing.Wait()
	return true
}

// requests makes requests continuously, also for the victim's services, and does not read the
// answers.
func (x *attack) requests() bool {
	h := joinHostile(x.t, x.dir)
	if h == nil {
		return false
	}
	defer h.close()
	_ = h.conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	own := netip.MustParseAddr(hostileAddr)
	for i := range 2000 {
		q := request{kind: kind(x.r.IntN(int(lastKind)) + 1), number: uint32(i),
			service: stack.Service{ID: x.r.Uint64(), Mask: x.r.Uint64()}, serial: x.r.Uint32N(64)}
		if x.r.IntN(2) == 0 {
			q.addr, q.own, q.zone, q.qpn = own, own, "lo", x.victim.slot<<slotBits
		}
		if _, err := h.conn.Write(q.encode()); err != nil {
			return i > 0
		}
	}
	return true
}

// descriptors sends more and other descriptors than requests need.
func (x *attack) descriptors() bool {
	h := joinHostile(x.t, x.dir)
	if h == nil {
		return false
	}
	defer h.close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		x.t.Fatal(err)
	}
	defer null.Close()
	for i, fd := range []int{h.fd, int(null.Fd())} { // neither is a socket
		for _, kind := range []kind{addSourceSocket, keepPair} {
			if err := h.ask(x.t, &request{kind: kind, number: uint32(10 + i), qpn: x.victim.slot << slotBits}, fd); err == nil {
				x.t.Error("the hub accepts a descriptor that is not a socket")
			}
		}
	}
	_ = h.conn.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	for i := range 200 {
		q := request{kind: kind(x.r.IntN(int(lastKind)) + 1), number: uint32(i)}
		if _, _, err := h.conn.WriteMsgUnix(q.encode(), unix.UnixRights(many(h.fd, x.r.IntN(250))...), nil); err != nil {
			break // the hub disconnects
		}
	}
	return true
}

// truncate tries to resize memory that the hub has, and offers memory that it could resize.
func (x *attack) truncate() bool {
	h := joinHostile(x.t, x.dir)
	if h == nil {
		return false
	}
	defer h.close()
	if h.speaksFrom(x.t, x.out) {
		_, _ = x.out.Write([]byte{byte(h.qpnSlot), plain})
	}
	for _, n := range []int64{0, 1, ring.MinLen / 2, 2 * ring.MinLen} {
		if err := unix.Ftruncate(h.fd, n); !errors.Is(err, unix.EPERM) {
			x.t.Errorf("the hub's memory has %d bytes now: %v", n, err)
		}
	}
	_ = unix.Fallocate(h.fd, unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, 0, ring.MinLen)
	_, _ = x.out.Write([]byte{byte(h.qpnSlot), plain})

	conn := dialHub(x.dir)
	if conn == nil {
		return false
	}
	defer conn.Close()
	fd, err := unix.MemfdCreate("hostile", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		x.t.Fatal(err)
	}
	defer unix.Close(fd)
	size := int64(ring.MinLen)
	if x.r.IntN(2) == 0 { // sealed, but too small
		size /= 2
	}
	err = unix.Ftruncate(fd, size)
	if err == nil && size < ring.MinLen {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, ring.Seals)
	}
	if err != nil {
		x.t.Fatal(err)
	}
	hello := hello{ring: ring.MinLen}
	_ = ring.Send(conn, hello.encode(), fd)
	_ = unix.Ftruncate(fd, 0)
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	b := make([]byte, maxMessage)
	n, err := conn.Read(b)
	if w, wrong := decodeWelcome(b[:n]); err == nil && wrong == nil && w.err == nil {
		x.t.Errorf("the hub accepts memory of %d bytes that may shrink", size)
	}
	return err == nil
}

// claim requests the victim's numbers and services, and sends packets in its name.
func (x *attack) claim() bool {
	h := joinHostileWith(x.t, x.dir, secret{byte(x.r.Uint32()), 1})
	if h == nil {
		return false
	}
	defer h.close()
	if h.qpnSlot == x.victim.slot {
		x.t.Error("two clients have the same QPNs")
	}
	overlapping := stack.Service{ID: victimService.ID, Mask: 0xf, Addr: netip.MustParseAddr(hostileAddr)}
	for i, s := range []stack.Service{victimService, {ID: victimService.ID}, overlapping} {
		if err := h.ask(x.t, &request{kind: serve, number: uint32(10 + i), service: s}); !errors.Is(err, unix.EADDRNOTAVAIL) {
			x.t.Errorf("service %+v, which overlaps another client's: %v", s, err)
		}
		h.ask(x.t, &request{kind: endServe, number: uint32(20 + i), service: s})
	}
	if !h.speaksFrom(x.t, x.out) {
		return false
	}
	to := byte(x.victim.slot)
	for _, c := range []*net.UDPConn{x.out, x.unknown} {
		_, _ = c.Write([]byte{to, claim, to})
	}
	_, _ = x.unknown.Write([]byte{to, plain})
	_, _ = x.unknown.Write(datagram(nil, to, x.r.Uint64N(1000)))
	_, _ = x.out.Write([]byte{to, plain}) // a valid datagram
	return true
}

// hostile is a client that follows no rules.
type hostile struct {
	conn   *net.UnixConn
	fd     int
	memory []byte // of the ring into which the hub puts records
	span
}

func (h *hostile) close() { _, _, _ = h.conn.Close(), unix.Munmap(h.memory), unix.Close(h.fd) }

func dialHub(dir string) *net.UnixConn {
	conn, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: filepath.Join(dir, socketName), Net: "unixpacket"})
	if err != nil {
		return nil
	}
	return conn
}

// joinHostile returns a client with a completed handshake that receives at an address, or nil if
// the hub refuses it.
func joinHostile(t testing.TB, dir string) *hostile {
	t.Helper()
	return joinHostileWith(t, dir, secret{})
}

func joinHostileWith(t testing.TB, dir string, s secret) *hostile {
	t.Helper()
	conn := dialHub(dir)
	if conn == nil {
		return nil
	}
	fd, memory, err := ring.NewMemory(ring.MinLen)
	if err != nil {
		t.Fatal(err)
	}
	x := &hostile{conn: conn, fd: fd, memory: memory}
	h := hello{ring: ring.MinLen, secret: s}
	_ = ring.Send(conn, h.encode(), fd)
	b := make([]byte, maxMessage)
	n, err := conn.Read(b)
	w, wrong := decodeWelcome(b[:n])
	if err != nil || wrong != nil || w.err != nil {
		x.close()
		return nil
	}
	x.span = w.span
	q := request{kind: addAddr, addr: netip.MustParseAddr(hostileAddr), zone: "lo"}
	_, _ = conn.Write(q.encode())
	_, _ = conn.Read(b)
	return x
}

// ask makes a request, possibly with a descriptor, and returns the hub's answer.
func (h *hostile) ask(t *testing.T, q *request, fds ...int) error {
	t.Helper()
	if _, _, err := h.conn.WriteMsgUnix(q.encode(), unix.UnixRights(fds...), nil); err != nil {
		t.Fatalf("request %+v: %v", q, err)
	}
	_ = h.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	b := make([]byte, maxMessage)
	for {
		n, err := h.conn.Read(b)
		if err != nil {
			t.Fatalf("request %+v: no answer: %v", q, err)
		}
		if a, err := decodeAnswer(b[:n]); err == nil && a.number == q.number { // not a wakeup
			return a.err
		}
	}
}

// speaksFrom registers a socket as the client's.
func (h *hostile) speaksFrom(t *testing.T, c *net.UDPConn) bool {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	if e := raw.Control(func(fd uintptr) { err = h.ask(t, &request{kind: addSourceSocket, number: 1}, int(fd)) }); e != nil {
		err = e
	}
	return err == nil
}

// scribble writes randomly into the memory of a ring, indices and records, while send makes the
// other side put frames there.
func scribble(r *rand.Rand, memory []byte, send func()) {
	for range 50 {
		for range 20 {
			at := r.IntN(len(memory))
			if r.IntN(2) == 0 {
				at = r.IntN(512) // indices
			}
			memory[at] = byte(r.Uint32())
		}
		send()
	}
}
