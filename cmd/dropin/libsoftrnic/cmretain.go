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

// retainTime is the time for which a listener is retained after a program has destroyed it. Some
// programs take each connection with a new listener for the same address; perftest does so with -R.
// In between they have no listener, and a fast peer's request would be rejected. A retained
// listener keeps the request for the next listener for the address. If there is none within this
// time, the request is rejected.
const retainTime = 2 * time.Second

// retained has the listeners that are retained without an ID of the program.
var retained retainedListeners

type retainedListeners struct {
	mu  sync.Mutex
	ch  *rdmacm.EventChannel // of all of them
	ids []*rdmacm.ID
}

// retain takes over the listener of an ID that is being destroyed. It returns false if that is not
// possible.
func (l *retainedListeners) retain(s *cmID) bool {
	if !s.listening || s.options || s.LocalAddr().Port() == 0 {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ch == nil {
		ch, err := rdmacm.CreateExemptChannel(s.Channel().Devices()...)
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

// add retains a listener of l.ch. mu is held.
func (l *retainedListeners) add(id *rdmacm.ID) {
	l.ids = append(l.ids, id)
	time.AfterFunc(retainTime, func() { l.destroy(func(other *rdmacm.ID) bool { return other == id }) })
}

// listenForDatagrams adds a listener in port space UDP to one in TCP. A program that has exchanged
// its parameters over a connection may next listen for datagrams on the same port number. No
// listener is added if the program already has one, or has no RoCE device. mu is held.
func (l *retainedListeners) listenForDatagrams(addr netip.AddrPort) {
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
		_ = id.Close()
		return
	}
	l.add(id)
}

// take removes and returns the listener for an address, or nil if there is none.
func (l *retainedListeners) take(space rdmacm.PortSpace, addr netip.AddrPort) *rdmacm.ID {
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

// destroy destroys the listeners that match, and rejects their requests. It reports whether there
// was one.
func (l *retainedListeners) destroy(matches func(*rdmacm.ID) bool) bool {
	l.mu.Lock()
	var destroyed []*rdmacm.ID
	l.ids = slices.DeleteFunc(l.ids, func(id *rdmacm.ID) bool {
		if !matches(id) {
			return false
		}
		destroyed = append(destroyed, id)
		return true
	})
	l.mu.Unlock()
	for _, id := range destroyed {
		stacks.logError(id.Close())
	}
	return len(destroyed) > 0
}

// bind binds a new ID. If a listener for the address is retained, the ID takes it over. Listen then
// only moves it to the program's channel.
func (s *cmID) bind(addr netip.AddrPort) error {
	space := s.PortSpace()
	if addr.Port() != 0 && !s.options {
		if id := retained.take(space, addr); id != nil {
			old := s.ID
			s.replace(id, old.Channel())
			id.SetContext(s)
			return old.Close()
		}
	}
	err := s.Bind(addr)
	if errors.Is(err, syscall.EADDRINUSE) &&
		retained.destroy(func(id *rdmacm.ID) bool { return id.PortSpace() == space && id.LocalAddr().Port() == addr.Port() }) {
		err = s.Bind(addr)
	}
	return err
}

func (s *cmID) replace(id *rdmacm.ID, ch *rdmacm.EventChannel) {
	s.replacing.Lock()
	defer s.replacing.Unlock()
	s.ID, s.ch = id, ch
}

// current returns the ID for a thread that is not in a call with this ID.
func (s *cmID) current() *rdmacm.ID {
	s.replacing.Lock()
	defer s.replacing.Unlock()
	return s.ID
}

// reused reports whether the ID is a retained listener that is not yet in the program's channel.
func (s *cmID) reused() bool { return s.ch != nil }

// listen is Listen, also for a reused listener.
func (s *cmID) listen(backlog int) error {
	if !s.reused() {
		return s.Listen(backlog)
	}
	if err := s.Migrate(background, s.ch); err != nil {
		return err
	}
	s.ch = nil
	return nil
}

// unreuse replaces a reused listener by an ordinary ID that is bound to the same address, because
// the program does not listen.
func (s *cmID) unreuse() error {
	if !s.reused() {
		return nil
	}
	listener, ch, addr := s.ID, s.ch, s.LocalAddr()
	id, err := ch.CreateID(s.PortSpace(), s)
	if err != nil {
		return err
	}
	s.replace(id, nil)
	if err := listener.Close(); err != nil {
		return err
	}
	if err := id.SetTransports(s.transports...); err != nil {
		return err
	}
	return id.Bind(addr)
}
