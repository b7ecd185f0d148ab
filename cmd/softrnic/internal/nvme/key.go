package nvme

import (
	"errors"
	"fmt"
	"strings"

	"github.com/softrnic/softrnic/cmd/internal/node"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/auth"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/target"
)

// keyFile is the value of --host-key and --controller-key.
type keyFile struct{ nqn, file string }

// UnmarshalText implements encoding.TextUnmarshaler.
func (k *keyFile) UnmarshalText(text []byte) error {
	var ok bool
	if k.nqn, k.file, ok = strings.Cut(string(text), "="); !ok || k.file == "" {
		return errors.New("must be NQN=FILE: a key in an argument could be read by others")
	}
	return nvme.CheckNQN(k.nqn)
}

// read reads the key.
func (k *keyFile) read() (*auth.Key, error) {
	text, err := node.ReadSecret(k.file)
	if err != nil {
		return nil, err
	}
	key, err := auth.ParseKey(strings.TrimSpace(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k.file, err)
	}
	return key, nil
}

// readKeys returns the keys of hosts. Each controller's key belongs to a host with a key.
func readKeys(hosts, controllers []keyFile) (map[string]target.HostKeys, error) {
	keys := map[string]target.HostKeys{}
	for _, k := range hosts {
		key, err := k.read()
		if err != nil {
			return nil, fmt.Errorf("--host-key %w", err)
		}
		keys[k.nqn] = target.HostKeys{Host: key}
	}
	for _, k := range controllers {
		key, err := k.read()
		both, ok := keys[k.nqn]
		if err == nil && !ok {
			err = fmt.Errorf("%s has no --host-key: a target authenticates itself only to a host that does so", k.nqn)
		}
		if err != nil {
			return nil, fmt.Errorf("--controller-key %w", err)
		}
		both.Controller = key
		keys[k.nqn] = both
	}
	return keys, nil
}
