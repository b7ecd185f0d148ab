package auth

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"math/big"
	"reflect"
	"strings"
	"testing"
)

const (
	hostNQN = "nqn.2014-08.org.example:host"
	subNQN  = "nqn.2014-08.org.example:disk"
)

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newKey(t testing.TB, n int, h Hash) *Key {
	k, err := NewKey(n, h)
	ok(t, err)
	return k
}

// counting returns the bytes 0, 1, ….
func counting(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i)
	}
	return b
}

// TestKeyOfNVMeCLI: the texts are those of `nvme gen-dhchap-key --hmac 0…3 --secret 000102… --nqn
// hostNQN` of nvme-cli 2.3. For a hash function it prints the transformed secret.
func TestKeyOfNVMeCLI(t *testing.T) {
	const plain = "DHHC-1:00:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh+KfiaR:"
	k, err := ParseKey(plain)
	ok(t, err)
	if !bytes.Equal(k.secret, counting(32)) || k.transform != 0 || k.Secret() != plain {
		t.Errorf("secret %x, transformation %v", k.secret, k.transform)
	}
	if !bytes.Equal(k.transformed(hostNQN), k.secret) {
		t.Error("a key without a transformation is transformed")
	}
	for hash, text := range map[Hash]string{
		SHA256: "DHHC-1:01:eGOjOSJAEO/H5bDhWMzHdMAz5kyhHZlbqU1HWBl05iWbjbyw:",
		SHA384: "DHHC-1:02:OSFRps5xBlJdGYl/2Q2ky5ZJh7qP0Jm4ohTgY1XEoBTafULsd2tno2kh2U1D6F9MVJpgFw==:",
		SHA512: "DHHC-1:03:8F8lKumik69AkegfLCoXtKLOoohOebSUeYCrZ8OPiUBcjUK/ucQbSbOuYIao01rK4fDtbsyIE0OrKDbtGAOh2FOVcOM=:",
	} {
		own := Key{counting(hash.Size()), hash}
		transformed, err := ParseKey(text)
		ok(t, err)
		if got := own.transformed(hostNQN); !bytes.Equal(got, transformed.secret) {
			t.Errorf("%v: transformed to %x, want %x", hash, got, transformed.secret)
		}
	}
}

func TestParseKey(t *testing.T) {
	good := newKey(t, 48, SHA512).Secret()
	_, err := ParseKey(good)
	ok(t, err)
	secret := good[len("DHHC-1:03:") : len(good)-1]
	b, err := base64.StdEncoding.DecodeString(secret)
	ok(t, err)
	b[20] ^= 1
	damaged := base64.StdEncoding.EncodeToString(b)
	for _, text := range []string{"", "DHHC-1:", "DHHC-1:03:", "DHHC-1:04:" + secret + ":", "DHHC-1:3:" + secret + ":",
		"DHHC-2:03:" + secret + ":",
		"DHHC-1:03:" + secret, "DHHC-1:03:" + secret[4:] + ":", "DHHC-1:03:" + damaged + ":", "DHHC-1:03:" + secret[:8] + "\n" + secret[8:] + ":",
		"DHHC-1:03:" + secret + "::"} {
		_, err := ParseKey(text)
		switch {
		case err == nil:
			t.Errorf("%q is a key", text)
		case len(text) > 20 && strings.Contains(err.Error(), text[10:20]):
			t.Errorf("the error tells the secret: %v", err)
		}
	}
	for _, n := range []int{0, 16, 33, 128} {
		if _, err := NewKey(n, 0); err == nil {
			t.Errorf("a key of %d bytes", n)
		}
	}
}

// TestKeyIsNotPrinted: no verb of fmt prints a secret.
func TestKeyIsNotPrinted(t *testing.T) {
	k := newKey(t, 32, 0)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%x", "%d", "%q"} {
		if got := fmt.Sprintf(verb, k); got != "(DH-HMAC-CHAP key)" {
			t.Errorf("%s prints %q", verb, got)
		}
		if got := fmt.Sprintf(verb, &ControllerConfig{Identity: Identity{Host: k}}); strings.Contains(got, fmt.Sprintf("%x", k.secret[:4])) {
			t.Errorf("%s prints %q", verb, got)
		}
	}
}

