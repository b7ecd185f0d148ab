package netstack

import (
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// tcpConfig is what the options of this file set.
type tcpConfig struct {
	idle, interval time.Duration // idle 0: no keepalive
	probes         int
	userTimeout    time.Duration
	linger         time.Duration
	timeWaits      int
}

// The defaults are for a data centre: round trips are microseconds, and a fault that lasts ten seconds is one that somebody
// else has to deal with. RoCE's retransmissions give up sooner.
var defaultTCP = tcpConfig{
	idle: 5 * time.Second, interval: time.Second, probes: 5,
	userTimeout: 10 * time.Second,
	linger:      5 * time.Second,
	timeWaits:   8192,
}

// KeepAlive has TCP connections that were silent for idle ask whether the peer is there, every interval, and end with
// ETIMEDOUT after so many questions without an answer (RFC 9293 §3.8.4). idle 0 turns that off; the default is 5 s, 1 s
// and 5. A UserTimeout that is shorter ends the asking sooner.
func KeepAlive(idle, interval time.Duration, probes int) Option {
	return func(c *config) error {
		if idle != 0 && (idle < time.Millisecond || interval < time.Millisecond || probes < 1) {
			return fmt.Errorf("keepalive after %v, every %v, %d times: want times of at least 1ms and one probe, or 0 for the first", idle, interval, probes)
		}
		c.tcp.idle, c.tcp.interval, c.tcp.probes = idle, interval, probes
		return nil
	}
}

// UserTimeout is how long TCP waits for the peer to acknowledge data, or to open a window that it closed, before it
// gives a connection up with ETIMEDOUT (RFC 9293 §3.8.3). 0 leaves it to the number of retransmissions, which is some 15
// minutes, and waits for a window for as long as the peer is there. The default is 10 s.
func UserTimeout(d time.Duration) Option {
	return func(c *config) error {
		if d != 0 && d < time.Millisecond {
			return fmt.Errorf("TCP user timeout %v: want at least 1ms, or 0", d)
		}
		c.tcp.userTimeout = d
		return nil
	}
}

// Linger is how long a TCP connection whose stream is closed has to deliver what was sent, and for the peer to close too,
// before it is reset. The default is 5 s.
func Linger(d time.Duration) Option {
	return func(c *config) error {
		if d < 0 {
			return fmt.Errorf("TCP linger time %v: want 0 or more", d)
		}
		c.tcp.linger = d
		return nil
	}
}

// TimeWaits is how many TCP connections that this end has closed first are kept in TIME-WAIT, for a minute and with some
// 6 KB each; those that have been there for longest make room. The default is 8192.
func TimeWaits(n int) Option {
	return func(c *config) error {
		if n < 0 {
			return fmt.Errorf("at most %d TCP connections in TIME-WAIT: want 0 or more", n)
		}
		c.tcp.timeWaits = n
		return nil
	}
}

// apply sets what a new connection is to have.
func (c *tcpConfig) apply(ep tcpip.Endpoint) {
	if c.userTimeout > 0 {
		t := tcpip.TCPUserTimeoutOption(c.userTimeout)
		_ = ep.SetSockOpt(&t) // gVisor refuses none of these
	}
	if c.idle > 0 {
		idle, interval := tcpip.KeepaliveIdleOption(c.idle), tcpip.KeepaliveIntervalOption(c.interval)
		_ = ep.SetSockOpt(&idle)
		_ = ep.SetSockOpt(&interval)
		_ = ep.SetSockOptInt(tcpip.KeepaliveCountOption, c.probes)
		ep.SocketOptions().SetKeepAlive(true)
	}
}
