package target_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/auth"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

func newKey(t testing.TB) *auth.Key { return must(auth.NewKey(32, auth.SHA256))(t) }

// keyed returns the configuration of a target that knows a key of the host.
func keyed(t testing.TB) (*target.Config, *auth.HostConfig) {
	keys := target.HostKeys{Host: newKey(t), Controller: newKey(t)}
	return &target.Config{Keys: map[string]target.HostKeys{hostNQN: keys}}, &auth.HostConfig{
		Identity: auth.Identity{HostNQN: hostNQN, SubsystemNQN: subsystem, Host: keys.Host, Controller: keys.Controller},
		Groups:   []auth.Group{auth.FFDHE2048},
	}
}

// authSend executes Authentication Send, with the message in memory of q or in the capsule.
func (q *queue) authSend(message []byte, inline bool) nvme.Completion {
	c := nvme.AuthCommand(nvme.AuthenticationSend, uint32(len(message)))
	if inline {
		c.SGL = nvme.InCapsule(uint32(len(message)))
		return q.do(c, message)
	}
	c.SGL = q.keyed(0, copy(q.data.Buf(), message))
	return q.do(c, nil)
}

// authReceive executes Authentication Receive.
func (q *queue) authReceive() ([]byte, nvme.Completion) {
	return q.reads(nvme.AuthCommand(nvme.AuthenticationReceive, auth.MaxMessage), auth.MaxMessage)
}

func (q *queue) authenticate(cfg *auth.HostConfig) error {
	inline := false
	return auth.Authenticate(cfg, func(message []byte) error {
		inline = !inline
		return q.authSend(message, inline).Status.Err()
	}, func() ([]byte, error) {
		b, done := q.authReceive()
		return b, done.Status.Err()
	})
}

// connected returns a queue after Connect, and its controller ID. It requires authentication.
func (l *lab) locked(qid, cntlid uint16) (*queue, uint16) {
	l.t.Helper()
	q := must(l.dial(request(qid, testDepth).Append(nil)))(l.t)
	done := q.connect(qid, l.connectData(cntlid), 0)
	ok(l.t, done.Status.Err())
	if done.Result>>16 != nvme.ConnectAuthenticate>>16 {
		l.t.Fatalf("Connect's result is %#x", done.Result)
	}
	return q, uint16(done.Result)
}

// TestAuthentication: a host with a key authenticates itself on its Admin queue and an I/O queue,
// with each hash, and before that no other command is executed.
func TestAuthentication(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		cfg, host := keyed(t)
		l := newLab(t, transport, cfg)
		for _, group := range []auth.Group{auth.NoDH, auth.FFDHE2048, auth.FFDHE3072} {
			for _, hash := range auth.Hashes() {
				if group == auth.FFDHE3072 && hash != auth.SHA256 {
					continue
				}
				host.Hashes, host.Groups = []auth.Hash{hash}, []auth.Group{group}
				admin, id := l.locked(0, nvme.DynamicController)
				a := &association{lab: l, id: id, admin: admin}
				for _, c := range []nvme.Command{nvme.PropertyGetCommand(nvme.PropertyCAP), {Opcode: nvme.KeepAlive},
					nvme.PropertySetCommand(nvme.PropertyCC, nvme.CCEnable|nvme.CCEntrySizes), {Opcode: nvme.Identify, CDW10: 1}} {
					admin.want(c, nil, nvme.AuthRequired)
				}
				ok(t, admin.authenticate(host))
				a.enable()
				io, _ := l.locked(1, a.id)
				io.want(rw(nvme.Flush, 0, 1), nil, nvme.AuthRequired)
				ok(t, io.authenticate(host))
				io.want(rw(nvme.Flush, 0, 1), nil, nvme.Success)
				ok(t, admin.authenticate(host)) // again
				admin.want(nvme.Command{Opcode: nvme.KeepAlive}, nil, nvme.Success)
				io.close()
				admin.close()
			}
		}
		if s := l.target.Stats(); s.Unauthenticated != 0 {
			t.Errorf("%+v", s)
		}
	})
}

// TestNotAuthenticated: a host with another key is told so and disconnected, also if it was
// authenticated before.
func TestNotAuthenticated(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		cfg, host := keyed(t)
		l := newLab(t, transport, cfg)
		other := *host
		other.Host = newKey(t)
		var e *auth.Error
		for i, before := range []bool{false, true} {
			q, _ := l.locked(0, nvme.DynamicController)
			if before {
				ok(t, q.authenticate(host))
			}
			if err := q.authenticate(&other); !errors.As(err, &e) || !e.Peer || e.Reason != auth.Failed {
				t.Errorf("authenticated before: %v: %v", before, err)
			}
			q.ended()
			if n := l.target.Stats().Unauthenticated; n != uint64(i+1) {
				t.Errorf("%d queues are not authenticated", n)
			}
		}
		// A host that does not accept the target says so, and is disconnected.
		other = *host
		other.Controller = newKey(t)
		q, _ := l.locked(0, nvme.DynamicController)
		if err := q.authenticate(&other); !errors.As(err, &e) || e.Peer || e.Reason != auth.Failed {
			t.Error(err)
		}
		q.ended()
	})
}

