package fabric

import (
	"math/bits"
	"math/rand/v2"
)

// classes is the number of traffic classes, each with a queue at every port (IEEE 802.1Q).
const classes = 8

// Port is one end of a cable: a switch's, or a host's adapter. It has the output queues to the
// cable.
type Port struct {
	f     *Fabric
	shard *shard
	node  string
	sw    *node // nil: a host's
	host  *Host // nil: a switch's
	peer  *Port
	index int32
	of    *origin // of the host or switch

	rate  uint64 // bit/s
	delay instant
	down  bool
	cuts  uint16 // how often the cable was cut and mended

	mirrors   []*Mirror
	headroom  int        // of a switch: room above Xoff for a class
	bitErrors float64    // probability that a bit is wrong
	random    *rand.Rand // says which are; nil until then
	number    int        // for its seed

	_ gap // the above is read in the peer's shard too, and changes seldom

	queues  [classes]queue
	waiting uint8        // classes with packets
	paused  uint8        // classes that the peer has paused
	turn    int          // the class of its turn, among those with weights
	credit  int          // bytes that it may still send
	left    [classes]int // of the other classes

	busy  instant // the cable is free from then on
	rest  uint64  // and a part of a picosecond later: so many rate-ths
	armed bool    // an event is due then

	// Of a switch: bytes stored that came in here, and the classes that the peer shall not send.
	stored  [classes]int
	pausing uint8

	counters PortCounters
}

// gap is room between what processors share and what one of them changes often: otherwise both
// are on a cache line, and each change makes the others fetch it again.
type gap [64]byte

// PortCounters count what a port has sent, and what has happened in its queues.
type PortCounters struct {
	Packets, Bytes uint64 // sent; Bytes has preamble, FCS and gap
	Dropped        uint64 // for want of room
	Trimmed        uint64 // instead of dropped
	Marked         uint64 // with Congestion Experienced
	Lost           uint64 // on a cable that was down, or with a wrong bit
	Flushed        uint64 // from the queues, by Flush
	Pauses         uint64 // times that the peer has paused a class
	MaxQueue       int    // most bytes in one queue
}

// Counters returns the port's counters. The neighbour has a part in them.
func (o *Port) Counters() PortCounters {
	o.f.mustBeAlone("Port.Counters")
	return o.counters
}

// Queued returns the bytes in the port's queues.
func (o *Port) Queued() (n int) {
	o.f.mustBeAlone("Port.Queued")
	return o.queued()
}

func (o *Port) queued() (n int) {
	for c := range o.queues {
		n += o.queues[c].bytes
	}
	return n
}

// send puts a packet into its queue, or on the cable if that is free.
func (o *Port) send(p *packet) {
	now := o.shard.now
	if o.waiting == 0 && now >= o.busy && !o.armed && o.paused>>p.class&1 == 0 {
		o.transmit(p)
		return
	}
	o.queues[p.class].push(p, o.host)
	o.waiting |= 1 << p.class
	o.counters.MaxQueue = max(o.counters.MaxQueue, o.queues[p.class].bytes)
	o.arm()
}

// arm arranges that a waiting packet is sent when the cable is free.
func (o *Port) arm() {
	if !o.armed && o.waiting&^o.paused != 0 {
		o.armed = true
		o.shard.agenda.add(max(o.busy, o.shard.now), o.of, o, nil)
	}
}

// handle is called when the cable is free.
func (o *Port) handle(*packet) {
	o.armed = false
	if c, ok := o.choose(); ok {
		q := &o.queues[c]
		p, empty := q.pop(o.host)
		if q.bytes == 0 {
			o.waiting &^= 1 << c
		}
		o.transmit(p)
		o.arm()
		empty.callSender()
	}
}

// choose returns the class that may send next: the highest of those without weights, or the one
// whose turn it is (deficit round robin).
func (o *Port) choose() (class int, ok bool) {
	ready := o.waiting &^ o.paused
	if ready == 0 {
		return 0, false
	}
	if strict := ready & o.f.strict; strict != 0 {
		return bits.Len8(strict) - 1, true
	}
	if ready&(ready-1) == 0 {
		return bits.Len8(ready) - 1, true
	}
	for {
		if c := o.turn; ready>>c&1 != 0 {
			if size := int(o.queues[c].head().size); size <= o.credit {
				o.credit -= size
				return c, true
			}
		} else {
			o.credit = 0
		}
		o.left[o.turn] = o.credit
		o.turn = (o.turn + 1) % classes
		o.credit = o.left[o.turn] + o.f.cfg.Switch.Weights[o.turn]*o.f.cfg.MTU
	}
}

