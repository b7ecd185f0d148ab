package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// session is an association with a controller of the target: an Admin queue and I/O queues. It ends
// as a whole.
type session struct {
	c         *Controller
	id        uint16 // of the controller
	discovery bool
	identity  nvme.IdentifyController
	admin     *queue
	io        []*queue // that namespaces share
	entries   int      // of an I/O queue that the controller allows
	granted   int      // I/O queues
	inCapsule int      // bytes of data in a command capsule of an I/O queue

	done       chan struct{} // closed at the end
	goroutines wakeup.Group

	opening sync.Mutex // held by OpenQueue, one at a time, and by destroy
	freeing sync.Mutex // held while queues of destroy are closed; taken before mu

	mu          sync.Mutex         // no other lock is taken meanwhile, but a context's
	err         *LostError         // why it has ended, or nil
	stopOpening context.CancelFunc // of the last OpenQueue, or nil
	shutting    bool               // the controller may end its I/O queues, as SPDK's does
	queues      map[uint16]*queue
	lastID      uint16 // that freeID has returned
}

// ticks is the number of ticks of the session's clock within Config.Timeout.
const ticks = 16

// connect makes a session.
func (c *Controller) connect(ctx context.Context) (s *session, err error) {
	s = &session{c: c, done: make(chan struct{}), queues: map[uint16]*queue{}, discovery: c.cfg.NQN == nvme.DiscoveryNQN}
	defer func() {
		if err != nil {
			s.end(&LostError{0, errClosed})
			err = errors.Join(err, s.destroy())
		}
	}()
	s.goroutines.Go(c.clock, s.keepTime)
	if s.admin, err = s.open(ctx, 0, adminDepth, nvme.DynamicController); err != nil {
		return s, err
	}
	s.admin.poll.Lock() // for serveAdmin, which has it until the end
	s.goroutines.Go(c.clock, s.serveAdmin)
	if err := s.enable(ctx); err != nil {
		return s, err
	}
	if err := s.identify(ctx); err != nil {
		return s, err
	}
	s.goroutines.Go(c.clock, s.keepAlive)
	s.requestEvents()
	if s.discovery {
		return s, nil
	}
	if err := s.requestQueues(ctx); err != nil {
		return s, err
	}
	for i := range min(c.cfg.IOQueues, s.granted) {
		q, err := s.open(ctx, uint16(i+1), c.cfg.QueueDepth, s.id)
		if err != nil {
			return s, err
		}
		s.io = append(s.io, q)
	}
	return s, nil
}

// open connects a queue, and sends its Connect command.
func (s *session) open(ctx context.Context, id uint16, depth int, cntlid uint16) (*queue, error) {
	if id > 0 {
		depth = min(depth, s.entries-1)
	}
	q, err := s.newQueue(ctx, id, depth)
	if err != nil {
		return nil, fmt.Errorf("queue %d: %w", id, err)
	}
	s.mu.Lock()
	ended := s.err
	s.queues[id] = q
	s.mu.Unlock()
	if ended != nil {
		q.fail(ended.Err)
		return nil, ended
	}
	if err := s.connectQueue(ctx, q, depth, cntlid); err != nil {
		q.fail(err)
		return nil, fmt.Errorf("queue %d: %w", id, err)
	}
	q.inCapsule = s.inCapsule
	s.c.log.Debug("queue connected", "qid", id, "depth", depth, "transport", q.conn.Transport())
	return q, nil
}

// connectQueue sends the Connect command of a queue.
func (s *session) connectQueue(ctx context.Context, q *queue, depth int, cntlid uint16) error {
	cfg := s.c.cfg
	p := nvme.ConnectCommand{QID: q.id, SQSize: uint16(depth), Attributes: nvme.ConnectNoSQFlow}
	if q.id == 0 {
		p.KeepAlive = cfg.KeepAlive
	}
	d := nvme.ConnectData{HostID: cfg.HostID, CNTLID: cntlid, SubsystemNQN: cfg.NQN, HostNQN: cfg.HostNQN}
	result, err := q.do(ctx, p.Command(), d.Append(nil), nil)
	if err != nil {
		return &verbs.Error{Op: "connect", Err: err}
	}
	if id := uint16(result); q.id == 0 {
		s.id = id
	} else if id != s.id {
		return violation("queue %d is of controller %d: must be %d", q.id, id, s.id)
	}
	return q.authenticate(ctx, cfg, result)
}

