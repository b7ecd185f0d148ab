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

	sendBuffer, receiveBuffer int
	memory                    int64
}

// The defaults are for a data centre: round trips are microseconds, and a fault that lasts ten seconds is one that somebody
// else has to deal with. RoCE's retransmissions give up sooner.
var defaultTCP = tcpConfig{
	idle: 5 * time.Second, interval: time.Second, probes: 5,
	userTimeout: 10 * time.Second,
	linger:      5 * time.Second,
	timeWaits:   8192,
	// A buffer of 256 KiB gives a sixth of the throughput of these.
	sendBuffer: 4 << 20, receiveBuffer: 8 << 20,
	memory: 1 << 30,
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

// TCPBuffers bounds the send and the receive buffer of each TCP connection, in bytes: from 128 KiB and 64 KiB, which every
// connection has, to 1 GiB. What a connection has of that depends on TCPMemory. The window that the peer is offered is at
// most half of the receive buffer. The default is 4 MiB and 8 MiB.
func TCPBuffers(send, receive int) Option {
	return func(c *config) error {
		const most = 1 << 30
		if send < leastSend || send > most {
			return fmt.Errorf("TCP send buffer of %d bytes: want %d to %d", send, leastSend, most)
		}
		if receive < leastReceive || receive > most {
			return fmt.Errorf("TCP receive buffer of %d bytes: want %d to %d", receive, leastReceive, most)
		}
		c.tcp.sendBuffer, c.tcp.receiveBuffer = send, receive
		return nil
	}
}

// TCPMemory bounds the memory, in bytes, of the send and receive buffers of all the host's TCP connections together: of
// what was sent and is not acknowledged, and of what has come and is not read, in order or not; also on connections that
// nobody has accepted yet, or whose streams are closed. What gVisor needs to keep track of sent segments is not counted.
//
// Each connection has 192 KiB of that from its beginning to its end: 128 KiB to send and 64 KiB to receive. The rest is for
// connections that need more, up to TCPBuffers. While half of the memory is free, they get it at once. After that, they get
// no more than an equal share of three quarters of the memory, and connections that are silent give back what they have got.
// The last quarter is for the beginnings of new connections. A connection that gets no more goes on with a smaller window; it
// never fails. But where there are no 192 KiB left for a new connection, that is refused: DialStream fails with ENOBUFS, and
// a connection from elsewhere is reset.
//
// The default is 1 GiB: 42 connections have full buffers at once, and there are at most 5461.
func TCPMemory(bytes int64) Option {
	return func(c *config) error {
		if bytes < leastBuffers {
			return fmt.Errorf("TCP memory of %d bytes: want at least the %d of one connection", bytes, leastBuffers)
		}
		c.tcp.memory = bytes
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
