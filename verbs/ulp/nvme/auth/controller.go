package auth

import (
	"bytes"
	"crypto/hmac"
	"errors"
)

// State is where a transaction stands.
type State uint8

const (
	Idle    State = iota // no Negotiate has come
	Running              // a message is to come, or to be received
	Success              // the host is authenticated
	Failure              // the host has to be disconnected
)

// ControllerConfig has the parameters of a controller's side.
type ControllerConfig struct {
	Identity
	// Hashes and Groups are those that the controller accepts, in the order of preference.
	Hashes []Hash
	Groups []Group
}

// Controller is the controller's side of the transactions of a queue. It has no locks.
type Controller struct {
	cfg    *ControllerConfig
	state  State
	expect Kind // the message that the host has to send; 0 (KindNegotiate): none
	next   Kind // the message that the host has to receive; 0: none
	failed Reason
	byHost bool // the host has failed it
	tries  int
	ex     exchange
	group  Group
	x      []byte // the private exponent
	s1, s2 uint32
	c1, c2 []byte // c2 is nil unless the controller has to authenticate itself
}

// maxTries is how often a host may begin a transaction until one has succeeded.
const maxTries = 4

// NewController returns the controller's side of a queue.
func NewController(cfg *ControllerConfig) *Controller { return &Controller{cfg: cfg} }

// State returns the state of the latest transaction.
func (c *Controller) State() State { return c.state }

// Over reports whether the host has been told, or has said itself, that the authentication has
// failed. The queue has to end.
func (c *Controller) Over() bool { return c.state == Failure && c.next == 0 }

// Hash returns the hash function of the latest transaction.
func (c *Controller) Hash() Hash { return c.ex.hash }

// Group returns the DH group of the latest transaction.
func (c *Controller) Group() Group { return c.group }

// Err returns the reason of the Failure, or nil.
func (c *Controller) Err() error {
	if c.failed == 0 {
		return nil
	}
	return &Error{Reason: c.failed, Peer: c.byHost}
}

// Send takes the data of an Authentication Send command. It does not keep b. It takes the time of
// an exponentiation, up to about 100 ms.
func (c *Controller) Send(b []byte) {
	if c.state == Failure {
		return
	}
	h, err := ParseHeader(b)
	switch {
	case err != nil:
		c.fail(IncorrectPayload)
	case h.Kind == KindNegotiate:
		c.negotiate(b)
	case h.Kind == KindFailure2 && c.state != Idle:
		r, err := ParseFailure(b)
		if err != nil || r == 0 {
			r = Failed
		}
		c.fail(r)
		c.byHost, c.next = true, 0
	case c.expect == 0 || h.Kind != c.expect:
		c.fail(IncorrectMessage)
	case h.Transaction != c.ex.transaction:
		c.fail(IncorrectPayload)
	case h.Kind == KindReply:
		c.reply(b)
	default: // KindSuccess2
		c.expect, c.state, c.tries = 0, Success, 0
	}
}

// fail ends the transaction. The host receives AUTH_Failure1.
func (c *Controller) fail(r Reason) {
	c.state, c.failed, c.next, c.expect = Failure, r, KindFailure1, 0
	c.forget()
}

// forget removes what is secret.
func (c *Controller) forget() {
	clear(c.x)
	clear(c.ex.shared)
	c.x, c.ex.shared = nil, nil
}

func (c *Controller) negotiate(b []byte) {
	n, err := ParseNegotiate(b)
	c.ex.transaction = n.Transaction
	if err != nil {
		c.fail(IncorrectPayload)
		return
	}
	c.tries++
	hash, hashOK := choose(c.cfg.Hashes, n.Hashes)
	group, groupOK := choose(c.cfg.Groups, n.Groups)
	switch {
	case n.Concat != 0:
		c.fail(ConcatMismatch)
	case !n.Supported:
		c.fail(ProtocolUnusable)
	case !hashOK:
		c.fail(HashUnusable)
	case !groupOK:
		c.fail(GroupUnusable)
	case c.tries > maxTries:
		c.fail(Failed)
	default:
		c.forget()
		c.ex.hash, c.group = hash, group
		c.state, c.expect, c.next = Running, 0, KindChallenge
	}
}

// Receive returns the message for an Authentication Receive command whose buffer has room for a
// number of bytes.
func (c *Controller) Receive(room int) ([]byte, error) {
	var b []byte
	switch c.next {
	case KindChallenge:
		if room < messageLen+c.ex.hash.Size()+c.group.size() {
			return nil, errRoom
		}
		b = c.challenge()
		c.expect = KindReply
	case KindSuccess1:
		s := Success1{Transaction: c.ex.transaction, Hash: c.ex.hash}
		if c.c2 != nil {
			s.Response = c.ex.response(&c.cfg.Identity, true, c.c2, c.s2)
		}
		if b = s.Append(nil); room < len(b) {
			return nil, errRoom
		}
		c.forget()
		if c.c2 != nil {
			c.expect = KindSuccess2
		} else {
			c.state, c.tries = Success, 0
		}
	default:
		if c.state != Failure { // nothing is to be received
			c.fail(IncorrectMessage)
		}
		if b = AppendFailure(nil, KindFailure1, c.ex.transaction, c.failed); room < len(b) {
			return nil, errRoom
		}
	}
	c.next = 0
	return b, nil
}

var errRoom = errors.New("the buffer is too short for the authentication message")

func (c *Controller) challenge() []byte {
	m := Challenge{Transaction: c.ex.transaction, Hash: c.ex.hash, Group: c.group, Sequence: nextSequence(), Value: c.ex.hash.newChallenge()}
	if c.group != NoDH {
		c.x = c.group.private()
		m.DH = c.group.public(c.x)
	}
	c.c1, c.s1 = m.Value, m.Sequence
	return m.Append(nil)
}

func (c *Controller) reply(b []byte) {
	r, err := ParseReply(b)
	switch {
	case err != nil || len(r.Response) != c.ex.hash.Size() || len(r.DH) != c.group.size():
		c.fail(IncorrectPayload)
		return
	case c.group != NoDH:
		shared, ok := c.group.shared(r.DH, c.x)
		if !ok {
			c.fail(IncorrectPayload)
			return
		}
		c.ex.shared = shared
	}
	mutual := r.Challenged && r.Sequence != 0
	switch {
	case !hmac.Equal(r.Response, c.ex.response(&c.cfg.Identity, false, c.c1, c.s1)):
		c.fail(Failed)
		return
	case mutual && (c.cfg.Controller == nil || bytes.Equal(r.Challenge, c.c1)):
		c.fail(Failed)
		return
	}
	c.c2, c.s2 = nil, r.Sequence
	if mutual {
		c.c2 = bytes.Clone(r.Challenge)
	}
	c.expect, c.next = 0, KindSuccess1
}