// enable enables the controller.
func (s *session) enable(ctx context.Context) error {
	capability, err := s.admin.do(ctx, nvme.PropertyGetCommand(nvme.PropertyCAP), nil, nil)
	if err != nil {
		return fmt.Errorf("get CAP: %w", err)
	}
	s.entries = max(int(nvme.CAPMaxQueueEntries(capability))+1, 2)
	if _, err := s.admin.do(ctx, nvme.PropertySetCommand(nvme.PropertyCC, nvme.CCEnable|nvme.CCEntrySizes), nil, nil); err != nil {
		return fmt.Errorf("enable the controller: %w", err)
	}
	return s.awaitStatus(ctx, nvme.CSTSReady, nvme.CSTSReady, max(nvme.CAPTimeout(capability), time.Second))
}

// statusInterval is the time between two reads of CSTS.
const statusInterval = 50 * time.Millisecond

// awaitStatus waits until bits of CSTS have a value.
func (s *session) awaitStatus(ctx context.Context, mask, want uint64, timeout time.Duration) error {
	const op = "wait for CSTS"
	clock := s.c.clock
	ctx, cancel := clock.WithTimeout(ctx, timeout)
	defer cancel()
	for {
		csts, err := s.admin.do(ctx, nvme.PropertyGetCommand(nvme.PropertyCSTS), nil, nil)
		switch {
		case err != nil:
			return &verbs.Error{Op: op, Err: err}
		case csts&mask == want:
			return nil
		case csts&nvme.CSTSFatal != 0:
			return violation("the controller reports a fatal status, CSTS %#x", csts)
		}
		passed, _ := clock.NewTimer(statusInterval)
		if _, ok := wakeup.Take(clock, passed, ctx.Done()); !ok {
			return &verbs.Error{Op: op, Err: ctx.Err()}
		}
	}
}

// identify reads the controller's data.
func (s *session) identify(ctx context.Context) (err error) {
	b := make([]byte, nvme.IdentifyLen)
	if err := s.identifyInto(ctx, nvme.CNSController, 0, b); err != nil {
		return err
	}
	if s.identity, err = nvme.ParseIdentifyController(b); err != nil {
		return err
	}
	i := &s.identity
	if i.SGLS&nvme.SGLKeyed == 0 {
		return violation("the controller does not support keyed SGLs, SGLS %#x", i.SGLS)
	}
	if i.SGLS&nvme.SGLInCapsule != 0 && i.DataOffset == 0 && i.CommandCapsule*16 > nvme.CommandLen {
		s.inCapsule = int(min(uint64(i.CommandCapsule)*16-nvme.CommandLen, slotData))
	}
	return nil
}

// identifyInto executes an Identify command.
func (s *session) identifyInto(ctx context.Context, cns nvme.CNS, nsid uint32, p []byte) error {
	_, err := s.admin.do(ctx, nvme.Command{Opcode: nvme.Identify, NSID: nsid, CDW10: uint32(cns)}, nil, p)
	if err != nil {
		return &verbs.Error{Op: "identify", Err: err}
	}
	return nil
}

// requestQueues asks for I/O queues.
func (s *session) requestQueues(ctx context.Context) error {
	const n = maxQueues - 1
	result, err := s.admin.do(ctx, nvme.Command{Opcode: nvme.SetFeatures, CDW10: uint32(nvme.FeatureQueues), CDW11: n<<16 | n}, nil, nil)
	if err != nil {
		return fmt.Errorf("request I/O queues: %w", err)
	}
	s.granted = int(min(result&0xffff, result>>16&0xffff, n)) + 1
	return nil
}

// serveAdmin takes the Admin queue's completions. It has poll from the start.
func (s *session) serveAdmin() {
	q := s.admin
	defer q.poll.Unlock()
	for !q.ended() {
		_ = q.progress(context.Background())
	}
}