// TestLocked: after a failure, before the host has received its reason, nothing is executed.
func TestLocked(t *testing.T) {
	cfg, host := keyed(t)
	l := newLab(t, verbs.RoCEv2, cfg)
	q, _ := l.locked(0, nvme.DynamicController)
	ok(t, q.authenticate(host))
	ok(t, q.authSend([]byte{0, 0, 0, 0, 1, 0, 0, 0}, true).Status.Err()) // offers nothing
	q.want(nvme.Command{Opcode: nvme.KeepAlive}, nil, nvme.AuthRequired)
	b, done := q.authReceive()
	ok(t, done.Status.Err())
	h, err := auth.ParseHeader(b)
	ok(t, err)
	if r, err := auth.ParseFailure(b); err != nil || h.Kind != auth.KindFailure1 || r != auth.ProtocolUnusable {
		t.Errorf("%v: %v, %v", h.Kind, r, err)
	}
	q.ended()
}

// TestAuthTimeout: a host that does not authenticate itself is disconnected.
func TestAuthTimeout(t *testing.T) {
	cfg, _ := keyed(t)
	cfg.AuthTimeout = 50 * time.Millisecond
	l := newLab(t, verbs.RoCEv2, cfg)
	q, _ := l.locked(0, nvme.DynamicController)
	q.ended()
}

// TestAuthCommands: authentication commands with wrong parameters fail, and those on a queue
// without authentication.
func TestAuthCommands(t *testing.T) {
	cfg, host := keyed(t)
	const free = "nqn.2014-08.org.example:free"
	cfg.Hosts = []string{free}
	l := newLab(t, verbs.RoCEv2, cfg)
	q, _ := l.locked(0, nvme.DynamicController)
	for _, kind := range []nvme.FabricsType{nvme.AuthenticationSend, nvme.AuthenticationReceive} {
		for _, length := range []uint32{0, auth.MaxMessage + 1} {
			c := nvme.AuthCommand(kind, length)
			c.SGL = q.keyed(0, int(length))
			q.want(c, nil, nvme.InvalidField)
		}
		c := nvme.AuthCommand(kind, 64)
		c.SGL, c.CDW10 = q.keyed(0, 64), c.CDW10^1<<24
		q.want(c, nil, nvme.InvalidField)
	}
	c := nvme.AuthCommand(nvme.AuthenticationSend, 64)
	c.SGL = q.keyed(0, 63)
	q.want(c, nil, nvme.SGLDataLengthInvalid)
	ok(t, q.authenticate(host)) // all this has not changed the state

	other := must(l.dial(request(0, testDepth).Append(nil)))(t)
	d := l.connectData(nvme.DynamicController)
	d.HostNQN = free
	done := other.connect(0, d, 0)
	if done.Status != nvme.Success || done.Result>>16 != 0 {
		t.Errorf("a host without a key: %v, result %#x", done.Status, done.Result)
	}
	c.SGL = other.keyed(0, 64)
	other.want(c, nil, nvme.InvalidOpcode)
	other.want(nvme.PropertyGetCommand(nvme.PropertyVS), nil, nvme.Success)

	none := must(l.dial(request(0, testDepth).Append(nil)))(t)
	d.HostNQN = "nqn.2014-08.org.example:other"
	if done := none.connect(0, d, 0); done.Status.Code() != nvme.ConnectHost {
		t.Errorf("a host that is not known: %v", done.Status)
	}
	discovery := must(l.dial(request(0, testDepth).Append(nil)))(t)
	d = l.connectData(nvme.DynamicController)
	d.SubsystemNQN = nvme.DiscoveryNQN
	if done := discovery.connect(0, d, 0); done.Status != nvme.Success || done.Result>>16 != 0 {
		t.Errorf("discovery: %v, result %#x", done.Status, done.Result)
	}
}

