//go:build linux

package sockets

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/relay"
)

// A direct connection is handed over to two programs of this machine: each has one end of a pair of
// Unix sockets in place of its TCP socket. The agents keep the connection over RDMA, which carries
// nothing, and what a Unix socket has not: the addresses, and the TCP socket for its options.

// maxDirect limits the direct connections. Further ones are relayed.
const maxDirect = 2048

// directConn is a direct connection at one of its ends. Agent.mu protects it.
type directConn struct {
	endpoints               // over RDMA, once connected
	shadow    int           // a descriptor of the program's TCP socket
	failed    int32         // 0: connected; EALREADY: it is being connected; or the errno
	settled   chan struct{} // closed when it is connected or has failed; nil if it was from the beginning
	asked     bool          // the program has connected again since then
	missed    int           // listings without the socket, in turn
	link      *link         // nil while it is being connected, and if this agent relays the connection itself
	aborts    bool          // of a relayed connection: the program's end is reset when it closes
	aborted   bool          // the end of the stream is a reset
	reset     bool          // the program has been told, which TCP does once
	ended     func()
}

// inodeOf returns the inode of a socket, or 0.
func inodeOf(socket int) uint64 {
	var stat unix.Stat_t
	if unix.Fstat(socket, &stat) != nil || stat.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return 0
	}
	return stat.Ino
}

// directOf returns the direct connection of a program's socket. a.mu is held.
func (a *Agent) directOf(socket int) *directConn {
	if len(a.direct) == 0 {
		return nil
	}
	return a.direct[inodeOf(socket)]
}

func (a *Agent) directFull() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.direct)+len(a.takes) < maxDirect {
		return false
	}
	a.notDirect.Add(1)
	return true
}

// addDirect records the connection of a program's end.
func (a *Agent) addDirect(end int, c *directConn) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.direct[inodeOf(end)] = c
}

// doDirect handles a request about a direct connection. ok is false if it is of no direct
// connection. socket is a descriptor for the program, or -1.
func (a *Agent) doDirect(r *request) (status int32, name netip.AddrPort, socket int, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.directOf(r.socket)
	if c == nil {
		return declined, name, -1, false
	}
	if c.settled != nil && isWritable(r.socket) {
		// The other agent has made it writable, and its reply is on its way.
		a.mu.Unlock()
		select {
		case <-c.settled:
		case <-time.After(joinTimeout):
		}
		a.mu.Lock()
	}
	status, socket = declined, -1
	switch r.op {
	case opConnect:
		switch c.failed {
		case 0:
			// The call that finds a pending connection made reports that, and only later ones EISCONN.
			if status = int32(syscall.EISCONN); c.settled != nil && !c.asked {
				status = done
			}
			c.asked = true
		case int32(syscall.EALREADY):
			status = c.failed
		default:
			if status = a.failureOf(cookieOf(r.socket)); status == declined {
				status = int32(syscall.ECONNABORTED)
			}
		}
	case opPeer:
		status, name = done, c.peer
		if c.failed != 0 {
			status = int32(syscall.ENOTCONN)
		}
	case opLocal:
		status, name = done, c.local
	case opFailure:
		status = a.failureOf(cookieOf(r.socket))
	case opOptions:
		if fd, err := dup(c.shadow); err == nil {
			status, socket = done, fd
		}
	case opAborts, opEnds:
		status, c.aborts = done, r.op == opAborts
		if l := c.link; l != nil {
			a.mu.Unlock()
			l.tell(a.ctx, r.op == opAborts)
			a.mu.Lock()
		}
	case opEnd:
		if status = done; !c.reset && (c.aborted || c.link != nil && c.link.peerAborts.Load()) {
			status, c.reset = int32(syscall.ECONNRESET), true
		}
	}
	return status, name, socket, true
}

// sendBuffer is the size of an end's send buffer, if this process may set it. TCP holds some
// megabytes, and there are programs that send as much before they read.
const sendBuffer = 1 << 20

// setSendBuffer sets the size of a send buffer. Without CAP_NET_ADMIN, Linux limits it.
func setSendBuffer(socket, size int) {
	if unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, size) != nil {
		_ = unix.SetsockoptInt(socket, unix.SOL_SOCKET, unix.SO_SNDBUF, size)
	}
}

