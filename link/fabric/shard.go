package fabric

import (
	"cmp"
	"slices"
	"time"
)

// MaxWorkers is the most that Config.Workers may be.
const MaxWorkers = 256

// shard is a part of the network that one goroutine runs: switches, and the hosts at them. Only
// packets and pause frames go from one shard to another.
type shard struct {
	f     *Fabric
	index int
	hosts []*Host
	load  int // see divide

	_ gap

	now      instant
	order    uint64 // number of the event that is being handled
	place    limit  // of that event and those before it
	origin   origin
	agenda   agenda
	handling bool // an event is being handled
	counters Counters

	small, middle, large pool

	running   *Process
	runnable  []*Process
	live      map[*Process]struct{}
	started   uint64  // processes, live or not
	processes int     // that Wait waits for
	changed   []*Host // whose processes may go on
	looking   bool    // wakeAll is due

	acting *Host // whose function or process has begun last

	out      []*batch // for the other shards, by their indices
	empty    *batch   // for later
	soonest  instant  // the first event that it has sent in the step
	events   uint64   // handled in the stretch
	sends    uint64   // while others run
	resolved *mark    // whose place its hosts know

	shared
}

// limit is a place in the order of events, of those that come before it.
type limit struct {
	at    instant
	order uint64
}

func (e *event) within(l limit) bool { return e.at < l.at || e.at == l.at && e.order < l.order }

func (l limit) isBefore(o limit) bool { return l.at < o.at || l.at == o.at && l.order < o.order }

// divide makes the shards. The hosts of a switch are in its shard. Edge switches are divided in
// their order, in which neighbours are often close. The others follow their neighbours.
func (f *Fabric) divide() {
	var edges, others []*node
	hosts := make([]int, len(f.switches))
	for _, h := range f.hosts {
		hosts[h.port.peer.sw.index]++
	}
	f.lookahead = never
	for i, s := range f.switches {
		if hosts[i] > 0 {
			edges = append(edges, s)
		} else {
			others = append(others, s)
		}
		for _, p := range s.ports {
			if p.host == nil && p.peer.host == nil {
				f.lookahead = min(f.lookahead, p.delay)
			}
		}
	}
	n := min(f.cfg.Workers, len(edges))
	if n == 0 || len(edges) < 2 || f.lookahead == never || f.lookahead < steps*nanosecond { // see runSteps
		f.lookahead = 0
	}
	if f.lookahead == 0 {
		n = 1
	}
	for i := range n {
		s := &shard{f: f, index: i, live: map[*Process]struct{}{}}
		for range n {
			s.out = append(s.out, s.emptyBatch())
		}
		f.shards = append(f.shards, s)
	}
	const ofHost = 8 // its load is that of so many ports
	done, at := 0, 0
	for i, s := range edges {
		enough := done*n >= (at+1)*len(f.hosts)
		if more := n - 1 - at; more > 0 && (enough || len(edges)-i == more) { // each shard has an edge switch
			at++
		}
		s.join(f.shards[at])
		s.shard.load += hosts[s.index] * ofHost
		done += hosts[s.index]
	}
	for _, s := range others {
		s.join(f.closest(s))
	}
	for _, h := range f.hosts {
		h.shard = h.port.peer.shard
		h.port.shard = h.shard
		h.shard.hosts = append(h.shard.hosts, h)
	}
	f.newAgendas()
}

// newAgendas makes the agendas of the shards, for cables that are busy: a packet of 1 KiB is two
// events.
func (f *Fabric) newAgendas() {
	rates, within := make([]float64, len(f.shards)), instant(0)
	for _, p := range f.Ports() {
		rates[p.shard.index] += float64(p.rate) / 8 / 1024 * 2
		within = max(within, p.takes(f.maxFrame())+p.delay)
	}
	for i, s := range f.shards {
		s.agenda = newAgenda(rates[i], within)
	}
}

func (s *node) join(to *shard) {
	s.shard = to
	to.load += len(s.ports)
	for _, p := range s.ports {
		p.shard = to
	}
}

