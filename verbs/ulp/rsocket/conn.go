package rsocket

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/internal/wakeup"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Conn is a connected stream socket. Several goroutines may call its methods.
type Conn struct {
	cfg    Config
	iwarp  bool // messages are SENDs
	pd     *verbs.PD
	ch     *verbs.CompChannel
	cq     *verbs.CQ
	cm     *rdmacm.Conn
	qp     *verbs.QP
	peer   connData
	local  socketAddr
	remote socketAddr

	reading sync.Mutex // one reader at a time; taken before mu
	writing sync.Mutex // one writer at a time; taken before mu

	cqMu    sync.Mutex // protects polling of the CQ; taken before mu
	wcs     [maxCompletions]verbs.WC
	polling atomic.Int32  // readers and writers that poll the CQ
	events  atomic.Int32  // pending in the channel
	handled atomic.Uint32 // batches of completions that were handled
	event   chan struct{} // wakes the goroutine run

	mu            sync.Mutex
	readable      waiter      // the reader
	writable      waiter      // the writer, and Close
	canReceive    func() bool // what the reader and the writer wait for; made once, as closures allocate
	canSend       func() bool
	in            receiver
	out           sender
	maps          iomaps
	readDeadline  deadline
	writeDeadline deadline

	copying    bool  // the reader copies from the receive buffer without mu
	closed     bool  // Close was called
	aborted    bool  // Abort was
	readShut   bool  // CloseRead was called
	writeShut  bool  // CloseWrite was called
	peerShut   bool  // the peer has ended its sending half
	peerGone   bool  // the peer has disconnected
	err        error // the reason for failed
	failed     bool
	onReady    readyHook
	keepalive  verbs.Timer
	closing    wakeup.Once
	closeErr   error
	cancel     context.CancelFunc // ends run
	goroutines wakeup.Group

	// For tests: called while TryWrite or TryWriteAt copies without mu.
	whileCopying func()
}

// maxCompletions is the number of completions that are handled with one wake-up of the reader and
// the writer, and of receive requests that are posted with them.
const maxCompletions = 16

var _ net.Conn = (*Conn)(nil)

// newConn creates all objects of a Conn except the QP.
func newConn(dev *verbs.Device, transport verbs.Transport, cfg *Config) (c *Conn, err error) {
	c = &Conn{cfg: *cfg, iwarp: transport == verbs.IWARP, event: make(chan struct{}, 1)}
	c.readable.changed.L, c.writable.changed.L = &c.mu, &c.mu
	c.canReceive = func() bool {
		_, done, _ := c.tryData(1)
		return done
	}
	c.canSend = c.tryToSend
	defer func() {
		if err != nil {
			err = errors.Join(err, c.release())
		}
	}()
	if c.pd, err = dev.AllocPD(); err != nil {
		return c, err
	}
	if c.ch, err = dev.CreateCompChannel(); err != nil {
		return c, err
	}
	attr := &verbs.CQInitAttr{Channel: c.ch, Wait: verbs.WaitEvent}
	if c.cq, err = dev.CreateCQ(c.cfg.SQSize+c.cfg.RQSize+spareReceives, attr); err != nil {
		return c, err
	}
	if err = c.in.register(c); err != nil {
		return c, err
	}
	return c, c.out.register(c)
}

// release undoes newConn.
func (c *Conn) release() error {
	c.mu.Lock() // a Mapping may be closed at the same time
	errs := []error{c.maps.release()}
	c.mu.Unlock()
	return errors.Join(append(errs, closeMade(c.in.mr), closeMade(c.in.messagesMR), closeMade(c.out.mr), closeMade(c.out.listMR),
		closeMade(c.cq), closeMade(c.ch), closeMade(c.pd))...)
}

// closeMade closes an object, unless it is nil because its creation failed or was never reached.
func closeMade[C interface {
	comparable
	io.Closer
}](c C) error {
	var none C
	if c == none {
		return nil
	}
	return c.Close()
}

// cmConfig returns the rdma_cm options of the connection.
func (c *Conn) cmConfig() *rdmacm.Config {
	own := connData{
		credits: uint16(c.cfg.RQSize), iomaps: len(c.maps.peers),
		list: sge{c.out.listMR.Addr(), c.out.listMR.RKey(), entries},
		data: sge{c.in.mr.Addr(), c.in.mr.RKey(), uint32(c.in.half())},
	}
	return &rdmacm.Config{
		Transports: c.cfg.Transports[:1], LocalAddr: c.cfg.LocalAddr, TOS: c.cfg.TOS,
		PD: c.pd, SendCQ: c.cq, RecvCQ: c.cq, SQSigAll: true,
		Cap: verbs.QPCap{
			MaxSendWR: c.cfg.SQSize, MaxRecvWR: c.cfg.RQSize + spareReceives, MaxSendSGE: 1, MaxRecvSGE: 1,
			MaxInlineData: max(c.cfg.Inline, iomapLen),
		},
		PrivateData: own.bytes(),
		Prepare: func(cm *rdmacm.Conn) error {
			return c.in.post(c, cm.QP(), c.cfg.RQSize+spareReceives)
		},
	}
}

