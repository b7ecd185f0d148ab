package fabric

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"runtime"
	"sort"
	"time"
)

// A window of virtual time is as long as the lookahead, or ends sooner: before a function of
// Host.Alone. What a shard adds to another one happens after the window. The windows begin and end
// at the same instants with any number of workers.

// Alone calls f when d has passed, at a time when no host runs, so that it may use all of them. The
// time must be at least Fabric.Lookahead, if it is a function or a process of the host that calls
// Alone. Each call ends a window, so it costs more than a timer.
func (h *Host) Alone(d time.Duration, f func()) {
	fabric, s := h.f, h.shard
	at := max(s.now.after(max(d, 0)), 1)
	do := function(func() {
		for _, s := range fabric.shards {
			s.touchAll()
		}
		f()
	})
	switch {
	case fabric.lookahead == 0:
		s.agenda.add(at, &h.origin, do, nil)
	case !fabric.apart:
		if order := h.origin.next(); at != never {
			fabric.alone.put(event{at, order, do, nil})
		}
	case d < fabric.Lookahead():
		panic(fmt.Sprintf("fabric: Host.Alone(%v): other hosts run, and it must be at least %v", d, fabric.Lookahead()))
	case at != never:
		s.alone = append(s.alone, event{at, h.origin.next(), do, nil})
	}
}

// stepAlone handles the next event of alone.
func (f *Fabric) stepAlone() {
	e := f.alone.begin()
	for _, s := range f.shards {
		s.now, s.order, s.handling = e.at, e.order, true
	}
	e.to.handle(nil)
	for _, s := range f.shards {
		s.handling = false
	}
	f.alone.end()
}

// runWindows is advance, with goroutines for the shards. It asks done at the ends of windows.
func (f *Fabric) runWindows(end instant, done func() bool) bool {
	if f.busy() {
		panic("fabric: a process or a callback runs the fabric, which runs it")
	}
	defer f.idle()
	for _, s := range f.shards {
		s.order = 0
	}
	c := f.hire()
	defer c.dismiss()
	defer f.deliver()
	for {
		if done != nil && done() {
			return true
		}
		from := f.shards[0].now
		if !f.someRunnable() {
			next, alone := f.next()
			switch from = next.at; {
			case next.at == never || next.at > end:
				return false
			case alone:
				f.deliver()
				f.stepAlone()
				continue
			}
		}
		l := limit{never, 0}
		if from < never-f.lookahead {
			l.at = from - from%f.lookahead + f.lookahead
		}
		if l.at > end {
			l = pastInstant(end)
		}
		if len(f.alone.events) > 0 && f.alone.events[0].within(l) {
			l = limit{f.alone.events[0].at, f.alone.events[0].order}
		}
		f.runWindow(c, l)
		f.setNow(l.at)
	}
}

// next returns the place of the next event, also of those that the shards still have for each
// other, and says whether it happens between windows.
func (f *Fabric) next() (l limit, alone bool) {
	l.at = never
	if s, e := f.first(); e != nil {
		l, alone = limit{e.at, e.order}, s == nil
	}
	for _, s := range f.shards {
		if s.soonest.isBefore(l) {
			l, alone = s.soonest, false
		}
	}
	return l, alone
}

// runWindow runs the shards at the same time.
func (f *Fabric) runWindow(c *crew, l limit) {
	f.window++
	f.began, f.apart = f.shards[0].now, true
	c.start(l)
	whole := false
	defer func() { // if the first shard does not run to its end, that ends the run
		u := c.wait()
		if f.gather(); whole {
			u.raise()
		}
	}()
	f.shards[0].runWindow(l)
	whole = true
}

// runWindow runs the shard up to a limit. What the others have sent in the window before comes
// first. Events have their places, so it does not matter who adds them, and when.
func (s *shard) runWindow(l limit) {
	window := s.f.window
	s.collect(window - 1)
	s.out, s.soonest = s.outs[window%2], limit{never, 0}
	s.events = 0
	s.run(l)
}

// collect takes over what the shards have sent to this one in a window.
func (s *shard) collect(window uint64) {
	for _, o := range s.f.shards {
		events := o.outs[window%2][s.index]
		for _, e := range events {
			s.agenda.put(e)
		}
		clear(events)
		o.outs[window%2][s.index] = events[:0]
	}
}

// deliver does what the shards otherwise do when the next window begins.
func (f *Fabric) deliver() {
	for _, s := range f.shards {
		s.collect(f.window)
	}
	for _, s := range f.shards {
		s.soonest = limit{never, 0}
	}
}

