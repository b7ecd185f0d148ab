package fabric

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"time"

	network "github.com/softrnic/softrnic/link/fabric"
	"github.com/softrnic/softrnic/rdmatransport"
	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/stack/static"
	"github.com/softrnic/softrnic/verbs"
)

// node is a host with its device.
type node struct {
	h     *network.Host
	stack *static.Host
	dev   *verbs.Device
	pd    *verbs.PD
	idle  *verbs.CQ // of QPs that have no completions
	gid   verbs.GID
	index uint8 // of gid

	lingering []*connection // requested by the node, without flows, in the order in which they are closed

	pattern, sink *verbs.MR // what is sent, of all nodes, and where it goes if nobody looks, of those of a worker
}

const access = verbs.AccessLocalWrite | verbs.AccessRemoteWrite | verbs.AccessRemoteRead

func newNode(f *network.Fabric, h *network.Host, cfg roce.Config, pattern, sink []byte) (*node, error) {
	s, err := static.New(h, &static.Config{Addr: h.Addr(), Neighbour: f.Neighbour})
	if err != nil {
		return nil, err
	}
	n := &node{h: h, stack: s}
	if n.dev, err = rdmatransport.Open(s, &rdmatransport.Config{Name: h.Name(), RoCE: cfg}); err != nil {
		_ = s.Close() // it only closes the link
		return nil, err
	}
	if err := n.prepare(pattern, sink); err != nil {
		n.close()
		return nil, err
	}
	return n, nil
}

func (n *node) prepare(pattern, sink []byte) (err error) {
	if n.pd, err = n.dev.AllocPD(); err != nil {
		return err
	}
	if n.pattern, err = n.pd.RegMR(pattern, access); err != nil {
		return err
	}
	if n.sink, err = n.pd.RegMR(sink, access); err != nil {
		return err
	}
	if n.idle, err = n.dev.CreateCQ(1, nil); err != nil {
		return err
	}
	gids, err := n.dev.GIDTable(1)
	for _, e := range gids {
		if e.GID.Addr() == n.h.Addr() && e.Type == verbs.GIDTypeRoCEv2 {
			n.gid, n.index = e.GID, uint8(e.Index)
		}
	}
	return err
}

// close closes the device without waiting for peers.
func (n *node) close() {
	_ = n.dev.Provider().Close()
	_ = n.stack.Close()
}

// connection has the QPs of two hosts, between which the messages of a flow are divided.
type connection struct {
	r        *run
	from, to *node // the requester and the responder
	lanes    []*lane
	since    time.Duration // it lingers
	closed   bool
}

// lane is a pair of QPs, with what it has to send.
type lane struct {
	r        *run
	from, to *node
	x, y     *verbs.QP // of from and to
	cq       *verbs.CQ // of x
	ch       *verbs.CompChannel
	arrivals *verbs.CQ // of y, if messages have immediates
	arrived  *verbs.CompChannel
	landing  *verbs.MR // what is verified
	depth    int
	wr       verbs.SendWR
	sge      [1]verbs.SGE
	next     uint64 // number of the next message

	parts  []*part   // not all posted
	posted []message // not completed
	dead   verbs.WCStatus

	handling, closing bool // completions; it is closed afterwards
}

// part is what a lane carries of a flow.
type part struct {
	flow *flow
	left int64 // not posted
}

// message is a request that is not completed.
type message struct {
	part   *part
	bytes  int
	number uint64
	last   bool
}

