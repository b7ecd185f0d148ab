package rxsocket

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link/userdir"
	"github.com/softrnic/softrnic/stack"
)

// Steered is the socket of an address that other processes receive from too. They have further
// sockets at the same address and port (SO_REUSEPORT). A program in the kernel
// (SO_ATTACH_REUSEPORT_CBPF) selects the socket for each datagram, or for each superframe by its
// first datagram. Neither needs a privilege.
//
// A socket has an index in the kernel's list, by the order in which they were bound. If a socket is
// closed everywhere, the last of the list gets its index. No socket may therefore be closed: the
// caller of Add keeps a descriptor of each until Close.
//
// The list may begin with sockets that an earlier owner of the address has left to other processes.
// The Steered then has an unknown index, which changes when one of these is closed. Until all are
// closed, everything arrives at the Steered itself. Look sends probes to find out: a datagram that
// the program steers to the index that it names. The program's result is not an index if there are
// fewer sockets; then the kernel chooses one by a hash.
type Steered struct {
	*Socket
	zone  string
	owner *net.UnixListener // see claim
	to    unix.Sockaddr
	alone bool   // all sockets are this process's
	own   uint16 // index of Socket
	n     int    // number of sockets, if alone

	mu    sync.Mutex
	nonce [8]byte // of the present probes
	heard map[uint16]bool
}

const (
	// maxGroup is the number of sockets at an address.
	maxGroup = 256
	// lookTime is how long Look waits for probes. They pass the loopback interface, usually before
	// the system call that sends them returns.
	lookTime = 5 * time.Millisecond
	// probesAtATime probes fit into a socket's buffer.
	probesAtATime = 32
)

// OpenSteered opens the socket of an address. The error wraps [errors.ErrUnsupported] if the kernel
// cannot steer. Other errors are those of Open.
func OpenSteered(a netip.Addr, zone string, r Receiver) (*Steered, error) {
	s := &Steered{zone: zone}
	var err error
	if s.owner, err = claim(a, zone); err != nil {
		return nil, err
	}
	at := Zoned(netip.AddrPortFrom(a, stack.RoCEPort), zone)
	if first, _, err := Bind(at, setReceiving); err == nil { // without SO_REUSEPORT, so no other socket is left
		_ = first.Close()
		s.alone, s.n = true, 1
	}
	conn, _, err := Bind(at, setSteered)
	if err != nil {
		s.release()
		return nil, bindError(a, err)
	}
	if s.Socket, err = newSocket(a, conn, &probed{r, s}); err != nil {
		s.release()
		return nil, err
	}
	if e := s.raw.Control(func(fd uintptr) { s.to, err = unix.Getsockname(int(fd)) }); e != nil {
		err = e
	}
	if err == nil {
		err = s.attach(toOne(0))
	}
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("steering datagrams to %v: %w: %w", a, errors.ErrUnsupported, err)
	}
	s.Look()
	return s, nil
}

// claim makes this process the only one of its user that steers at an address, in this network
// namespace, until it is closed. SO_REUSEPORT alone lets a second process of the user join, and
// replace the program. The result is nil if another user holds the name, as anyone may: that user
// cannot join, and only the guard against a second process of this user is lost.
func claim(a netip.Addr, zone string) (*net.UnixListener, error) {
	name := &net.UnixAddr{Net: "unix", Name: fmt.Sprintf("@softrnic-%d-%v", stack.RoCEPort,
		Zoned(netip.AddrPortFrom(a, stack.RoCEPort), zone).Addr())}
	for try := 0; ; try++ {
		l, err := net.ListenUnix(name.Net, name)
		if err == nil {
			go userdir.Accept(l, func(conn *net.UnixConn) { _ = conn.Close() })
			return l, nil
		}
		if !errors.Is(err, unix.EADDRINUSE) {
			return nil, bindError(a, err)
		}
		switch uid, unknown := userOf(name); {
		case unknown == nil && uid != uint32(os.Geteuid()):
			return nil, nil
		case try < 5: // the kernel is closing the descriptors of a process that was killed, or one is about to listen
			time.Sleep(10 * time.Millisecond)
		case unknown == nil:
			return nil, bindError(a, err)
		default: // no process that steers, because it would answer
			return nil, nil
		}
	}
}

// userOf returns the user of the process that listens at a name.
func userOf(name *net.UnixAddr) (uid uint32, err error) {
	conn, err := net.DialUnix(name.Net, nil, name)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	cred, err := userdir.Credentials(conn)
	if err != nil {
		return 0, err
	}
	return cred.Uid, nil
}

func setSteered(fd uintptr, v4 bool) error {
	return errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1), setReceiving(fd, v4))
}