// pair returns a pair of Unix sockets.
func pair() (ends [2]int, err error) {
	if ends, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0); err == nil {
		setSendBuffer(ends[0], sendBuffer)
		setSendBuffer(ends[1], sendBuffer)
	}
	return ends, err
}

func closeAll(fds ...int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// isWritable reports whether a socket may send, or has ended.
func isWritable(socket int) bool {
	p := []unix.PollFd{{Fd: int32(socket), Events: unix.POLLOUT}}
	n, err := unix.Poll(p, 0)
	return n > 0 && err == nil
}

// copySendBuffer gives a socket the size of another one's send buffer, if that was set.
func copySendBuffer(from, to int) {
	if s := setupOf(from); s.buffers[0] > 0 {
		setSendBuffer(to, s.buffers[0])
	}
}

// dup returns a further descriptor of a socket.
func dup(socket int) (int, error) { return unix.FcntlInt(uintptr(socket), unix.F_DUPFD_CLOEXEC, 0) }

// connectDirect connects a program's socket to an agent of this machine that has been visited. The
// program replaces its socket by the one that is returned. If that is -1, the status is as of
// connect, and the connection is relayed.
func (a *Agent) connectDirect(visit *net.UnixConn, socket int, to netip.AddrPort) (status int32, end int) {
	cookie := cookieOf(socket)
	if flags, err := unix.FcntlInt(uintptr(socket), unix.F_GETFL, 0); err == nil && flags&unix.O_NONBLOCK != 0 {
		return a.beginDirect(visit, socket, cookie, to)
	}
	defer visit.Close()
	rdma, status := a.dialRDMA(to, a.source(socket, to), socket)
	if rdma == nil {
		return status, -1
	}
	shadow, err := dup(socket)
	if err != nil {
		return a.relayed(socket, cookie, to, rdma), -1
	}
	ends, err := pair()
	if err != nil {
		closeAll(shadow)
		return a.relayed(socket, cookie, to, rdma), -1
	}
	copySendBuffer(socket, ends[0])
	accepted, err := a.offer(visit, rdma, ends[1], 0)
	closeAll(ends[1])
	switch {
	case err != nil:
		closeAll(shadow, ends[0])
		relay.Abort(rdma)
		return int32(syscall.ECONNABORTED), -1
	case !accepted:
		closeAll(shadow, ends[0])
		return a.relayed(socket, cookie, to, rdma), -1
	}
	a.log.Info("a connection of the program goes over RDMA, and is handed over", "to", to, "from", rdma.LocalAddr())
	a.unbind(cookie)
	c := &directConn{shadow: shadow}
	a.handOver(c, rdma, func() {})
	a.addDirect(ends[0], c)
	return done, ends[0]
}

// handOver completes a direct connection whose programs have both ends.
func (a *Agent) handOver(c *directConn, rdma net.Conn, ended func()) {
	l := a.newLink(rdma)
	a.cfg.Counters.Open.Add(1)
	a.mu.Lock()
	defer a.mu.Unlock()
	c.endpoints, c.failed, c.link = endpoints{parse(rdma.LocalAddr()), parse(rdma.RemoteAddr())}, 0, l
	c.ended = func() {
		a.cfg.Counters.Open.Add(-1)
		a.work.Go(func() {
			_ = rdma.Close()
			ended()
		})
	}
}

// pendingSize is the number of bytes that a pending end sends, of which the smallest send buffer
// has room for a part.
const pendingSize = 4096

// pendingEnd is the program's end of a pair while it is being connected.
type pendingEnd struct {
	own, other int // descriptors of it and of the other end
	room       int // size of its send buffer
	filled     int // bytes that the other end has not read
}

// newPendingEnd makes a pair. The program's end has no room to send, so it is not writable.
func newPendingEnd(socket int) (p *pendingEnd, err error) {
	ends, err := pair()
	if err != nil {
		return nil, err
	}
	copySendBuffer(socket, ends[0])
	p = &pendingEnd{own: ends[0], other: ends[1]}
	if p.room, err = unix.GetsockoptInt(p.own, unix.SOL_SOCKET, unix.SO_SNDBUF); err == nil {
		err = unix.SetsockoptInt(p.own, unix.SOL_SOCKET, unix.SO_SNDBUF, 1)
	}
	if err == nil {
		p.filled, err = unix.SendmsgN(p.own, make([]byte, pendingSize), nil, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *pendingEnd) close() { closeAll(p.own, p.other) }

// connected gives the program's end the room to send, when the other end has been drained.
func (p *pendingEnd) connected() {
	setSendBuffer(p.own, p.room/2) // Linux doubles it
}

// drain reads what a pending end has sent from the other end.
func drain(other, filled int) error {
	for filled > 0 {
		n, _, err := unix.Recvfrom(other, make([]byte, min(filled, pendingSize)), unix.MSG_DONTWAIT)
		if err != nil || n == 0 {
			return errors.Join(err, errors.New("a pending end has sent less"))
		}
		filled -= n
	}
	return nil
}

// beginDirect starts to connect a nonblocking socket.
func (a *Agent) beginDirect(visit *net.UnixConn, socket int, cookie uint64, to netip.AddrPort) (status int32, end int) {
	if !a.addPending(cookie) {
		_ = visit.Close()
		return declined, -1
	}
	shadow, err := dup(socket)
	if err != nil {
		_ = visit.Close()
		a.endPending(cookie)
		return declined, -1
	}
	p, err := newPendingEnd(socket)
	if err == nil {
		if end, err = dup(p.own); err != nil {
			p.close()
		}
	}
	if err != nil {
		closeAll(shadow)
		_ = visit.Close()
		a.endPending(cookie)
		return declined, -1
	}
	c := &directConn{shadow: shadow, failed: int32(syscall.EALREADY), settled: make(chan struct{}), ended: func() {}}
	a.addDirect(p.own, c)
	set, from := setupOf(socket), a.source(socket, to)
	a.work.Go(func() {
		defer a.endPending(cookie)
		defer visit.Close()
		defer close(c.settled)
		status := a.finishDirect(visit, c, p, &set, from, to)
		if status == done {
			a.unbind(cookie)
			return
		}
		a.mu.Lock()
		a.failures.put(cookieOf(p.own), failure{status, time.Now().Add(failureTime)})
		c.failed, c.aborted = status, true
		a.mu.Unlock()
		p.close() // what the other end has not read makes the kernel report a reset
	})
	return done, end
}

// finishDirect makes the connection of a pending end. If the status is done, it has closed the
// descriptors.
func (a *Agent) finishDirect(visit *net.UnixConn, c *directConn, p *pendingEnd, set *setup, from, to netip.AddrPort) int32 {
	far, status := a.dialRDMA(to, from, c.shadow)
	switch {
	case status == declined:
		var err error
		far, err = set.dialer(c.shadow).DialContext(a.ctx, "tcp", to.String())
		set.restore(c.shadow)
		if err != nil {
			return errnoOf(err, syscall.ETIMEDOUT)
		}
	case far == nil:
		return status
	default:
		accepted, err := a.offer(visit, far, p.other, p.filled)
		if err != nil {
			a.log.Warn("a connection could not be handed over", "to", to, "error", err)
			relay.Abort(far)
			return int32(syscall.ECONNABORTED)
		}
		if accepted {
			a.log.Info("a connection of the program goes over RDMA, and is handed over", "to", to, "from", far.LocalAddr())
			a.handOver(c, far, func() {})
			p.connected()
			p.close()
			return done
		}
	}
	if err := drain(p.other, p.filled); err != nil {
		relay.Abort(far)
		return int32(syscall.ECONNABORTED)
	}
	program, err := a.newUnixEnd(p.other, func() bool {
		a.mu.Lock()
		defer a.mu.Unlock()
		return c.aborts
	}, func() {
		a.mu.Lock()
		defer a.mu.Unlock()
		c.aborted = true
	})
	if err != nil {
		relay.Abort(far)
		return errnoOf(err, syscall.ECONNABORTED)
	}
	a.log.Info("a connection of the program is relayed", "to", to, "from", far.LocalAddr())
	a.mu.Lock()
	c.endpoints, c.failed = endpoints{parse(far.LocalAddr()), parse(far.RemoteAddr())}, 0
	a.mu.Unlock()
	p.connected()
	p.close()
	a.forward(program, far, endpoints{}, func() {})
	return done
}

// takeTimeout is how long a program may take to accept a connection and its end of the pair.
// Programs that accept without the C library do not take it.
const takeTimeout = time.Second

// handover is a connection that has come over RDMA, and whose end the program may take.
type handover struct {
	conn  *directConn
	end   int // a descriptor
	taken chan struct{}
}

// takeEnd gives the program the end for a connection that it has accepted.
func (a *Agent) takeEnd(r *request) (status int32, name netip.AddrPort, socket int, ok bool) {
	e := endpoints{localOf(r.socket), peerOf(r.socket)}
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.takes[e]
	if t == nil {
		return declined, name, -1, false
	}
	shadow, err := dup(r.socket)
	if err != nil {
		return declined, name, -1, false
	}
	t.conn.shadow = shadow
	copySendBuffer(r.socket, t.end)
	delete(a.takes, e)
	delete(a.names, e)
	a.direct[inodeOf(t.end)] = t.conn
	close(t.taken)
	return done, t.conn.peer, t.end, true
}

// withdraw makes sure that the program does not take its end any more. It returns false if the
// program has taken it.
func (a *Agent) withdraw(t *handover, e endpoints) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.takes[e] == t {
		delete(a.takes, e)
	}
	select {
	case <-t.taken:
		return false
	default:
		return true
	}
}

// awaitTake waits until the program has taken its end of the pair. If it does not, or begins to
// send without, the agent relays between program, the connection that it has accepted, and the end.
func (a *Agent) awaitTake(program *net.TCPConn, t *handover, e endpoints) {
	timeout := time.NewTimer(takeTimeout)
	defer timeout.Stop()
	sends := make(chan struct{})
	a.work.Go(func() {
		defer close(sends)
		waitReadable(program)
	})
	select {
	case <-t.taken:
	case <-sends:
	case <-timeout.C:
	case <-a.ctx.Done():
	}
	_ = program.SetReadDeadline(time.Unix(1, 0))
	<-sends
	_ = program.SetReadDeadline(time.Time{})
	if !a.withdraw(t, e) {
		_ = program.Close()
		return
	}
	a.log.Info("a connection to the program is relayed, as it has not taken its end", "from", e.peer)
	l := t.conn.link
	end, err := a.newUnixEnd(t.end, l.peerAborts.Load, func() { l.tell(a.ctx, true) })
	closeAll(t.end)
	if err != nil {
		a.log.Warn("a connection of the program has failed", "error", err)
		relay.Abort(program)
		a.forgetNames(e)
		t.conn.ended()
		return
	}
	a.forward(program, end, e, t.conn.ended)
}

// waitReadable waits until a connection has data or has ended, or for its deadline.
func waitReadable(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		_, _, err := unix.Recvfrom(int(fd), make([]byte, 1), unix.MSG_PEEK|unix.MSG_DONTWAIT)
		return !errors.Is(err, unix.EAGAIN)
	})
}

