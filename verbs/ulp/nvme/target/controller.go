package target

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

const (
	readyTimeout       = 10 * time.Second // within which a controller is ready after CCEnable
	keepAliveUnit      = 100 * time.Millisecond
	keepAliveUnits     = 10 // granularity of the timeout: a second
	discoveryKeepAlive = 2 * time.Minute
	asyncRequests      = 4
	errorEntries       = 64
)

// controller is a host's association with the subsystem or the discovery service. It lives as long
// as its Admin queue.
type controller struct {
	t         *Target
	id        uint16
	discovery bool
	hostNQN   string
	hostID    [16]byte
	adminQ    *queue
	log       *slog.Logger
	created   time.Time

	active       atomic.Bool // a command has come since the keep alive timer last expired
	enabled      atomic.Bool // CSTSReady
	writeThrough atomic.Bool // the host has disabled the volatile write cache

	mu        sync.Mutex        // taken before those of queues
	queues    map[uint16]*queue // I/O queues
	over      bool              // the Admin queue has ended
	cc, csts  uint32
	flushing  bool          // writes become durable, and then shutDown is called
	repeat    bool          // this is to be done once more
	keepAlive time.Duration // 0: none
	timer     verbs.Timer
	events    uint32          // that the host wants
	requests  []*command      // Asynchronous Event Requests
	changed   map[uint32]bool // namespaces, since the host has read the log
	due       bool            // the event of changed is to be reported
	masked    bool            // it was, and the host has not read the log since
	errors    []nvme.ErrorEntry
	failures  uint64
}

// newController creates a controller for an Admin queue. It returns nil if there is no ID.
func (t *Target) newController(q *queue, p *nvme.ConnectCommand, d *nvme.ConnectData, discovery bool) *controller {
	ctrl := &controller{t: t, discovery: discovery, hostNQN: d.HostNQN, hostID: d.HostID, adminQ: q, queues: map[uint16]*queue{},
		created: t.clock.Now()}
	if !t.register(ctrl) {
		return nil
	}
	ctrl.log = q.log.With("controller", ctrl.id, "hostnqn", ctrl.hostNQN)
	timeout := p.KeepAlive
	if discovery && timeout == 0 {
		timeout = discoveryKeepAlive
	}
	ctrl.setKeepAlive(timeout)
	ctrl.log.Info("host connected", "discovery", discovery, "keepalive", timeout)
	return ctrl
}

// setKeepAlive starts the keep alive timer, or stops it for 0. The timeout is rounded up to the
// granularity.
func (ctrl *controller) setKeepAlive(timeout time.Duration) {
	const unit = keepAliveUnits * keepAliveUnit
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	if ctrl.timer != nil {
		ctrl.timer.Stop()
		ctrl.timer = nil
	}
	ctrl.keepAlive = (timeout + unit - 1) / unit * unit
	if ctrl.keepAlive > 0 && !ctrl.over {
		ctrl.active.Store(true)
		ctrl.timer = ctrl.t.clock.AfterFunc(ctrl.keepAlive, ctrl.expire)
	}
}

// expire is called by the keep alive timer. Each command counts (TrafficKeepAlive).
func (ctrl *controller) expire() {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	switch {
	case ctrl.over || ctrl.timer == nil:
	case ctrl.active.Swap(false):
		ctrl.timer.Reset(ctrl.keepAlive)
	default:
		ctrl.csts |= nvme.CSTSFatal
		ctrl.enabled.Store(false)
		err := fmt.Errorf("no command within the keep alive timeout of %v", ctrl.keepAlive)
		ctrl.adminQ.end(err)
		ctrl.endQueues(err)
	}
}

// endQueues ends the I/O queues. mu is held.
func (ctrl *controller) endQueues(err error) {
	for _, q := range ctrl.queues {
		q.end(err)
	}
}

// add adds an I/O queue, unless there is one of its ID, or too many.
func (ctrl *controller) add(q *queue) bool {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	if ctrl.over || ctrl.queues[q.id] != nil || int(q.id) > ctrl.t.cfg.IOQueues {
		return false
	}
	ctrl.queues[q.id] = q
	return true
}

// ended removes a queue. If it is the Admin queue, the controller ends.
func (ctrl *controller) ended(q *queue) {
	if q == ctrl.adminQ {
		ctrl.t.forget(ctrl)
	}
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	if q != ctrl.adminQ {
		if ctrl.queues[q.id] == q {
			delete(ctrl.queues, q.id)
		}
		return
	}
	ctrl.over = true
	ctrl.enabled.Store(false)
	ctrl.requests = nil
	if ctrl.timer != nil {
		ctrl.timer.Stop()
	}
	ctrl.endQueues(errGone)
	ctrl.log.Info("host disconnected", "after", ctrl.t.clock.Since(ctrl.created).Round(time.Millisecond))
}

// gone reports whether the Admin queue has ended.
func (ctrl *controller) gone() bool {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	return ctrl.over
}

// ready reports whether the controller executes commands.
func (ctrl *controller) ready() bool { return ctrl.enabled.Load() }

// registers returns the properties CC and CSTS.
func (ctrl *controller) registers() (cc, csts uint32) {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	return ctrl.cc, ctrl.csts
}

