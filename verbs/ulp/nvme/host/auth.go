package host

import (
	"context"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
	"github.com/softrnic/softrnic/verbs/ulp/nvme/auth"
)

// authenticate authenticates the host, and perhaps the controller, if the result of Connect
// requires it.
func (q *queue) authenticate(ctx context.Context, cfg *Config, result uint64) error {
	const op = "connect"
	switch {
	case result&(nvme.ConnectAuthenticate|nvme.ConnectSecure) == 0 && (cfg.ControllerKey == nil || cfg.NQN == nvme.DiscoveryNQN):
		return nil
	case result&nvme.ConnectSecure != 0:
		return verbs.Errorf(syscall.EACCES, op, "the target requires secure channel concatenation")
	case result&nvme.ConnectAuthenticate == 0:
		return verbs.Errorf(syscall.EACCES, op, "the target does not authenticate itself, as Config.ControllerKey requires")
	case cfg.Key == nil:
		return verbs.Errorf(syscall.EACCES, op, "the target requires authentication: Config.Key is not set")
	}
	return auth.Authenticate(&auth.HostConfig{
		Identity: auth.Identity{HostNQN: cfg.HostNQN, SubsystemNQN: cfg.NQN, Host: cfg.Key, Controller: cfg.ControllerKey},
		Hashes:   cfg.Hashes, Groups: cfg.Groups,
	}, func(message []byte) error {
		_, err := q.do(ctx, nvme.AuthCommand(nvme.AuthenticationSend, uint32(len(message))), message, nil)
		return err
	}, func() ([]byte, error) {
		b := make([]byte, auth.MaxMessage)
		_, err := q.do(ctx, nvme.AuthCommand(nvme.AuthenticationReceive, auth.MaxMessage), nil, b)
		return b, err
	})
}
