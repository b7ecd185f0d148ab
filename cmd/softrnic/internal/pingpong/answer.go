package pingpong

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

// exchangeTimeout bounds how long a client may take to say where its QP is.
const exchangeTimeout = 10 * time.Second

// Answer is the server of one ibv_rc_pingpong, whose connection it closes: it sends messages of at most maxSize bytes
// back until none has come for the time idle, and returns how many there were. The path MTU is in bytes.
func Answer(ctx context.Context, n *node.Node, conn net.Conn, maxSize, mtu int, idle time.Duration) (messages int, err error) {
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
	return p.echo(ctx, idle)
}

// echo sends back each message that it receives. It ends when no message has come for a time, because clients do not say that
// they end, and returns the number of messages.
func (p *pinger) echo(ctx context.Context, patience time.Duration) (messages int, err error) {
	var owed []int // lengths of messages to be sent when the one before is complete
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
				messages++
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
