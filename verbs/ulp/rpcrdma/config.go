package rpcrdma

import (
	"cmp"
	"math"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// Config has the options of connections. The zero value and nil have useful defaults.
type Config struct {
	// Transport is the wire protocol, if there is one only.
	Transport verbs.Transport
	// Transports are the wire protocols of a listener that serves several; Dial uses the first.
	// Transport must then be unset (RoCEv2).
	Transports []verbs.Transport
	// Binding is the binding of the RPC program. Without one, long messages move as a whole.
	Binding Binding

	// Credits is the number of calls that a client may have outstanding (RFC 8166 §3.3.1): a server
	// grants at most this number, and a client requests it. It is 1 to 1024; 0 means 64.
	Credits int
	// BackwardCredits is the number of calls in the backward direction that may be outstanding, from a
	// server to a client (RFC 8167 §4.2): a client grants it, and a server requests it. It is 0 to
	// 1024; without any there are no such calls.
	BackwardCredits int
	// Backward answers these calls in a client: at most BackwardCredits at a time. A reply must be
	// shorter than Inline.
	Backward Handler
	// Inline is the largest message that is sent, and received, without RDMA READ or WRITE: the
	// inline threshold (RFC 8166 §3.3.2). It is a multiple of 1024 bytes, up to 65536; 0 means 4096,
	// Linux's default. The peer may lower it. For a peer that does not send its own, it is 1024.
	Inline int
	// MaxMessage is the largest RPC message in bytes, up to 512 MiB. A client that sends a longer one
	// gets an error. 0 means 1 MiB and 64 KiB, because Linux reads and writes at most 1 MiB.
	MaxMessage int
	// Memory is the number of bytes that the long calls and replies of all connections may occupy
	// together in a server. The clients at one address have at most half of what the others leave, or
	// one call. Further calls wait. 0 means 64 times MaxMessage, and less than MaxMessage is an error.
	Memory int
	// MaxConns is the number of connections of a listener; 0 means 256. The clients at one address
	// have at most half of what the others leave. Beyond, the oldest of their connections that has not
	// sent a call yet ends for a new one, and otherwise the request is rejected. When all are in use,
	// and more than half of them without a call, the oldest of the address with most of these ends.
	MaxConns int
	// KeepAlive is the idle time after which a server probes a client. If the client does not
	// answer within the retries of the QP, the connection ends. 0 means one minute, −1 never.
	KeepAlive time.Duration
}

const (
	defaultCredits = 64
	maxCredits     = 1024
	defaultInline  = 4096
	largestInline  = 64 << 10
	defaultMessage = 1<<20 + 64<<10
	largestMessage = 1 << 29
	defaultConns   = 256
)

// check returns the effective options, or an error that names the field whose value is out of
// bounds.
func (cfg *Config) check() (*Config, error) {
	var c Config
	if cfg != nil {
		c = *cfg
	}
	c.Credits, c.Inline = cmp.Or(c.Credits, defaultCredits), cmp.Or(c.Inline, defaultInline)
	c.MaxMessage = cmp.Or(c.MaxMessage, defaultMessage)
	c.Memory = cmp.Or(c.Memory, int(min(64*int64(c.MaxMessage), math.MaxInt32)))
	c.MaxConns = cmp.Or(c.MaxConns, defaultConns)
	c.KeepAlive = cmp.Or(c.KeepAlive, time.Minute)
	const op = "configure RPC over RDMA"
	if len(c.Transports) == 0 {
		c.Transports = []verbs.Transport{c.Transport}
	} else if c.Transport != 0 {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "Transport %v and Transports %v: only one of them may be set",
			c.Transport, c.Transports)
	}
	for _, f := range []struct {
		name              string
		value, least, max int
	}{
		{"Credits", c.Credits, 1, maxCredits}, {"BackwardCredits", c.BackwardCredits, 0, maxCredits},
		{"Inline", c.Inline, sizeUnit, largestInline},
		{"MaxMessage", c.MaxMessage, sizeUnit, largestMessage}, {"Memory", c.Memory, c.MaxMessage, math.MaxInt},
		{"MaxConns", c.MaxConns, 1, math.MaxInt32},
	} {
		if f.value < f.least || f.value > f.max {
			return nil, verbs.Errorf(verbs.ErrInvalid, op, "%s %d: must be %d to %d", f.name, f.value, f.least, f.max)
		}
	}
	if c.Inline%sizeUnit != 0 {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "Inline %d: must be a multiple of %d", c.Inline, sizeUnit)
	}
	if c.KeepAlive < -1 {
		return nil, verbs.Errorf(verbs.ErrInvalid, op, "KeepAlive %v: must be -1 or more", c.KeepAlive)
	}
	return &c, nil
}
