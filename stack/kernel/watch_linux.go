package kernel

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/softrnic/softrnic/stack"
)

// watch hears from the kernel (RTNLGRP_LINK) how an interface is, and (RTNLGRP_IPV4_IFADDR, RTNLGRP_IPV6_IFADDR) which addresses it has.
type watch struct {
	nic    *nic
	size   atomic.Int64
	is     atomic.Uint32
	index  int
	links  subscription[netlink.LinkUpdate]
	addrs  subscription[netlink.AddrUpdate]
	ctx    context.Context // ended by close
	cancel context.CancelFunc
	warned sync.Once
}

// subscription is changes of one kind, until there is an error: above all ENOBUFS, as more changed than fits into the socket's
// buffer while it was not read.
type subscription[U any] struct {
	groups  uint32 // of netlink, bits
	open    func(ch chan<- U, done <-chan struct{}) error
	updates chan U // nil: there is none
	cancel  context.CancelFunc
}

func (s *subscription[U]) begin(ctx context.Context) error {
	if err := mayHear(s.groups); err != nil {
		return err
	}
	ctx, s.cancel = context.WithCancel(ctx)
	s.updates = make(chan U)
	if err := s.open(s.updates, ctx.Done()); err != nil {
		s.cancel()
		s.updates = nil
		return err
	}
	return nil
}

// mayHear returns an error if the kernel does not let a process be in groups of netlink, as gVisor's does not. Package netlink must
// not try then: it closes the descriptor of its socket, and once more when the garbage collector finds the os.File (v1.3.1). By
// that time the number may be that of another socket.
func mayHear(groups uint32) error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups})
}

func newWatch(n *nic, iface *net.Interface) (*watch, error) {
	w := &watch{nic: n, index: iface.Index,
		links: subscription[netlink.LinkUpdate]{groups: 1 << (unix.RTNLGRP_LINK - 1), open: netlink.LinkSubscribe},
		addrs: subscription[netlink.AddrUpdate]{groups: 1<<(unix.RTNLGRP_IPV4_IFADDR-1) | 1<<(unix.RTNLGRP_IPV6_IFADDR-1), open: netlink.AddrSubscribe}}
	w.ctx, w.cancel = context.WithCancel(context.Background())
	// Subscribed first, so that nothing is missed between the two. A sandbox, as gVisor's, may not have that: nothing changes
	// there, or is not heard of.
	_ = w.links.begin(w.ctx)
	_ = w.addrs.begin(w.ctx)
	if err := w.look(); err != nil {
		w.close()
		go w.run()
		return nil, fmt.Errorf("%s: %w", iface.Name, err)
	}
	return w, nil
}

// look reads how the interface is.
func (w *watch) look() error {
	l, err := netlink.LinkByIndex(w.index)
	if err == nil {
		w.take(l.Attrs(), false)
	}
	return err
}

// run takes in what changes, until close.
func (w *watch) run() {
	var addresses sync.WaitGroup
	addresses.Go(func() {
		hear(w, &w.addrs, func(u netlink.AddrUpdate) {
			if u.LinkIndex == w.index {
				w.nic.readdress()
			}
		}, w.nic.readdress)
	})
	defer addresses.Wait()
	hear(w, &w.links, func(u netlink.LinkUpdate) {
		if u.IfInfomsg.Family == unix.AF_UNSPEC && int(u.Index) == w.index { // not of a bridge, about its ports, or another interface
			w.take(u.Link.Attrs(), u.Header.Type == unix.RTM_DELLINK)
			w.nic.changed()
		}
	}, func() {
		if _, gone := w.look().(netlink.LinkNotFoundError); gone {
			w.is.Store(uint32(stack.LinkRemoved))
		}
		w.nic.changed()
	})
}

// rest is how long nothing is heard after an error: what changes meanwhile is read at once afterwards.
const rest = 100 * time.Millisecond

// hear takes in changes until close. After an error it subscribes again, and reads everything, as changes were missed.
func hear[U any](w *watch, s *subscription[U], take func(U), readAll func()) {
	if s.updates == nil {
		return
	}
	for {
		for u := range s.updates {
			if w.ctx.Err() == nil {
				take(u)
			}
		}
		s.cancel()
		for again := true; again; {
			select {
			case <-w.ctx.Done():
				return
			case <-time.After(rest):
			}
			again = s.begin(w.ctx) != nil
		}
		w.warned.Do(func() {
			w.nic.log.Warn("changes of the interface were missed, as netlink's queue was full: it was read again", "interface", w.nic.name)
		})
		readAll()
	}
}

func (w *watch) take(at *netlink.LinkAttrs, removed bool) {
	state := stack.LinkUp
	switch {
	case removed:
		state = stack.LinkRemoved
	case at.RawFlags&unix.IFF_UP == 0:
		state = stack.LinkDisabled
	case at.RawFlags&unix.IFF_RUNNING == 0:
		state = stack.LinkNoCarrier
	}
	w.size.Store(int64(at.MTU))
	w.is.Store(uint32(state))
}

func (w *watch) mtu() int               { return int(w.size.Load()) }
func (w *watch) state() stack.LinkState { return stack.LinkState(w.is.Load()) }
func (w *watch) close()                 { w.cancel() }
