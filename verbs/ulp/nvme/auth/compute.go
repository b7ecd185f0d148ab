package auth

import (
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"
)

// Identity has the names and keys of an association's two sides.
type Identity struct {
	HostNQN, SubsystemNQN string
	// Host is the host's key.
	Host *Key
	// Controller is the controller's key; nil: it does not authenticate itself.
	Controller *Key
}

// exchange has the values that a response depends on.
type exchange struct {
	hash        Hash
	shared      []byte // secret of Diffie-Hellman, or nil
	transaction uint16
}

// response returns the response to a challenge (NVMe 2.0 §8.13.5.4 and §8.13.5.5): that of the host
// or that of the controller.
func (e *exchange) response(id *Identity, controller bool, challenge []byte, sequence uint32) []byte {
	if e.shared != nil {
		challenge = e.hash.hmac(e.hash.sum(e.shared), challenge)
	}
	key, role, first, second := id.Host, "HostHost", id.HostNQN, id.SubsystemNQN
	if controller {
		key, role, first, second = id.Controller, "Controller", id.SubsystemNQN, id.HostNQN
	}
	numbers := le.AppendUint32(nil, sequence)
	numbers = le.AppendUint16(numbers, e.transaction)
	numbers = append(numbers, 0) // no secure channel concatenation
	return e.hash.hmac(key.transformed(first), challenge, numbers, []byte(role), []byte(first), []byte{0}, []byte(second))
}

// newChallenge returns a random challenge.
func (h Hash) newChallenge() []byte {
	c := make([]byte, h.Size())
	rand.Read(c) // never fails
	return c
}

var lastSequence atomic.Uint32

func init() {
	var b [4]byte
	rand.Read(b[:]) // never fails
	lastSequence.Store(binary.NativeEndian.Uint32(b[:]))
}

// nextSequence returns the next sequence number, which is not 0.
func nextSequence() uint32 {
	for {
		if n := lastSequence.Add(1); n != 0 {
			return n
		}
	}
}
