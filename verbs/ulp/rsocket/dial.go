package rsocket

import (
	"context"
	"errors"
	"net"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Dial connects to "host:port", where either may be a name. It tries the host's addresses in turn,
// within ctx.
func Dial(ctx context.Context, dev *verbs.Device, addr string, cfg *Config) (*Conn, error) {
	full, err := cfg.check()
	if err != nil {
		return nil, dialError(addr, err)
	}
	c, err := newConn(dev, full.Transports[0], full)
	if err != nil {
		return nil, dialError(addr, err)
	}
	cm, err := rdmacm.Dial(ctx, dev, addr, c.cmConfig())
	if err != nil {
		return nil, dialError(addr, errors.Join(err, c.release()))
	}
	peer, err := parseConnData(cm.Peer().PrivateData)
	if err != nil {
		return nil, dialError(addr, errors.Join(err, cm.Close(), c.release()))
	}
	c.start(cm, &peer)
	return c, nil
}

func dialError(addr string, err error) error {
	return &net.OpError{Op: "dial", Net: "rsocket", Addr: socketAddr{addr}, Err: err}
}
