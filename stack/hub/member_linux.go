package hub

import (
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/link"
	"github.com/softrnic/softrnic/link/ring"
	"github.com/softrnic/softrnic/stack"
)

// member is the hub's view of a client.
type member struct {
	conn   *net.UnixConn
	raw    syscall.RawConn
	pid    int32
	user   *user
	lease  *lease
	memory []byte              // memory of the ring
	addrs  map[netip.Addr]bool // modified with both server.mu and relay.mu held

	sockets map[netip.Addr]*memberSocket // for addresses at which the client takes one; guarded by server.mu

	numbers stack.Numbers // of the lease

	// With relay.mu held:
	ring       *ring.Producer
	gone       bool      // the ring is not used any more
	left       time.Time // when the client left
	written    bool      // there are records to publish
	dropped    uint64
	record     [recordLen]byte
	more       [1][]byte
	frame      link.Frame
	sendWakeup func(fd uintptr) bool // made once, because a closure allocates
}

func newMember(conn *net.UnixConn, memory []byte, pid int32, u *user) (m *member, err error) {
	m = &member{conn: conn, memory: memory, pid: pid, user: u, addrs: map[netip.Addr]bool{}, sockets: map[netip.Addr]*memberSocket{}}
	if m.ring, err = ring.NewProducer(memory); err != nil {
		return nil, err
	}
	if m.raw, err = conn.SyscallConn(); err != nil {
		return nil, err
	}
	m.frame.Data, m.frame.More = m.record[:], m.more[:]
	m.sendWakeup = func(fd uintptr) bool { ring.WakePeer(fd); return true }
	return m, nil
}

// hasEnded reports whether the client's process has closed its connection. When a process dies, the
// kernel closes it before the parent is notified. The hub's goroutine for the client may not have
// run yet.
func (m *member) hasEnded() bool {
	ended := false
	err := m.raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd)}}
		n, err := unix.Poll(p, 0)
		ended = err == nil && n > 0 && p[0].Revents&unix.POLLHUP != 0
	})
	return ended || err != nil // the hub has closed it
}

// tell sends a message, with descriptors. It fails if the socket's buffer is full.
func (m *member) tell(message []byte, fds ...int) (err error) {
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	failed := m.raw.Write(func(fd uintptr) bool {
		err = unix.Sendmsg(int(fd), message, rights, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		return true
	})
	if err == nil {
		err = failed
	}
	return err
}

// put copies an arrival into the ring. It returns false if the arrival is lost.
func (m *member) put(a *Arrival) bool {
	if m.gone || recordLen+len(a.Payload) > ring.MaxFrame {
		return false
	}
	putRecord(m.record[:], a)
	m.more[0] = a.Payload
	m.frame.NoICRC, m.frame.HeaderLen = a.NoICRC, recordLen
	ok, err := m.ring.Put(&m.frame)
	m.more[0] = nil
	if err != nil { // the client has corrupted the ring
		m.gone = true
		_ = m.conn.CloseRead() // ends the connection
	}
	if !ok {
		m.dropped++
	}
	m.written = m.written || ok
	return ok
}

// publish makes records visible to the client, and wakes it if it sleeps.
func (m *member) publish() {
	m.written = false
	if !m.gone && m.ring.Publish() {
		_ = m.raw.Write(m.sendWakeup)
	}
}
