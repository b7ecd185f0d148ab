// Package auth is DH-HMAC-CHAP, the in-band authentication of NVMe over Fabrics: keys, messages,
// the computation, and both sides of a transaction. The commands that carry the messages are those
// of packages target and host.
//
// The source is the NVM Express Base Specification 2.0 ("NVMe 2.0"), §8.13. All numbers in messages
// are in little-endian order, but those of Diffie-Hellman are in big-endian order. Secure channel
// concatenation is not offered.
//
// Time does not depend on secrets: exponents and responses are handled by functions of constant
// time (filippo.io/bigmod, crypto/hmac).
package auth
