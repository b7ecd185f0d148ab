package rdmatransport

import (
	"errors"
	"io"
	"sync/atomic"

	"github.com/softrnic/softrnic/rdmatransport/iwarp"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/rdmatransport/trace"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

const opOpen = "open device"

// opened counts the devices of this process, for their names.
var opened atomic.Uint32

// Option is an option of [Open]. Open returns an error if an option's argument is out of range.
type Option func(*config) error

type config struct {
	name  string
	rand  io.Reader
	iwarp iwarp.Config
	roce  roce.Config
	trace trace.Sink
	port  verbs.PortAttr // its rate
}

// Name sets the device's name. The default is softrnic0, softrnic1, … in the order in which the
// process opens devices.
func Name(name string) Option {
	return func(c *config) error {
		if name == "" {
			return verbs.Errorf(verbs.ErrInvalid, opOpen, "the device's name is empty: leave the option out for softrnic0, softrnic1, …")
		}
		c.name = name
		return nil
	}
}

// Rand sets the source of memory keys and QP numbers, which peers must not be able to guess. The
// default is crypto/rand. Only tests have a use for another.
func Rand(r io.Reader) Option {
	return func(c *config) error {
		if r == nil {
			return verbs.Errorf(verbs.ErrInvalid, opOpen, "the source of random numbers is nil: leave the option out for crypto/rand")
		}
		c.rand = r
		return nil
	}
}

// IWARP configures iWARP. The zero Config is the default.
func IWARP(cfg iwarp.Config) Option {
	return func(c *config) error {
		if cfg.Revision > 2 {
			return verbs.Errorf(verbs.ErrInvalid, opOpen, "iWARP: MPA revision %d: give 1, 2, or 0 for 2 and then 1", cfg.Revision)
		}
		c.iwarp = cfg
		return nil
	}
}

// RoCE configures RoCEv2 and RoCE v1. The zero Config is the default.
func RoCE(cfg roce.Config) Option {
	return func(c *config) error {
		if d := cfg.DCQCN; d != nil && (d.CNPDSCP > 63 || d.CNP802PPrio > 7) {
			return verbs.Errorf(verbs.ErrInvalid, opOpen, "DCQCN: CNPDSCP %d, CNP802PPrio %d: give at most 63 and 7", d.CNPDSCP, d.CNP802PPrio)
		}
		c.roce = cfg
		return nil
	}
}

// Trace sets a sink that is called for events of the device's QPs: changes of state, losses,
// timeouts, the set-up and the end of iWARP streams. [trace.Logger] is a sink that writes to
// log/slog. Without this option tracing is off.
func Trace(sink trace.Sink) Option {
	return func(c *config) error {
		if sink == nil {
			return verbs.Errorf(verbs.ErrInvalid, opOpen, "the trace's sink is nil: leave the option out for no trace")
		}
		c.trace = sink
		return nil
	}
}

// Open opens a device on a host, with a port for each of the host's interfaces. The caller must
// close the device first ([verbs.Device.Close]), then the host.
func Open(host stack.Network, opts ...Option) (*verbs.Device, error) {
	p, err := newProvider(host, opts...)
	if err != nil {
		return nil, err
	}
	dev, err := verbs.Open(p)
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return dev, nil
}
