package auth

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"hash"
	"hash/crc32"
	"strings"

	"github.com/softrnic/softrnic/verbs"
)

var le = binary.LittleEndian

// Hash is a hash function (NVMe 2.0 figure 441).
type Hash uint8

const (
	SHA256 Hash = 1
	SHA384 Hash = 2
	SHA512 Hash = 3
)

var hashes = [...]struct {
	name string
	size int
	new  func() hash.Hash
}{
	SHA256: {"SHA-256", sha256.Size, sha256.New}, SHA384: {"SHA-384", sha512.Size384, sha512.New384},
	SHA512: {"SHA-512", sha512.Size, sha512.New},
}

// Hashes are all hash functions, in the order in which a controller prefers them by default.
func Hashes() []Hash { return []Hash{SHA512, SHA384, SHA256} }

func (h Hash) valid() bool { return h >= SHA256 && h <= SHA512 }

// Size returns the length of a hash in bytes, or 0 for an unknown function.
func (h Hash) Size() int {
	if !h.valid() {
		return 0
	}
	return hashes[h].size
}

// String returns the name, such as SHA-256.
func (h Hash) String() string {
	if !h.valid() {
		return fmt.Sprintf("hash %d", uint8(h))
	}
	return hashes[h].name
}

// sum returns the hash of data.
func (h Hash) sum(data []byte) []byte {
	d := hashes[h].new()
	d.Write(data)
	return d.Sum(nil)
}

// hmac returns the HMAC of the parts, one after the other.
func (h Hash) hmac(key []byte, parts ...[]byte) []byte {
	m := hmac.New(hashes[h].new, key)
	for _, p := range parts {
		m.Write(p)
	}
	return m.Sum(nil)
}

// Key is the secret of a host or of a controller. It cannot be printed by mistake: Secret alone
// returns it.
type Key struct {
	secret    []byte
	transform Hash // with which the secret is combined with the owner's NQN; 0: none
}

const (
	keyPrefix = "DHHC-1:"
	crcLen    = 4
)

// ParseKey parses the text of a key, as `nvme gen-dhchap-key` prints it (NVMe 2.0 §8.13.5.8):
//
//	DHHC-1:HH:base64(secret, CRC-32):
//
// HH is the hash function of the transformation, 00 to 03. The secret has 32, 48 or 64 bytes. No
// error contains a part of the text.
func ParseKey(text string) (*Key, error) {
	fail := func(what string) (*Key, error) {
		return nil, verbs.Errorf(verbs.ErrInvalid, "parse DH-HMAC-CHAP key", "%s: must be DHHC-1:00:…:, as nvme gen-dhchap-key prints it", what)
	}
	rest, ok := strings.CutPrefix(text, keyPrefix)
	if !ok {
		return fail("it does not begin with " + keyPrefix)
	}
	if len(rest) < 3 || rest[0] != '0' || rest[1] < '0' || rest[1] > '3' || rest[2] != ':' {
		return fail("its hash function is not 00, 01, 02 or 03")
	}
	transform := Hash(rest[1] - '0')
	encoded, ok := strings.CutSuffix(rest[3:], ":")
	if !ok {
		return fail("it does not end with a colon")
	}
	b, err := base64.StdEncoding.Strict().DecodeString(encoded)
	if err != nil || strings.ContainsAny(encoded, "\r\n") {
		return fail("its secret is not in base64")
	}
	n := len(b) - crcLen
	if !validLen(n) {
		return fail(fmt.Sprintf("its secret has %d bytes and not 32, 48 or 64", n))
	}
	if le.Uint32(b[n:]) != crc32.ChecksumIEEE(b[:n]) {
		return fail("its CRC is wrong")
	}
	return &Key{b[:n:n], transform}, nil
}

func validLen(n int) bool { return n == 32 || n == 48 || n == 64 }

// NewKey creates a random key of 32, 48 or 64 bytes. transform is the hash function of the
// transformation, or 0 for none.
func NewKey(n int, transform Hash) (*Key, error) {
	if !validLen(n) || transform > SHA512 {
		return nil, verbs.Errorf(verbs.ErrInvalid, "create DH-HMAC-CHAP key", "%d bytes, %v: must be 32, 48 or 64 bytes, and a hash function", n,
			transform)
	}
	k := &Key{make([]byte, n), transform}
	rand.Read(k.secret) // never fails
	return k, nil
}

// Secret returns the text of the key, as ParseKey parses it.
func (k *Key) Secret() string {
	b := le.AppendUint32(k.secret[:len(k.secret):len(k.secret)], crc32.ChecksumIEEE(k.secret))
	return fmt.Sprintf("%s%02d:%s:", keyPrefix, uint8(k.transform), base64.StdEncoding.EncodeToString(b))
}

// Format implements fmt.Formatter, and does not print the secret.
func (*Key) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte("(DH-HMAC-CHAP key)")) }

// transformed returns the secret, transformed for the NQN of its owner (NVMe 2.0 §8.13.5.7).
func (k *Key) transformed(nqn string) []byte {
	if k.transform == 0 {
		return k.secret
	}
	return k.transform.hmac(k.secret, []byte(nqn), []byte("NVMe-over-Fabrics"))
}
