package rocev2

import (
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/control"
	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/rdmatransport/mad"
)

// leave makes the target disconnect.
func (c *caller) leave() { c.Do(control.Request{Op: control.Disconnect}) }

// leaving returns the caller of a connection that the target ends.
func leaving(t *tester) *caller {
	c, _ := established(t)
	c.leave()
	return c
}

// disconnect sends the tester's DREQ.
func (c *caller) disconnect() {
	c.say(&mad.DREQ{LocalCommID: c.id, RemoteCommID: c.theirs, RemoteQPN: c.num})
}

// disconnected ends the connection, which the target's program must be told.
func (c *caller) disconnected() {
	c.disconnect()
	c.Event("DISCONNECTED")
}

// endings are the ends of connections.
var endings = []entry{
	{"CM-DREQ", "A DREQ is an event.", "IBTA Vol 1 §12.6.10", func(t *tester) {
		c, _ := established(t)
		c.disconnected()
	}},
	{"CM-DREP", "A DREQ is answered with a DREP when the program disconnects, too.", "IBTA Vol 1 §12.6.11", func(t *tester) {
		c, _ := established(t)
		c.disconnected()
		c.leave()
		var m mad.DREP
		r, _ := c.expect(&m)
		equal(r, "communication IDs", m.RemoteCommID, c.id, "%#x")
	}},
	{"CM-DREQ-DUP", "A duplicate DREQ is answered with another DREP.", suite.Observed, func(t *tester) {
		c, _ := established(t)
		c.disconnected()
		c.leave()
		c.expect(&mad.DREP{})
		c.disconnect()
		c.expect(&mad.DREP{})
	}},
	{"CM-DREQ-UNKNOWN", "A DREQ of an unknown connection is answered with a DREP.", suite.Observed, func(t *tester) {
		c := t.listening()
		c.theirs = 0x7f7f7f7f
		c.disconnect()
		var m mad.DREP
		r, _ := c.expect(&m)
		equal(r, "communication IDs", m.RemoteCommID, c.id, "%#x")
	}},
	{"CM-LEAVE", "A target that disconnects sends a DREQ that names the tester's queue pair.", "IBTA Vol 1 §12.6.10", func(t *tester) {
		c := leaving(t)
		var m mad.DREQ
		r, _ := c.expect(&m)
		equal(r, "DREQ's QPN", m.RemoteQPN, c.own, "%#x")
		c.raise(&mad.DREP{LocalCommID: c.id, RemoteCommID: c.theirs}, "DISCONNECTED")
	}},
	{"CM-DREQ-ONCE", "A duplicate DREQ makes no second event.", suite.Observed, func(t *tester) {
		c, _ := established(t)
		c.disconnected()
		c.disconnect()
		c.quiet()
	}},
	{"CM-DREQ-QPN", "A DREQ with another queue pair number than the connection's is ignored.", "IBTA Vol 1 §12.6.10", func(t *tester) {
		c, _ := established(t)
		c.say(&mad.DREQ{LocalCommID: c.id, RemoteCommID: c.theirs, RemoteQPN: c.num ^ 0x40})
		c.quiet()
	}},
	{"CM-LEAVE-AGAIN", "A DREQ that no DREP answers is repeated as it was.", suite.Observed, func(t *tester) {
		c := leaving(t)
		first, _ := c.expect(&mad.DREQ{})
		again, _ := c.expect(&mad.DREQ{})
		equal(again, "MAD", string(again.Payload), string(first.Payload), "%x")
	}},
	{"CM-LEAVE-END", "After the DREP the DREQ is not repeated.", suite.Observed, func(t *tester) {
		c := leaving(t)
		c.expect(&mad.DREQ{})
		c.raise(&mad.DREP{LocalCommID: c.id, RemoteCommID: c.theirs}, "DISCONNECTED")
		t.sync(func(*reply) {}) // a message may be in flight
		r, ok := t.next(repeated)
		is(t, "that the DREQ comes again", ok && r.number > 0, false)
	}},
	{"CM-LEAVE-CROSS", "A DREQ that crosses the target's own ends the connection.", suite.Observed, func(t *tester) {
		c := leaving(t)
		c.expect(&mad.DREQ{})
		c.disconnected()
	}},
	{"CM-LEAVE-LOST", "A target whose DREQ is never answered gives up: the connection has ended.", suite.Observed, func(t *tester) {
		c := leaving(t)
		c.expect(&mad.DREQ{})
		c.Event("DISCONNECTED")
	}},
}