// TestPrimes: the primes are those of the formula of RFC 7919, appendix A,
//
//	p = 2^b - 2^(b-64) + (⌊2^(b-130) e⌋ + X) 2^64 - 1
//
// with the RFC's X, and p and (p-1)/2 are prime.
func TestPrimes(t *testing.T) {
	one := big.NewInt(1)
	const precision = 8192 // bits of e
	e, term := new(big.Int), new(big.Int).Lsh(one, precision+64)
	for n := int64(1); term.Sign() > 0; n++ {
		e.Add(e, term)
		term.Div(term, big.NewInt(n))
	}
	for g, x := range map[Group]int64{FFDHE2048: 560316, FFDHE3072: 2625351, FFDHE4096: 5736041, FFDHE6144: 15705020, FFDHE8192: 10965728} {
		b := uint(8 * g.size())
		want := new(big.Int).Lsh(one, b)
		want.Sub(want, new(big.Int).Lsh(one, b-64))
		digits := new(big.Int).Rsh(e, precision+64-(b-130))
		digits.Add(digits, big.NewInt(x))
		want.Add(want, digits.Lsh(digits, 64)).Sub(want, one)
		p, _ := new(big.Int).SetString(primes[g], 16)
		if p.Cmp(want) != 0 {
			t.Errorf("%v: %x, want %x", g, p, want)
		}
		if b <= 3072 && (!p.ProbablyPrime(1) || !new(big.Int).Rsh(p, 1).ProbablyPrime(1)) {
			t.Errorf("%v is no safe prime", g)
		}
		y, secret := new(big.Int).Exp(big.NewInt(2), big.NewInt(1<<40+7), p), g.private()
		shared, valid := g.shared(y.FillBytes(make([]byte, g.size())), secret)
		if want := new(big.Int).Exp(y, new(big.Int).SetBytes(secret), p).FillBytes(make([]byte, g.size())); !valid || !bytes.Equal(shared, want) {
			t.Errorf("%v: shared secret %x, want %x", g, shared, want)
		}
		for _, bad := range []*big.Int{new(big.Int), one, new(big.Int).Sub(p, one), p, new(big.Int).Add(p, big.NewInt(2))} {
			if _, valid := g.shared(bad.FillBytes(make([]byte, g.size())), secret); valid {
				t.Errorf("%v: the public value %x is accepted", g, bad)
			}
		}
	}
}

// pair is both sides of a transaction.
type pair struct {
	c    *Controller
	host HostConfig
	// tamper changes messages on their way.
	toController, toHost func(h Header, b []byte) []byte
}

func newPair(t testing.TB, mutual bool) *pair {
	id := Identity{HostNQN: hostNQN, SubsystemNQN: subNQN, Host: newKey(t, 32, SHA256)}
	if mutual {
		id.Controller = newKey(t, 64, SHA512)
	}
	same := func(_ Header, b []byte) []byte { return b }
	return &pair{c: NewController(&ControllerConfig{Identity: id, Hashes: Hashes(), Groups: Groups()}),
		host:         HostConfig{Identity: id, Groups: []Group{FFDHE2048, NoDH}},
		toController: same, toHost: same}
}

func (p *pair) run() error {
	return Authenticate(&p.host,
		func(b []byte) error {
			h, _ := ParseHeader(b)
			p.c.Send(p.toController(h, bytes.Clone(b)))
			return nil
		},
		func() ([]byte, error) {
			b, err := p.c.Receive(MaxMessage)
			if err != nil {
				return nil, err
			}
			h, _ := ParseHeader(b)
			room := make([]byte, MaxMessage) // as a host's buffer
			copy(room, p.toHost(h, b))
			return room, nil
		})
}

