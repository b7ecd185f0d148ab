package target

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/admission"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// Target serves namespaces to hosts.
type Target struct {
	cfg        *Config
	dev        *verbs.Device
	clock      verbs.Clock
	pd         *verbs.PD
	l          *rdmacm.Listener
	pool       pool
	work       work
	computing  chan struct{} // as many authentications compute at the same time as it has room for
	namespaces []*namespace  // by NSID−1
	started    time.Time
	ctx        context.Context // ends with Close
	cancel     context.CancelCauseFunc
	goroutines wakeup.Group
	closing    wakeup.Once
	err        error // of Close
	retired    counters
	gate       *admission.Gate[netip.Addr] // of connections

	mu          sync.Mutex // taken before those of durability
	controllers map[uint16]*controller
	lastID      uint16
	queues      map[*queue]bool
	working     map[netip.Addr]*hostWork
}

// backlog is that of rdma_cm: requests wait there only until they are admitted or rejected.
const backlog = 64

// acceptTimeout is the time that a host has to complete its connection. rdma_cm alone lets a RoCE
// host have a quarter of an hour.
const acceptTimeout = 30 * time.Second

// Listen starts a target on "host:port"; ":4420" means all addresses of the device. It serves hosts
// until Close.
func Listen(dev *verbs.Device, addr string, cfg *Config) (t *Target, err error) {
	full, err := cfg.check()
	if err != nil {
		return nil, err
	}
	clock := dev.Clock()
	t = &Target{cfg: full, dev: dev, clock: clock, started: clock.Now(), controllers: map[uint16]*controller{},
		queues: map[*queue]bool{}, working: map[netip.Addr]*hostWork{},
		computing: make(chan struct{}, 2), gate: admission.New[netip.Addr](full.Connections)}
	if full.Serial == "" {
		sum := sha256.Sum256([]byte(full.NQN))
		full.Serial = serial(sum[:])
	}
	for i := range full.Namespaces {
		t.namespaces = append(t.namespaces, t.newNamespace(uint32(i+1), &full.Namespaces[i]))
	}
	if t.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	t.pool = pool{pd: t.pd, limit: full.Memory / slabSize, used: map[*hostWork]int{}}
	if t.l, err = rdmacm.Listen(dev, addr, &rdmacm.Config{Transports: full.Transports, Backlog: backlog}); err != nil {
		return nil, errors.Join(err, t.pd.Close())
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	t.goroutines.Go(clock, t.serve)
	t.goroutines.Go(clock, t.watchSizes)
	return t, nil
}

// Addr returns the address and port that the target listens on.
func (t *Target) Addr() netip.AddrPort { return t.l.Addr() }

// Wait waits until Close is called, and returns nil, or until the device has failed.
func (t *Target) Wait() error {
	wakeup.Receive(t.clock, t.ctx.Done())
	if err := context.Cause(t.ctx); !errors.Is(err, errStopped) {
		return err
	}
	return nil
}

// Close ends all connections and frees what the target has allocated. Backends remain open. Only
// the first call has an effect; the others wait for it.
func (t *Target) Close() error {
	t.closing.Do(t.clock, func() {
		t.cancel(errStopped)
		err := t.l.Close()
		t.goroutines.Wait(t.clock)
		t.err = errors.Join(err, t.pool.close(), t.pd.Close())
	})
	return t.err
}

// serve accepts connections.
func (t *Target) serve() {
	for {
		r, err := t.l.Request(t.ctx)
		if err != nil {
			t.cancel(err)
			return
		}
		a, err := t.admit(r)
		if err != nil {
			t.reject(r, err)
			continue
		}
		t.goroutines.Go(t.clock, func() {
			q, err := t.create(a)
			if err != nil {
				t.reject(r, err)
				return
			}
			conn, err := t.accept(r, q)
			if err != nil {
				t.refused(r, err)
				return
			}
			q.run(conn)
		})
	}
}

func (t *Target) reject(r *rdmacm.Request, err error) {
	reject := nvme.ConnReject{Status: nvme.RejectNoResources}
	if refused := (*nvme.RejectError)(nil); errors.As(err, &refused) {
		reject.Status = refused.Status
	}
	t.refused(r, errors.Join(err, r.Reject(reject.Append(nil))))
}

func (t *Target) refused(r *rdmacm.Request, err error) {
	t.cfg.Logger.Warn("connection refused", "host", r.PeerAddr(), "error", err)
}

// admitted is a connection request with a place.
type admitted struct {
	r     *rdmacm.Request
	req   nvme.ConnRequest
	ctx   context.Context
	end   context.CancelCauseFunc
	place *admission.Place[netip.Addr]
}

func refuse(s nvme.RejectStatus, format string, args ...any) error {
	return &nvme.RejectError{Status: s, Err: fmt.Errorf(format, args...)}
}

// refuseFull refuses a connection that gets no place.
func (t *Target) refuseFull(err error) error {
	if errors.Is(err, admission.ErrFull) || errors.Is(err, admission.ErrShare) {
		return refuse(nvme.RejectNoResources, "%w, of %d for all connections", err, t.cfg.Connections)
	}
	return refuse(nvme.RejectNoResources, "waiting for a place: %w", err)
}

// admit checks a connection request, and takes a place for it.
func (t *Target) admit(r *rdmacm.Request) (*admitted, error) {
	req, err := nvme.ParseConnRequest(r.Peer().PrivateData)
	if err != nil {
		return nil, err
	}
	switch {
	case int(req.QID) > t.cfg.IOQueues:
		return nil, refuse(nvme.RejectQID, "queue ID %d: must be %d at most", req.QID, t.cfg.IOQueues)
	case req.HSQSize == 0:
		return nil, refuse(nvme.RejectHSQSize, "HSQSIZE 0: must be 1 at least")
	case req.QID > 0 && req.CNTLID != 0 && t.controller(req.CNTLID) == nil:
		return nil, refuse(nvme.RejectCNTLID, "there is no controller %d", req.CNTLID)
	}
	a := &admitted{r: r, req: req}
	a.ctx, a.end = context.WithCancelCause(t.ctx)
	if a.place, err = t.gate.Enter(r.PeerAddr().Addr(), func() { a.end(errDisplaced) }); err != nil {
		a.end(err)
		return nil, t.refuseFull(err)
	}
	return a, nil
}

// create waits for the place of a connection request, and creates its queue.
func (t *Target) create(a *admitted) (*queue, error) {
	waiting, cancel := t.clock.WithTimeout(a.ctx, acceptTimeout)
	defer cancel()
	err := a.place.WaitFor(waiting, t.clock, a.r.Done())
	if err != nil {
		err = t.refuseFull(err)
	}
	var q *queue
	if err == nil {
		if q, err = t.newQueue(a.r, &a.req); err != nil {
			err = refuse(nvme.RejectNoResources, "%w", err)
		}
	}
	if err != nil {
		a.end(err)
		a.place.Leave()
		return nil, err
	}
	q.ctx, q.end, q.place = a.ctx, a.end, a.place
	return q, nil
}

// accept accepts a connection request.
func (t *Target) accept(r *rdmacm.Request, q *queue) (*rdmacm.Conn, error) {
	accepting, cancel := t.clock.WithTimeout(q.ctx, acceptTimeout)
	conn, err := r.Accept(accepting, q.cmConfig())
	cancel()
	if err != nil {
		q.end(err)
		return nil, errors.Join(err, q.destroy())
	}
	t.mu.Lock()
	t.queues[q] = true
	t.mu.Unlock()
	return conn, nil
}

// removed removes a queue that has ended.
func (t *Target) removed(q *queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.queues, q)
	t.retired.add(&q.counters)
}