// gather follows a window.
func (f *Fabric) gather() {
	f.apart = false
	f.work.count(f.shards)
	var last *shard
	for _, s := range f.shards {
		for _, e := range s.alone {
			f.alone.put(e)
		}
		clear(s.alone)
		s.alone = s.alone[:0]
		if m := &s.marked; m.window == f.window && (last == nil || last.marked.isBefore(m.limit)) {
			last = s
		}
	}
	if last != nil {
		f.mark = f.mark[:0]
		for _, h := range f.hosts {
			f.mark = append(f.mark, h.sentUntil(last))
		}
	}
	f.share(func(s *shard) *pool { return &s.small })
	f.share(func(s *shard) *pool { return &s.middle })
	f.share(func(s *shard) *pool { return &s.large })
}

// work counts, for benchmarks, the events of windows: all, and those of each window's busiest
// shard. The quotient is what any number of processors can gain.
type work struct{ windows, events, most uint64 }

func (w *work) count(shards []*shard) {
	most := uint64(0)
	for _, s := range shards {
		w.events += s.events
		most = max(most, s.events)
	}
	w.most += most
	w.windows++
}

// share moves unused packets from the shard with the most to that with the fewest, if they differ
// much. Packets are freed where they arrive.
func (f *Fabric) share(of func(*shard) *pool) {
	most, fewest := of(f.shards[0]), of(f.shards[0])
	for _, s := range f.shards[1:] {
		if p := of(s); len(*p) > len(*most) {
			most = p
		} else if len(*p) < len(*fewest) {
			fewest = p
		}
	}
	const few = 64
	if len(*most) < 2*len(*fewest)+few {
		return
	}
	keep := len(*most) - (len(*most)-len(*fewest))/2
	*fewest = append(*fewest, (*most)[keep:]...)
	clear((*most)[keep:])
	*most = (*most)[:keep]
}

// unwound is how a shard's window has ended: by a panic, by runtime.Goexit, as t.Fatal calls it, or
// as it should.
type unwound struct {
	by    any // nil: it ran to its end
	stack []byte
}

// exited stands for runtime.Goexit.
type exited struct{}

// raise does on this goroutine what has ended the shard. A panic has its value, and the stack of
// its place if the value is text.
func (u unwound) raise() {
	switch by := u.by.(type) {
	case nil:
	case exited:
		runtime.Goexit()
	case string:
		panic(fmt.Sprintf("%s\n\non a worker of the fabric:\n%s", by, u.stack))
	case runtime.Error:
		panic(fmt.Errorf("%w\n\non a worker of the fabric:\n%s", by, u.stack))
	default:
		panic(by)
	}
}

// sent is what a host has sent.
type sent struct{ frames, digest uint64 }

// sending is what a host had sent before a frame, and which event has sent that.
type sending struct {
	limit
	number uint64 // among the frames of the shard
	before sent
}

// remember is called before the host sends a frame.
func (h *Host) remember() {
	s := h.shard
	if !s.f.apart {
		return
	}
	if h.window != s.f.window {
		h.window, h.recent = s.f.window, h.recent[:0]
	}
	s.sends++
	h.recent = append(h.recent, sending{s.place, s.sends, sent{h.sentFrames, h.digest}})
}

// marked is a call of Host.Mark.
type marked struct {
	limit
	window uint64
	sends  uint64 // by the shard before it
}

// sentUntil returns what a host had sent when a shard was marked, in the window that has ended.
func (h *Host) sentUntil(of *shard) sent {
	if h.window == of.f.window {
		m := &of.marked
		after := sort.Search(len(h.recent), func(i int) bool {
			r := &h.recent[i]
			if h.shard == of {
				return r.number > m.sends
			}
			return r.at > m.at || r.at == m.at && r.order > m.order
		})
		if after < len(h.recent) {
			return h.recent[after].before
		}
	}
	return sent{h.sentFrames, h.digest}
}

// Mark remembers what all hosts have sent until now, for Marked, instead of at an earlier time. A
// function or a process of the host calls it.
func (h *Host) Mark() {
	f, s := h.f, h.shard
	if !f.apart {
		f.mark = append(f.mark[:0], f.sentByHosts()...)
		return
	}
	s.marked = marked{s.place, f.window, s.sends}
}

// Marked returns the digest as it was at the last Mark, by virtual time, or "" if there was none.
func (f *Fabric) Marked() string {
	f.mustBeAlone("Fabric.Marked")
	if f.mark == nil {
		return ""
	}
	return digestOf(f.mark)
}

func (f *Fabric) sentByHosts() []sent {
	all := make([]sent, len(f.hosts))
	for i, h := range f.hosts {
		all[i] = sent{h.sentFrames, h.digest}
	}
	return all
}

func digestOf(all []sent) string {
	d := fnv.New64a()
	var b [16]byte
	for _, s := range all {
		binary.LittleEndian.PutUint64(b[:], s.frames)
		binary.LittleEndian.PutUint64(b[8:], s.digest)
		_, _ = d.Write(b[:])
	}
	return fmt.Sprintf("%016x", d.Sum64())
}
