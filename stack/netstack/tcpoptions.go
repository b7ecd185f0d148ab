package netstack

import (
	"fmt"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// tcpConfig is the settings of this file's options.
type tcpConfig struct {
	idle, interval time.Duration // idle 0: no keepalive
	probes         int
	userTimeout    time.Duration
	linger         time.Duration
	timeWaits      int

	sendBuffer, receiveBuffer int
	memory                    int64
}

// The defaults suit a data centre: round trips take microseconds, and a fault that lasts ten
// seconds must be handled elsewhere. RoCE's retransmissions give up sooner.
var defaultTCP = tcpConfig{
	idle: 5 * time.Second, interval: time.Second, probes: 5,
	userTimeout: 10 * time.Second,
	linger:      5 * time.Second,
	timeWaits:   8192,
	// Buffers of 256 KiB reach a sixth of the throughput of these.
	sendBuffer: 4 << 20, receiveBuffer: 8 << 20,
	memory: 1 << 30,
}

// KeepAlive makes TCP connections that were silent for idle probe the peer every interval. They end
// with ETIMEDOUT after probes unanswered probes (RFC 9293 §3.8.4). idle 0 disables this; the
// defaults are 5 s, 1 s and 5. A shorter UserTimeout ends the probing sooner.
func KeepAlive(idle, interval time.Duration, probes int) Option {
	return func(c *config) error {
		if idle != 0 && (idle < time.Millisecond || interval < time.Millisecond || probes < 1) {
			return fmt.Errorf("keepalive after %v, every %v, %d times: want times of at least 1ms and one probe, or 0 for the first",
				idle, interval, probes)
		}
		c.tcp.idle, c.tcp.interval, c.tcp.probes = idle, interval, probes
		return nil
	}
}

// UserTimeout is how long TCP waits for the peer to acknowledge data, or to open a closed window,
// before the connection ends with ETIMEDOUT (RFC 9293 §3.8.3). With 0 the number of retransmissions
// decides, about 15 minutes, and a window is awaited for as long as the peer answers. The default
// is 10 s.
func UserTimeout(d time.Duration) Option {
	return func(c *config) error {
		if d != 0 && d < time.Millisecond {
			return fmt.Errorf("TCP user timeout %v: want at least 1ms, or 0", d)
		}
		c.tcp.userTimeout = d
		return nil
	}
}

// Linger is how long a TCP connection with a closed stream may take to deliver sent data, and the
// peer to close too, before it is reset. The default is 5 s.
func Linger(d time.Duration) Option {
	return func(c *config) error {
		if d < 0 {
			return fmt.Errorf("TCP linger time %v: want 0 or more", d)
		}
		c.tcp.linger = d
		return nil
	}
}

// TimeWaits is the largest number of TCP connections in TIME-WAIT, which last a minute and take
// about 6 KB each. Beyond it the oldest are discarded. The default is 8192.
func TimeWaits(n int) Option {
	return func(c *config) error {
		if n < 0 {
			return fmt.Errorf("at most %d TCP connections in TIME-WAIT: want 0 or more", n)
		}
		c.tcp.timeWaits = n
		return nil
	}
}

// TCPBuffers bounds the send and the receive buffer of each TCP connection, in bytes. The values
// range from 128 KiB and 64 KiB, which every connection has, to 1 GiB. TCPMemory determines how
// much a connection gets. The advertised window is at most half of the receive buffer. The defaults
// are 4 MiB and 8 MiB.
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

// TCPMemory bounds the memory, in bytes, of the send and receive buffers of all TCP connections of
// the host. It includes unacknowledged data, and unread data in order or not, also on unaccepted
// connections and on those with closed streams. gVisor's bookkeeping of sent segments is not
// included.
//
// Each connection has 192 KiB from beginning to end: 128 KiB to send and 64 KiB to receive. The
// remainder is for connections that need more, up to TCPBuffers. While half of the memory is free,
// they get it at once. After that they get at most an equal share of three quarters of the memory,
// and idle connections return memory. The last quarter is for new connections. A connection that
// gets no more continues with a smaller window; it never fails. A new connection is refused if 192
// KiB are not left: DialStream fails with ENOBUFS, and an incoming connection is reset.
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

// apply applies the settings to a new connection.
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