// keepTime ends queues with a command that has timed out.
func (s *session) keepTime() {
	tick, t := s.c.clock.NewTicker(s.c.cfg.Timeout / ticks)
	defer t.Stop()
	for s.awaitTick(tick) {
		for _, q := range s.all() {
			q.drain()
			if late := q.advanceClock(); late {
				q.fail(verbs.Errorf(errTimeout, "wait for responses", "a command is not completed within %v", s.c.cfg.Timeout))
			}
		}
	}
}

// awaitTick waits for a tick. It returns false if the session has ended.
func (s *session) awaitTick(tick <-chan time.Time) bool {
	_, ok := wakeup.Take(s.c.clock, tick, s.done)
	return ok
}

// drain handles completions that nobody waits for, such as those of abandoned commands.
func (q *queue) drain() {
	if !q.poll.TryLock() {
		return
	}
	defer q.handOver()
	if !q.ended() {
		n, err := q.cq.Poll(q.wcs[:])
		if err != nil {
			q.fail(err)
		}
		q.handleAll(n)
	}
}

// advanceClock reports whether a command has timed out. A late goroutine gets two ticks at once:
// the first two ticks after a command was posted do not count.
func (q *queue) advanceClock() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.tick++
	for i := range q.slots {
		if s := &q.slots[i]; s.responseDue && !s.endless && q.tick-s.tick > ticks+2 {
			return true
		}
	}
	return false
}

// keepAlive sends Keep Alive commands.
func (s *session) keepAlive() {
	tick, t := s.c.clock.NewTicker(s.c.cfg.KeepAlive / 3)
	defer t.Stop()
	for s.awaitTick(tick) {
		// The end of the session ends the command.
		if _, err := s.admin.do(context.Background(), nvme.Command{Opcode: nvme.KeepAlive}, nil, nil); err != nil {
			s.admin.fail(err)
		}
	}
}

// end ends the session, and returns the reason. Only the first call has an effect. While the
// controller shuts down, the end of an I/O queue has no effect, and its reason is returned. end is
// called with queue.mu held.
func (s *session) end(reason *LostError) *LostError {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.err != nil:
		return s.err
	case !s.shutting || reason.QID == 0:
		s.err = reason
		close(s.done)
		if s.stopOpening != nil {
			s.stopOpening()
		}
	}
	return reason
}

// beginOpening makes the end of the session cancel the context of an OpenQueue. It returns why the
// session has ended, if it has.
func (s *session) beginOpening(cancel context.CancelFunc) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	s.stopOpening = cancel
	return nil
}

// reason returns why the session has ended, or nil.
func (s *session) reason() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		return nil
	}
	return s.err
}

// endQueues ends all queues. The session has ended.
func (s *session) endQueues() {
	for _, q := range s.all() {
		q.fail(errClosed) // the reason is that of the session
	}
}

// all returns the queues, in the order of their IDs.
func (s *session) all() []*queue {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.queues), func(a, b *queue) int { return cmp.Compare(a.id, b.id) })
}

// destroy ends all queues, and frees what they have. The session has ended.
func (s *session) destroy() (err error) {
	s.endQueues()
	wakeup.Lock(s.c.clock, &s.opening) // OpenQueue returns soon, as its context has ended
	defer s.opening.Unlock()
	s.goroutines.Wait(s.c.clock)
	wakeup.Lock(s.c.clock, &s.freeing)
	defer s.freeing.Unlock()
	all := s.all()
	s.mu.Lock()
	s.queues = nil
	s.mu.Unlock()
	for _, q := range all {
		err = errors.Join(err, q.close())
	}
	return err
}

// shutDown shuts the controller down, so that what was written is durable.
func (s *session) shutDown(ctx context.Context) error {
	s.mu.Lock()
	s.shutting = true
	s.mu.Unlock()
	const cc = nvme.CCEnable | nvme.CCEntrySizes | nvme.CCShutNormal
	if _, err := s.admin.do(ctx, nvme.PropertySetCommand(nvme.PropertyCC, cc), nil, nil); err != nil {
		return err
	}
	return s.awaitStatus(ctx, 3<<2, nvme.CSTSShutComplete, shutdownTimeout)
}
