package rdmacm

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// SyncID is an ID whose methods wait for their outcome (rdma_create_id without a channel). If ctx
// ends first, its error is returned. The ID should then be closed, because the operation may
// continue. Close makes waiting methods return.
//
// Methods without an event as their outcome, such as Bind, Listen, CreateQP and Reject, are those
// of ID.
type SyncID struct {
	*ID
	ch *EventChannel // for this ID, and for requests that GetRequest has not returned

	mu         sync.Mutex
	last       *Event        // see Event
	requestSem chan struct{} // allows one GetRequest at a time; nil before the first
}

func newSyncID(id *ID, ch *EventChannel) *SyncID { return &SyncID{ID: id, ch: ch} }

// semaphore returns requestSem.
func (s *SyncID) semaphore() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.requestSem == nil {
		s.requestSem = make(chan struct{}, 1)
	}
	return s.requestSem
}

// CreateSyncID creates a SyncID on the given devices.
func CreateSyncID(space PortSpace, devs ...*verbs.Device) (*SyncID, error) {
	ch, err := CreateEventChannel(devs...)
	if err != nil {
		return nil, err
	}
	id, err := ch.CreateID(space, nil)
	if err != nil {
		return nil, err
	}
	return newSyncID(id, ch), nil
}

// MigrateToSync makes a SyncID of an ID (rdma_migrate_id without a channel). It waits for
// acknowledgements as Migrate does.
func (id *ID) MigrateToSync(ctx context.Context) (*SyncID, error) {
	from := id.Channel()
	ch := &EventChannel{devs: from.devs, exempt: from.exempt}
	if err := id.Migrate(ctx, ch); err != nil {
		return nil, err
	}
	return newSyncID(id, ch), nil
}

// Migrate moves the ID to an event channel. The SyncID must not be used afterwards. It waits for
// acknowledgements as ID.Migrate does.
func (s *SyncID) Migrate(ctx context.Context, to *EventChannel) (*ID, error) {
	if err := s.ID.Migrate(ctx, to); err != nil {
		return nil, err
	}
	return s.ID, s.ch.Close()
}

// Close is ID.Close (rdma_destroy_id of an ID without a channel).
func (s *SyncID) Close() error {
	if err := s.ID.faultUnlocked("close ID"); err != nil {
		return err
	}
	return s.close()
}

// close is Close for this package's own use.
func (s *SyncID) close() error {
	if err := s.ID.close(); err != nil {
		_ = s.ch.Close() // fails too if the ID was closed before
		return err
	}
	return s.ch.Close()
}

// Event returns the event that the last call waited for, which has the peer's parameters. For an ID
// from GetRequest, it is initially the ConnectRequest.
func (s *SyncID) Event() *Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// wait is like next, and acknowledges the event.
func (s *SyncID) wait(ctx context.Context, want ...EventType) (*Event, error) {
	e, err := s.next(ctx, want...)
	if err == nil {
		_ = e.Ack()
	}
	return e, err
}

// next waits for an event of one of the wanted types, which the caller must acknowledge. If another
// event reports a failure, next returns its error. It skips other events.
func (s *SyncID) next(ctx context.Context, want ...EventType) (*Event, error) {
	for {
		e, err := s.ch.GetEvent(ctx)
		if err != nil {
			return nil, err
		}
		wanted := slices.Contains(want, e.Type)
		if !wanted {
			_ = e.Ack()
			if err = e.Err(); err == nil {
				continue
			}
		}
		if e.Type != ConnectRequest {
			s.mu.Lock()
			s.last = e
			s.mu.Unlock()
		}
		if wanted {
			return e, nil
		}
		return nil, err
	}
}

// ResolveAddr is ID.ResolveAddr, within ctx.
func (s *SyncID) ResolveAddr(ctx context.Context, src, dst netip.AddrPort) error {
	return s.resolveAddr(ctx, src, dst, 0)
}