// bitTime is a second in picoseconds, for each bit of a byte.
const bitTime = 8e12

// takes returns the time that bytes take on the cable, less than a picosecond too short.
func (o *Port) takes(bytes int) instant { return instant(uint64(bytes) * bitTime / o.rate) }

// transmit puts a packet on the cable, which is free. Parts of a picosecond add up as long as
// packets follow each other.
func (o *Port) transmit(p *packet) {
	work := uint64(p.size) * bitTime
	now := o.shard.now
	if now == o.busy {
		work += o.rest
	}
	o.busy, o.rest = now+instant(work/o.rate), work%o.rate
	if o.sw != nil && o.f.cfg.Switch.ECN.AtDeparture {
		o.sw.mark(p, o)
	}
	o.counters.Packets++
	o.counters.Bytes += uint64(p.size)
	for _, m := range o.mirrors {
		m.show(p)
	}
	if o.host != nil {
		o.host.sent(p)
	} else {
		o.sw.release(p)
	}
	p.cuts = o.cuts
	o.addAtPeer(o.busy+o.delay, (*arrival)(o), p)
}

// addAtPeer adds an event of the port that happens to its peer.
func (o *Port) addAtPeer(at instant, to handler, p *packet) {
	s, peers := o.shard, o.peer.shard
	switch {
	case s == peers:
		s.agenda.add(at, o.of, to, p)
	case s.f.apart && at != never:
		b := s.out[peers.index]
		b.events = append(b.events, event{at, o.of.next(), to, p})
		s.soonest = min(s.soonest, at)
	default:
		peers.agenda.add(at, o.of, to, p)
	}
}

// arrival is the arrival of what a port has sent. Its shard is that of the peer.
type arrival Port

func (a *arrival) handle(p *packet) {
	o := (*Port)(a)
	to := o.peer
	if p.cuts != o.cuts || o.down {
		o.lose(p)
		return
	}
	if o.damaged(p) {
		return
	}
	for _, m := range to.mirrors {
		m.show(p)
	}
	if to.host != nil {
		to.host.receive(p)
	} else {
		to.sw.receive(p, to)
	}
}

// lose is called where a packet would arrive. Nothing else of the port's shard counts Lost.
func (o *Port) lose(p *packet) {
	o.counters.Lost++
	o.peer.shard.counters.Lost++
	o.peer.shard.free(p)
}

// pause makes the peer stop or continue sending a class (IEEE 802.1Qbb). The frame waits for the
// packet on the cable, if there is one.
func (o *Port) pause(class uint8, on bool) {
	if o.pausing>>class&1 != 0 == on || o.down {
		return
	}
	o.pausing ^= 1 << class
	if on {
		o.shard.counters.Pauses++
	}
	at, cuts := max(o.busy, o.shard.now)+o.takes(pauseFrame)+o.delay, o.cuts
	o.addAtPeer(at, function(func() {
		if cuts == o.cuts {
			o.peer.setPaused(class, on)
		}
	}), nil)
}

func (o *Port) setPaused(class uint8, on bool) {
	if !on {
		o.paused &^= 1 << class
		o.arm()
		return
	}
	if o.paused>>class&1 == 0 {
		o.counters.Pauses++
	}
	o.paused |= 1 << class
}

// SetDown cuts or mends the cable at the port, in both directions. Packets on it are lost. Routes
// that used it change at once, and the hosts at its ends see no carrier.
func (o *Port) SetDown(down bool) {
	o.f.mustBeAlone("Port.SetDown")
	if o.down == down {
		return
	}
	o.down, o.peer.down = down, down
	for _, p := range []*Port{o, o.peer} {
		p.cuts++ // also when it is mended: what was sent meanwhile is lost too
		p.paused, p.pausing = 0, 0
		p.arm()
	}
	o.f.forgetRoutes()
	for _, p := range []*Port{o, o.peer} {
		if p.host != nil {
			p.host.pauseAgain()
			p.host.carrierChanged()
		}
	}
}

// Flush loses what is queued at the port, as a switch does that restarts. It does not lose what is
// on the cable.
func (o *Port) Flush() {
	o.f.mustBeAlone("Port.Flush")
	var empty []*flow
	for c := range o.queues {
		for q := &o.queues[c]; q.bytes > 0; {
			p, fl := q.pop(o.host)
			if fl != nil {
				empty = append(empty, fl)
			}
			if o.sw != nil {
				o.sw.release(p)
			}
			o.counters.Flushed++
			o.shard.counters.Flushed++
			o.shard.free(p)
		}
	}
	o.waiting, o.turn, o.credit, o.left = 0, 0, 0, [classes]int{}
	for _, fl := range empty {
		fl.callSender()
	}
}
