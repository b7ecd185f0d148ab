package kernel

import (
	"fmt"
	"log/slog"
	"net/netip"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/link/idle"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/hub"
)

// Sharing shares a host's addresses with other processes, through a hub, such as
// softrnic hub. The hub owns UDP port 4791 of the addresses. The kernel passes datagrams of other
// machines for this process's QPs to sockets that the hub has opened for it; the hub passes on the
// others, such as those of the connection manager. The datagram port is a [stack.Shared]. Outgoing
// datagrams, and those to multicast groups, use the process's own sockets. Paths to one QP of
// another such process use memory shared with that process and bypass the hub. Without a hub the
// link has no carrier. Linux only. The zero Sharing does not start a hub, and needs a running one.
//
// A hub of the machine (softrnic hub --system) serves processes of all users, and passes on all
// datagrams. It is used if the user's own hub does not run, or cannot have an address.
type Sharing struct {
	Directory string // the hub's directory; "" means that of the user's own hub or of the machine's
	QPs       int    // most QPs of this process at a time, up to 1048576; 0 means 32768
	// Start starts a hub process, such as softrnic hub, without waiting for it.
	Start  func(directory string) error
	Logger *slog.Logger // nil: no log
}

// sharedPort is the port of a host whose packets come from a hub.
type sharedPort struct {
	*port
	*hub.Client
	ringsBusy atomic.Bool   // the last poll that found something found it in a ring
	empty     atomic.Uint32 // polls since then
}

var _ stack.Shared = (*sharedPort)(nil)

// join makes the port a client of the hub. It is called before the port has an address.
func (p *port) join(s *Sharing) (err error) {
	shared := &sharedPort{port: p}
	shared.Client, err = hub.Join(hub.ClientConfig{Directory: s.Directory, QPs: s.QPs, Start: s.Start, Log: s.Logger,
		Receiver: shared.newReceiver, Changed: shared.changed, Socket: shared.addSocket, DrainSockets: shared.drainSockets,
		SocketsEnd: shared.endSockets})
	if err != nil {
		return err
	}
	p.shared = shared
	p.readers.Go(shared.Run)
	return nil
}

// poll receives from the sockets and the rings. While data arrives in rings, most polls leave out
// the sockets, each of which costs a system call. While data arrives at sockets, empty polls do not
// yield, as with addresses that are not shared, until there are many.
func (s *sharedPort) poll() (found bool) {
	rings, empty := s.ringsBusy.Load(), s.empty.Add(1)
	if !rings || empty%idle.PollsPerSocket == 0 {
		found = s.pollSockets()
	}
	ring := s.Client.Poll(found || !rings && empty < idle.SocketPollsBeforeYield)
	if found || ring {
		s.empty.Store(0)
		if ring != rings {
			s.ringsBusy.Store(ring)
		}
	}
	return found || ring
}

// newReceiver returns a receiver for one ring.
func (s *sharedPort) newReceiver() func(*hub.Arrival, bool) {
	in := &delivery{port: s.port}
	return func(a *hub.Arrival, polled bool) {
		if !s.nic.has(a.Dst) {
			s.counters.rxMalformed.Add(1)
			return
		}
		in.deliver(a, polled)
	}
}

// changed notifies the interface's watcher that the hub has ended or returned. Addresses that were
// added without a hub may have been dropped.
func (s *sharedPort) changed(lost bool) {
	if lost {
		s.nic.setRemoved()
		return
	}
	s.nic.stateChanged()
	if s.Up() {
		go s.nic.updateAddrs() // the caller may be the goroutine that reads the hub's messages
	}
}

// openAddr starts to receive at one of the machine's addresses.
func (p *port) openAddr(a netip.Addr) error {
	if p.nic.closed {
		return nil
	}
	if p.shared != nil {
		if err := p.shared.AddAddr(a, p.nic.name); err != nil {
			return fmt.Errorf("%v: %w", a, err)
		}
		return nil
	}
	in, err := p.newSocket(a)
	if err == nil {
		err = p.add(in)
	}
	return err
}

// registerSourcePorts registers with the hub the sockets from which this process sends at an
// address. It opens all of them, so that no path has to wait later.
func (p *port) registerSourcePorts(a netip.Addr) error {
	if p.shared == nil {
		return nil
	}
	var sockets []syscall.RawConn
	for slot := range uint16(sourcePorts) {
		out, err := p.sourcePort(a, slot)
		if err != nil {
			return err
		}
		defer p.leave(out)
		if s := out.socket.Load(); s != nil {
			sockets = append(sockets, s.raw)
		}
	}
	if err := p.shared.AddSourceSockets(a, sockets...); err != nil {
		return fmt.Errorf("registering a socket at %v: %w", a, err)
	}
	return nil
}

// closeAddr undoes openAddr.
func (p *port) closeAddr(a netip.Addr) {
	if p.shared != nil {
		p.shared.DropAddr(a)
	}
	p.remove(a)
}
