package auth

import (
	"bytes"
	"crypto/hmac"
	"errors"
	"slices"
	"sync/atomic"
)

// HostConfig has the parameters of a host's side. If Identity.Controller is set, the controller has
// to authenticate itself.
type HostConfig struct {
	Identity
	// Hashes and Groups are those that the host offers; nil means all.
	Hashes []Hash
	Groups []Group
}

var lastTransaction atomic.Uint32

// Authenticate authenticates a host on a queue. send executes Authentication Send with a message,
// and receive Authentication Receive, with a buffer of MaxMessage bytes. If one side does not
// accept the other, the error is an *Error.
func Authenticate(cfg *HostConfig, send func(message []byte) error, receive func() ([]byte, error)) error {
	h := host{cfg: cfg}
	h.offered = Negotiate{Transaction: uint16(lastTransaction.Add(1)), Supported: true, Hashes: cfg.Hashes, Groups: cfg.Groups}
	if h.offered.Hashes == nil {
		h.offered.Hashes = Hashes()
	}
	if h.offered.Groups == nil {
		h.offered.Groups = Groups()
	}
	h.ex.transaction = h.offered.Transaction
	if err := send(h.offered.Append(nil)); err != nil {
		return err
	}
	for _, step := range [...]func([]byte) ([]byte, error){h.challenge, h.success1} {
		b, err := receive()
		if err != nil {
			return err
		}
		b, err = step(b)
		if own := (*Error)(nil); errors.As(err, &own) && !own.Peer {
			return errors.Join(err, send(AppendFailure(nil, KindFailure2, h.ex.transaction, own.Reason)))
		}
		if err != nil {
			return err
		}
		if b == nil {
			return nil
		}
		if err := send(b); err != nil {
			return err
		}
	}
	return nil
}

// host is the host's side of a transaction.
type host struct {
	cfg     *HostConfig
	offered Negotiate
	ex      exchange
	c2      []byte // nil unless the controller has to authenticate itself
	s2      uint32
}

// received checks the header of a message. Its errors are for the controller, or from it.
func (h *host) received(b []byte, want Kind) error {
	head, err := ParseHeader(b)
	switch {
	case err != nil:
		return fail(IncorrectPayload)
	case head.Kind == KindFailure1:
		r, err := ParseFailure(b)
		if err != nil {
			return fail(IncorrectPayload)
		}
		return &Error{Reason: r, Peer: true}
	case head.Kind != want:
		return fail(IncorrectMessage)
	case head.Transaction != h.ex.transaction:
		return fail(IncorrectPayload)
	}
	return nil
}

// challenge takes the Challenge and returns the Reply.
func (h *host) challenge(b []byte) ([]byte, error) {
	if err := h.received(b, KindChallenge); err != nil {
		return nil, err
	}
	c, err := ParseChallenge(b)
	switch {
	case err != nil:
		return nil, fail(IncorrectPayload)
	case !slices.Contains(h.offered.Hashes, c.Hash) || !c.Hash.valid() || len(c.Value) != c.Hash.Size():
		return nil, fail(HashUnusable)
	case !slices.Contains(h.offered.Groups, c.Group) || !c.Group.valid():
		return nil, fail(GroupUnusable)
	case len(c.DH) != c.Group.size():
		return nil, fail(IncorrectPayload)
	}
	h.ex.hash = c.Hash
	r := Reply{Transaction: h.ex.transaction}
	if c.Group != NoDH {
		x := c.Group.private()
		var ok bool
		if h.ex.shared, ok = c.Group.shared(c.DH, x); !ok {
			return nil, fail(IncorrectPayload)
		}
		r.DH = c.Group.public(x)
		clear(x)
	}
	r.Response = h.ex.response(&h.cfg.Identity, false, c.Value, c.Sequence)
	if h.cfg.Controller != nil {
		for h.c2 == nil || bytes.Equal(h.c2, c.Value) {
			h.c2 = h.ex.hash.newChallenge()
		}
		h.s2 = nextSequence()
		r.Challenged, r.Sequence, r.Challenge = true, h.s2, h.c2
	}
	return r.Append(nil), nil
}

// success1 takes Success1 and returns Success2, if the controller has authenticated itself.
func (h *host) success1(b []byte) ([]byte, error) {
	if err := h.received(b, KindSuccess1); err != nil {
		return nil, err
	}
	s, err := ParseSuccess1(b)
	if err != nil {
		return nil, fail(IncorrectPayload)
	}
	if h.c2 == nil {
		return nil, nil
	}
	want := h.ex.response(&h.cfg.Identity, true, h.c2, h.s2)
	clear(h.ex.shared)
	if !hmac.Equal(s.Response, want) {
		return nil, fail(Failed)
	}
	return appendSuccess2(nil, h.ex.transaction), nil
}
