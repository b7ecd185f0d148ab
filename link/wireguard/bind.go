package wireguard

import (
	"encoding/binary"
	"errors"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
)

// bind is a conn.Bind that reports sent packets to an outbox, and limits received ones.
type bind struct {
	conn.Bind
	out *outbox
	in  *backlog
}

// Open implements conn.Bind.
func (b *bind) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	receive, port, err := b.Bind.Open(port)
	for i := range receive {
		receive[i] = b.in.limited(receive[i])
	}
	return receive, port, err
}

// Send implements conn.Bind. An endpoint remembers the address and the interface from which it was
// reached. If these are gone, because this machine has a new address, the packets are sent again to
// an endpoint without them. Other goroutines read the given one.
func (b *bind) Send(packets [][]byte, to conn.Endpoint) error {
	b.in.sent(packets)
	err := b.Bind.Send(packets, to)
	var noGSO conn.ErrUDPGSODisabled
	if err != nil && !errors.As(err, &noGSO) {
		var fresh conn.Endpoint
		if fresh, err = b.ParseEndpoint(to.DstToString()); err == nil {
			err = b.Bind.Send(packets, fresh)
		}
	}
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
