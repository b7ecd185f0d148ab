package rdmatransport

import (
	"errors"
	"sync/atomic"

	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

const opOpen = "open device"

// opened counts the devices of this process, for their names.
var opened atomic.Uint32

// Open opens a device on a host, with a port for each of the host's interfaces. The caller must
// close the device first ([verbs.Device.Close]), then the host. With nil, cfg is the zero Config.
// The error wraps [verbs.ErrInvalid] and names the field whose value is out of bounds.
func Open(host stack.Network, cfg *Config) (*verbs.Device, error) {
	p, err := newProvider(host, cfg)
	if err != nil {
		return nil, err
	}
	dev, err := verbs.Open(p)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return dev, nil
}