// configure sets CC. It reports whether the caller has to make writes durable, and then call
// shutDown.
func (ctrl *controller) configure(cc uint32) (shutdown bool) {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	was := ctrl.cc
	ctrl.cc = cc
	switch enable := cc & nvme.CCEnable; {
	case enable == was&nvme.CCEnable:
	case enable == 0: // a reset
		ctrl.csts = 0
		ctrl.events, ctrl.changed, ctrl.due, ctrl.masked = 0, nil, false, false
		ctrl.requests = nil
		ctrl.endQueues(errGone)
	case cc&^(nvme.CCEnable|nvme.CCShutdown) == 0 || cc&^(nvme.CCEnable|nvme.CCShutdown) == nvme.CCEntrySizes:
		ctrl.csts = nvme.CSTSReady
	default: // a command set, page size or arbitration that CAP does not offer
		ctrl.csts = nvme.CSTSFatal
	}
	if cc&nvme.CCShutdown == 0 {
		ctrl.csts &^= nvme.CSTSShutComplete
	}
	ctrl.enabled.Store(ctrl.csts&(nvme.CSTSReady|nvme.CSTSFatal) == nvme.CSTSReady && !ctrl.over)
	if cc&nvme.CCShutdown == 0 || was&nvme.CCShutdown != 0 {
		return false
	}
	ctrl.repeat = ctrl.flushing
	ctrl.flushing = true
	return !ctrl.repeat
}

// shutDown makes writes durable for a shutdown. The end of the Admin queue waits for it.
func (q *queue) shutDown(ctrl *controller) {
	if !q.hold() {
		return
	}
	var synced func(nvme.Status)
	synced = func(s nvme.Status) {
		if ctrl.shutDown(s) {
			ctrl.t.sync(synced)
		} else {
			q.workers.Done()
		}
	}
	ctrl.t.sync(synced)
}

// shutDown ends a shutdown: writes are durable, or, with another status than Success, may be lost.
// A shutdown that is complete says that nothing is lost. A fatal status is the only way to say the
// contrary: the host waits for its timeout, and reports that. again says that the host has begun
// another shutdown meanwhile, maybe after other writes.
func (ctrl *controller) shutDown(status nvme.Status) (again bool) {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	if ctrl.repeat {
		ctrl.repeat = false
		return true
	}
	ctrl.flushing = false
	switch {
	case ctrl.cc&nvme.CCShutdown == 0:
	case status == nvme.Success:
		ctrl.csts |= nvme.CSTSShutComplete
	default:
		ctrl.log.Error("the shutdown is not complete: data may be lost", "status", status)
		ctrl.csts |= nvme.CSTSFatal
	}
	return false
}

// asyncRequest keeps an Asynchronous Event Request until there is an event.
func (ctrl *controller) asyncRequest(c *command) {
	ctrl.mu.Lock()
	room := len(ctrl.requests) < asyncRequests
	if room {
		ctrl.requests = append(ctrl.requests, c)
		ctrl.report()
	}
	ctrl.mu.Unlock()
	if !room {
		c.fail(nvme.AsyncEventLimit)
	}
}

// abortRequest completes an Asynchronous Event Request that the host aborts, if there is one with
// this CID.
func (ctrl *controller) abortRequest(cid uint16) bool {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	i := slices.IndexFunc(ctrl.requests, func(c *command) bool { return c.sqe.CID == cid })
	if i < 0 {
		return false
	}
	c := ctrl.requests[i]
	ctrl.requests = slices.Delete(ctrl.requests, i, i+1)
	c.setFailed(nvme.AbortRequested)
	c.q.respond(c)
	return true
}

// namespaceChanged announces that a namespace has changed.
func (ctrl *controller) namespaceChanged(nsid uint32) {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	if ctrl.changed == nil {
		ctrl.changed = map[uint32]bool{}
	}
	ctrl.changed[nsid] = true
	ctrl.due = true
	ctrl.report()
}

// report reports the event of changed namespaces, if the host wants it and has a request. mu is
// held.
func (ctrl *controller) report() {
	if !ctrl.due || ctrl.masked || ctrl.events&nvme.AEAttribute == 0 || len(ctrl.requests) == 0 {
		return
	}
	ctrl.due, ctrl.masked = false, true
	c := ctrl.requests[0]
	ctrl.requests = ctrl.requests[1:]
	c.result = uint64(nvme.AsyncNamespaceChanged)
	c.q.respond(c)
}

// takeChanged returns the changed namespaces. Unless retain is set, they are forgotten, and the
// next change is reported.
func (ctrl *controller) takeChanged(retain bool) []uint32 {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	all := slices.Sorted(maps.Keys(ctrl.changed))
	if !retain {
		ctrl.changed, ctrl.masked, ctrl.due = nil, false, false
	}
	return all
}

// failed records a command in the error log. The queue may have no controller yet.
func (q *queue) failed(c *command, s nvme.Status) {
	q.counters.errors.Add(1)
	q.connecting.CompareAndSwap(c, nil)
	ctrl := q.ctrl.Load()
	if ctrl == nil {
		return
	}
	q.log.Debug("command failed", "command", c.sqe.Opcode.Name(q.id == 0), "nsid", c.sqe.NSID, "status", s)
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	ctrl.failures++
	if len(ctrl.errors) == errorEntries {
		ctrl.errors = slices.Delete(ctrl.errors, 0, 1)
	}
	e := nvme.ErrorEntry{Count: ctrl.failures, SQID: q.id, CID: c.sqe.CID, Status: s, Location: 0xffff, NSID: c.sqe.NSID}
	if q.id > 0 {
		e.LBA = c.sqe.SLBA()
	}
	ctrl.errors = append(ctrl.errors, e)
}

// errorLog returns the log of errors, the latest first.
func (ctrl *controller) errorLog() (log []byte) {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	for i := range errorEntries {
		var e nvme.ErrorEntry // zeros: no entry
		if n := len(ctrl.errors); i < n {
			e = ctrl.errors[n-1-i]
		}
		log = e.Append(log)
	}
	return log
}
