package target

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// Target serves namespaces to hosts.
type Target struct {
	cfg        *Config
	dev        *verbs.Device
	pd         *verbs.PD
	l          *rdmacm.Listener
	pool       pool
	work       work
	computing  chan struct{} // as many authentications compute at the same time as it has room for
	namespaces []*namespace  // by NSID−1
	started    time.Time
	ctx        context.Context // ends with Close
	cancel     context.CancelCauseFunc
	goroutines sync.WaitGroup
	closing    sync.Once
	err        error // of Close
	retired    counters

	mu          sync.Mutex // taken before those of durability
	controllers map[uint16]*controller
	lastID      uint16
	queues      map[*queue]bool
	working     map[netip.Addr]*hostWork
	reserved    int // connections that are being set up
	accepted    uint64
	displaced   int // queues that end to make room for others
}

// acceptors is the number of connections that are set up at the same time.
const acceptors = 64

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
	t = &Target{cfg: full, dev: dev, started: time.Now(), controllers: map[uint16]*controller{}, queues: map[*queue]bool{},
		working: map[netip.Addr]*hostWork{}, computing: make(chan struct{}, 2)}
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
	t.pool = pool{pd: t.pd, limit: full.Memory / slabSize}
	if t.l, err = rdmacm.Listen(dev, addr, &rdmacm.Config{Transports: full.Transports, Backlog: acceptors}); err != nil {
		return nil, errors.Join(err, t.pd.Close())
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	t.goroutines.Go(t.serve)
	t.goroutines.Go(t.watchSizes)
	return t, nil
}

// Addr returns the address and port that the target listens on.
func (t *Target) Addr() netip.AddrPort { return t.l.Addr() }

// Wait waits until Close is called, and returns nil, or until the device has failed.
func (t *Target) Wait() error {
	<-t.ctx.Done()
	if err := context.Cause(t.ctx); !errors.Is(err, errStopped) {
		return err
	}
	return nil
}

// Close ends all connections and frees what the target has allocated. Backends remain open. Only
// the first call has an effect; the others wait for it.
func (t *Target) Close() error {
	t.closing.Do(func() {
		t.cancel(errStopped)
		err := t.l.Close()
		t.goroutines.Wait()
		t.err = errors.Join(err, t.pool.close(), t.pd.Close())
	})
	return t.err
}

// serve accepts connections.
func (t *Target) serve() {
	slots := make(chan struct{}, 2*acceptors) // as many as rdmacm.Listener has for both backlogs
	for {
		select {
		case slots <- struct{}{}:
		case <-t.ctx.Done():
			return
		}
		r, err := t.l.Request(t.ctx)
		if err != nil {
			t.cancel(err)
			return
		}
		t.goroutines.Go(func() {
			q, conn, err := t.accept(r)
			<-slots
			if err != nil {
				t.cfg.Logger.Warn("connection refused", "host", r.PeerAddr(), "error", err)
				return
			}
			q.run(conn)
		})
	}
}

// accept accepts a connection request, or rejects it.
func (t *Target) accept(r *rdmacm.Request) (*queue, *rdmacm.Conn, error) {
	req, err := nvme.ParseConnRequest(r.Peer().PrivateData)
	if err == nil {
		err = t.admit(&req)
	}
	var q *queue
	if err == nil {
		if q, err = t.newQueue(r, &req); err != nil {
			t.unreserve()
			err = &nvme.RejectError{Status: nvme.RejectNoResources, Err: err}
		}
	}
	if err != nil {
		reject := nvme.ConnReject{Status: nvme.RejectNoResources}
		if refused := (*nvme.RejectError)(nil); errors.As(err, &refused) {
			reject.Status = refused.Status
		}
		return nil, nil, errors.Join(err, r.Reject(reject.Append(nil)))
	}
	accepting, cancel := context.WithTimeout(t.ctx, acceptTimeout)
	conn, err := r.Accept(accepting, q.cmConfig())
	cancel()
	if err != nil {
		q.end(err)
		t.unreserve()
		return nil, nil, errors.Join(err, q.destroy())
	}
	t.mu.Lock()
	t.reserved--
	t.accepted++
	q.number = t.accepted
	t.queues[q] = true
	t.mu.Unlock()
	return q, conn, nil
}

// admit checks a connection request, and reserves a connection for it.
func (t *Target) admit(req *nvme.ConnRequest) error {
	refuse := func(s nvme.RejectStatus, format string, args ...any) error {
		return &nvme.RejectError{Status: s, Err: fmt.Errorf(format, args...)}
	}
	var stranger *queue
	defer func() {
		if stranger != nil {
			stranger.end(errDisplaced)
		}
	}()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case int(req.QID) > t.cfg.IOQueues:
		return refuse(nvme.RejectQID, "queue ID %d: must be %d at most", req.QID, t.cfg.IOQueues)
	case req.HSQSize == 0:
		return refuse(nvme.RejectHSQSize, "HSQSIZE 0: must be 1 at least")
	case req.QID > 0 && req.CNTLID != 0 && t.controllers[req.CNTLID] == nil:
		return refuse(nvme.RejectCNTLID, "there is no controller %d", req.CNTLID)
	case len(t.queues)-t.displaced+t.reserved >= t.cfg.Connections:
		if stranger = t.stranger(); stranger == nil {
			return refuse(nvme.RejectNoResources, "there are %d connections, as many as Connections allows", t.cfg.Connections)
		}
		stranger.displaced = true
		t.displaced++
		t.retired.displaced.Add(1)
	}
	t.reserved++
	return nil
}

// isStranger reports whether the queue is of a host of unknown identity: one with the discovery
// service, before Connect or before authentication.
func (q *queue) isStranger() bool {
	ctrl := q.ctrl.Load()
	return ctrl == nil || ctrl.discovery || q.locked.Load()
}

// stranger returns a queue of a stranger that ends to make room for another, or nil. As long as
// these have more than half of the places, the oldest ends, of the address with most of them.
// Otherwise they could keep all places for as long as they like. While queues end, there may be as
// many more as half of the places. mu is held.
func (t *Target) stranger() (oldest *queue) {
	half := max(t.cfg.Connections/2, 1)
	all := map[*hostWork][]*queue{}
	n, most := 0, 0
	for q := range t.queues {
		if q.ctx.Err() == nil && !q.displaced && q.isStranger() {
			all[q.host] = append(all[q.host], q)
			n, most = n+1, max(most, len(all[q.host]))
		}
	}
	if n <= half || t.displaced >= half {
		return nil
	}
	for _, queues := range all {
		for _, q := range queues {
			if len(queues) == most && (oldest == nil || q.number < oldest.number) {
				oldest = q
			}
		}
	}
	return oldest
}

func (t *Target) unreserve() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.reserved--
}

// removed removes a queue that has ended.
func (t *Target) removed(q *queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.queues, q)
	if q.displaced {
		t.displaced--
	}
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
	tick := time.NewTicker(sizeInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-t.ctx.Done():
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

// hosts returns the subsystem's controllers.
func (t *Target) hosts() (all []*controller) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, ctrl := range t.controllers {
		if !ctrl.discovery {
			all = append(all, ctrl)
		}
	}
	return all
}