// TestTransaction: host and controller authenticate each other with all hashes and groups, and
// again.
func TestTransaction(t *testing.T) {
	for _, group := range Groups() {
		for _, hash := range Hashes() {
			for _, mutual := range []bool{false, true} {
				if group > FFDHE2048 && (hash != SHA384 || !mutual) {
					continue // it takes long
				}
				p := newPair(t, mutual)
				p.host.Hashes, p.host.Groups = []Hash{hash}, []Group{group}
				for range maxTries + 1 {
					ok(t, p.run())
					if p.c.State() != Success || p.c.Hash() != hash || p.c.Group() != group {
						t.Fatalf("%v, %v: state %d with %v, %v", hash, group, p.c.State(), p.c.Hash(), p.c.Group())
					}
					if group > FFDHE2048 {
						break
					}
				}
				if p.c.x != nil || p.c.ex.shared != nil {
					t.Error("the exponent is kept")
				}
			}
		}
	}
}

// TestPreference: the controller's preference counts.
func TestPreference(t *testing.T) {
	p := newPair(t, false)
	p.c.cfg.Hashes, p.c.cfg.Groups = []Hash{SHA384, SHA256}, []Group{NoDH, FFDHE2048}
	ok(t, p.run())
	if p.c.Hash() != SHA384 || p.c.Group() != NoDH {
		t.Errorf("%v, %v", p.c.Hash(), p.c.Group())
	}
}

// TestRefused: a transaction fails with the reason that the specification names.
func TestRefused(t *testing.T) {
	set := func(kind Kind, at int, v byte) func(Header, []byte) []byte {
		return func(h Header, b []byte) []byte {
			if h.Kind == kind {
				b[at] = v
			}
			return b
		}
	}
	flip := func(kind Kind, at int) func(Header, []byte) []byte {
		return func(h Header, b []byte) []byte {
			if h.Kind == kind {
				b[at] ^= 1
			}
			return b
		}
	}
	cut := func(kind Kind, n int) func(Header, []byte) []byte {
		return func(h Header, b []byte) []byte {
			if h.Kind == kind {
				b = b[:min(n, len(b))]
			}
			return b
		}
	}
	for name, c := range map[string]struct {
		change func(p *pair)
		want   Reason
	}{
		"another host key":        {func(p *pair) { p.host.Host = newKey(t, 32, 0) }, Failed},
		"another NQN":             {func(p *pair) { p.host.HostNQN += "2" }, Failed},
		"another subsystem":       {func(p *pair) { p.host.SubsystemNQN += "2" }, Failed},
		"another controller key":  {func(p *pair) { p.host.Controller = newKey(t, 32, 0) }, Failed},
		"no controller key":       {func(p *pair) { p.c.cfg.Controller = nil }, Failed},
		"no common hash":          {func(p *pair) { p.host.Hashes, p.c.cfg.Hashes = []Hash{SHA256}, []Hash{SHA384} }, HashUnusable},
		"no common group":         {func(p *pair) { p.host.Groups, p.c.cfg.Groups = []Group{NoDH}, []Group{FFDHE2048} }, GroupUnusable},
		"a hash that is no hash":  {func(p *pair) { p.host.Hashes = []Hash{9} }, HashUnusable},
		"secure concatenation":    {func(p *pair) { p.toController = set(KindNegotiate, 6, 1) }, ConcatMismatch},
		"another protocol":        {func(p *pair) { p.toController = set(KindNegotiate, 8, 2) }, ProtocolUnusable},
		"no protocol":             {func(p *pair) { p.toController = set(KindNegotiate, 7, 0) }, ProtocolUnusable},
		"too many hashes":         {func(p *pair) { p.toController = set(KindNegotiate, 10, 31) }, IncorrectPayload},
		"too few descriptors":     {func(p *pair) { p.toController = set(KindNegotiate, 7, 2) }, IncorrectPayload},
		"a short negotiate":       {func(p *pair) { p.toController = cut(KindNegotiate, 7) }, IncorrectPayload},
		"no header":               {func(p *pair) { p.toController = cut(KindReply, 5) }, IncorrectPayload},
		"a short reply":           {func(p *pair) { p.toController = cut(KindReply, 100) }, IncorrectPayload},
		"another message":         {func(p *pair) { p.toController = set(KindReply, 1, 4) }, IncorrectMessage},
		"another transaction":     {func(p *pair) { p.toController = set(KindReply, 5, 0xee) }, IncorrectPayload},
		"a hash length":           {func(p *pair) { p.toController = set(KindReply, 6, 32) }, IncorrectPayload},
		"a damaged response":      {func(p *pair) { p.toController = flip(KindReply, 16) }, Failed},
		"a length of the DH":      {func(p *pair) { p.toController = set(KindReply, 11, 0) }, IncorrectPayload},
		"unknown hash":            {func(p *pair) { p.toHost = set(KindChallenge, 8, 9) }, HashUnusable},
		"unknown group":           {func(p *pair) { p.toHost = set(KindChallenge, 9, 77) }, GroupUnusable},
		"no DH value":             {func(p *pair) { p.toHost = set(KindChallenge, 11, 0) }, IncorrectPayload},
		"a short challenge":       {func(p *pair) { p.toHost = cut(KindChallenge, 12) }, IncorrectPayload},
		"another message to host": {func(p *pair) { p.toHost = set(KindSuccess1, 1, 9) }, IncorrectMessage},
		"a success without R2":    {func(p *pair) { p.toHost = set(KindSuccess1, 8, 0) }, Failed},
		"a damaged R2":            {func(p *pair) { p.toHost = flip(KindSuccess1, 16) }, Failed},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPair(t, true)
			c.change(p)
			var e *Error
			if err := p.run(); !errors.As(err, &e) || e.Reason != c.want {
				t.Errorf("the host: %v, want %v", err, c.want)
			}
			if p.c.State() != Failure {
				t.Errorf("the controller's state is %d", p.c.State())
			}
			if err := p.c.Err(); !errors.As(err, &e) || e.Reason != c.want {
				t.Errorf("the controller: %v, want %v", err, c.want)
			}
			p.c.Send((&Negotiate{Supported: true, Hashes: Hashes(), Groups: Groups()}).Append(nil))
			if p.c.State() != Failure {
				t.Error("the controller goes on")
			}
		})
	}
}