func TestAuthConfig(t *testing.T) {
	key := newKey(t)
	for want, cfg := range map[string]*target.Config{
		"no Host":       {Keys: map[string]target.HostKeys{hostNQN: {Controller: key}}},
		"nqn.":          {Keys: map[string]target.HostKeys{"host": {Host: key}}},
		"hash 9":        {Hashes: []auth.Hash{9}},
		"DH group 9":    {Groups: []auth.Group{9}},
		"0 hash":        {Hashes: []auth.Hash{}},
		"AuthTimeout -": {AuthTimeout: -1},
	} {
		cfg.NQN, cfg.Namespaces = subsystem, []target.Namespace{{Backend: target.NewMemory(1 << 20)}}
		if _, err := target.Listen(nil, ":0", cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if s := fmt.Sprintf("%+v", target.HostKeys{Host: key}); strings.Contains(s, "[") {
		t.Errorf("the configuration prints as %s", s)
	}
}

// FuzzAuthentication: a host without the key sends arbitrary messages by Authentication Send, and
// receives. Other commands are never executed, and the queue answers or ends.
func FuzzAuthentication(f *testing.F) {
	negotiate := (&auth.Negotiate{Transaction: 1, Supported: true, Hashes: auth.Hashes(), Groups: []auth.Group{auth.NoDH}}).Append(nil)
	reply := (&auth.Reply{Transaction: 1, Response: make([]byte, 64), Challenged: true, Sequence: 1}).Append(nil)
	f.Add(negotiate, reply, true)
	f.Add(reply, negotiate, false)
	f.Add(negotiate[:8], auth.AppendFailure(nil, auth.KindFailure2, 1, auth.Failed), false)
	cfg, _ := keyed(f)
	cfg.Groups = []auth.Group{auth.NoDH, auth.FFDHE2048}
	shared := newLab(f, verbs.RoCEv2, cfg)
	f.Fuzz(func(t *testing.T, first, second []byte, inline bool) {
		l := *shared
		l.t = t
		q, _ := l.locked(0, nvme.DynamicController)
		defer q.close()
		answered := func(done nvme.Completion, err error) bool {
			if err != nil && q.conn.QP().State() != verbs.StateErr {
				t.Fatal(err)
			}
			return err == nil
		}
		for _, message := range [][]byte{first, second} {
			message = message[:min(len(message), 8192)]
			c := nvme.AuthCommand(nvme.AuthenticationSend, uint32(len(message)))
			var data []byte
			if c.SGL = q.keyed(0, copy(q.data.Buf(), message)); inline {
				c.SGL, data = nvme.InCapsule(uint32(len(message))), message
			}
			receive := nvme.AuthCommand(nvme.AuthenticationReceive, auth.MaxMessage)
			receive.SGL = q.keyed(8192, auth.MaxMessage)
			for _, capsule := range [][]byte{append(c.Append(nil), data...), receive.Append(nil)} {
				if q.sendRaw(capsule) != nil || !answered(q.response()) {
					return
				}
			}
			keepAlive := nvme.Command{Opcode: nvme.KeepAlive}
			if q.sendRaw(keepAlive.Append(nil)) != nil {
				return
			}
			done, err := q.response()
			if !answered(done, err) {
				return
			}
			if done.Status.Code() != nvme.AuthRequired {
				t.Fatalf("Keep Alive: %v", done.Status)
			}
		}
	})
}

// Hosts of unknown identity, with the discovery service, before Connect and before authentication,
// do not keep the connections from a host with a key, and do not end its connections.
func TestStrangers(t *testing.T) {
	cfg, host := keyed(t)
	cfg.Connections, cfg.ConnectTimeout = 8, time.Hour
	l := newLab(t, verbs.RoCEv2, cfg)
	var strangers []*queue
	ended := func() (n int) {
		for _, q := range strangers {
			select {
			case <-q.conn.Done():
				n++
			default:
			}
		}
		return n
	}
	dial := func() *queue {
		q, err := l.dial(request(0, testDepth).Append(nil))
		for rejected(err) == nvme.RejectNoResources { // those that make room have not ended yet
			q, err = l.dial(request(0, testDepth).Append(nil))
		}
		ok(t, err)
		strangers = append(strangers, q)
		return q
	}
	kinds := []func(){
		func() { // a day without a command
			d := l.connectData(nvme.DynamicController)
			d.SubsystemNQN, d.HostNQN = nvme.DiscoveryNQN, "nqn.2014-08.org.example:stranger"
			ok(t, dial().connect(0, d, 24*time.Hour).Status.Err())
		},
		func() { dial() },
		func() { ok(t, dial().connect(0, l.connectData(nvme.DynamicController), 0).Status.Err()) },
	}
	for i := range 8 {
		kinds[i%len(kinds)]()
	}
	known := dial()
	strangers = strangers[:8]
	ok(t, known.connect(0, l.connectData(nvme.DynamicController), 0).Status.Err())
	ok(t, known.authenticate(host))
	for i := range 20 {
		kinds[i%len(kinds)]()
		for began := time.Now(); ended() < i+2; time.Sleep(time.Millisecond) {
			if time.Since(began) > 30*time.Second {
				t.Fatalf("%d connections have ended for %d others", ended(), i+2)
			}
		}
	}
	known.want(nvme.PropertyGetCommand(nvme.PropertyCAP), nil, nvme.Success)
	if s := l.target.Stats(); s.Queues > 12 || s.Admission.Displaced != 25 {
		t.Errorf("%+v", s)
	}
}
