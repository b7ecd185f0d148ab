package responder

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// connection is the rdma_cm state of a QP.
type connection struct {
	events   *rdmacm.EventChannel
	listener *rdmacm.ID // of the accepting side
	id       *rdmacm.ID // of the initiating side, or of a received request
}

// resolveTime is how long the target resolves the tester's address.
const resolveTime = 5 * time.Second

// connectCM handles a request for rdma_cm.
func (q *queuePair) connectCM(r *control.Request) (reply control.Reply, err error) {
	if r.CM == nil {
		r.CM = &control.CM{}
	}
	param := &rdmacm.ConnParam{PrivateData: r.CM.Data, ResponderResources: r.CM.ReadsIn, InitiatorDepth: r.CM.ReadsOut}
	switch {
	case r.Op == control.Listen || r.Op == control.DialTester:
		addr, err := netip.ParseAddrPort(r.CM.Addr)
		if err != nil {
			return reply, fmt.Errorf("cm: addr: %w", err)
		}
		if r.Op == control.DialTester {
			return reply, q.dial(addr, param)
		}
		reply.Port, err = q.listen(addr)
		return reply, err
	case q.cm == nil:
		return reply, errors.New("the QP neither listens nor dials")
	case r.Op == control.CMEvent:
		return q.nextEvent(min(time.Duration(r.WaitMillis)*time.Millisecond, control.MaxWait))
	case q.cm.id == nil:
		return reply, errors.New("no request has come")
	case r.Op == control.Reject:
		return reply, q.cm.id.Reject(r.CM.Data)
	case r.Op == control.Disconnect:
		return reply, q.cm.id.Disconnect()
	}
	if err := q.cm.id.Accept(param); err != nil {
		return reply, err
	}
	return reply, q.setAccess()
}

// open creates the event channel and an ID.
func (q *queuePair) open() (id *rdmacm.ID, err error) {
	if q.cm != nil {
		return nil, errors.New("the QP listens or dials already")
	}
	events, err := rdmacm.CreateEventChannel(q.dev)
	if err != nil {
		return nil, err
	}
	q.cm = &connection{events: events}
	if id, err = events.CreateID(rdmacm.TCP, nil); err != nil {
		return nil, err
	}
	return id, id.SetTransports(q.qp.Transport())
}

func (q *queuePair) listen(addr netip.AddrPort) (port uint16, err error) {
	id, err := q.open()
	if err != nil {
		return 0, err
	}
	q.cm.listener = id
	if err := id.Bind(addr); err != nil {
		return 0, err
	}
	return id.LocalAddr().Port(), id.Listen(1)
}

func (q *queuePair) dial(addr netip.AddrPort, param *rdmacm.ConnParam) error {
	id, err := q.open()
	if err != nil {
		return err
	}
	q.cm.id = id
	if err := id.ResolveAddr(netip.AddrPort{}, addr, resolveTime); err != nil {
		return err
	}
	if err := q.expect(rdmacm.AddrResolved); err != nil {
		return err
	}
	if err := id.ResolveRoute(); err != nil {
		return err
	}
	if err := q.expect(rdmacm.RouteResolved); err != nil {
		return err
	}
	if err := id.UseQP(q.qp); err != nil {
		return err
	}
	return id.Connect(param)
}

// expect waits for an event that needs no action of the tester.
func (q *queuePair) expect(want rdmacm.EventType) error {
	ev, err := q.await(2 * resolveTime)
	if err == nil && ev.Type != want {
		err = fmt.Errorf("%v: errno %d", ev.Type, -ev.Status)
	}
	return err
}

func (q *queuePair) await(wait time.Duration) (*rdmacm.Event, error) {
	ctx, cancel := context.WithTimeout(context.Background(), wait)
	defer cancel()
	ev, err := q.cm.events.GetEvent(ctx)
	if err != nil {
		return nil, err
	}
	return ev, ev.Ack()
}

// nextEvent returns the next event of the QP, if there is one in time.
func (q *queuePair) nextEvent(wait time.Duration) (reply control.Reply, err error) {
	ev, err := q.await(wait)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return reply, nil
	case err != nil:
		return reply, err
	case ev.Type == rdmacm.ConnectRequest && q.cm.id != nil: // not the tester's
		return reply, ev.ID.Close()
	case ev.Type == rdmacm.ConnectRequest:
		q.cm.id = ev.ID
		if err := ev.ID.UseQP(q.qp); err != nil {
			return reply, err
		}
	case ev.Type == rdmacm.Established:
		if err := q.setAccess(); err != nil {
			return reply, err
		}
	}
	p := &ev.Param
	return control.Reply{Event: strings.TrimPrefix(ev.Type.String(), "RDMA_CM_EVENT_"), Data: p.PrivateData,
		ReadsIn: p.ResponderResources, ReadsOut: p.InitiatorDepth}, nil
}

// setAccess sets the rights of the QP. A fast peer may already have ended the connection.
func (q *queuePair) setAccess() error {
	err := q.qp.Modify(&verbs.QPAttr{QPAccessFlags: q.qpAccess}, verbs.QPAttrAccessFlags)
	if q.qp.State() == verbs.StateErr {
		return nil
	}
	return err
}

// destroy ends the connection. It ignores errors if the peer has ended it.
func (c *connection) destroy() error {
	return errors.Join(cli.Close(c.id), cli.Close(c.listener), c.events.Close())
}
