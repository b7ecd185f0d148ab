package netstack

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// TCPConfig configures TCP connections. A zero field has its default. The defaults suit a data
// centre: round trips take microseconds, and a fault that lasts ten seconds must be handled
// elsewhere. RoCE's retransmissions give up sooner.
type TCPConfig struct {
	// A connection that was silent for KeepAliveIdle probes the peer every KeepAliveInterval. It
	// ends with ETIMEDOUT after KeepAliveCount unanswered probes (RFC 9293 §3.8.4). A shorter
	// UserTimeout ends the probing sooner. The times are 1 ms or more; 0 means 5 s, 1 s and 5. A
	// negative KeepAliveIdle disables the probes.
	KeepAliveIdle, KeepAliveInterval time.Duration
	KeepAliveCount                   int
	// UserTimeout is how long TCP waits for the peer to acknowledge data, or to open a closed
	// window, before the connection ends with ETIMEDOUT (RFC 9293 §3.8.3): 1 ms or more; 0 means
	// 10 s. With a negative value the number of retransmissions decides, about 15 minutes, and a
	// window is awaited for as long as the peer answers.
	UserTimeout time.Duration
	// Linger is how long a connection with a closed stream may take to deliver sent data, and the
	// peer to close too, before it is reset; 0 means 5 s. A negative value resets it at once.
	Linger time.Duration
	// TimeWaits is the largest number of connections in TIME-WAIT, which last a minute and take
	// about 6 KB each. Beyond it the oldest are discarded. 0 means 8192, and a negative value none.
	TimeWaits int
	// SendBuffer and RecvBuffer bound the buffers of each connection, in bytes. The values range
	// from 128 KiB and 64 KiB, which every connection has, to 1 GiB; 0 means 4 MiB and 8 MiB.
	// Memory determines how much a connection gets. The advertised window is at most half of the
	// receive buffer.
	SendBuffer, RecvBuffer int
	// Memory bounds the memory, in bytes, of the send and receive buffers of all connections of the
	// host; 0 means 1 GiB. It includes unacknowledged data, and unread data in order or not, also
	// on unaccepted connections and on those with closed streams. gVisor's bookkeeping of sent
	// segments is not included.
	//
	// Each connection has 192 KiB from beginning to end: 128 KiB to send and 64 KiB to receive. The
	// remainder is for connections that need more, up to their buffers. While half of the memory is
	// free, they get it at once. After that they get at most an equal share of three quarters of
	// the memory, and idle connections return memory. The last quarter is for new connections. A
	// connection that gets no more continues with a smaller window; it never fails. A new
	// connection is refused if 192 KiB are not left: DialStream fails with ENOBUFS, and an incoming
	// connection is reset.
	//
	// With 1 GiB, 42 connections have full buffers at once, and there are at most 5461.
	Memory int64
}

// Buffers of 256 KiB reach a sixth of the throughput of these.
const defaultSend, defaultRecv = 4 << 20, 8 << 20

// check checks the fields, and replaces zero ones by their defaults and negative ones, which
// disable, by 0.
func (c *TCPConfig) check() error {
	if err := cmp.Or(
		orDefault("TCP.KeepAliveIdle", &c.KeepAliveIdle, 5*time.Second, time.Millisecond, maxTime, true),
		orDefault("TCP.KeepAliveInterval", &c.KeepAliveInterval, time.Second, time.Millisecond, maxTime, false),
		orDefault("TCP.KeepAliveCount", &c.KeepAliveCount, 5, 1, math.MaxInt32, false),
		orDefault("TCP.UserTimeout", &c.UserTimeout, 10*time.Second, time.Millisecond, maxTime, true),
		orDefault("TCP.Linger", &c.Linger, 5*time.Second, 1, maxTime, true),
		orDefault("TCP.TimeWaits", &c.TimeWaits, 8192, 1, math.MaxInt32, true),
		orDefault("TCP.SendBuffer", &c.SendBuffer, defaultSend, leastSend, 1<<30, false),
		orDefault("TCP.RecvBuffer", &c.RecvBuffer, defaultRecv, leastReceive, 1<<30, false),
	); err != nil {
		return err
	}
	return orDefault("TCP.Memory", &c.Memory, 1<<30, leastBuffers, math.MaxInt64, false)
}

const maxTime time.Duration = math.MaxInt64

// orDefault replaces a zero field by its default and, if it disables, a negative one by 0. It
// returns an error for a value outside of least to most.
func orDefault[T int | int64 | time.Duration](field string, v *T, def, least, most T, disables bool) error {
	switch {
	case *v == 0:
		*v = def
	case *v < 0 && disables:
		*v = 0
	case *v < least && disables:
		return fmt.Errorf("%s %v: must be at least %v, 0 for %v, or less than 0 for none", field, *v, least, def)
	case *v < least || *v > most:
		return fmt.Errorf("%s %v: must be %v to %v, or 0 for %v", field, *v, least, most, def)
	}
	return nil
}

// apply applies the settings to a new connection.
func (c *TCPConfig) apply(ep tcpip.Endpoint) {
	if c.UserTimeout > 0 {
		t := tcpip.TCPUserTimeoutOption(c.UserTimeout)
		_ = ep.SetSockOpt(&t) // gVisor refuses none of these
	}
	if c.KeepAliveIdle > 0 {
		idle, interval := tcpip.KeepaliveIdleOption(c.KeepAliveIdle), tcpip.KeepaliveIntervalOption(c.KeepAliveInterval)
		_ = ep.SetSockOpt(&idle)
		_ = ep.SetSockOpt(&interval)
		_ = ep.SetSockOptInt(tcpip.KeepaliveCountOption, c.KeepAliveCount)
		ep.SocketOptions().SetKeepAlive(true)
	}
}
