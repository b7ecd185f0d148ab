package netstack

import (
	"cmp"
	"fmt"
	"math"
	"time"

	"gvisor.dev/gvisor/pkg/tcpip"
)

// TCPConfig configures TCP connections. A field that is zero has its default. The defaults suit a
// data centre: round trips take microseconds, and a fault that lasts ten seconds must be handled at
// a higher layer. RoCE's retransmissions give up sooner.
type TCPConfig struct {
	// A connection that was silent for KeepAliveIdle probes the peer every KeepAliveInterval. It ends
	// with ETIMEDOUT after KeepAliveCount unanswered probes (RFC 9293 §3.8.4), or sooner if
	// UserTimeout is shorter. The times are 1 ms or more; 0 means 5 s, 1 s and 5. A negative
	// KeepAliveIdle disables the probes.
	KeepAliveIdle, KeepAliveInterval time.Duration
	KeepAliveCount                   int
	// UserTimeout is the time that TCP waits for the peer to acknowledge data, or to open a closed
	// window. Then the connection ends with ETIMEDOUT (RFC 9293 §3.8.3). It is 1 ms or more; 0 means
	// 10 s. gVisor measures it from the first retransmission until all sent data is acknowledged. A
	// stream without a pause over a network that loses many packets may end too. With a negative
	// value the number of retransmissions decides, about 15 minutes. TCP then waits for a window as
	// long as the peer answers.
	UserTimeout time.Duration
	// Linger is the time that a connection with a closed stream has to deliver sent data, and the peer
	// to close too. Then it is reset; 0 means 5 s. A negative value resets it at once.
	Linger time.Duration
	// TimeWaits is the largest number of connections in TIME-WAIT, which last a minute and take about
	// 6 KB each. If there are more, the oldest are discarded. 0 means 8192, and a negative value none.
	TimeWaits int
	// SendBuffer and RecvBuffer limit the buffers of each connection, in bytes. SendBuffer is at least
	// 128 KiB and RecvBuffer at least 64 KiB, which every connection has. Both are at most 1 GiB; 0
	// means 4 MiB and 8 MiB. Memory determines how much a connection gets. The advertised window is at
	// most half of the receive buffer.
	SendBuffer, RecvBuffer int
	// Memory limits the memory, in bytes, of the send and receive buffers of all connections of the
	// host; 0 means 1 GiB. It includes unacknowledged data, and unread data in and out of order. It
	// includes unaccepted connections, and connections with closed streams. It does not include
	// gVisor's records of sent segments.
	//
	// Each connection always has 192 KiB: 128 KiB to send and 64 KiB to receive. The remainder is for
	// connections that need more, up to their buffers. While half of the memory is free, they get it
	// at once. After that they get at most an equal share of three quarters of the memory, and idle
	// connections return memory. The last quarter is for new connections. A connection that gets no
	// more continues with a smaller window; it never fails. A new connection is refused if 192 KiB are
	// not left: DialStream fails with ENOBUFS, and an incoming connection is reset.
	//
	// With 1 GiB, 42 connections have full buffers at once, and there are at most 5461.
	Memory int64
}

// With buffers of 256 KiB, throughput is a sixth of that with these.
const defaultSend, defaultRecv = 4 << 20, 8 << 20

// check checks the fields. It replaces zero fields by their defaults, and negative fields, which
// disable a feature, by 0.
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

// orDefault replaces a zero field by its default. If negative values disable the feature, it
// replaces them by 0. It returns an error for a value outside of least to most.
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
