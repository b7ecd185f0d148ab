package host_test

import (
	"errors"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/auth"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/host"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

// TestAuthentication: host and target authenticate each other, on all queues, with all hash
// functions and DH groups.
func TestAuthentication(t *testing.T) {
	both(t, func(t *testing.T, transport verbs.Transport) {
		keys := target.HostKeys{Host: must(auth.NewKey(32, auth.SHA256))(t), Controller: must(auth.NewKey(64, 0))(t)}
		l := newLab(t, transport, &target.Config{Keys: map[string]target.HostKeys{hostNQN: keys}})
		for _, group := range auth.Groups() {
			for _, hash := range auth.Hashes() {
				if group > auth.FFDHE2048 && (hash != auth.SHA384 || group > auth.FFDHE3072 && transport != verbs.IWARP) {
					continue // it takes long
				}
				cfg := &host.Config{Key: keys.Host, Hashes: []auth.Hash{hash}, Groups: []auth.Group{group}, IOQueues: 1}
				if group != auth.FFDHE3072 {
					cfg.ControllerKey = keys.Controller
				}
				c := l.dial(cfg)
				ns := l.namespace(c, 1)
				if _, err := ns.WriteAt(make([]byte, 4096), 0); err != nil {
					t.Errorf("%v, %v: %v", hash, group, err)
				}
				ok(t, c.Close())
			}
		}
		if s := l.target.Stats(); s.Unauthenticated != 0 {
			t.Errorf("%+v", s)
		}
		ok(t, discover(l, &host.Config{HostNQN: hostNQN, Key: keys.Host, ControllerKey: keys.Controller}))
	})
}

func discover(l *lab, cfg *host.Config) error {
	cfg.Transport = l.transport
	_, err := host.Discover(l.t.Context(), l.from, l.at.String(), cfg)
	return err
}

// TestNotAuthenticated: without the right keys there is no controller.
func TestNotAuthenticated(t *testing.T) {
	keys := target.HostKeys{Host: must(auth.NewKey(32, auth.SHA256))(t), Controller: must(auth.NewKey(32, 0))(t)}
	other := must(auth.NewKey(32, 0))(t)
	const free = "nqn.2014-08.org.example:free"
	l := newLab(t, verbs.RoCEv2, &target.Config{Keys: map[string]target.HostKeys{hostNQN: keys}, Hosts: []string{free}})
	dial := func(nqn string, own, controller *auth.Key) error {
		c, err := host.Dial(t.Context(), l.from, l.at.String(), &host.Config{NQN: subsystem, HostNQN: nqn, Key: own, ControllerKey: controller,
			Groups: []auth.Group{auth.FFDHE2048}})
		if err == nil {
			c.Close()
		}
		return err
	}
	var e *auth.Error
	if err := dial(hostNQN, other, nil); !errors.As(err, &e) || !e.Peer || e.Reason != auth.Failed {
		t.Errorf("another key: %v", err)
	}
	if err := dial(hostNQN, keys.Host, other); !errors.As(err, &e) || e.Peer || e.Reason != auth.Failed {
		t.Errorf("another controller's key: %v", err)
	}
	if err := dial(hostNQN, nil, nil); !errors.Is(err, syscall.EACCES) {
		t.Errorf("no key: %v", err)
	}
	if err := dial(free, keys.Host, keys.Controller); !errors.Is(err, syscall.EACCES) {
		t.Errorf("a target that does not authenticate itself: %v", err)
	}
	if err := dial(hostNQN, nil, keys.Controller); !errors.Is(err, verbs.ErrInvalid) {
		t.Errorf("a controller's key alone: %v", err)
	}
	ok(t, dial(free, keys.Host, nil))
	ok(t, dial(hostNQN, keys.Host, keys.Controller))
}
