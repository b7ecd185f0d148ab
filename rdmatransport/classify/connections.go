package classify

import (
	"cmp"
	"container/list"
	"net/netip"
	"slices"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/stack"
)

// Limits of the state that peers can create. Beyond them, the oldest entry is dropped. If its
// process dies, the peer is not notified, and detects the end by its own timeouts.
const (
	maxConnections = 1 << 16 // of a process
	maxRequests    = 1 << 14
)

// leases are the processes by communication ID. Their ranges do not overlap.
type leases []*lease

// lease holds a process's numbers, and its connections by its own communication ID.
type lease struct {
	ids         stack.Range
	dead        bool
	connections map[uint32]*connection
	order       list.List // of connections, oldest first
}

// connection is a connection of a process, established or almost established, as its peer has
// described it.
type connection struct {
	lease         *lease
	place         *list.Element // in lease.order
	own, peer     netip.Addr
	local, remote uint32 // communication IDs
	qpn           uint32 // the peer's
	trafficClass  uint8
	priority      uint8

	notice // after the process died
}

// requests are received REQs whose connection's local communication ID is unknown.
type requests struct {
	of    map[request]*pendingREQ
	order list.List // of them, oldest first
}

// pendingREQ is the content of a REQ.
type pendingREQ struct {
	request
	place   *list.Element
	service uint64
	qpn     uint32
}

// at returns the index of the process with a communication ID, or where it would be inserted.
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

// alive reports whether a live process has a communication ID.
func (l leases) alive(id uint32) bool {
	i, found := l.at(id)
	return found && !l[i].dead
}

// Leased implements hub.Classifier.
func (c *classifier) Leased(n stack.Numbers) {
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

// Died implements hub.Classifier.
func (c *classifier) Died(n stack.Numbers) {
	i, found := c.leases.at(n.CommIDs.Base)
	if !found || c.leases[i].dead {
		return
	}
	l := c.leases[i]
	l.dead = true
	for e := l.order.Front(); e != nil; e = e.Next() {
		c.notifier.start(e.Value.(*connection))
	}
}

// learn updates connections by a message with the right ICRC. A connection is known from the first
// message with both communication IDs. On the active side that is the REP. On the passive side it
// is the RTU, or a MRA of the REP.
func (c *classifier) learn(m *message, d *stack.Datagram) {
	key := m.request(d)
	switch x := m.content.(type) {
	case *mad.REQ:
		c.requests.add(&pendingREQ{request: key, service: x.ServiceID, qpn: x.LocalQPN})
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

// connected records a connection.
func (c *classifier) connected(m *message, d *stack.Datagram, qpn uint32) {
	i, found := c.leases.at(m.remote)
	if !found {
		return
	}
	l := c.leases[i]
	if old := l.connections[m.remote]; old != nil {
		if old.matches(m, d) {
			return // repeated
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
		c.notifier.start(o)
	}
}

// forget removes the connection of a message, because it has ended.
func (c *classifier) forget(m *message, d *stack.Datagram) {
	i, found := c.leases.at(m.remote)
	if !found {
		return
	}
	if o := c.leases[i].connections[m.remote]; o != nil && o.matches(m, d) {
		o.lease.remove(o)
	}
}

// matches reports whether a message to a connection's communication ID is from its peer.
func (o *connection) matches(m *message, d *stack.Datagram) bool {
	return o.remote == m.local && o.peer == d.Src && o.own == d.Dst
}

func (l *lease) remove(o *connection) {
	o.over = true
	delete(l.connections, o.local)
	l.order.Remove(o.place)
}

// add records a REQ.
func (r *requests) add(a *pendingREQ) {
	if old := r.of[a.request]; old != nil {
		r.remove(old)
	}
	if len(r.of) >= maxRequests {
		r.remove(r.order.Front().Value.(*pendingREQ))
	}
	a.place = r.order.PushBack(a)
	r.of[a.request] = a
}

func (r *requests) remove(a *pendingREQ) {
	delete(r.of, a.request)
	r.order.Remove(a.place)
}