// closest returns the shard of more than half of a switch's neighbours, or else the one with the
// least load.
func (f *Fabric) closest(s *node) *shard {
	least := slices.MinFunc(f.shards, func(a, b *shard) int { return cmp.Compare(a.load, b.load) })
	count := make([]int, len(f.shards))
	for _, p := range s.ports {
		if o := p.peer.shard; o != nil {
			if count[o.index]++; 2*count[o.index] > len(s.ports) {
				return o
			}
		}
	}
	return least
}

// Worker returns the number of the goroutine that runs the host's functions and processes, from 0
// on, less than Config.Workers. What hosts with the same number share needs no lock.
func (h *Host) Worker() int { return h.shard.index }

// Lookahead returns the virtual time by which hosts that run at the same time may be apart: see
// Host.Alone. It is 0 if none do.
func (f *Fabric) Lookahead() time.Duration { return time.Duration(f.lookahead / nanosecond) }

// step handles the next event before a limit. It returns false if there is none.
func (s *shard) step(l limit) bool {
	next := s.agenda.first()
	if next == nil || !next.within(l) {
		return false
	}
	e := s.agenda.soon.begin()
	s.now, s.order = e.at, e.order
	if e.at != s.place.at {
		s.place.order = 0
	}
	s.place = limit{e.at, max(s.place.order, e.order)} // an event may add one of this instant with a smaller number
	s.handling = true
	s.events++
	e.to.handle(e.p)
	s.handling = false
	s.agenda.soon.end()
	return true
}

// run runs processes and events before a limit.
func (s *shard) run(l limit) {
	for {
		s.runProcesses()
		if !s.step(l) {
			return
		}
	}
}

// busy says whether an event is being handled, or a process runs.
func (f *Fabric) busy() bool {
	return f.apart || slices.ContainsFunc(f.shards, func(s *shard) bool { return s.handling || s.running != nil })
}

// mustBeAlone panics if hosts run at the same time.
func (f *Fabric) mustBeAlone(method string) {
	if f.apart {
		panic("fabric: " + method + " while other hosts run: see Host.Alone")
	}
}

// idle is called when the fabric no longer runs, also if a function or a process has panicked, or
// has ended its goroutine as t.Fatal does.
func (f *Fabric) idle() {
	for _, s := range f.shards {
		s.handling = false
		s.agenda.soon.end()
	}
	f.alone.end()
}

func (f *Fabric) setNow(t instant) {
	for _, s := range f.shards {
		s.now = t
	}
}

func (f *Fabric) someRunnable() bool {
	return slices.ContainsFunc(f.shards, func(s *shard) bool { return len(s.runnable) > 0 || len(s.changed) > 0 })
}

// first returns the next event, and the shard that has it. That of no shard happens while none
// runs.
func (f *Fabric) first() (of *shard, e *event) {
	if len(f.alone.events) > 0 {
		e = &f.alone.events[0]
	}
	for _, s := range f.shards {
		if next := s.agenda.first(); next != nil && (e == nil || next.before(e)) {
			of, e = s, next
		}
	}
	return of, e
}

// advance runs processes and events up to an instant, or until done returns true. It returns false
// if that does not happen.
func (f *Fabric) advance(end instant, done func() bool) bool {
	if done == nil && f.lookahead > 0 {
		return f.runApart(end, nil)
	}
	if f.busy() {
		panic("fabric: a process or a callback runs the fabric, which runs it")
	}
	defer f.idle()
	if f.lookahead == 0 {
		return f.shards[0].advance(pastInstant(end), done)
	}
	for {
		for _, s := range f.shards {
			s.runProcesses()
		}
		if done() {
			return true
		}
		switch s, e := f.first(); {
		case e == nil || e.at > end:
			return false
		case s == nil:
			f.stepAlone()
		default:
			f.setNow(e.at)
			s.step(pastInstant(e.at))
		}
	}
}

// advance is that of the only shard.
func (s *shard) advance(l limit, done func() bool) bool {
	for {
		s.runProcesses()
		if done != nil && done() {
			return true
		}
		if !s.step(l) {
			return false
		}
	}
}

// pastInstant is the limit of what happens up to an instant.
func pastInstant(end instant) limit { return limit{end, 1<<64 - 1} }

// here is the place of what a process or a function does now, which may be later than that of the
// last event.
func (s *shard) here() limit {
	if s.place.at < s.now {
		return limit{s.now, 0}
	}
	return s.place
}