// connect makes a connection for a flow. receives is the number of immediates that a lane has at a
// time, and most the number of bytes.
func (r *run) connect(f *flow, receives int, most int64) (*connection, error) {
	from, to := r.nodes[f.from], r.nodes[f.to]
	if f.read {
		from, to = to, from
	}
	c := &connection{r: r, from: from, to: to}
	if r.opened += 2 * r.cfg.RDMA.QPs; r.opened > maxOpen {
		all := r.lingering()
		for _, l := range all[:(len(all)+1)/2] { // half of them, so that the search is seldom
			l.close()
		}
	}
	if r.opened > maxOpen {
		return nil, fmt.Errorf("workload[%d]: there are more than %d QPs at a time", f.load, maxOpen)
	}
	for range r.cfg.RDMA.QPs {
		l := &lane{r: r, from: from, to: to, depth: r.depth}
		if per := (most + int64(r.cfg.RDMA.Message) - 1) / int64(r.cfg.RDMA.Message); per < int64(l.depth) {
			l.depth = int(per)
		}
		if err := l.open(f.read, receives); err != nil {
			return nil, fmt.Errorf("workload[%d]: a connection of %s with %s: %w", f.load, from.h.Name(), to.h.Name(), err)
		}
		c.lanes = append(c.lanes, l)
	}
	return c, nil
}

func (l *lane) open(read bool, receives int) (err error) {
	if l.ch, l.cq, err = l.from.newCQ(l.depth, l.onEvent); err != nil {
		return err
	}
	peers := l.to.idle
	if receives > 0 {
		if l.arrived, l.arrivals, err = l.to.newCQ(receives, l.onArrival); err != nil {
			return err
		}
		peers = l.arrivals
	}
	if l.x, err = l.from.newQP(l.cq, l.depth, 0); err != nil {
		return err
	}
	if l.y, err = l.to.newQP(peers, 1, receives); err != nil {
		return err
	}
	first, answers := l.from.randomPSN(), l.to.randomPSN()
	if err := l.r.connectQP(l.x, l.from, l.to, l.y.Num(), first, answers); err != nil {
		return err
	}
	if err := l.r.connectQP(l.y, l.to, l.from, l.x.Num(), answers, first); err != nil {
		return err
	}
	for range receives {
		if err := l.y.PostRecv(&verbs.RecvWR{}); err != nil {
			return err
		}
	}
	local, remote, receiver := l.from.pattern, l.to.sink, l.to
	l.wr = verbs.SendWR{Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled}
	if read {
		local, remote, receiver = l.from.sink, l.to.pattern, l.from
		l.wr.Opcode = verbs.RDMARead
	}
	if l.r.verify {
		if l.landing, err = receiver.pd.RegMR(make([]byte, l.depth*int(l.r.cfg.RDMA.Message)), access); err != nil {
			return err
		}
		if read {
			local = l.landing
		} else {
			remote = l.landing
		}
	}
	l.wr.SGList = []verbs.SGE{local.SGE(0, 1)}
	l.wr.RemoteAddr, l.wr.RKey = remote.Addr(), remote.RKey()
	return nil
}

func (n *node) newCQ(cqe int, onEvent func()) (*verbs.CompChannel, *verbs.CQ, error) {
	ch, err := n.dev.CreateCompChannel()
	if err != nil {
		return nil, nil, err
	}
	cq, err := n.dev.CreateCQ(cqe, &verbs.CQInitAttr{Channel: ch})
	if err != nil {
		return nil, nil, err
	}
	ch.OnEvent(func(int) { onEvent() })
	return ch, cq, cq.ReqNotify(false)
}

func (n *node) newQP(cq *verbs.CQ, sends, receives int) (*verbs.QP, error) {
	return n.pd.CreateQP(&verbs.QPInitAttr{Type: verbs.RC, Transport: verbs.RoCEv2, SendCQ: cq, RecvCQ: cq,
		Cap: verbs.QPCap{MaxSendWR: sends, MaxRecvWR: receives, MaxSendSGE: 1}})
}

// randomPSN returns the first PSN of a QP, of 24 bits. It follows from the seed. Connection
// managers of real hosts take random ones too.
func (n *node) randomPSN() uint32 { return n.h.Clock().Uint32() >> 8 }

