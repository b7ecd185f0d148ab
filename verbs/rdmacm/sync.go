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

// SyncID is an ID whose calls wait for what comes of them (rdma_create_id without a channel). When ctx ends first, its
// error is returned and the ID is as the provider left it: Destroy it. Destroy ends calls that wait.
//
// The methods of the ID that return at once, such as Bind, Listen, CreateQP and Reject, are the ID's own.
type SyncID struct {
	*ID
	ch *EventChannel // of this ID alone, and of requests that GetRequest has not taken

	requests chan struct{} // room for the token of the GetRequest that waits

	mu   sync.Mutex
	last *Event
}

func newSyncID(id *ID, ch *EventChannel) *SyncID {
	return &SyncID{ID: id, ch: ch, requests: make(chan struct{}, 1)}
}

// CreateSyncID makes an ID on the given devices.
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

// Synchronous makes a SyncID of an ID (rdma_migrate_id without a channel). It waits as Migrate does.
func (id *ID) Synchronous(ctx context.Context) (*SyncID, error) {
	ch, err := CreateEventChannel(id.Channel().devs...)
	if err != nil {
		return nil, err
	}
	if err := id.Migrate(ctx, ch); err != nil {
		return nil, err
	}
	return newSyncID(id, ch), nil
}

// Migrate gives the ID to an event channel: the SyncID must not be used afterwards. It waits as ID.Migrate does.
func (s *SyncID) Migrate(ctx context.Context, to *EventChannel) (*ID, error) {
	if err := s.ID.Migrate(ctx, to); err != nil {
		return nil, err
	}
	return s.ID, s.ch.Destroy()
}

// Destroy is ID.Destroy.
func (s *SyncID) Destroy() error {
	if err := s.ID.Destroy(); err != nil {
		_ = s.ch.Destroy() // done already if the ID was destroyed already
		return err
	}
	return s.ch.Destroy()
}

// Event is the event that the last call waited for: in it is what the peer sent. An ID from GetRequest begins with its
// ConnectRequest.
func (s *SyncID) Event() *Event {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.last
}

// wait waits for an event, and acknowledges it; see next.
func (s *SyncID) wait(ctx context.Context, want ...EventType) (*Event, error) {
	e, err := s.next(ctx, want...)
	if err == nil {
		_ = e.Ack()
	}
	return e, err
}

// next waits for an event that is wanted, which the caller is to acknowledge. Of the others, one that tells of a failure
// ends the call with its error, and the rest are skipped.
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

// Connect is ID.Connect; it returns when the connection is established, without a QP from CreateQP when the peer has
// answered. The error wraps an *EventError that says why not.
func (s *SyncID) Connect(ctx context.Context, param *ConnParam) error {
	if err := s.ID.Connect(param); err != nil {
		return err
	}
	_, err := s.wait(ctx, Established, ConnectResponse)
	return err
}

// GetRequest waits for a connection request to a listener (rdma_get_request). Its ID is the caller's to accept or
// reject, and to destroy.
func (s *SyncID) GetRequest(ctx context.Context) (*SyncID, error) {
	const op = "get request"
	ch, err := CreateEventChannel(s.ch.devs...)
	if err != nil {
		return nil, err
	}
	// One at a time: what comes behind a request may be its own events, which have to move with it.
	select {
	case s.requests <- struct{}{}:
		defer func() { <-s.requests }()
	case <-ctx.Done():
		return nil, &verbs.Error{Op: op, Detail: ctx.Err().Error(), Err: ctx.Err()}
	}
	if get(s.ID, func() bool { return s.state == removed }) {
		return nil, goneError(op) // whoever took DeviceRemoval was told, and no other event follows
	}
	e, err := s.next(ctx, ConnectRequest)
	if err != nil {
		return nil, err
	}
	// The request's ID is still in the listener's channel. Destroy of the listener, which destroys that channel, waits
	// for the acknowledgement, so that comes only when the ID has left.
	err = e.ID.Migrate(ctx, ch)
	_ = e.Ack()
	if err != nil {
		return nil, errors.Join(err, e.ID.Destroy())
	}
	r := newSyncID(e.ID, ch)
	r.last = e
	return r, nil
}

// Accept is ID.Accept; it returns when the connection is established, for UDP at once.
func (s *SyncID) Accept(ctx context.Context, param *ConnParam) error {
	if err := s.ID.Accept(param); err != nil || s.space == UDP || s.space == IPoIB {
		return err
	}
	_, err := s.wait(ctx, Established)
	return err
}

// Disconnect is ID.Disconnect; it returns when the connection is over.
func (s *SyncID) Disconnect(ctx context.Context) error {
	if err := s.ID.Disconnect(); err != nil {
		return err
	}
	select {
	case <-s.Ended():
		return nil
	case <-ctx.Done():
		return &verbs.Error{Op: "disconnect", Detail: ctx.Err().Error(), Err: ctx.Err()}
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
