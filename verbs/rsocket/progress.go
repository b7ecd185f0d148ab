package rsocket

import (
	"context"
	"encoding/binary"
	"syscall"

	"github.com/softrnic/softrnic/verbs"
)

// leOrder is the order of this side's entry list, on any machine.
var leOrder = binary.LittleEndian

// run takes completions until ctx ends, but for those that a reader or writer takes who polls.
func (c *Conn) run(ctx context.Context) {
	c.ch.OnEvent(func(n int) {
		if c.events.Add(int32(n)); n > 0 && c.polling.Load() == 0 {
			select {
			case c.event <- struct{}{}:
			default:
			}
		}
	})
	for c.collect(true) {
		if c.polling.Load() == 0 {
			c.cq.Device().EndProgress()
		}
		select {
		case <-c.event:
		case <-ctx.Done():
			return
		}
	}
}

// collect takes in the completions that there are, and reports whether there may be others. With arm, the next causes an event.
func (c *Conn) collect(arm bool) bool {
	c.taking.Lock()
	defer c.taking.Unlock()
	if arm {
		for c.events.Load() > 0 {
			cq, err := c.ch.TryGetEvent()
			if err != nil {
				break // the hook is told of an event a moment before or after it is there
			}
			c.events.Add(-1)
			_ = cq.AckEvents(1)
		}
		if c.cq.Arm(false) != nil {
			return false
		}
	}
	var wcs [4]verbs.WC
	for {
		n, err := c.cq.Poll(wcs[:])
		if err != nil {
			c.mu.Lock()
			c.fail(err)
			c.mu.Unlock()
			return false
		}
		if n == 0 {
			return true
		}
		c.completed(wcs[:n])
	}
}

// completions passes on what there is in a CQ until ctx ends, or the CQ fails.
func completions(ctx context.Context, ch *verbs.CompChannel, cq *verbs.CQ, take func([]verbs.WC)) error {
	var wcs [32]verbs.WC
	for {
		if cq.RequestNotify(false) != nil {
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
			take(wcs[:n])
		}
		if _, err := ch.GetEvent(ctx); err != nil {
			return nil
		}
		_ = cq.AckEvents(1)
	}
}

// completed takes in completions.
func (c *Conn) completed(wcs []verbs.WC) {
	c.mu.Lock()
	defer c.mu.Unlock()
	received := 0
	for i := range wcs {
		wc := &wcs[i]
		if wc.WRID&receiveID == 0 {
			c.out.completed(wc.WRID)
		}
		if wc.Status != verbs.WCSuccess {
			c.lost(wc)
			continue
		}
		if wc.WRID&receiveID != 0 {
			received++
		}
		if wc.WRID&receiveID == 0 || c.failed || c.peerGone {
			continue
		}
		if err := c.receive(wc); err != nil {
			c.fail(err)
		}
	}
	if !c.failed && received > 0 {
		if err := c.in.post(c, c.qp, received); err != nil {
			c.fail(err)
		}
	}
	c.drop()
	c.grant()
	c.flushControls()
	c.flushIomaps()
	c.wake()
}

// lost takes in a completion that is an error: the connection is over. mu is held.
func (c *Conn) lost(wc *verbs.WC) {
	switch {
	case c.failed || c.peerGone:
	case c.out.disconnected || c.writeShut && c.peerShut:
		c.peerGone = true // both have said that they send no more
	case wc.Status == verbs.WCWRFlushErr:
		c.fail(reset("the connection has ended without the peer's saying so"))
	case wc.Status == verbs.WCRetryExcErr || wc.Status == verbs.WCRNRRetryExcErr:
		c.fail(&verbs.Error{Op: "send", Detail: wc.Status.Description(), Err: syscall.ETIMEDOUT})
	default:
		c.fail(&verbs.Error{Op: "send or receive", Detail: wc.Status.Description(), Err: syscall.ECONNRESET})
	}
}

// receive takes in a message. mu is held.
func (c *Conn) receive(wc *verbs.WC) error {
	const op = "receive"
	var m message
	placed := wc.ByteLen // over iWARP, nobody knows how much was placed
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
			return verbs.Errorf(errProtocol, op, "%d bytes were placed, the message says %d", placed, m.data())
		}
		if c.peerShut {
			return verbs.Errorf(errProtocol, op, "%d bytes after the end", placed)
		}
		return c.in.arrived(int(m.data()))
	case opCredits:
		if !c.iwarp && placed != 0 && placed != sgeLen {
			return verbs.Errorf(errProtocol, op, "%d bytes were placed with credits, neither 0 nor %d", placed, sgeLen)
		}
		entry, unknown := placed == sgeLen, false
		if c.iwarp {
			entry, unknown = m.data()&creditsRoom != 0, m.data()&creditsTell == 0
		}
		return c.out.credited(c, uint16(m.data()), entry, unknown)
	case opIomap:
		return c.mapped(m.data(), placed)
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
	return verbs.Errorf(errProtocol, op, "operation %d is unknown, or not allowed", m.op())
}
