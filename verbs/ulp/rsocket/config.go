package rsocket

import (
	"cmp"
	"math"
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// Config has the options of connections. The zero value and nil have the defaults of librdmacm's
// rsockets.
type Config struct {
	// Transport is the wire protocol, if there is one only.
	Transport verbs.Transport
	// Transports are the wire protocols of a listener that supports several; Dial and NewPacketConn
	// use the first. Transport must then be unset (RoCEv2).
	Transports []verbs.Transport
	// LocalAddr is the local address of Dial. If it is not valid, the route to the peer determines
	// it.
	LocalAddr netip.AddrPort
	// AFOnly limits a listener on all IPv6 addresses to them (IPV6_V6ONLY). One on 0.0.0.0 has those
	// of IPv4 only.
	AFOnly bool
	// TOS is the IP type of service of packets.
	TOS uint8

	// SQSize and RQSize are the sizes of the QP's queues in work requests (RDMA_SQSIZE,
	// RDMA_RQSIZE), 16 to 65534; 0 means 384. RQSize is also the number of messages that the peer
	// may send ahead of the reader.
	SQSize, RQSize int
	// SendBuffer and RecvBuffer are the sizes of the buffers in bytes (SO_SNDBUF, SO_RCVBUF); 0
	// means 128 KiB. They are multiples of 16 from 4 KiB to 512 MiB. Each connection has both.
	SendBuffer, RecvBuffer int
	// Inline is the maximum number of bytes sent inline (RDMA_INLINE); 0 means 64, and −1 none.
	Inline int

	// Iomaps is the number of mappings that the peer may have, for WriteAt (RDMA_IOMAPSIZE), at
	// most 32512. Above 128 it is a multiple of 256.
	Iomaps int

	// KeepAlive is the time for which the sender is idle before it probes the peer (SO_KEEPALIVE,
	// TCP_KEEPIDLE); 0 means never. If the peer does not answer within the retries of the QP, the
	// connection fails.
	KeepAlive time.Duration
	// Linger is the maximum time that Close waits for the peer to acknowledge the written data; 0
	// means 5 seconds.
	Linger time.Duration
	// Backlog limits the connections of a listener that are being set up, or that Accept has not
	// returned; 0 means 128. Each of them has its buffers. The limit applies twice: to peers whose
	// address is validated, and to all others. So there are at most 2 × Backlog such connections. When
	// there are as many, those end that their peers have not completed within a second.
	Backlog int
}

const (
	minQueue      = 16
	maxQueue      = 0xfffe
	defaultQueue  = 384
	minBuffer     = 4 << 10
	maxBuffer     = 1 << 29
	defaultBuffer = 128 << 10
)

// WithDefaults returns the effective options: defaults replace zero values, and a negative Inline
// is 0. cfg may be nil.
func (cfg *Config) WithDefaults() Config {
	var c Config
	if cfg != nil {
		c = *cfg
	}
	c.SQSize, c.RQSize = cmp.Or(c.SQSize, defaultQueue), cmp.Or(c.RQSize, defaultQueue)
	c.SendBuffer, c.RecvBuffer = cmp.Or(c.SendBuffer, defaultBuffer), cmp.Or(c.RecvBuffer, defaultBuffer)
	c.Inline = max(cmp.Or(c.Inline, 64), 0)
	c.Linger = cmp.Or(c.Linger, 5*time.Second)
	c.Backlog = cmp.Or(c.Backlog, 128)
	return c
}

// check returns the effective options, or an error that names the field whose value is out of
// bounds.
func (cfg *Config) check() (*Config, error) {
	c := cfg.WithDefaults()
	if len(c.Transports) == 0 {
		c.Transports = []verbs.Transport{c.Transport}
	} else if c.Transport != 0 {
		return nil, verbs.Errorf(verbs.ErrInvalid, "configure rsocket", "Transport %v and Transports %v: only one of them may be set",
			c.Transport, c.Transports)
	}
	for _, f := range []struct {
		name              string
		value, least, max int
	}{
		{"SQSize", c.SQSize, minQueue, maxQueue}, {"RQSize", c.RQSize, minQueue, maxQueue},
		{"SendBuffer", c.SendBuffer, minBuffer, maxBuffer}, {"RecvBuffer", c.RecvBuffer, minBuffer, maxBuffer},
		{"Iomaps", c.Iomaps, 0, maxIomaps}, {"Backlog", c.Backlog, 1, math.MaxInt32},
	} {
		if f.value < f.least || f.value > f.max {
			return nil, verbs.Errorf(verbs.ErrInvalid, "configure rsocket", "%s %d: must be %d to %d", f.name, f.value, f.least, f.max)
		}
	}
	invalid := func(field string, value any, allowed string) (*Config, error) {
		return nil, verbs.Errorf(verbs.ErrInvalid, "configure rsocket", "%s %v: must be %s", field, value, allowed)
	}
	rounded, _ := encodeIomapCount(c.Iomaps)
	switch {
	case c.SendBuffer%16 != 0:
		return invalid("SendBuffer", c.SendBuffer, "a multiple of 16")
	case c.RecvBuffer%16 != 0:
		return invalid("RecvBuffer", c.RecvBuffer, "a multiple of 16")
	case c.Iomaps != rounded:
		return invalid("Iomaps", c.Iomaps, "up to 128, or a multiple of 256")
	case cfg != nil && cfg.Inline < -1:
		return invalid("Inline", cfg.Inline, "-1 or more")
	case c.KeepAlive < 0:
		return invalid("KeepAlive", c.KeepAlive, "0 or more")
	case c.Linger < 0:
		return invalid("Linger", c.Linger, "0 or more")
	}
	return &c, nil
}