// connectQP moves a QP to RTS. Its first PSN is sends, and that of its peer, to's QP number, is
// receives.
func (r *run) connectQP(qp *verbs.QP, of, to *node, number, sends, receives uint32) error {
	for _, step := range []struct {
		attr verbs.QPAttr
		mask verbs.QPAttrMask
	}{
		{verbs.QPAttr{QPState: verbs.StateInit, PortNum: 1, QPAccessFlags: access},
			verbs.QPAttrState | verbs.QPAttrPKeyIndex | verbs.QPAttrPort | verbs.QPAttrAccessFlags},
		{verbs.QPAttr{QPState: verbs.StateRTR, PathMTU: verbs.MTUFor(r.cfg.RDMA.MTU), DestQPNum: number, RQPSN: receives, MaxDestRDAtomic: 16,
			MinRNRTimer: 12, AHAttr: verbs.AHAttr{IsGlobal: true, PortNum: 1, GRH: verbs.GRH{DGID: to.gid, SGIDIndex: of.index, HopLimit: 64,
				TrafficClass: uint8(r.cfg.RDMA.DSCP << 2)}}},
			verbs.QPAttrState | verbs.QPAttrAV | verbs.QPAttrPathMTU | verbs.QPAttrDestQPN | verbs.QPAttrRQPSN |
				verbs.QPAttrMaxDestRDAtomic | verbs.QPAttrMinRNRTimer},
		{verbs.QPAttr{QPState: verbs.StateRTS, SQPSN: sends, Timeout: uint8(r.cfg.RDMA.Timeout), RetryCnt: 7, RNRRetry: 7, MaxRDAtomic: 16},
			verbs.QPAttrState | verbs.QPAttrSQPSN | verbs.QPAttrTimeout | verbs.QPAttrRetryCnt | verbs.QPAttrRNRRetry |
				verbs.QPAttrMaxQPRDAtomic},
	} {
		if err := qp.Modify(&step.attr, step.mask); err != nil {
			return err
		}
	}
	return nil
}

// add divides a flow among the lanes, which post sends. It returns false if one is dead: then the
// flow has failed.
func (c *connection) add(f *flow) bool {
	shares := c.r.shares(f.bytes)
	for i, bytes := range shares {
		if l := c.lanes[i]; bytes > 0 && l.dead != 0 {
			c.r.failed(f, l.dead)
			return false
		}
	}
	for i, bytes := range shares {
		if bytes == 0 {
			continue
		}
		l := c.lanes[i]
		f.parts++
		if l.arrivals != nil {
			f.arrivals++
		}
		l.parts = append(l.parts, &part{f, bytes})
	}
	return true
}

// post starts to send what the connection has.
func (c *connection) post() {
	for _, l := range c.lanes {
		l.post()
	}
}

// lingering is the time after which a connection is closed that has nothing left to send: its last
// acknowledgements have arrived then. It is closed earlier if new connections need its QPs. Those
// that end within together are closed at once: see ahead.
const (
	lingering = time.Millisecond
	together  = 100 * time.Microsecond
)

func (c *connection) closeLater() {
	c.since = c.from.h.Now()
	c.from.lingering = append(c.from.lingering, c)
	end := c.since + lingering + together - 1
	c.from.h.Alone(end.Truncate(together)-c.since, c.close)
}

// close closes a connection that lingers, when no other host runs.
func (c *connection) close() {
	if c.closed {
		return
	}
	c.closed = true
	c.r.opened -= 2 * len(c.lanes)
	for _, l := range c.lanes {
		if l.closing = l.handling; !l.closing {
			l.close()
		}
	}
	c.lanes = nil
	for n := c.from; len(n.lingering) > 0 && n.lingering[0].closed; {
		n.lingering = n.lingering[1:]
	}
}

// lingering returns the connections that linger, those that do for the longest first.
func (r *run) lingering() (all []*connection) {
	for i := range r.nodes {
		all = append(all, r.nodes[i].lingering...)
	}
	slices.SortStableFunc(all, func(a, b *connection) int { return cmp.Compare(a.since, b.since) })
	return all
}

func (l *lane) close() {
	for _, err := range []error{l.x.Close(), l.y.Close(), l.cq.Close(), l.ch.Close()} {
		l.r.check(err)
	}
	if l.landing != nil {
		l.r.check(l.landing.Close())
	}
}

