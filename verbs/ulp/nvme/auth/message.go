package auth

import (
	"fmt"
	"slices"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// Kind is the type of a message in bits 15:8 and its identifier in bits 7:0 (NVMe 2.0 §8.13.5).
type Kind uint16

const (
	KindNegotiate Kind = 0x0000
	KindFailure2  Kind = 0x00f0 // of the host
	KindFailure1  Kind = 0x00f1 // of the controller
	KindChallenge Kind = 0x0101
	KindReply     Kind = 0x0102
	KindSuccess1  Kind = 0x0103
	KindSuccess2  Kind = 0x0104
)

var kinds = map[Kind]string{KindNegotiate: "AUTH_Negotiate", KindFailure1: "AUTH_Failure1", KindFailure2: "AUTH_Failure2",
	KindChallenge: "DH-HMAC-CHAP_Challenge", KindReply: "DH-HMAC-CHAP_Reply", KindSuccess1: "DH-HMAC-CHAP_Success1",
	KindSuccess2: "DH-HMAC-CHAP_Success2"}

// String returns the specification's name.
func (k Kind) String() string {
	if name := kinds[k]; name != "" {
		return name
	}
	return fmt.Sprintf("message type %#02x, id %#02x", uint16(k)>>8, uint8(k))
}

// MaxMessage is the largest length of a message, bytes. The longest that this package creates has
// 1168 bytes.
const MaxMessage = 4096

// Reason tells why an authentication has failed (NVMe 2.0 figure 447).
type Reason uint8

const (
	Failed           Reason = 1
	ProtocolUnusable Reason = 2
	ConcatMismatch   Reason = 3
	HashUnusable     Reason = 4
	GroupUnusable    Reason = 5
	IncorrectPayload Reason = 6
	IncorrectMessage Reason = 7 // message
)

var reasons = [...]string{Failed: "authentication failed", ProtocolUnusable: "authentication protocol not usable",
	ConcatMismatch: "secure channel concatenation mismatch", HashUnusable: "hash function not usable", GroupUnusable: "DH group not usable",
	IncorrectPayload: "incorrect payload", IncorrectMessage: "incorrect protocol message"}

// String returns the reason in words.
func (r Reason) String() string {
	if int(r) < len(reasons) && r > 0 {
		return reasons[r]
	}
	return fmt.Sprintf("reason %d", uint8(r))
}

// Error is the error of a failed authentication.
type Error struct {
	Reason Reason
	Peer   bool // the peer has failed it
}

func (e *Error) Error() string {
	if e.Peer {
		return "authentication: the peer reports: " + e.Reason.String()
	}
	return "authentication: " + e.Reason.String()
}

func fail(r Reason) error { return &Error{Reason: r} }

const (
	headerLen     = 6
	negotiateLen  = 8
	descriptorLen = 64
	messageLen    = 16 // of Challenge, Reply, Success1 and Success2 without values
	failureLen    = 8
	dhchapID      = 1 // of the protocol DH-HMAC-CHAP
	idsAt         = 4 // in a descriptor; the groups are idsPerList bytes behind
	idsPerList    = 30
	reasonFailed  = 1 // the only reason code, which Reason explains
)

// Header is the start of each message.
//
//	byte  0      1     2..3        4..5
//	    type |  id  | reserved | transaction
type Header struct {
	Kind        Kind
	Transaction uint16
}

// ParseHeader parses the start of a message.
func ParseHeader(b []byte) (h Header, err error) {
	if len(b) < headerLen {
		return h, short("message", len(b), headerLen)
	}
	return Header{Kind(b[0])<<8 | Kind(b[1]), le.Uint16(b[4:])}, nil
}

func short(what string, n, least int) error {
	return verbs.Errorf(syscall.EPROTO, "parse "+what, "%d bytes: must be %d at least", n, least)
}

// message returns a message of n bytes with a header, as the end of b.
func message(b []byte, h Header, n int) (all, m []byte) {
	at := len(b)
	b = append(b, make([]byte, n)...)
	m = b[at:]
	m[0], m[1] = byte(h.Kind>>8), byte(h.Kind)
	le.PutUint16(m[4:], h.Transaction)
	return b, m
}

// Negotiate is the first message, of the host: what it supports (NVMe 2.0 §8.13.4.1).
type Negotiate struct {
	Transaction uint16
	Concat      uint8 // secure channel concatenation; 0: none
	Supported   bool  // the host supports DH-HMAC-CHAP
	Hashes      []Hash
	Groups      []Group
}

// Append appends the message, with one protocol descriptor. Each list has 30 IDs at most.
func (n *Negotiate) Append(b []byte) []byte {
	b, m := message(b, Header{KindNegotiate, n.Transaction}, negotiateLen+descriptorLen)
	m[6], m[7] = n.Concat, 1
	d := m[negotiateLen:]
	d[0] = dhchapID
	d[2], d[3] = byte(min(len(n.Hashes), idsPerList)), byte(min(len(n.Groups), idsPerList))
	for i := range d[2] {
		d[idsAt+int(i)] = byte(n.Hashes[i])
	}
	for i := range d[3] {
		d[idsAt+idsPerList+int(i)] = byte(n.Groups[i])
	}
	return b
}

// ParseNegotiate parses the message. Of several descriptors it takes the first of DH-HMAC-CHAP.
func ParseNegotiate(b []byte) (n Negotiate, err error) {
	const what = "AUTH_Negotiate"
	if len(b) < negotiateLen {
		return n, short(what, len(b), negotiateLen)
	}
	n.Transaction, n.Concat = le.Uint16(b[4:]), b[6]
	count := int(b[7])
	if least := negotiateLen + count*descriptorLen; len(b) < least {
		return n, short(what, len(b), least)
	}
	for i := range count {
		d := b[negotiateLen+i*descriptorLen:][:descriptorLen]
		if d[0] != dhchapID {
			continue
		}
		hashes, groups := int(d[2]), int(d[3])
		if hashes > idsPerList || groups > idsPerList {
			return n, verbs.Errorf(syscall.EPROTO, "parse "+what, "%d hashes and %d DH groups: must be %d of each at most", hashes, groups,
				idsPerList)
		}
		n.Supported = true
		for _, id := range d[idsAt : idsAt+hashes] {
			n.Hashes = append(n.Hashes, Hash(id))
		}
		for _, id := range d[idsAt+idsPerList : idsAt+idsPerList+groups] {
			n.Groups = append(n.Groups, Group(id))
		}
		break
	}
	return n, nil
}

// Challenge is the controller's answer to Negotiate (NVMe 2.0 §8.13.5.3).
type Challenge struct {
	Transaction uint16
	Hash        Hash
	Group       Group
	Sequence    uint32
	Value       []byte // C1, as long as a hash
	DH          []byte // of the controller; empty if Group is NoDH
}

// Append appends the message.
func (c *Challenge) Append(b []byte) []byte {
	b, m := message(b, Header{KindChallenge, c.Transaction}, messageLen)
	m[6], m[8], m[9] = byte(len(c.Value)), byte(c.Hash), byte(c.Group)
	le.PutUint16(m[10:], uint16(len(c.DH)))
	le.PutUint32(m[12:], c.Sequence)
	return append(append(b, c.Value...), c.DH...)
}

// ParseChallenge parses the message. Zeros may follow it. The values are parts of b.
func ParseChallenge(b []byte) (c Challenge, err error) {
	const what = "DH-HMAC-CHAP_Challenge"
	if len(b) < messageLen {
		return c, short(what, len(b), messageLen)
	}
	c = Challenge{Transaction: le.Uint16(b[4:]), Hash: Hash(b[8]), Group: Group(b[9]), Sequence: le.Uint32(b[12:])}
	values, err := split(what, b[messageLen:], int(b[6]), int(le.Uint16(b[10:])))
	if err != nil {
		return c, err
	}
	c.Value, c.DH = values[0], values[1]
	return c, nil
}

// split returns values of the lengths, which follow each other.
func split(what string, b []byte, lens ...int) (values [][]byte, err error) {
	for _, n := range lens {
		if len(b) < n {
			return nil, short(what+"'s value", len(b), n)
		}
		values = append(values, b[:n:n])
		b = b[n:]
	}
	return values, nil
}

// Reply is the host's answer to Challenge (NVMe 2.0 §8.13.5.4).
type Reply struct {
	Transaction uint16
	Response    []byte // R1
	Challenged  bool   // Challenge is valid
	Sequence    uint32 // 0: the controller does not have to authenticate itself
	Challenge   []byte // C2, as long as Response
	DH          []byte // of the host
}

// Append appends the message.
func (r *Reply) Append(b []byte) []byte {
	b, m := message(b, Header{KindReply, r.Transaction}, messageLen)
	m[6] = byte(len(r.Response))
	if r.Challenged {
		m[8] = 1
	}
	le.PutUint16(m[10:], uint16(len(r.DH)))
	le.PutUint32(m[12:], r.Sequence)
	b = append(b, r.Response...)
	c2 := make([]byte, len(r.Response))
	copy(c2, r.Challenge)
	return append(append(b, c2...), r.DH...)
}

// ParseReply parses the message. The values are parts of b.
func ParseReply(b []byte) (r Reply, err error) {
	const what = "DH-HMAC-CHAP_Reply"
	if len(b) < messageLen {
		return r, short(what, len(b), messageLen)
	}
	r = Reply{Transaction: le.Uint16(b[4:]), Challenged: b[8]&1 != 0, Sequence: le.Uint32(b[12:])}
	n := int(b[6])
	values, err := split(what, b[messageLen:], n, n, int(le.Uint16(b[10:])))
	if err != nil {
		return r, err
	}
	r.Response, r.Challenge, r.DH = values[0], values[1], values[2]
	return r, nil
}

// Success1 tells the host that it is authenticated (NVMe 2.0 §8.13.5.5).
type Success1 struct {
	Transaction uint16
	Hash        Hash   // whose length the message has; not parsed
	Response    []byte // R2 to the host's challenge, or empty
}

// Append appends the message.
func (s *Success1) Append(b []byte) []byte {
	b, m := message(b, Header{KindSuccess1, s.Transaction}, messageLen)
	m[6] = byte(s.Hash.Size())
	if len(s.Response) > 0 {
		m[8] = 1
	}
	return append(b, s.Response...)
}

// ParseSuccess1 parses the message. Zeros may follow it. The response is a part of b.
func ParseSuccess1(b []byte) (s Success1, err error) {
	const what = "DH-HMAC-CHAP_Success1"
	if len(b) < messageLen {
		return s, short(what, len(b), messageLen)
	}
	s.Transaction = le.Uint16(b[4:])
	if b[8]&1 != 0 {
		values, err := split(what, b[messageLen:], int(b[6]))
		if err != nil {
			return s, err
		}
		s.Response = values[0]
	}
	return s, nil
}

// appendSuccess2 appends the message with which the host tells the controller that this is
// authenticated.
func appendSuccess2(b []byte, transaction uint16) []byte {
	b, _ = message(b, Header{KindSuccess2, transaction}, messageLen)
	return b
}

// AppendFailure appends AUTH_Failure1 or AUTH_Failure2 (NVMe 2.0 §8.13.4.2).
func AppendFailure(b []byte, kind Kind, transaction uint16, r Reason) []byte {
	b, m := message(b, Header{kind, transaction}, failureLen)
	m[6], m[7] = reasonFailed, byte(r)
	return b
}

// ParseFailure parses AUTH_Failure1 or AUTH_Failure2.
func ParseFailure(b []byte) (Reason, error) {
	if len(b) < failureLen {
		return 0, short("AUTH_Failure", len(b), failureLen)
	}
	return Reason(b[7]), nil
}

// choose returns the first of the own preferences that the peer supports.
func choose[T comparable](own, peer []T) (first T, ok bool) {
	for _, v := range own {
		if slices.Contains(peer, v) {
			return v, true
		}
	}
	return first, false
}