// attach replaces the program.
func (s *Steered) attach(p []unix.SockFilter) (err error) {
	program := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	if e := s.raw.Control(func(fd uintptr) {
		err = unix.SetsockoptSockFprog(int(fd), unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF, &program)
	}); e != nil {
		err = e
	}
	return err
}

// Alone reports whether Add and Steer may be called: no other process has sockets of an earlier
// owner of the address.
func (s *Steered) Alone() bool { return s.alone }

// Look updates Alone.
func (s *Steered) Look() {
	if s.alone {
		return
	}
	s.mu.Lock()
	_, _ = rand.Read(s.nonce[:]) // never fails
	s.heard = map[uint16]bool{}
	s.mu.Unlock()
	// Of two sockets or more, at most one of these indices is this one's.
	s.probe(0, 2)
	if s.await(2) == 2 {
		s.alone, s.own, s.n = true, 0, 1
	} else {
		// The kernel chooses by a hash only if the index is too high, so the lowest one that leads
		// here is this socket's.
		for i := uint16(2); i < maxGroup && s.await(1) == 0; i += probesAtATime {
			s.probe(i, i+probesAtATime)
		}
		s.mu.Lock()
		s.own = maxGroup // of no socket: the kernel chooses by a hash, if no probe arrives because lo is down
		if all := slices.Collect(maps.Keys(s.heard)); len(all) > 0 {
			s.own = slices.Min(all)
		}
		s.mu.Unlock()
	}
	_ = s.attach(toOne(s.own)) // it replaces one of the same length
}

// probe sends probes to the indices from first to end.
func (s *Steered) probe(first, end uint16) {
	b := binary.BigEndian.AppendUint32(nil, probeWord)
	b = append(append(b, 0, 0, 0, 0), s.nonce[:]...)
	_ = s.raw.Control(func(fd uintptr) {
		for i := first; i < end; i++ {
			binary.BigEndian.PutUint16(b[probeIndex:], i)
			_ = unix.Sendto(int(fd), b, unix.MSG_DONTWAIT, s.to)
		}
	})
}

// await waits for n probes, and returns the number of those that have arrived by lookTime.
func (s *Steered) await(n int) int {
	for end := time.Now().Add(lookTime); ; time.Sleep(100 * time.Microsecond) {
		for s.Poll() && time.Now().Before(end) { // until nothing is left
		}
		s.mu.Lock()
		have := len(s.heard)
		s.mu.Unlock()
		if have >= n || time.Now().After(end) {
			return have
		}
	}
}

// probed removes the probes from the datagrams that a Steered receives.
type probed struct {
	Receiver
	s *Steered
}

// Deliver implements [Receiver].
func (p *probed) Deliver(a *Arrival, polled bool) {
	const length = 16
	if len(a.Payload) == length && binary.BigEndian.Uint32(a.Payload) == probeWord {
		p.s.mu.Lock()
		defer p.s.mu.Unlock()
		if [8]byte(a.Payload[8:]) == p.s.nonce {
			p.s.heard[binary.BigEndian.Uint16(a.Payload[probeIndex:])] = true
		}
		return
	}
	p.Receiver.Deliver(a, polled)
}

// Add binds one more socket, for another process, and returns its descriptor and its index.
func (s *Steered) Add() (*os.File, uint16, error) {
	if !s.alone || s.n >= maxGroup {
		return nil, 0, unix.EAGAIN
	}
	conn, _, err := Bind(Zoned(netip.AddrPortFrom(s.Addr(), stack.RoCEPort), s.zone), setSteered)
	if err != nil {
		return nil, 0, err
	}
	f, _, err := DetachNetpoll(conn)
	if err != nil {
		return nil, 0, err
	}
	s.n++
	return f, uint16(s.n - 1), nil
}

// Steer steers datagrams by a table, or all to the Steered itself if it is nil.
func (s *Steered) Steer(t *Table) error {
	switch {
	case t == nil:
		return s.attach(toOne(s.own))
	case !s.alone:
		return unix.EAGAIN
	}
	return s.attach(t.program(s.Addr().Is4()))
}

// Close closes the socket. Those of Add are the caller's.
func (s *Steered) Close() {
	s.Socket.Close()
	s.release()
}

// release ends the claim.
func (s *Steered) release() {
	if s.owner != nil {
		_ = s.owner.Close()
	}
}

// Discard discards what a socket of Add has received, for a process that is gone.
func Discard(f *os.File) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	var b [1]byte
	_ = raw.Control(func(fd uintptr) {
		for range 1 << 16 { // datagrams may still be arriving
			if _, _, err := unix.Recvfrom(int(fd), b[:], unix.MSG_DONTWAIT|unix.MSG_TRUNC); err != nil && err != unix.EINTR {
				return
			}
		}
	})
}
