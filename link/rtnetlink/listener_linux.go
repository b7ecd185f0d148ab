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

// Events are the functions that [Listener.Run] calls, one at a time. Only Routes may be nil.
type Events struct {
	// Link is called with the attributes of an interface that has changed. removed says that it
	// was deleted, or moved to another network namespace.
	Link func(at *netlink.LinkAttrs, removed bool)
	// Addrs is called with the index of an interface that has gained or lost an address.
	Addrs func(index int)
	// Routes is called when routes or routing rules have changed, for a listener of [ListenRoutes].
	// Linux does not report IPv4 routes that end with their interface or address.
	Routes func()
	// Missed is called when the socket's buffer has overflowed and some notifications are lost. It
	// must read the present state anew. Later notifications arrive as usual.
	Missed func()
}

// Listener receives notifications about the interfaces of one network namespace: that of the thread
// that called Listen.
type Listener struct {
	changes *os.File // nil if the kernel sends no notifications

	mu       sync.Mutex
	requests *netlink.Handle // nil after Close
}

// bufferBytes is the requested receive buffer of the socket; the system's limit caps it.
const bufferBytes = 1 << 20

// bind is replaced in tests.
var bind = unix.Bind

// Listen subscribes to notifications. From now on they are queued for [Listener.Run], or reported
// as missed. A kernel may refuse the subscription, as a gVisor sandbox does. [Listener.Run] then
// returns at once.
func Listen() (*Listener, error) { return listen() }

// ListenRoutes is Listen, and also subscribes to changes of routes and routing rules.
func ListenRoutes() (*Listener, error) {
	return listen(unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE)
}

func listen(groups ...uint) (*Listener, error) {
	requests, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	l := &Listener{requests: requests}
	groups = append(groups, unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR)
	if l.changes, err = subscribe(groups...); err != nil {
		requests.Close()
		return nil, fmt.Errorf("netlink socket: %w", err)
	}
	return l, nil
}

// subscribe opens a socket that is a member of rtnetlink groups. It returns nil if the kernel
// refuses the groups. (Subscribe of package netlink v1.3.1 is not used: in that case it closes the
// descriptor twice, the second time when the garbage collector finalizes the os.File. The number
// may belong to another file by then.)
func subscribe(groups ...uint) (*os.File, error) {
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
	// With a smaller buffer, more notifications are missed.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, bufferBytes)
	return os.NewFile(uintptr(fd), "netlink"), nil
}

// Run calls the functions as notifications arrive. It returns after Close.
func (l *Listener) Run(on Events) {
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
			// The rest of the buffer is read next. Until the buffer is empty, the kernel drops
			// notifications without reporting it again.
			missed = true
		case failed == unix.EAGAIN:
			missed = false
			on.Missed()
		case failed == unix.EINTR:
		case failed != nil:
			return
		default:
			if kernel, ok := from.(*unix.SockaddrNetlink); ok && kernel.Pid == 0 {
				missed = !on.dispatch(b[:n]) || missed
			}
		}
	}
}

// dispatch calls the functions for a message of the kernel. ok is false if it could not parse a
// part of the message.
func (on *Events) dispatch(b []byte) (ok bool) {
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
				continue // a bridge's notification about its ports
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
		case unix.RTM_NEWROUTE, unix.RTM_DELROUTE, unix.RTM_NEWRULE, unix.RTM_DELRULE:
			if on.Routes != nil {
				on.Routes()
			}
		}
	}
	return ok
}

// Link reads the state of an interface. The error is a [netlink.LinkNotFoundError] if there is
// none.
func (l *Listener) Link(index int) (*netlink.LinkAttrs, error) {
	return l.read(func() (netlink.Link, error) { return l.requests.LinkByIndex(index) })
}

// LinkByName is Link for the interface of this name.
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

// Close ends [Listener.Run], which may still be running one of the functions. It may be called more
// than once.
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
