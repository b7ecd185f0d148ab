package pingpong

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

// exchangeTimeout bounds how long a client may take to send the address of its QP.
const exchangeTimeout = 10 * time.Second

// Answer returns the server of one ibv_rc_pingpong, whose connection it closes. It calls prove when
// the client has sent its first message over RDMA. It echoes messages
// of at most maxSize bytes until none was received for idle, and returns their number. The path MTU
// is in bytes.
func Answer(ctx context.Context, n *node.Node, conn net.Conn, prove func(), maxSize, mtu int, idle time.Duration) (
	messages int, err error) {
	p, err := newPinger(n, &flags{IBPort: 1, Size: maxSize, RxDepth: 64}, rcKind(mtu))
	if err != nil {
		return 0, errors.Join(err, conn.Close())
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if err := conn.SetDeadline(time.Now().Add(exchangeTimeout)); err != nil {
		return 0, errors.Join(err, conn.Close())
	}
	if err := answerExchange(ctx, conn, len(p.local), func(remote []dest) ([]dest, error) {
		if err := p.choose(remote[0].gid.Addr()); err != nil {
			return nil, err
		}
		return p.local, p.connect(remote)
	}); err != nil {
		return 0, err
	}
	return p.echo(ctx, prove, idle)
}

// echo sends back each received message. It ends when no message was received for patience, as
// clients do not announce their end, and returns the number of messages.
func (p *pinger) echo(ctx context.Context, prove func(), patience time.Duration) (messages int, err error) {
	var owed []int // lengths of messages to send when the previous one has completed
	sending := false
	for {
		idle, cancel := context.WithTimeout(ctx, patience)
		var wcs [8]verbs.WC
		n, err := p.cq.Wait(idle, wcs[:])
		over := idle.Err() != nil && ctx.Err() == nil && messages > 0
		cancel()
		if err != nil {
			if over {
				err = nil
			}
			return messages, err
		}
		for i := range wcs[:n] {
			switch wcs[i].WRID {
			case pingSend:
				sending = false
			case pingRecv:
				if messages++; messages == 1 {
					prove()
				}
				p.received(&wcs[i])
				owed = append(owed, int(wcs[i].ByteLen))
				if err := p.postRecvs(1); err != nil {
					return messages, err
				}
			}
		}
		if len(owed) > 0 && !sending {
			if err := p.postSend(0, owed[0]); err != nil {
				return messages, err
			}
			owed, sending = owed[1:], true
		}
	}
}
