package auth

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"

	"filippo.io/bigmod"

	"github.com/softrnic/softrnic/verbs"
)

// Group is a Diffie-Hellman group (NVMe 2.0 figure 442). The finite fields are those of RFC 7919.
type Group uint8

const (
	NoDH      Group = 0 // responses without Diffie-Hellman
	FFDHE2048 Group = 1
	FFDHE3072 Group = 2
	FFDHE4096 Group = 3
	FFDHE6144 Group = 4
	FFDHE8192 Group = 5
)

var groupNames = [...]string{NoDH: "null", FFDHE2048: "ffdhe2048", FFDHE3072: "ffdhe3072", FFDHE4096: "ffdhe4096",
	FFDHE6144: "ffdhe6144", FFDHE8192: "ffdhe8192"}

// Groups are all groups, in the order in which a controller prefers them by default.
func Groups() []Group { return []Group{FFDHE3072, FFDHE4096, FFDHE2048, FFDHE6144, FFDHE8192, NoDH} }

func (g Group) valid() bool { return int(g) < len(groupNames) }

// String returns the name, such as ffdhe2048, or null for NoDH.
func (g Group) String() string {
	if !g.valid() {
		return fmt.Sprintf("DH group %d", uint8(g))
	}
	return groupNames[g]
}

// exponentLens are the lengths of private exponents, bytes: more than RFC 7919 appendix A requires
// for the strength of the group.
var exponentLens = [...]int{FFDHE2048: 32, FFDHE3072: 40, FFDHE4096: 44, FFDHE6144: 48, FFDHE8192: 56}

// moduli has the parsed primes.
var moduli [len(groupNames)]struct {
	once sync.Once
	p    *bigmod.Modulus
}

func (g Group) modulus() *bigmod.Modulus {
	m := &moduli[g]
	m.once.Do(func() {
		b, err := hex.DecodeString(primes[g])
		if err == nil {
			m.p, err = bigmod.NewModulus(b)
		}
		if err != nil {
			panic(err) // the constant is wrong
		}
	})
	return m.p
}

// size returns the length of public values and of the shared secret, bytes.
func (g Group) size() int {
	if g == NoDH {
		return 0
	}
	return len(primes[g]) / 2
}

// private returns a random exponent.
func (g Group) private() []byte {
	x := make([]byte, exponentLens[g])
	rand.Read(x) // never fails
	x[0] |= 0x80 // of full length
	return x
}

// public returns 2^x mod p.
func (g Group) public(x []byte) []byte {
	p := g.modulus()
	two := make([]byte, p.Size())
	two[len(two)-1] = 2
	base, err := bigmod.NewNat().SetBytes(two, p)
	if err != nil {
		panic(err) // 2 < p
	}
	return bigmod.NewNat().Exp(base, x, p).Bytes(p)
}

// shared returns y^x mod p, where y is the peer's public value. It returns false unless
// 1 < y < p-1 (RFC 7919 §5.1).
func (g Group) shared(y, x []byte) ([]byte, bool) {
	p := g.modulus()
	if len(y) != p.Size() {
		return nil, false
	}
	base, err := bigmod.NewNat().SetBytes(y, p)
	if err != nil || base.IsZero() == 1 || base.IsOne() == 1 || base.IsMinusOne(p) == 1 {
		return nil, false
	}
	return bigmod.NewNat().Exp(base, x, p).Bytes(p), true
}

// Check returns an error if hash functions or groups are unknown, or if there is none.
func Check(hashes []Hash, groups []Group) error {
	const op = "configure DH-HMAC-CHAP"
	if len(hashes) == 0 || len(groups) == 0 {
		return verbs.Errorf(verbs.ErrInvalid, op, "%d hash functions, %d DH groups: must be 1 of each at least", len(hashes), len(groups))
	}
	for _, h := range hashes {
		if !h.valid() {
			return verbs.Errorf(verbs.ErrInvalid, op, "unknown %v", h)
		}
	}
	for _, g := range groups {
		if !g.valid() {
			return verbs.Errorf(verbs.ErrInvalid, op, "unknown %v", g)
		}
	}
	return nil
}