// endDirect ends the direct connections whose ends the programs have closed.
func (a *Agent) endDirect() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.direct) == 0 {
		return
	}
	inodes, err := unixInodes()
	if err != nil {
		a.log.Warn("it is not known which connections have ended", "error", err)
		return
	}
	for inode, c := range a.direct {
		if inodes[inode] || c.failed == int32(syscall.EALREADY) { // this process has the end, too
			c.missed = 0
		} else if c.missed++; c.missed >= missedListings {
			a.forgetDirect(inode, c)
		}
	}
}

// forgetDirect removes a direct connection. a.mu is held.
func (a *Agent) forgetDirect(inode uint64, c *directConn) {
	delete(a.direct, inode)
	closeAll(c.shadow)
	c.shadow = -1
	c.ended()
}

// unixInodes returns the inodes of the machine's Unix sockets (proc(5), /proc/net/unix). The kernel
// may leave a socket out if others end while it lists them.
func unixInodes() (map[uint64]bool, error) {
	f, err := os.Open("/proc/net/unix")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	all := map[uint64]bool{}
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 7 {
			continue
		}
		if inode, err := strconv.ParseUint(fields[6], 10, 64); err == nil {
			all[inode] = true
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("/proc/net/unix: %w", err)
	}
	return all, nil
}
