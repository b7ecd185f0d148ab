package kernel

import (
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/stack/kernel/hub"
)

// Sharing says how a host shares its addresses. The zero Sharing needs a hub that runs already.
type Sharing struct {
	Directory string                       // of the hub; "" is hub.Directory
	QPs       int                          // that this process is to have at a time; 0 is hub.DefaultQPs
	Start     func(directory string) error // starts a hub in a process of its own, such as softrnic hub; it need not wait for it
	Log       *slog.Logger                 // nil: nothing is logged
}

// Shared shares the host's addresses with other processes of this user, through a hub (package hub): the hub has UDP port 4791 of
// them, and hands on what is for this process. The port for datagrams is a [stack.Shared]. What is sent leaves from the process's
// own sockets, and what comes to a multicast group comes to them. Paths to one QP of another such process lead through memory that
// the two share, past the hub. While there is no hub the link has no carrier. Linux only.
func Shared(s Sharing) Option {
	return func(c *config) error {
		c.sharing = &s
		return nil
	}
}

// sharedPort is the port of a host whose packets come from a hub.
type sharedPort struct {
	*port
	*hub.Client
}

var _ stack.Shared = (*sharedPort)(nil)

// join makes the port a client of the hub. It is called before the port has an address.
func (p *port) join(s *Sharing) (err error) {
	shared := &sharedPort{port: p}
	shared.Client, err = hub.Join(hub.ClientConfig{Directory: s.Directory, QPs: s.QPs, Start: s.Start, Log: s.Log, Receiver: shared.newReceiver, Changed: shared.changed})
	if err != nil {
		return err
	}
	p.shared = shared
	p.readers.Go(shared.Run)
	return nil
}

// newReceiver makes what hands on what comes through one ring.
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

// changed tells the watcher of the interface that the hub has gone, or come. Addresses that came while there was none may have been
// given up.
func (s *sharedPort) changed(lost bool) {
	if lost {
		s.nic.lose()
		return
	}
	s.nic.changed()
	if s.Up() {
		go s.nic.readdress() // who calls this may be who hears the hub
	}
}

// open begins to receive what comes to one of the machine's addresses.
func (p *port) open(a netip.Addr) error {
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

// introduce tells the hub which sockets this process sends from at an address: all that there will be, so that a path has
// nothing to wait for.
func (p *port) introduce(a netip.Addr) error {
	if p.shared == nil {
		return nil
	}
	for slot := range uint16(outlets) {
		out, err := p.outlet(a, slot)
		if err != nil {
			return err
		}
		if s := out.socket.Load(); s != nil {
			err = p.shared.AddOutlet(a, s.raw)
		}
		p.leave(out)
		if err != nil {
			return fmt.Errorf("a socket at %v: %w", a, err)
		}
	}
	return nil
}

// shut undoes open.
func (p *port) shut(a netip.Addr) {
	if p.shared != nil {
		p.shared.DropAddr(a)
	} else {
		p.remove(a)
	}
}
