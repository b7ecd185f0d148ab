package wireguard

import (
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
)

// bind is a conn.Bind that reports sent packets to an outbox, limits received ones, and survives
// failures of reception.
type bind struct {
	conn.Bind
	out    *outbox
	in     *backlog
	failed func(error) // logs a failure to receive
}

// Open implements conn.Bind.
func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	receive, port, err := b.Bind.Open(port)
	for i := range receive {
		receive[i] = b.receiver(receive[i])
	}
	return receive, port, err
}

// After maxFailures failures in a row, receivers pause for failurePause. A failure usually takes a
// datagram from the socket, so that the next call may succeed. A socket that always fails must not
// occupy a processor.
const (
	maxFailures  = 64
	failurePause = time.Millisecond
)

// receiver returns a function that receives only while there is room. It fails only when the bind
// is closed: the device would stop receiving for good after a few failures in a row, and a single
// datagram can cause one, from whomever it comes.
func (b *bind) receiver(receive conn.ReceiveFunc) conn.ReceiveFunc {
	return func(packets [][]byte, sizes []int, from []conn.Endpoint) (int, error) {
		// The device opens a batch, and the host handles it, while it is in the caches.
		runtime.Gosched()
		b.in.awaitRoom()
		for failures := 1; ; failures++ {
			n, err := receive(packets, sizes, from)
			if err == nil {
				b.in.received(packets[:n], sizes)
				return n, nil
			}
			if errors.Is(err, net.ErrClosed) {
				return 0, err
			}
			b.failed(err)
			if failures%maxFailures == 0 {
				time.Sleep(failurePause)
			}
		}
	}
}

// Send implements conn.Bind.
func (b *bind) Send(packets [][]byte, to conn.Endpoint) error {
	b.in.sent(packets)
	err := b.Bind.Send(packets, to)
	data := 0
	for _, p := range packets {
		if len(p) > device.MessageKeepaliveSize && binary.LittleEndian.Uint32(p) == device.MessageTransportType {
			data++
		}
	}
	if data > 0 {
		b.out.sent(data)
	}
	return err
}
