package host

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

const errTimeout = syscall.ETIMEDOUT

// shutdownTimeout is the time that Close waits for the controller's shutdown.
const shutdownTimeout = 10 * time.Second

// Controller is a controller of a target's subsystem, or of its discovery service. Several
// goroutines may use it.
type Controller struct {
	cfg    *Config
	dev    *verbs.Device
	clock  verbs.Clock
	addr   string
	pd     *verbs.PD
	pool   *pool
	log    *slog.Logger
	events events

	session atomic.Pointer[session]

	changing sync.Mutex // held by Reset and Close
	closed   bool
}

// Dial connects to a subsystem at "host:port", where either may be a name. The port of targets is
// usually 4420. If the target refuses, the error wraps a *nvme.RejectError or a *nvme.StatusError.
func Dial(ctx context.Context, dev *verbs.Device, addr string, cfg *Config) (c *Controller, err error) {
	full, err := cfg.check(dev)
	if err != nil {
		return nil, err
	}
	c = &Controller{cfg: full, dev: dev, clock: dev.Clock(), addr: addr, log: full.Logger.With("target", addr, "nqn", full.NQN)}
	c.events.init()
	if c.pd, err = dev.AllocPD(); err != nil {
		return nil, err
	}
	c.pool = newPool(c.pd, c.clock, full.Memory)
	s, err := c.connect(ctx)
	if err != nil {
		return nil, &verbs.Error{Op: "dial NVMe target " + addr, Err: errors.Join(err, c.pool.close(), c.pd.Close())}
	}
	c.adopt(s)
	return c, nil
}

// adopt makes a session the current one.
func (c *Controller) adopt(s *session) {
	c.session.Store(s)
	i := &s.identity
	c.log.Info("connected", "controller", s.id, "model", i.Model, "serial", i.Serial, "queues", len(s.io))
}

// current returns the session.
func (c *Controller) current() (*session, error) {
	s := c.session.Load()
	if err := s.reason(); err != nil {
		return nil, err
	}
	return s, nil
}

// Identity returns the controller's data.
func (c *Controller) Identity() nvme.IdentifyController { return c.session.Load().identity }

// ID returns the ID that the target has given to the controller.
func (c *Controller) ID() uint16 { return c.session.Load().id }

// Queues returns the number of I/O queues that namespaces share, and the number of commands that
// may be outstanding on each.
func (c *Controller) Queues() (n, depth int) {
	s := c.session.Load()
	return len(s.io), min(c.cfg.QueueDepth, s.entries-1)
}

// MaxTransfer returns the number of bytes that a Read or Write command may move.
func (c *Controller) MaxTransfer() int { return c.session.Load().maxTransfer() }

// Done returns a channel that is closed when the queues have ended. After Reset there is another
// one.
func (c *Controller) Done() <-chan struct{} { return c.session.Load().done }

// Err returns why the queues have ended, or nil.
func (c *Controller) Err() error { return c.session.Load().reason() }

// Reset ends all queues, and connects again. Commands that are outstanding fail with a LostError.
// Each Queue has ended then, and namespaces and Memory remain. If Reset fails, it may be called
// again.
func (c *Controller) Reset(ctx context.Context) error {
	wakeup.Lock(c.clock, &c.changing)
	defer c.changing.Unlock()
	if c.closed {
		return errClosed
	}
	old := c.session.Load()
	old.end(&LostError{0, errReset})
	err := old.destroy()
	s, failed := c.connect(ctx)
	if failed != nil {
		return &verbs.Error{Op: "reset NVMe controller", Err: errors.Join(failed, err)}
	}
	c.adopt(s)
	c.events.add(EventReset)
	return err
}

// Close shuts the controller down, which makes writes durable, and ends all queues. Commands that
// are outstanding may fail. Memory has to be closed before. Only the first call has an effect.
func (c *Controller) Close() error {
	wakeup.Lock(c.clock, &c.changing)
	defer c.changing.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	s := c.session.Load()
	var err error
	if s.reason() == nil {
		ctx, cancel := c.clock.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		err = s.shutDown(ctx)
	}
	s.end(&LostError{0, errClosed})
	c.log.Info("closed")
	return errors.Join(err, s.destroy(), c.pool.close(), c.pd.Close())
}

// maxTransfer returns the number of bytes that a command of the session may move.
func (s *session) maxTransfer() int {
	if m := s.identity.MDTS; m > 0 && m < 8 {
		return 4096 << m
	}
	return 1 << 20
}

// queue returns one of the I/O queues.
func (c *Controller) queue() (*queue, error) {
	s, err := c.current()
	if err != nil {
		return nil, err
	}
	switch n := len(s.io); n {
	case 0:
		return nil, verbs.Errorf(verbs.ErrInvalid, "use namespace", "a discovery controller has no I/O queues")
	case 1:
		return s.io[0], nil
	default:
		return s.io[int(s.c.clock.Uint32()%uint32(n))], nil
	}
}