// TestReflected: a host that sends the controller's own challenge back gets no response to it.
func TestReflected(t *testing.T) {
	p := newPair(t, true)
	var c1 []byte
	p.toHost = func(h Header, b []byte) []byte {
		if h.Kind == KindChallenge {
			c, err := ParseChallenge(b)
			ok(t, err)
			c1 = bytes.Clone(c.Value)
		}
		return b
	}
	p.toController = func(h Header, b []byte) []byte {
		if h.Kind == KindReply {
			r, err := ParseReply(b)
			ok(t, err)
			copy(r.Challenge, c1)
		}
		return b
	}
	var e *Error
	if err := p.run(); !errors.As(err, &e) || !e.Peer || e.Reason != Failed {
		t.Error(err)
	}
}

// TestTries: a host that begins again and again is refused.
func TestTries(t *testing.T) {
	p := newPair(t, false)
	n := Negotiate{Supported: true, Hashes: Hashes(), Groups: []Group{NoDH}}
	for range maxTries {
		p.c.Send(n.Append(nil))
		if _, err := p.c.Receive(MaxMessage); err != nil || p.c.State() != Running {
			t.Fatalf("state %d, %v", p.c.State(), err)
		}
	}
	p.c.Send(n.Append(nil))
	if p.c.State() != Failure {
		t.Errorf("state %d", p.c.State())
	}
}

// TestRoom: a buffer that is too short is an error, and the message remains.
func TestRoom(t *testing.T) {
	p := newPair(t, false)
	p.c.Send((&Negotiate{Supported: true, Hashes: Hashes(), Groups: Groups()}).Append(nil))
	for _, room := range []int{0, 16, 463} {
		if _, err := p.c.Receive(room); err == nil {
			t.Errorf("%d bytes are enough", room)
		}
	}
	if b, err := p.c.Receive(464); err != nil || len(b) != 464 {
		t.Errorf("%d bytes, %v", len(b), err)
	}
	if _, err := p.c.Receive(MaxMessage); err != nil || p.c.State() != Failure {
		t.Errorf("received out of turn: state %d, %v", p.c.State(), err)
	}
}

