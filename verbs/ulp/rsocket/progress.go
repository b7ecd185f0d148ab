package rsocket

import (
	"context"
	"encoding/binary"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// leOrder is the byte order of this side's entry list on all machines.
var leOrder = binary.LittleEndian

// run takes completions until ctx ends. Polling readers and writers take completions too.
func (c *Conn) run(ctx context.Context) {
	c.ch.OnEvent(func(n int) {
		if c.events.Add(int32(n)); n > 0 && c.polling.Load() == 0 {
			select {
			case c.event <- struct{}{}:
			default:
			}
		}
	})
	for c.pollCQ(true) {
		if c.polling.Load() == 0 {
			c.cq.Device().EndProgress()
		}
		if clock := c.clock(); clock.Virtual() {
			clock.Park(func() bool { return len(c.event) > 0 || ctx.Err() != nil })
		}
		select {
		case <-c.event:
		case <-ctx.Done():
			return
		}
	}
}

// pollCQ handles all available completions, and reports whether more may follow. If arm is true, it
// arms the CQ first.
func (c *Conn) pollCQ(arm bool) bool {
	c.cqMu.Lock()
	defer c.cqMu.Unlock()
	if arm {
		for c.events.Load() > 0 {
			cq, err := c.ch.TryGetEvent()
			if err != nil {
				break // the hook may run slightly before the event is in the channel
			}
			c.events.Add(-1)
			_ = cq.AckEvents(1)
		}
		if c.cq.ReqNotify(false) != nil {
			return false
		}
	}
	for {
		n, err := c.cq.Poll(c.wcs[:])
		if err != nil {
			c.mu.Lock()
			c.fail(err)
			c.mu.Unlock()
			return false
		}
		if n == 0 {
			return true
		}
		c.handled.Add(1)
		c.handleCompletions(c.wcs[:n])
	}
}

// serveCQ passes the completions of a CQ to handle until ctx ends or the CQ fails.
func serveCQ(ctx context.Context, ch *verbs.CompChannel, cq *verbs.CQ, handle func([]verbs.WC)) error {
	var wcs [32]verbs.WC
	for {
		if cq.ReqNotify(false) != nil {
			return nil
		}
		for {
			n, err := cq.Poll(wcs[:])
			if err != nil {
				return err
			}
			if n == 0 {
				break
			}
			handle(wcs[:n])
		}
		if _, err := ch.GetEvent(ctx); err != nil {
			return nil
		}
		_ = cq.AckEvents(1)
	}
}

// handleCompletions handles completions.
func (c *Conn) handleCompletions(wcs []verbs.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	received := 0
	for i := range wcs {
		wc := &wcs[i]
		if wc.WRID&receiveID == 0 {
			c.out.handleCompletion(wc.WRID)
		}
		if wc.Status != verbs.WCSuccess {
			c.handleError(wc)
			continue
		}
		if wc.WRID&receiveID != 0 {
			received++
		}
		if wc.WRID&receiveID == 0 || c.failed || c.peerGone {
			continue
		}
		if err := c.handleMessage(wc); err != nil {
			c.fail(err)
		}
	}
	if !c.failed && received > 0 {
		if err := c.in.post(c, c.qp, received); err != nil {
			c.fail(err)
		}
	}
	c.dropUnread()
	c.grant()
	c.flushControls()
	c.flushIomaps()
	c.wake()
}

// handleError handles a completion with an error, after which the connection has ended. mu is held.
func (c *Conn) handleError(wc *verbs.WC) {
	switch {
	case c.failed || c.peerGone:
	case c.out.disconnected || c.writeShut && c.peerShut:
		c.peerGone = true // both sides have ended sending
	case wc.Status == verbs.WCWRFlushErr:
		c.fail(errReset("the connection ended without a disconnect message from the peer"))
	case wc.Status == verbs.WCRetryExcErr || wc.Status == verbs.WCRNRRetryExcErr:
		c.fail(&verbs.Error{Op: "send", Detail: wc.Status.Description(), Err: syscall.ETIMEDOUT})
	default:
		c.fail(&verbs.Error{Op: "send or receive", Detail: wc.Status.Description(), Err: syscall.ECONNRESET})
	}
}

// handleMessage handles a received message. mu is held.
func (c *Conn) handleMessage(wc *verbs.WC) error {
	const op = "receive"
	var m message
	placed := wc.ByteLen // unknown over iWARP
	switch {
	case !c.iwarp && (wc.Flags&verbs.WCWithImm == 0 || wc.Opcode != verbs.WCRecvRDMAWithImm):
		return verbs.Errorf(errProtocol, op, "a %v instead of an RDMA WRITE with immediate data", wc.Opcode)
	case !c.iwarp:
		m = message(wc.ImmData)
	case wc.ByteLen != messageLen:
		return verbs.Errorf(errProtocol, op, "a message of %d bytes instead of %d", wc.ByteLen, messageLen)
	default:
		at := int(wc.WRID&^receiveID) * messageLen
		m = message(c.peer.order().Uint32(c.in.messages[at:]))
		placed = m.data()
	}
	switch m.op() {
	case opData:
		if placed != m.data() {
			return verbs.Errorf(errProtocol, op, "%d bytes were placed, but the message has length %d", placed, m.data())
		}
		if c.peerShut {
			return verbs.Errorf(errProtocol, op, "%d bytes after the end of the stream", placed)
		}
		c.out.replied = true
		return c.in.handleData(int(m.data()))
	case opCredits:
		if !c.iwarp && placed != 0 && placed != sgeLen {
			return verbs.Errorf(errProtocol, op, "%d bytes were placed with credits, neither 0 nor %d", placed, sgeLen)
		}
		entry, unknown := placed == sgeLen, false
		if c.iwarp {
			entry, unknown = m.data()&creditsTarget != 0, m.data()&creditsHasFlags == 0
		}
		return c.out.handleCredits(c, uint16(m.data()), entry, unknown)
	case opIomap:
		return c.handleIomap(m.data(), placed)
	case opControl:
		switch m.data() {
		case ctrlDisconnect:
			c.peerShut, c.peerGone = true, true
		case ctrlShutdown:
			c.peerShut = true
		case ctrlKeepalive:
		default:
			return verbs.Errorf(errProtocol, op, "control message %d is unknown", m.data())
		}
		return nil
	}
	return verbs.Errorf(errProtocol, op, "operation %d is unknown or not allowed", m.op())
}
