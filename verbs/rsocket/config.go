package rsocket

import (
	"net/netip"
	"time"

	"github.com/softrnic/softrnic/verbs"
)

// Config has the options of connections. The zero value and nil have the defaults of librdmacm's
// rsockets.
type Config struct {
	// Transport is the wire protocol.
	Transport verbs.Transport
	// Transports are the wire protocols of a listener that serves several. If set, Transport is
	// ignored.
	Transports []verbs.Transport
	// LocalAddr is the local address of Dial. If it is not valid, the route to the peer determines
	// it.
	LocalAddr netip.AddrPort
	// AFOnly makes a listener on all addresses of one family reject requests of the other
	// (IPV6_V6ONLY).
	AFOnly bool
	// TOS is the IP type of service of packets.
	TOS uint8

	// SQSize and RQSize are the sizes of the QP's queues in work requests (RDMA_SQSIZE,
	// RDMA_RQSIZE), 16 to 65534; 0 means 384. RQSize is also the number of messages that the peer
	// may send ahead of the reader.
	SQSize, RQSize int
	// SendBuffer and RecvBuffer are the sizes of the buffers in bytes (SO_SNDBUF, SO_RCVBUF); 0
	// means 128 KiB. The minimum is 4 KiB. Each connection has both buffers.
	SendBuffer, RecvBuffer int
	// Inline is the maximum number of bytes sent inline (RDMA_INLINE); 0 means 64, and −1 none.
	Inline int

	// Iomaps is the number of mappings that the peer may have, for WriteAt (RDMA_IOMAPSIZE), at
	// most 32512. Above 128 it is rounded up to a multiple of 256.
	Iomaps int

	// KeepAlive is the idle time of the sender after which it probes the peer (SO_KEEPALIVE,
	// TCP_KEEPIDLE); 0 means never. If the peer does not answer within the retries of the QP, the
	// connection fails.
	KeepAlive time.Duration
	// Linger is the maximum time that Close waits for the peer to acknowledge the written data; 0
	// means 5 seconds.
	Linger time.Duration
	// Backlog is the number of connections that wait in a listener to be accepted, or are being set
	// up; 0 means 128. Each of them has its buffers.
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

// WithDefaults returns the effective options: defaults replace zero values, and sizes are within
// their limits. cfg may be nil.
func (cfg *Config) WithDefaults() Config {
	var c Config
	if cfg != nil {
		c = *cfg
	}
	queue := func(n int) int {
		if n == 0 {
			n = defaultQueue
		}
		return min(max(n, minQueue), maxQueue)
	}
	buffer := func(n int) int {
		if n == 0 {
			n = defaultBuffer
		}
		return min(max(n, minBuffer), maxBuffer) &^ 15
	}
	c.SQSize, c.RQSize = queue(c.SQSize), queue(c.RQSize)
	c.SendBuffer, c.RecvBuffer = buffer(c.SendBuffer), buffer(c.RecvBuffer)
	if c.Inline == 0 {
		c.Inline = 64
	}
	c.Inline = max(c.Inline, 0)
	c.Iomaps, _ = encodeIomapCount(c.Iomaps)
	if c.Linger == 0 {
		c.Linger = 5 * time.Second
	}
	if c.Backlog < 1 {
		c.Backlog = 128
	}
	return c
}
