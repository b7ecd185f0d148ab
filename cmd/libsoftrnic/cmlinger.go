//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"errors"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// lingerTime is how long a listener goes on after a program has destroyed it. Programs that take one connection with one
// listener and the next with another one for the same address, as perftest's with -R do, have no listener for a moment, in
// which a quick peer's request comes and would be rejected. Instead the next listener for the address gets it; if there is
// none, it is rejected when the time is over.
const lingerTime = 2 * time.Second

// lingering has the listeners that go on without an ID of the program.
var lingering lingerers

type lingerers struct {
	mu  sync.Mutex
	ch  *rdmacm.EventChannel // of all of them
	ids []*rdmacm.ID
}

// keep takes over the listener of an ID that is being destroyed. It returns false if that is not possible.
func (l *lingerers) keep(s *cmID) bool {
	if !s.listening || s.options || s.LocalAddr().Port() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ch == nil {
		ch, err := rdmacm.CreateEventChannel(s.Channel().Devices()...)
		if err != nil {
			return false
		}
		l.ch = ch
	}
	id := s.ID
	if err := id.Migrate(background, l.ch); err != nil {
		return false
	}
	l.add(id)
	if id.PortSpace() == rdmacm.TCP {
		l.listenForDatagrams(id.LocalAddr())
	}
	return true
}

// add has a listener of l.ch linger. mu is held.
func (l *lingerers) add(id *rdmacm.ID) {
	l.ids = append(l.ids, id)
	time.AfterFunc(lingerTime, func() { l.end(func(other *rdmacm.ID) bool { return other == id }) })
}

// listenForDatagrams adds a listener in port space UDP to one of TCP: of a program that has exchanged its parameters over a
// connection the next listener may be one for datagrams, with the same port number. There is none if the program has one
// already, or no device of RoCE. mu is held.
func (l *lingerers) listenForDatagrams(addr netip.AddrPort) {
	if !slices.Contains(stacks.cmTransports(rdmacm.UDP), verbs.RoCEv2) {
		return
	}
	id, err := l.ch.CreateID(rdmacm.UDP, nil)
	if err != nil {
		return
	}
	err = id.SetTransports(verbs.RoCEv2)
	if err == nil {
		err = id.Bind(addr)
	}
	if err == nil {
		err = id.Listen(minBacklog)
	}
	if err != nil {
		_ = id.Destroy()
		return
	}
	l.add(id)
}

// take returns the listener for an address, if there is one, which is then the caller's.
func (l *lingerers) take(space rdmacm.PortSpace, addr netip.AddrPort) *rdmacm.ID {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := slices.IndexFunc(l.ids, func(id *rdmacm.ID) bool { return id.PortSpace() == space && id.LocalAddr() == addr })
	if at < 0 {
		return nil
	}
	id := l.ids[at]
	l.ids = slices.Delete(l.ids, at, at+1)
	return id
}

// end destroys the listeners that match, and rejects their requests.
func (l *lingerers) end(matches func(*rdmacm.ID) bool) {
	l.mu.Lock()
	var ended []*rdmacm.ID
	l.ids = slices.DeleteFunc(l.ids, func(id *rdmacm.ID) bool {
		if !matches(id) {
			return false
		}
		ended = append(ended, id)
		return true
	})
	l.mu.Unlock()
	for _, id := range ended {
		if err := id.Destroy(); err != nil {
			stacks.logError(err)
		}
	}
}

// bind binds an ID that is new. If a listener for the address lingers, the ID becomes that one, which Listen then only has to
// move to the program's channel.
func (s *cmID) bind(addr netip.AddrPort) error {
	space := s.PortSpace()
	if addr.Port() != 0 && !s.options {
		if id := lingering.take(space, addr); id != nil {
			old := s.ID
			s.replace(id, old.Channel())
			id.SetContext(s)
			return old.Destroy()
		}
	}
	err := s.Bind(addr)
	if errors.Is(err, syscall.EADDRINUSE) {
		lingering.end(func(id *rdmacm.ID) bool { return id.PortSpace() == space && id.LocalAddr().Port() == addr.Port() })
		err = s.Bind(addr)
	}
	return err
}

func (s *cmID) replace(id *rdmacm.ID, ch *rdmacm.EventChannel) {
	s.replacing.Lock()
	defer s.replacing.Unlock()
	s.ID, s.ch = id, ch
}

// current returns the ID for a thread of which the program does not know that it uses this one.
func (s *cmID) current() *rdmacm.ID {
	s.replacing.Lock()
	defer s.replacing.Unlock()
	return s.ID
}

// adopted tells whether the ID was a lingering listener, and is not yet in the program's channel.
func (s *cmID) adopted() bool { return s.ch != nil }

// listen is Listen.
func (s *cmID) listen(backlog int) error {
	if !s.adopted() {
		return s.Listen(backlog)
	}
	if err := s.Migrate(background, s.ch); err != nil {
		return err
	}
	s.ch = nil
	return nil
}

// disown makes an ordinary ID, bound to the same address, of one that was a lingering listener, as the program does not listen.
func (s *cmID) disown() error {
	if !s.adopted() {
		return nil
	}
	listener, ch, addr := s.ID, s.ch, s.LocalAddr()
	id, err := ch.CreateID(s.PortSpace(), s)
	if err != nil {
		return err
	}
	s.replace(id, nil)
	if err := listener.Destroy(); err != nil {
		return err
	}
	if err := id.SetTransports(s.transports...); err != nil {
		return err
	}
	return id.Bind(addr)
}