// controller returns the controller of an ID, or nil.
func (t *Target) controller(id uint16) *controller {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.controllers[id]
}

// register gives a controller an ID, and adds it. It returns false if no ID is free. An ID is not
// reused soon.
func (t *Target) register(ctrl *controller) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for range nvme.MaxControllerID {
		if t.lastID++; t.lastID > nvme.MaxControllerID {
			t.lastID = 1
		}
		if t.controllers[t.lastID] == nil {
			ctrl.id = t.lastID
			t.controllers[ctrl.id] = ctrl
			return true
		}
	}
	return false
}

// forget removes a controller that has ended.
func (t *Target) forget(ctrl *controller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.controllers, ctrl.id)
}

// namespace returns the namespace of an NSID, or nil.
func (t *Target) namespace(nsid uint32) *namespace {
	if i := nsid - 1; i < uint32(len(t.namespaces)) {
		return t.namespaces[i]
	}
	return nil
}

// sizeInterval is how often the sizes of backends are examined.
const sizeInterval = time.Second

// watchSizes announces changed sizes.
func (t *Target) watchSizes() {
	tick, ticker := t.clock.NewTicker(sizeInterval)
	defer ticker.Stop()
	for {
		if _, ok := wakeup.Take(t.clock, tick, t.ctx.Done()); !ok {
			return
		}
		for _, ns := range t.namespaces {
			if !ns.resized() {
				continue
			}
			t.cfg.Logger.Info("size has changed", "nsid", ns.id, "blocks", ns.blocks.Load())
			for _, ctrl := range t.hosts() {
				ctrl.namespaceChanged(ns.id)
			}
		}
	}
}

// hosts returns the subsystem's controllers, in the order of their IDs.
func (t *Target) hosts() (all []*controller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ctrl := range t.controllers {
		if !ctrl.discovery {
			all = append(all, ctrl)
		}
	}
	slices.SortFunc(all, func(a, b *controller) int { return cmp.Compare(a.id, b.id) })
	return all
}
