package classify

import (
	"cmp"
	"container/list"
	"net/netip"
	"slices"

	"github.com/softrnic/softrnic/rdmatransport/roce/cm/mad"
	"github.com/softrnic/softrnic/stack"
)

// Bounds on what peers can have remembered. Beyond, the oldest is forgotten: if its process dies,
// the peer is not told, and finds out by itself.
const (
	maxConnections = 1 << 16 // of a process
	maxRequests    = 1 << 14
)

// leases are the processes, by their communication IDs, whose ranges do not overlap.
type leases []*lease

// lease is a process's numbers, and its connections by its own communication ID.
type lease struct {
	ids         stack.Range
	dead        bool
	connections map[uint32]*connection
	order       list.List // of them, the oldest first
}

// connection is one of a process's, established or nearly so, as its peer has described it.
type connection struct {
	lease         *lease
	place         *list.Element // in lease.order
	own, peer     netip.Addr
	local, remote uint32 // communication IDs
	qpn           uint32 // the peer's
	trafficClass  uint8
	priority      uint8

	speaking // since the process died
}

// requests are REQs that came, and whose connection's own communication ID is not known yet.
type requests struct {
	of    map[request]*asked
	order list.List // of them, the oldest first
}

// asked is what a REQ asked for.
type asked struct {
	request
	place   *list.Element
	service uint64
	qpn     uint32
}

// at finds where the process that has a communication ID is, or would be.
func (l leases) at(id uint32) (i int, found bool) {
	i, exact := slices.BinarySearchFunc(l, id, func(e *lease, id uint32) int { return cmp.Compare(e.ids.Base, id) })
	if exact {
		return i, true
	}
	if i > 0 && l[i-1].ids.Contains(id) {
		return i - 1, true
	}
	return i, false
}

// lives reports whether a living process has a communication ID.
func (l leases) lives(id uint32) bool {
	i, found := l.at(id)
	return found && !l[i].dead
}

// Leased implements stack.Classifier.
func (c *Classifier) Leased(n stack.Numbers) {
	c.leases = slices.DeleteFunc(c.leases, func(l *lease) bool {
		overlap := l.ids.Contains(n.CommIDs.Base) || n.CommIDs.Contains(l.ids.Base)
		if overlap {
			for _, o := range l.connections {
				o.over = true
			}
		}
		return overlap
	})
	i, _ := c.leases.at(n.CommIDs.Base)
	c.leases = slices.Insert(c.leases, i, &lease{ids: n.CommIDs, connections: map[uint32]*connection{}})
}

// Died implements stack.Classifier.
func (c *Classifier) Died(n stack.Numbers) {
	i, found := c.leases.at(n.CommIDs.Base)
	if !found || c.leases[i].dead {
		return
	}
	l := c.leases[i]
	l.dead = true
	for e := l.order.Front(); e != nil; e = e.Next() {
		c.speech.begin(e.Value.(*connection))
	}
}

// learn takes in what a message with the right ICRC tells of a connection. A connection is known
// from the message that has both communication IDs: for who has asked that is the REP, for who was
// asked the RTU, or a MRA about his REP.
func (c *Classifier) learn(m *message, d *stack.Datagram) {
	key := m.request(d)
	switch x := m.content.(type) {
	case *mad.REQ:
		c.requests.add(&asked{request: key, service: x.ServiceID, qpn: x.LocalQPN})
	case *mad.REP:
		qpn := x.LocalQPN
		if qpn == 0 {
			qpn = x.LocalEECN // of XRC
		}
		c.connected(m, d, qpn)
	case *mad.RTU, *mad.MRA:
		if a := c.requests.of[key]; a != nil && m.remote != 0 {
			c.requests.remove(a)
			c.connected(m, d, a.qpn)
		}
	case *mad.REJ:
		if a := c.requests.of[key]; a != nil {
			c.requests.remove(a)
		}
		c.forget(m, d)
	case *mad.DREQ, *mad.DREP:
		c.forget(m, d)
	}
}

// connected remembers a connection.
func (c *Classifier) connected(m *message, d *stack.Datagram, qpn uint32) {
	i, found := c.leases.at(m.remote)
	if !found {
		return
	}
	l := c.leases[i]
	if old := l.connections[m.remote]; old != nil {
		if old.isOf(m, d) {
			return // it is repeated
		}
		l.remove(old)
	}
	if len(l.connections) >= maxConnections {
		l.remove(l.order.Front().Value.(*connection))
	}
	o := &connection{
		lease: l, own: d.Dst, peer: d.Src, local: m.remote, remote: m.local, qpn: qpn,
		trafficClass: d.TrafficClass, priority: uint8(d.TCI >> 13),
	}
	o.place = l.order.PushBack(o)
	l.connections[o.local] = o
	if l.dead {
		c.speech.begin(o)
	}
}

// forget forgets the connection that a message is about: it is over.
func (c *Classifier) forget(m *message, d *stack.Datagram) {
	i, found := c.leases.at(m.remote)
	if !found {
		return
	}
	if o := c.leases[i].connections[m.remote]; o != nil && o.isOf(m, d) {
		o.lease.remove(o)
	}
}

// isOf reports whether a message to a connection's communication ID is from its peer.
func (o *connection) isOf(m *message, d *stack.Datagram) bool {
	return o.remote == m.local && o.peer == d.Src && o.own == d.Dst
}

func (l *lease) remove(o *connection) {
	o.over = true
	delete(l.connections, o.local)
	l.order.Remove(o.place)
}

// add remembers a REQ.
func (r *requests) add(a *asked) {
	if old := r.of[a.request]; old != nil {
		r.remove(old)
	}
	if len(r.of) >= maxRequests {
		r.remove(r.order.Front().Value.(*asked))
	}
	a.place = r.order.PushBack(a)
	r.of[a.request] = a
}

func (r *requests) remove(a *asked) {
	delete(r.of, a.request)
	r.order.Remove(a.place)
}
