package trace

import (
	"fmt"

	"github.com/softrnic/softrnic/rdmatransport/mad"
	"github.com/softrnic/softrnic/rdmatransport/wire"
	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

const (
	// maxPrefix is the most bytes of a message that are kept until its last packet, and maxPrefixes
	// the most such messages.
	maxPrefix, maxPrefixes = 4 << 10, 1 << 12
	// maxOutstanding is the most commands and calls of a connection that are kept until their
	// answers, and maxAllOutstanding those of all.
	maxOutstanding, maxAllOutstanding = 1 << 10, 1 << 18
	// maxTries is the number of messages after which a connection has another protocol.
	maxTries = 16

	portNVMeDiscovery = 8009
	portNFS           = 20049
)

// protocol is the protocol above RDMA of a connection.
type protocol uint8

const (
	undecided protocol = iota
	otherProtocol
	nvmeFabrics
	rpcOverRDMA
)

// upper is the state of the protocol above RDMA of a connection.
type upper struct {
	protocol protocol
	tries    int
	queue    int // NVMe's queue ID; −1: not known
	waiting  map[uint32]waitingCall
}

// waitingCall is an NVMe command or an RPC call without an answer. Its key is the CID or the XID.
type waitingCall struct {
	from   int // its sender
	name   string
	number int
	time   int64
	nfs    bool // its results begin with a status of NFS version 3
}

// message is a message of NVMe or RPC.
type message struct {
	from  int    // distinguishes the two sides of a connection
	b     []byte // its start
	n     int    // its length
	again bool   // all of its packets are repeated: the command or call is known
}

// prefix collects the start of a message of one direction.
type prefix struct {
	message
	open bool
	next uint32 // RoCE: the PSN that follows
}

// servicePort returns the port of a service ID of rdma_cm (IBTA Vol 1 annex A11), or 0.
func servicePort(service uint64) uint16 {
	const ip, tcp = 1 << 24, 6 << 16
	if service>>16 != (ip|tcp)>>16 {
		return 0
	}
	return uint16(service)
}

// newUpper returns the state of a connection whose request has a port and private data. The second
// result describes the private data.
func newUpper(port uint16, private []byte) (*upper, string) {
	u := &upper{queue: -1}
	switch {
	case port == nvme.Port || port == portNVMeDiscovery:
		r, err := nvme.ParseConnRequest(private)
		if err != nil {
			break
		}
		u.protocol, u.queue = nvmeFabrics, int(r.QID)
		return u, fmt.Sprintf("NVMe queue %d of %d commands", r.QID, int(r.HSQSize)+1)
	case port == portNFS || rpcPrivate(private):
		u.protocol = rpcOverRDMA
		return u, describeRPCPrivate(private)
	}
	return u, ""
}

// requested takes the REQ of a RoCE connection.
func (a *analysis) requested(x *exchange, m *mad.REQ) {
	const cmHeader = 36 // of IP addressing (IBTA Vol 1 annex A11)
	var private []byte
	if len(m.PrivateData) > cmHeader {
		private = m.PrivateData[cmHeader:]
	}
	x.upper, a.ev.upper = newUpper(servicePort(m.ServiceID), private)
}

// upperOf returns the state of a RoCE flow's connection, which both directions share. They may have
// had one each while it was not known that they belong together.
func (a *analysis) upperOf(w *flow) *upper {
	u, o := w.upper, w.peer
	if o != nil && o.upper != nil && (u == nil || u.protocol <= otherProtocol) {
		u = o.upper
	}
	if u == nil {
		u = &upper{queue: -1}
	}
	for _, x := range []*flow{w, o} {
		if x != nil && x.upper != u {
			a.endUpper(x.upper)
			x.upper = u
		}
	}
	return u
}

// sent takes a packet of a SEND of RoCE, new or repeated.
func (a *analysis) sent(w *flow, f *frame, p *wire.Packet) {
	info := p.Opcode.Info()
	if !a.detail || !info.Send() || f.cut || !info.First() && p.PSN != w.prefix.next {
		return
	}
	u := a.upperOf(w)
	m := a.collect(&w.prefix, u, p.Payload, info.First(), info.Last())
	w.prefix.next = wire.PSNAdd(p.PSN, 1)
	if m.b != nil {
		m.from = w.order
		a.above(u, &m)
	}
}

// collect adds a part of a message to its start. At the end of the message it returns the message,
// and else one without b. b is valid until the next call.
func (a *analysis) collect(c *prefix, u *upper, payload []byte, first, last bool) (m message) {
	again := a.ev.repeats > 0
	if first {
		a.discard(c)
		if u.protocol == otherProtocol {
			return m
		}
		if last {
			return message{b: payload, n: len(payload), again: again}
		}
		if a.prefixes == maxPrefixes {
			return m
		}
		a.prefixes++
		c.open, c.again = true, true
	}
	if !c.open {
		return m
	}
	c.n += len(payload)
	c.b = append(c.b, payload[:min(len(payload), maxPrefix-len(c.b))]...)
	c.again = c.again && again
	if last {
		m = c.message
		a.discard(c)
	}
	return m
}

// discard ends the collection of a message.
func (a *analysis) discard(c *prefix) {
	if c.open {
		a.prefixes--
	}
	*c = prefix{}
}

// above names a message.
func (a *analysis) above(u *upper, m *message) {
	if u.protocol == undecided {
		switch {
		case beginsNVMe(m.b, m.n):
			u.protocol = nvmeFabrics
		case isRPC(m.b):
			u.protocol = rpcOverRDMA
		default:
			if u.tries++; u.tries == maxTries {
				u.protocol = otherProtocol
			}
			return
		}
	}
	switch u.protocol {
	case nvmeFabrics:
		a.addUpper(a.nvmeMessage(u, m))
	case rpcOverRDMA:
		a.addUpper(a.rpcMessage(u, m))
	}
}

// addUpper adds a message's name to the packet's line. A TCP segment may have several.
func (a *analysis) addUpper(text string) {
	const most = 3
	if a.ev.uppers++; a.ev.uppers <= most {
		a.ev.upper = join(a.ev.upper, text)
	} else if a.ev.uppers == most+1 {
		a.ev.upper += ", and more"
	}
}

// await keeps a command or call of a message until its answer.
func (a *analysis) await(u *upper, m *message, id uint32, c waitingCall) {
	if m.again {
		return
	}
	if _, reused := u.waiting[id]; !reused {
		if len(u.waiting) == maxOutstanding { // the answers are missing from the capture
			a.endUpper(u)
		}
		if a.outstanding == maxAllOutstanding {
			return
		}
		a.outstanding++
	}
	if u.waiting == nil {
		u.waiting = map[uint32]waitingCall{}
	}
	c.from, c.number, c.time = m.from, a.ev.number, a.ev.time
	u.waiting[id] = c
}

// answeredBy returns the command or call that a message answers, and forgets it. ok is false if it
// is not known.
func (a *analysis) answeredBy(u *upper, m *message, id uint32) (c waitingCall, ok bool) {
	if c, ok = u.waiting[id]; !ok || c.from == m.from || m.again {
		return waitingCall{}, false
	}
	delete(u.waiting, id)
	a.outstanding--
	return c, true
}

// endUpper forgets the commands and calls of a connection.
func (a *analysis) endUpper(u *upper) {
	if u != nil {
		a.outstanding -= len(u.waiting)
		u.waiting = nil
	}
}

// answered describes the command or call for its answer.
func (c *waitingCall) answered(a *analysis) string {
	return fmt.Sprintf(" to %s of packet %d after %v", c.name, c.number, since(a.ev.time-c.time))
}

// plural returns a number of things, such as "2 segments".
func plural[N int | uint32](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
