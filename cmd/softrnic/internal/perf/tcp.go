package perf

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/softrnic/softrnic/verbs/ulp/rsocket"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
)

// tcp is a side with TCP connections or rsockets in place of QPs, for comparison. A message is a
// number of bytes of the stream.
type tcp struct {
	node     *node.Node
	plan     *plan
	client   bool
	listener net.Listener
	ways     []*tcpLane
}

func newTCP(n *node.Node, p *plan, client bool) *tcp {
	t := &tcp{node: n, plan: p, client: client}
	for i := range p.QPs {
		t.ways = append(t.ways, &tcpLane{side: t, index: i, metered: newMeter(p)})
	}
	return t
}

func (t *tcp) listen() (err error) {
	switch {
	case isSocket(t.plan.Over):
		t.listener, err = rsocket.Listen(t.node.Dev, ":0", t.plan.sockets())
	case t.plan.Over == overKernel:
		t.listener, err = net.Listen("tcp", netip.AddrPortFrom(t.plan.Kernel, 0).String())
	default:
		t.listener, err = t.node.ListenStream(netip.AddrPort{})
	}
	return err
}

func (t *tcp) accept(ctx context.Context) error {
	defer node.CloseWhenDone(ctx, t.listener)()
	for range t.ways {
		conn, err := t.listener.Accept()
		if err != nil {
			return node.Cause(ctx, err)
		}
		// The connections may be accepted in another order than they were dialled.
		var index [4]byte
		stop := node.CloseWhenDone(ctx, conn)
		_, err = io.ReadFull(conn, index[:])
		stop()
		i := binary.BigEndian.Uint32(index[:])
		if err == nil && (int64(i) >= int64(len(t.ways)) || t.ways[i].conn != nil) {
			err = fmt.Errorf("the peer says that a connection is its number %d, of %d", i, len(t.ways))
		}
		if err != nil {
			return node.Cause(ctx, errors.Join(err, conn.Close()))
		}
		t.ways[i].conn = conn
	}
	return nil
}

func (t *tcp) dial(ctx context.Context, server netip.AddrPort) (err error) {
	for _, l := range t.ways {
		switch {
		case isSocket(t.plan.Over):
			l.conn, err = node.Conn(rsocket.Dial(ctx, t.node.Dev, server.String(), t.plan.sockets()))
		case t.plan.Over == overKernel:
			l.conn, err = new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(t.plan.Kernel, server.Port()).String())
		default:
			l.conn, err = t.node.Host.DialStream(ctx, netip.AddrPort{}, server)
		}
		if err != nil {
			return err
		}
		if _, err = l.conn.Write(binary.BigEndian.AppendUint32(nil, uint32(l.index))); err != nil {
			return err
		}
	}
	return nil
}

// sockets returns the options of rsockets: librdmacm's with larger buffers, as TCP's buffers also
// grow to the size that the link needs.
func (p *plan) sockets() *rsocket.Config {
	return &rsocket.Config{Transport: p.transport(), SendBuffer: socketBuffer, RecvBuffer: socketBuffer}
}

const socketBuffer = 1 << 20

func (t *tcp) offer() *offer {
	o := &offer{}
	if t.listener != nil {
		_, port, err := net.SplitHostPort(t.listener.Addr().String())
		if n, bad := strconv.ParseUint(port, 10, 16); err == nil && bad == nil {
			o.Port = uint16(n)
		}
	}
	return o
}

func (t *tcp) prepare(*offer) {}

func (t *tcp) gone() <-chan struct{} { return nil }

