package cm

import (
	"encoding/binary"
	"syscall"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// timedOut is the status of an event after a timeout.
const timedOut = -int(syscall.ETIMEDOUT)

// expired is the timer's callback.
func (c *conn) expired() {
	c.m.mu.Lock()
	if c.due != 0 && c.m.cfg.Timers.Now() >= c.due {
		c.due = 0
		c.onTimeout()
	}
	c.m.unlockAndDeliver()
}

// LinkUp retransmits unanswered messages after a port's link, or its shared hub, has returned. The
// other side's link may still be down, so each message is repeated after a second at the latest.
func (m *Manager) LinkUp(port uint8) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, c := range m.ids.All() {
		waits := c.msg != nil && c.state != sidrAnswered && c.state != mraReqRcvd && c.state != mraRepRcvd
		if waits && c.route.PortNum == port {
			c.resend()
			c.arm(min(c.timeout, linkUpTimeout))
		}
	}
}

func (m *Manager) carrierExpected(port uint8) bool {
	return m.cfg.CarrierExpected != nil && m.cfg.CarrierExpected(port)
}

// resend retransmits an unanswered message.
func (c *conn) resend() {
	attr := mad.Attr(binary.BigEndian.Uint16(c.msg[16:]))
	c.m.Counters.sent(attr)
	c.m.Counters.resent(attr)
	c.path.Send(c.msg)
}

// onTimeout handles the expiry of the timer.
func (c *conn) onTimeout() {
	switch c.state {
	case mraReqRcvd:
		c.set(reqSent)
	case mraRepRcvd:
		c.set(repSent)
	case timewait:
		c.release()
		c.report(rdmacm.ConnEvent{Type: rdmacm.TimewaitExit})
		return
	}
	if c.msg == nil || c.state == sidrAnswered {
		return
	}
	// An answer cannot arrive without a carrier, so the retry does not count.
	noCarrier := c.state == dreqSent && c.m.draining && c.m.carrierExpected(c.route.PortNum)
	if noCarrier || c.retries < c.maxRetries {
		if !noCarrier {
			c.retries++
		}
		c.resend()
		c.arm(c.timeout)
		return
	}
	unreachable := rdmacm.ConnEvent{Type: rdmacm.Unreachable, Status: timedOut}
	switch c.state {
	case reqSent, repSent:
		c.sendREJ(mad.Timeout, nil)
		c.release()
		c.report(unreachable)
	case sidrReqSent:
		c.release()
		c.report(unreachable)
	case dreqSent:
		c.wait(timedOut)
	}
}

// onMRA grants the peer the time that it asks for, once per request.
func (c *conn) onMRA(tid uint64, msg *mad.MRA) {
	switch {
	case c.state == reqSent && msg.About == mad.AnsweredREQ && tid == c.tid:
		c.set(mraReqRcvd)
	case c.state == repSent && msg.About == mad.AnsweredREP && msg.LocalCommID == c.remoteID:
		c.set(mraRepRcvd)
	default:
		c.m.Counters.duplicate(mad.AttrMRA)
		return
	}
	c.arm(wait(min(msg.ServiceTimeout, mraTimeout)) + wait(min(c.ackTimeout, maxResponseTimeout)))
}

// sendMRA asks the peer for time.
func (c *conn) sendMRA(about mad.Answered) {
	c.sendMsg(c.tid, &mad.MRA{
		LocalCommID: c.localID, RemoteCommID: c.remoteID, About: about, ServiceTimeout: mraTimeout,
	})
}