func (s *SyncID) resolveAddr(ctx context.Context, src, dst netip.AddrPort, timeout time.Duration) error {
	if err := s.ID.ResolveAddr(src, dst, timeout); err != nil {
		return err
	}
	_, err := s.wait(ctx, AddrResolved)
	return err
}

// ResolveHost is ID.ResolveHost, within ctx.
func (s *SyncID) ResolveHost(ctx context.Context, src netip.AddrPort, host string) error {
	if err := s.ID.ResolveHost(src, host, 0); err != nil {
		return err
	}
	_, err := s.wait(ctx, AddrResolved)
	return err
}

// ResolveRoute is ID.ResolveRoute.
func (s *SyncID) ResolveRoute(ctx context.Context) error {
	if err := s.ID.ResolveRoute(); err != nil {
		return err
	}
	_, err := s.wait(ctx, RouteResolved)
	return err
}

// Connect is ID.Connect. It returns when the connection is established, or without a QP from
// CreateQP, when ConnectResponse has arrived. If the peer or the network refuses the connection,
// the error wraps an *EventError.
func (s *SyncID) Connect(ctx context.Context, param *ConnParam) error {
	if err := s.ID.Connect(param); err != nil {
		return err
	}
	_, err := s.wait(ctx, Established, ConnectResponse)
	return err
}

// GetRequest waits for a connection request to a listener, and returns its ID (rdma_get_request).
// The caller accepts or rejects the request, and closes the ID.
func (s *SyncID) GetRequest(ctx context.Context) (*SyncID, error) {
	const op = "get request"
	// Only one at a time, because events of the request may follow its ConnectRequest, and must
	// migrate with its ID.
	semaphore := s.semaphore()
	if c := s.ch.clock(); c.Virtual() {
		c.Park(func() bool { return len(semaphore) == 0 || ctx.Err() != nil })
	}
	select {
	case semaphore <- struct{}{}:
		defer func() { <-semaphore }()
	case <-ctx.Done():
		return nil, &verbs.Error{Op: op, Err: ctx.Err()}
	}
	if get(s.ID, func() bool { return s.state == deviceRemoved }) {
		// An earlier call has received DeviceRemoval, and no event follows it.
		return nil, errDeviceGone(op)
	}
	e, err := s.next(ctx, ConnectRequest)
	if err != nil {
		return nil, err
	}
	ch := &EventChannel{devs: s.ch.devs, exempt: s.ch.exempt}
	// The request's ID is still in the listener's channel. Close of the listener closes that
	// channel after all events are acknowledged. The event is therefore acknowledged after the ID
	// has left the channel.
	err = e.ID.migrateTo(ctx, ch)
	_ = e.Ack()
	if err != nil {
		return nil, errors.Join(err, e.ID.close())
	}
	r := newSyncID(e.ID, ch)
	r.last = e
	return r, nil
}

// Accept is ID.Accept. It returns when the connection is established, or in port space UDP
// immediately.
func (s *SyncID) Accept(ctx context.Context, param *ConnParam) error {
	if err := s.ID.Accept(param); err != nil || s.space == UDP || s.space == IPoIB {
		return err
	}
	_, err := s.wait(ctx, Established)
	return err
}

// Disconnect is ID.Disconnect. It returns when the connection has ended.
func (s *SyncID) Disconnect(ctx context.Context) error {
	if err := s.ID.Disconnect(); err != nil {
		return err
	}
	if get(s.ID, func() bool { return !s.disconnected && !s.signals.hasEnded() }) {
		return nil // no connection exists yet
	}
	if c := s.ch.clock(); c.Virtual() {
		c.Park(func() bool { return s.signals.hasEnded() || ctx.Err() != nil })
	}
	select {
	case <-s.Done():
		return nil
	case <-ctx.Done():
		return &verbs.Error{Op: "disconnect", Err: ctx.Err()}
	}
}

// JoinMulticast is ID.JoinMulticast.
func (s *SyncID) JoinMulticast(ctx context.Context, group netip.Addr) error {
	if err := s.ID.JoinMulticast(group); err != nil {
		return err
	}
	_, err := s.wait(ctx, MulticastJoin)
	return err
}
