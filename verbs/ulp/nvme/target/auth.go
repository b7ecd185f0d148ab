package target

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/auth"
)

// authGrace is the time that a host has to disconnect after it knows that it is not authenticated.
// Over siw, nvme connect was seen to wait for a minute after the target had disconnected at once.
const authGrace = time.Second

// authentication is that of a queue whose host must authenticate itself.
type authentication struct {
	busy   atomic.Bool // a command is executed, and has side and failed
	side   *auth.Controller
	failed bool
	timer  verbs.Timer // ends the queue if it is locked
}

// requireAuth begins the authentication of a queue, if the controller's host has keys.
func (q *queue) requireAuth(ctrl *controller) bool {
	cfg := q.t.cfg
	keys, ok := cfg.Keys[ctrl.hostNQN]
	if !ok || ctrl.discovery {
		return false
	}
	q.auth = &authentication{side: auth.NewController(&auth.ControllerConfig{
		Identity: auth.Identity{HostNQN: ctrl.hostNQN, SubsystemNQN: cfg.NQN, Host: keys.Host, Controller: keys.Controller},
		Hashes:   cfg.Hashes, Groups: cfg.Groups,
	})}
	q.locked.Store(true)
	q.auth.timer = q.t.clock.AfterFunc(cfg.AuthTimeout, func() {
		if q.locked.Load() {
			q.end(errUnauthenticated)
		}
	})
	return true
}

var errUnauthenticated = errors.New("the host has not authenticated itself in time")

// stop ends the authentication of a queue that is closed.
func (a *authentication) stop() {
	if a != nil {
		a.timer.Stop()
	}
}

// authenticates reports whether the command is an authentication command.
func (c *command) authenticates() bool {
	kind := c.sqe.FabricsType()
	return c.sqe.Opcode == nvme.Fabrics && (kind == nvme.AuthenticationSend || kind == nvme.AuthenticationReceive)
}

// authLength returns the length of an authentication command's data. If it is wrong, the command
// fails.
func (c *command) authLength() (length int, ok bool) {
	n, ok := c.sqe.AuthLength()
	if !ok || n == 0 || n > auth.MaxMessage {
		c.fail(nvme.InvalidField)
		return 0, false
	}
	return int(n), true
}

// authSend executes Authentication Send.
func (q *queue) authSend(c *command) {
	if n, ok := c.authLength(); ok {
		c.fetch(n, func(c *command) {
			q.authenticate(c, func() {
				q.auth.side.Send(c.buf)
				q.authState()
				q.auth.busy.Store(false)
				c.succeed(0)
			})
		})
	}
}

// authReceive executes Authentication Receive.
func (q *queue) authReceive(c *command) {
	n, ok := c.authLength()
	if !ok {
		return
	}
	q.authenticate(c, func() {
		message, err := q.auth.side.Receive(n)
		q.authState()
		q.auth.busy.Store(false)
		if err != nil {
			q.log.Warn("authentication", "error", err)
			c.fail(nvme.InvalidField)
			return
		}
		c.reply(message)
	})
}

// authenticate runs a function that uses q.auth.side and may compute, on another goroutine. Few run
// at the same time, and one for each queue. It sets q.auth.busy to false.
func (q *queue) authenticate(c *command, f func()) {
	if !q.auth.busy.CompareAndSwap(false, true) {
		c.fail(nvme.CommandSequenceError)
		return
	}
	q.spawn(func() {
		computing := q.t.computing
		if clock := q.t.clock; clock.Virtual() {
			clock.Park(func() bool { return len(computing) < cap(computing) || q.ctx.Err() != nil })
			if q.ctx.Err() != nil {
				return
			}
		}
		select {
		case computing <- struct{}{}:
			f()
			<-computing
		case <-q.ctx.Done():
		}
	})
}

// authState takes the state of the authentication over to the queue.
func (q *queue) authState() {
	ctrl, side := q.ctrl.Load(), q.auth.side
	switch side.State() {
	case auth.Success:
		if q.locked.Swap(false) {
			q.auth.timer.Stop()
			q.place.Prove()
			ctrl.log.Info("host authenticated", "qid", q.id, "hash", side.Hash(), "dhgroup", side.Group())
		}
	case auth.Failure:
		if !q.auth.failed {
			q.auth.failed = true
			q.locked.Store(true)
			q.counters.unauthenticated.Add(1)
			ctrl.log.Warn("host not authenticated", "qid", q.id, "error", side.Err())
			q.auth.timer.Reset(q.t.cfg.AuthTimeout)
		}
		if side.Over() {
			q.auth.timer.Reset(authGrace)
		}
	}
}
