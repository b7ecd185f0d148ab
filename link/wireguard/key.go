package wireguard

import (
	"crypto/ecdh"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
)

// KeyLen is the length of each key, in bytes.
const KeyLen = 32

// PublicKey is the public key of a node, a point on Curve25519. It is the node's identity.
type PublicKey [KeyLen]byte

// SecretKey is a private key or a pre-shared key. Printing and logging it shows no part of it;
// [SecretKey.Encode] returns its text.
type SecretKey [KeyLen]byte

// NewPrivateKey returns a new private key from the system's random source.
func NewPrivateKey() SecretKey {
	var k SecretKey
	_, _ = rand.Read(k[:]) // never fails
	k[0] &= 248            // as wg genkey, RFC 7748 §5
	k[31] = k[31]&127 | 64
	return k
}

// Public returns the public key of a private key.
func (k SecretKey) Public() PublicKey {
	private, err := ecdh.X25519().NewPrivateKey(k[:])
	if err != nil {
		return PublicKey{} // the length is right, and every value is a key
	}
	return PublicKey(private.PublicKey().Bytes())
}

// Encode returns the key in base64, as in wg(8)'s files.
func (k SecretKey) Encode() string { return base64.StdEncoding.EncodeToString(k[:]) }

const hidden = "(secret key)"

// String returns a text without the key.
func (SecretKey) String() string { return hidden }

// Format implements fmt.Formatter: no verb shows the key.
func (SecretKey) Format(s fmt.State, _ rune) { _, _ = s.Write([]byte(hidden)) }

// LogValue implements slog.LogValuer.
func (SecretKey) LogValue() slog.Value { return slog.StringValue(hidden) }

// MarshalText implements encoding.TextMarshaler. It always fails, so that no encoder writes the
// key.
func (SecretKey) MarshalText() ([]byte, error) {
	return nil, errors.New("a secret key is not for output")
}

// ParsePublicKey parses a key in base64. Its error does not contain the text, which may be a secret
// key by mistake.
func ParsePublicKey(text string) (k PublicKey, err error) {
	if !decode(text, (*[KeyLen]byte)(&k)) {
		return k, fmt.Errorf("not a public key, but %d characters: must be 32 bytes in base64, as softrnic key or wg pubkey prints it", len(text))
	}
	if k == (PublicKey{}) {
		return k, errors.New("a public key of zeros only is nobody's")
	}
	return k, nil
}

// ParseSecretKey parses a key in base64. Its error does not contain the text.
func ParseSecretKey(text string) (k SecretKey, err error) {
	if !decode(text, (*[KeyLen]byte)(&k)) {
		return k, errors.New("not a key: must be 32 bytes in base64, as wg genkey writes it")
	}
	return k, nil
}

func decode(text string, k *[KeyLen]byte) bool {
	b, err := base64.StdEncoding.Strict().DecodeString(text)
	return err == nil && copy(k[:], b) == KeyLen && len(b) == KeyLen
}

// String returns the key in base64.
func (k PublicKey) String() string { return base64.StdEncoding.EncodeToString(k[:]) }

// MarshalText implements encoding.TextMarshaler.
func (k PublicKey) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *PublicKey) UnmarshalText(text []byte) (err error) {
	*k, err = ParsePublicKey(string(text))
	return err
}

// Network is the network of the addresses that nodes have by their keys. It is a unique local one
// (RFC 4193). Its global ID is the same everywhere, since all addresses differ.
var Network = netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 's', 'o', 'f', 't', 'r'}), 48)

// Addr returns the address that the node with this key has without any configuration. Its last 80
// bits are a hash of the key.
func (k PublicKey) Addr() netip.Addr {
	a, sum := Network.Addr().As16(), k.hash("address")
	copy(a[6:], sum[:])
	return netip.AddrFrom16(a)
}

// MAC returns the Ethernet address of the node with this key, which is local to it. No packet
// carries it.
func (k PublicKey) MAC() net.HardwareAddr {
	sum := k.hash("MAC")
	sum[0] = sum[0]&^1 | 2
	return sum[:6]
}

// LinkLocal returns the IPv6 link-local address that package netstack makes from MAC (RFC 4291
// appendix A).
func (k PublicKey) LinkLocal() netip.Addr {
	m := k.MAC()
	return netip.AddrFrom16([16]byte{0: 0xfe, 1: 0x80, 8: m[0] ^ 2, 9: m[1], 10: m[2], 11: 0xff, 12: 0xfe, 13: m[3], 14: m[4], 15: m[5]})
}

func (k PublicKey) hash(use string) [sha256.Size]byte {
	return sha256.Sum256(append([]byte("softrnic "+use+" "), k[:]...))
}