// start starts using a connection that rdma_cm has established.
func (c *Conn) start(cm *rdmacm.Conn, peer *connData) {
	c.cm, c.qp, c.peer = cm, cm.QP(), *peer
	c.local, c.remote = socketAddr{cm.LocalAddr().String()}, socketAddr{cm.PeerAddr().String()}
	c.out.start(c)
	if !c.iwarp {
		attr, _, _ := c.qp.Query() // an error leaves 0
		c.out.mtu = attr.PathMTU.Bytes()
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.mu.Lock()
	c.grant()
	if c.cfg.KeepAlive > 0 {
		c.keepalive = c.clock().AfterFunc(c.cfg.KeepAlive, c.probe)
	}
	c.mu.Unlock()
	c.goroutines.Go(c.clock(), func() { c.run(ctx) })
}

// clock returns the clock of waits and timers.
func (c *Conn) clock() verbs.Clock { return c.cq.Device().Clock() }

// LocalAddr returns the local address and port.
func (c *Conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr returns the peer's address and port.
func (c *Conn) RemoteAddr() net.Addr { return c.remote }

// QP returns the connection's QP, for its state and counters. Only the Conn may post work requests
// to it.
func (c *Conn) QP() *verbs.QP { return c.qp }

// CloseWrite ends the sending half. The peer's reader gets EOF after all written data. Reading
// continues.
func (c *Conn) CloseWrite() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	if c.writeShut {
		return nil
	}
	c.writeShut = true
	c.wake()
	if c.readShut {
		return c.disconnect()
	}
	return c.control(ctrlShutdown)
}

// CloseRead ends reading: it drops data that has arrived or arrives later. The protocol has no
// message for this half alone. The peer gets a disconnect when writing has ended too.
func (c *Conn) CloseRead() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return c.opError("close", net.ErrClosed)
	}
	if c.readShut {
		return nil
	}
	c.readShut = true
	c.dropUnread()
	c.wake()
	if c.writeShut {
		return c.disconnect()
	}
	return nil
}

// ended reports whether nothing is sent or received any more. mu is held.
func (c *Conn) ended() bool { return c.closed || c.failed || c.peerGone }

// writeEnded reports whether writes no longer send anything. mu is held.
func (c *Conn) writeEnded() bool { return c.ended() || c.writeShut }

// control sends a control message, unless the connection has ended. mu is held. If the send queue
// is full, the message is sent after the next completion.
func (c *Conn) control(value uint32) error {
	if c.failed || c.peerGone {
		return nil
	}
	c.out.controls = append(c.out.controls, newMessage(opControl, value))
	c.flushControls()
	return nil
}

// disconnect sends a disconnect message, unless it was sent before. mu is held.
func (c *Conn) disconnect() error {
	if c.out.disconnected {
		return nil
	}
	c.out.disconnected = true
	return c.control(ctrlDisconnect)
}

// Close ends both halves (rclose), and waits up to Config.Linger for the peer to acknowledge the
// written data. It then frees the connection. Waiting calls of Read and Write return net.ErrClosed,
// and so does a second Close. Another error is that of closing an object of the connection.
func (c *Conn) Close() error {
	first := false
	c.closing.Do(c.clock(), func() { first, c.closeErr = true, c.close() })
	if !first {
		return c.opError("close", net.ErrClosed)
	}
	return c.closeErr
}

func (c *Conn) close() error {
	wait := c.finish()
	c.cancel()
	c.goroutines.Wait(c.clock())
	return errors.Join(c.closeCM(wait), c.release())
}

// finish ends both halves and waits for acknowledgements. It returns false if the connection was
// aborted.
func (c *Conn) finish() bool {
	c.mu.Lock()
	defer c.mu.Unlock() // also if a simulation ends the wait with a panic
	c.closed = true
	if c.keepalive != nil {
		c.keepalive.Stop()
	}
	c.readDeadline.stop()
	c.writeDeadline.stop()
	c.dropUnread()
	c.wake()
	// If each side has ended its sending half, both sides know that the connection has ended.
	if !c.writeShut || !c.peerShut || c.out.disconnected {
		_ = c.disconnect()
	}
	expired := false
	linger := c.clock().AfterFunc(c.cfg.Linger, func() {
		c.mu.Lock()
		expired = true
		c.mu.Unlock()
		c.writable.changed.Broadcast()
	})
	defer linger.Stop()
	c.waitFor(&c.writable, func() bool { return expired || c.failed || c.peerGone || c.out.idle() })
	return !c.aborted
}

// Abort is Close without a wait for the peer, which gets ECONNRESET. Written data may be lost.
func (c *Conn) Abort() error {
	c.mu.Lock()
	c.aborted = true
	c.fail(net.ErrClosed)
	c.mu.Unlock()
	return c.Close()
}

// closeCM disconnects. With wait it waits for the peer's confirmation.
func (c *Conn) closeCM(wait bool) error {
	if wait {
		return c.cm.Close()
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return c.cm.CloseContext(ctx)
}

// wake wakes the reader and the writer after a change. mu is held.
func (c *Conn) wake() {
	c.readable.changed.Broadcast()
	c.writable.changed.Broadcast()
	c.onReady.changed(c.clock(), c.ready)
}

// fail ends a connection that cannot continue. mu is held.
func (c *Conn) fail(err error) {
	if c.failed {
		return
	}
	c.failed, c.err = true, err
	c.wake()
	// Later requests of the peer fail, including its writes.
	_ = c.qp.Modify(&verbs.QPAttr{QPState: verbs.StateErr}, verbs.QPAttrState)
}

// errReset returns the error of a connection that ended without a disconnect message.
func errReset(detail string) error {
	return &verbs.Error{Op: "receive", Detail: detail, Err: syscall.ECONNRESET}
}

// probe is called by the keepalive timer. It posts a zero-length RDMA WRITE. The peer's QP
// acknowledges it, and its application does not see it.
func (c *Conn) probe() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended() || c.keepalive == nil {
		return
	}
	if c.out.idle() {
		c.out.postKeepalive(c)
	}
	c.keepalive.Reset(c.cfg.KeepAlive)
}