func (t *tcp) Close() error {
	var errs []error
	for _, l := range t.ways {
		errs = append(errs, cli.Close(l.conn))
	}
	if t.listener != nil {
		if err := t.listener.Close(); !errors.Is(err, net.ErrClosed) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// tcpLane is one connection.
type tcpLane struct {
	side    *tcp
	index   int
	conn    net.Conn
	metered *meter

	written int64 // messages since the connection was made
	read    int64 // bytes
}

func (l *tcpLane) meter() *meter { return l.metered }

func (l *tcpLane) reset() { l.metered = newMeter(l.side.plan) }

func (l *tcpLane) sent(counts []int64) { counts[l.index] = l.written }

func (l *tcpLane) over([]int64) error { return nil }

// done stops the clock, as only now the peer has received all messages.
func (l *tcpLane) done() {
	if l.metered.messages > 0 && l.metered.latency == nil {
		l.metered.stop()
	}
}

func (l *tcpLane) run(phase *phase) error {
	// A blocked call of the connection returns when the peer has announced its number of messages,
	// and when the phase ends.
	wake := func() { _ = l.conn.SetReadDeadline(time.Unix(1, 0)) }
	defer context.AfterFunc(phase.untilSent, wake)()
	defer context.AfterFunc(phase.ctx, func() { _ = l.conn.SetDeadline(time.Unix(1, 0)) })()
	plan := l.side.plan
	if plan.Metric == metricLat {
		return l.latency(phase)
	}
	var receiving sync.WaitGroup
	var receiveErr error
	if !l.side.client || plan.Bidirectional {
		receiving.Go(func() { receiveErr = l.receive(phase) })
	}
	var err error
	if l.side.client || plan.Bidirectional {
		err = l.send(phase)
	}
	if err == nil {
		err = phase.sent()
	}
	if err != nil {
		return err
	}
	receiving.Wait()
	return receiveErr
}

func (l *tcpLane) send(phase *phase) error {
	plan := l.side.plan
	b := touched(plan.txSlots() * plan.stride())
	l.metered.start()
	for n := int64(0); phase.iters > 0 && n < phase.iters || phase.iters == 0 && l.metered.elapsed() < phase.duration; n++ {
		at := int(n%int64(plan.txSlots())) * plan.stride()
		if _, err := l.conn.Write(b[at:][:plan.Size]); err != nil {
			return err
		}
		l.written++
		l.metered.add(1)
	}
	return nil
}

// receive reads until all messages of the peer have arrived. It reads into the receive slots of a
// QP in turn.
func (l *tcpLane) receive(phase *phase) error {
	plan := l.side.plan
	most := max(plan.Size, 64<<10) // bytes per read
	b := touched(max(plan.rxSlots()*plan.stride(), most))
	for at := 0; ; {
		counts := phase.peerSent.Load()
		if counts != nil && l.read >= (*counts)[l.index]*int64(plan.Size) {
			return nil
		}
		before := l.read
		if err := l.readSome(phase, b[at:min(at+most, len(b))]); err != nil {
			return err
		}
		at = (at + int(l.read-before)) % len(b)
	}
}

// readSome reads at least one byte, unless it is woken.
func (l *tcpLane) readSome(phase *phase, b []byte) error {
	n, err := l.conn.Read(b)
	l.read += int64(n)
	if err == nil { // what follows allocates
		return nil
	}
	if timeout := net.Error(nil); errors.As(err, &timeout) && timeout.Timeout() && phase.ctx.Err() == nil {
		return l.conn.SetReadDeadline(time.Time{})
	}
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// latency measures a ping-pong.
func (l *tcpLane) latency(phase *phase) error {
	b := make([]byte, l.side.plan.Size)
	if !l.side.client {
		if err := phase.sent(); err != nil {
			return err
		}
		for {
			counts := phase.peerSent.Load()
			if counts != nil && l.written == (*counts)[0] {
				return nil
			}
			if l.read < (l.written+1)*int64(len(b)) {
				if err := l.readSome(phase, b[:(l.written+1)*int64(len(b))-l.read]); err != nil {
					return err
				}
				continue
			}
			if _, err := l.conn.Write(b); err != nil {
				return err
			}
			l.written++
		}
	}
	l.metered.start()
	for n, last := int64(0), time.Duration(0); phase.iters > 0 && n < phase.iters || phase.iters == 0 && last < phase.duration; n++ {
		begin := l.metered.elapsed()
		if _, err := l.conn.Write(b); err != nil {
			return err
		}
		l.written++
		for l.read < l.written*int64(len(b)) {
			if err := l.readSome(phase, b[:l.written*int64(len(b))-l.read]); err != nil {
				return err
			}
		}
		last = l.metered.elapsed()
		l.metered.record(last - begin)
	}
	l.metered.stop()
	return phase.sent()
}