func TestMessages(t *testing.T) {
	n := Negotiate{7, 0, true, Hashes(), Groups()}
	if got, err := ParseNegotiate(n.Append(nil)); err != nil || !reflect.DeepEqual(got, n) {
		t.Errorf("%+v, %v", got, err)
	}
	c := Challenge{7, SHA256, FFDHE2048, 9, counting(32), counting(256)}
	if got, err := ParseChallenge(c.Append(nil)); err != nil || !reflect.DeepEqual(got, c) {
		t.Errorf("%+v, %v", got, err)
	}
	r := Reply{7, counting(48), true, 9, counting(48), counting(384)}
	if got, err := ParseReply(r.Append(nil)); err != nil || !reflect.DeepEqual(got, r) {
		t.Errorf("%+v, %v", got, err)
	}
	s := Success1{Transaction: 7, Hash: SHA512, Response: counting(64)}
	if got, err := ParseSuccess1(s.Append(nil)); err != nil || !bytes.Equal(got.Response, s.Response) || got.Transaction != 7 {
		t.Errorf("%+v, %v", got, err)
	}
}

// FuzzController: a host sends arbitrary messages. The controller ends in no other state than
// Failure or Running, as the fuzzer does not know the key, and its messages are as long as they may
// be.
func FuzzController(f *testing.F) {
	key := newKey(f, 32, 0)
	n := Negotiate{1, 0, true, Hashes(), []Group{NoDH}}
	r := Reply{1, counting(64), true, 9, counting(64), nil}
	f.Add(n.Append(nil), r.Append(nil), appendSuccess2(nil, 1))
	n.Groups = []Group{FFDHE2048}
	r.DH = counting(256)
	f.Add(n.Append(nil), r.Append(nil), AppendFailure(nil, KindFailure2, 1, Failed))
	f.Fuzz(func(t *testing.T, first, second, third []byte) {
		c := NewController(&ControllerConfig{Identity: Identity{hostNQN, subNQN, key, key}, Hashes: Hashes(), Groups: []Group{NoDH, FFDHE2048}})
		for _, b := range [][]byte{first, second, third} {
			c.Send(b)
			if b, err := c.Receive(MaxMessage); err != nil || len(b) > MaxMessage {
				t.Errorf("%d bytes, %v", len(b), err)
			}
			if c.State() != Failure && c.State() != Running {
				t.Errorf("state %d", c.State())
			}
		}
	})
}

// FuzzHost: a controller sends arbitrary messages. The host does not take it for authenticated.
func FuzzHost(f *testing.F) {
	key := newKey(f, 32, 0)
	c := Challenge{1, SHA256, NoDH, 9, counting(32), nil}
	s := Success1{1, SHA256, counting(32)}
	f.Add(c.Append(nil), s.Append(nil))
	c.Group, c.DH = FFDHE2048, counting(256)
	f.Add(c.Append(nil), s.Append(nil))
	f.Fuzz(func(t *testing.T, first, second []byte) {
		cfg := &HostConfig{Identity: Identity{hostNQN, subNQN, key, key}, Groups: []Group{NoDH, FFDHE2048}}
		messages := [][]byte{first, second}
		var transaction uint16
		err := Authenticate(cfg, func(b []byte) error {
			h, err := ParseHeader(b)
			transaction = h.Transaction
			return err
		}, func() ([]byte, error) {
			b := bytes.Clone(messages[0])
			messages = messages[1:]
			if len(b) >= headerLen {
				le.PutUint16(b[4:], transaction)
			}
			return b, nil
		})
		if err == nil {
			t.Error("the controller is authenticated")
		}
	})
}

func FuzzParseKey(f *testing.F) {
	for _, n := range []int{32, 48, 64} {
		f.Add(newKey(f, n, SHA256).Secret())
	}
	f.Fuzz(func(t *testing.T, text string) {
		k, err := ParseKey(text)
		if err == nil && k.Secret() != text {
			t.Errorf("%q is parsed as %q", text, k.Secret())
		}
	})
}

func BenchmarkExponent(b *testing.B) {
	for _, g := range Groups()[:5] {
		b.Run(g.String(), func(b *testing.B) {
			x := g.private()
			for b.Loop() {
				g.public(x)
			}
		})
	}
}