// post posts messages while there is room.
func (l *lane) post() {
	for len(l.parts) > 0 && len(l.posted) < l.depth && l.dead == 0 {
		p := l.parts[0]
		m := message{part: p, bytes: int(min(p.left, int64(l.r.cfg.RDMA.Message))), number: l.next}
		p.left -= int64(m.bytes)
		m.last = p.left == 0
		l.next++
		wr := l.wr
		sge := l.wr.SGList[0]
		sge.Length = uint32(m.bytes)
		slot := uint64(0)
		if l.landing != nil {
			slot = m.number % uint64(l.depth) * uint64(l.r.cfg.RDMA.Message)
		}
		if wr.Opcode == verbs.RDMARead {
			sge.Addr += slot
			wr.RemoteAddr += offset(p.flow, m.number)
		} else {
			sge.Addr += offset(p.flow, m.number)
			wr.RemoteAddr += slot
		}
		if m.last && l.arrivals != nil {
			wr.Opcode, wr.ImmData = verbs.RDMAWriteWithImm, uint32(p.flow.number)
		}
		l.sge[0] = sge
		wr.SGList = l.sge[:]
		if m.last {
			l.parts = l.parts[1:]
		}
		l.posted = append(l.posted, m)
		if err := l.x.PostSend(&wr); err != nil {
			l.r.checkAt(l.from.h.Now, err)
			return
		}
	}
}

// spread is the range of offsets into the pattern, so that a message in the wrong place differs.
const spread = 1 << 12

func offset(f *flow, number uint64) uint64 {
	return (uint64(f.number)*2654435761 + number*40503) % spread
}

// onEvent handles completions of the requester.
func (l *lane) onEvent() {
	l.handling = true
	defer func() {
		if l.handling = false; l.closing {
			l.close()
		}
	}()
	events(l.r, l.from.h, l.ch, func(wc *verbs.WC) {
		if wc.Status != verbs.WCSuccess {
			l.fail(wc.Status)
			return
		}
		m := l.posted[0]
		l.posted = l.posted[1:]
		if l.landing != nil {
			at := int(m.number%uint64(l.depth)) * int(l.r.cfg.RDMA.Message)
			from := int(offset(m.part.flow, m.number))
			if !bytes.Equal(l.landing.Buf()[at:at+m.bytes], l.from.pattern.Buf()[from:from+m.bytes]) {
				m.part.flow.corrupt = true
			}
		}
		l.r.progressed(m.part.flow, m.bytes, m.last)
	})
	l.post()
}

// onArrival handles completions of the responder: immediates, which say what has arrived.
func (l *lane) onArrival() {
	events(l.r, l.to.h, l.arrived, func(wc *verbs.WC) {
		if wc.Status == verbs.WCSuccess {
			l.r.checkAt(l.to.h.Now, l.y.PostRecv(&verbs.RecvWR{}))
			f := l.r.numbered(int(wc.ImmData))
			if f.arrivals--; f.arrivals == 0 {
				f.arrived()
			}
		}
	})
}

// fail ends the flows of a lane whose QP has failed.
func (l *lane) fail(status verbs.WCStatus) {
	if l.dead != 0 {
		return // the flushed rest
	}
	l.dead = status
	for _, m := range l.posted {
		l.r.failed(m.part.flow, status)
	}
	for _, p := range l.parts {
		l.r.failed(p.flow, status)
	}
	l.posted, l.parts = nil, nil
}

// events polls the CQ of a channel, and requests the next event.
func events(r *run, h *network.Host, ch *verbs.CompChannel, do func(*verbs.WC)) {
	for {
		cq, err := ch.TryGetEvent()
		if err != nil {
			return
		}
		r.checkAt(h.Now, cq.AckEvents(1))
		r.checkAt(h.Now, cq.ReqNotify(false))
		var wcs [16]verbs.WC
		for {
			n, err := cq.Poll(wcs[:])
			r.checkAt(h.Now, err)
			if n == 0 {
				break
			}
			for i := range n {
				do(&wcs[i])
			}
		}
	}
}
