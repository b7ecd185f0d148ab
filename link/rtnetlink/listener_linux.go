package rtnetlink

import (
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// Events are the functions that [Listener.Hear] calls, one at a time. None may be nil.
type Events struct {
	// Link is called with the attributes of an interface that has changed. removed says that it was deleted, or moved to
	// another network namespace.
	Link func(at *netlink.LinkAttrs, removed bool)
	// Addrs is called with the index of an interface that has got or lost an address.
	Addrs func(index int)
	// Missed is called when there were more changes than the socket's buffer holds, so that some are lost: whatever is to be
	// known has to be read anew. Changes after that are heard again.
	Missed func()
}

// Listener hears of the interfaces of the network namespace that the thread was in which made it.
type Listener struct {
	changes *os.File // nil if the kernel does not tell of any

	mu       sync.Mutex
	requests *netlink.Handle // nil after Close
}

// bufferBytes is the receive buffer of the socket, as far as the system's bound allows.
const bufferBytes = 1 << 20

// bind is replaced in tests.
var bind = unix.Bind

// Listen begins to listen: changes from now on are kept for [Listener.Hear], or are known to be missed. A kernel may refuse to
// tell of changes, as that of a gVisor sandbox does: [Listener.Hear] then returns at once.
func Listen() (*Listener, error) {
	requests, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	l := &Listener{requests: requests}
	if l.changes, err = join(unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR); err != nil {
		requests.Close()
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return l, nil
}

// join opens a socket that is in groups of rtnetlink. It returns nil if the kernel refuses the groups. (Subscribe of package
// netlink v1.3.1 closes the descriptor twice then: the second time when the garbage collector finds the os.File, by which time
// the number may be another file's.)
func join(groups ...uint) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	own := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	for _, g := range groups {
		own.Groups |= 1 << (g - 1)
	}
	if bind(fd, own) != nil {
		return nil, unix.Close(fd)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferBytes) // with less, more is missed
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// Hear calls the functions as changes come. It returns after Close.
func (l *Listener) Hear(on Events) {
	if l.changes == nil {
		return
	}
	conn, err := l.changes.SyscallConn()
	if err != nil {
		return // closed
	}
	b := make([]byte, 1<<16)
	missed := false
	for {
		var n int
		var from unix.Sockaddr
		var failed error
		err := conn.Read(func(fd uintptr) (done bool) {
			n, from, failed = unix.Recvfrom(int(fd), b, 0)
			return failed != unix.EAGAIN || missed
		})
		switch {
		case err != nil:
			return // closed
		case failed == unix.ENOBUFS:
			// What is in the buffer comes next. Until it is empty, the kernel drops more, and does not say so again.
			missed = true
		case failed == unix.EAGAIN:
			missed = false
			on.Missed()
		case failed == unix.EINTR:
		case failed != nil:
			return
		default:
			if kernel, ok := from.(*unix.SockaddrNetlink); ok && kernel.Pid == 0 {
				missed = !on.take(b[:n]) || missed
			}
		}
	}
}

// take calls the functions for what a message of the kernel's tells. ok is false if not all of it could be read.
func (on *Events) take(b []byte) (ok bool) {
	all, err := syscall.ParseNetlinkMessage(b)
	ok = err == nil
	for _, m := range all {
		switch m.Header.Type {
		case unix.RTM_NEWLINK, unix.RTM_DELLINK:
			if len(m.Data) < unix.SizeofIfInfomsg {
				ok = false
				continue
			}
			if nl.DeserializeIfInfomsg(m.Data).Family != unix.AF_UNSPEC {
				continue // of a bridge, about its ports
			}
			header := unix.NlMsghdr(m.Header)
			l, err := netlink.LinkDeserialize(&header, m.Data)
			if err != nil {
				ok = false
				continue
			}
			on.Link(l.Attrs(), m.Header.Type == unix.RTM_DELLINK)
		case unix.RTM_NEWADDR, unix.RTM_DELADDR:
			if len(m.Data) < unix.SizeofIfAddrmsg {
				ok = false
				continue
			}
			on.Addrs(int(nl.DeserializeIfAddrmsg(m.Data).Index))
		}
	}
	return ok
}

// Link reads how an interface is. The error is a [netlink.LinkNotFoundError] if there is none.
func (l *Listener) Link(index int) (*netlink.LinkAttrs, error) {
	return l.read(func() (netlink.Link, error) { return l.requests.LinkByIndex(index) })
}

// LinkByName is Link for the interface of a name.
func (l *Listener) LinkByName(name string) (*netlink.LinkAttrs, error) {
	return l.read(func() (netlink.Link, error) { return l.requests.LinkByName(name) })
}

func (l *Listener) read(ask func() (netlink.Link, error)) (*netlink.LinkAttrs, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.requests == nil {
		return nil, os.ErrClosed
	}
	at, err := ask()
	if err != nil {
		return nil, err
	}
	return at.Attrs(), nil
}

// Close ends [Listener.Hear], which may be in one of the functions still. It may be called more than once.
func (l *Listener) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.requests == nil {
		return
	}
	l.requests.Close()
	l.requests = nil
	if l.changes != nil {
		_ = l.changes.Close()
	}
}
