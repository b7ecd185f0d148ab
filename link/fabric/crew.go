package fabric

import (
	"runtime"
	"runtime/debug"
	"sync/atomic"
)

// crew is the goroutines that run the shards in windows, during one call of Run. Windows are short:
// who waits for the others looks for a while, before it sleeps and has to be woken.
type crew struct {
	limit   limit // of the window
	leaving bool
	looks   int      // before a goroutine sleeps
	begin   []signal // by shard: windows that have begun
	ended   signal   // counts the windows of all shards but the first
	windows uint64
	how     []unwound // by shard
}

// manyLooks is how often a goroutine looks before it sleeps. They take longer than windows of
// hundreds of hosts differ. Who sleeps loses more than the time until it is woken: another program
// gets its processor, and that program's data its caches.
const manyLooks = 1 << 20

// hire starts the goroutines.
func (f *Fabric) hire() *crew {
	n := len(f.shards)
	c := &crew{begin: make([]signal, n), how: make([]unwound, n)}
	c.ended.wake = make(chan struct{}, 1)
	if n <= min(runtime.GOMAXPROCS(0), runtime.NumCPU()) {
		c.looks = manyLooks
	}
	for i, s := range f.shards[1:] {
		c.begin[i+1].wake = make(chan struct{}, 1)
		go c.work(s)
	}
	return c
}

// dismiss ends the goroutines.
func (c *crew) dismiss() {
	c.leaving = true
	for i := range c.begin[1:] {
		c.begin[i+1].add()
	}
}

// start begins a window of all shards but the first.
func (c *crew) start(l limit) {
	c.limit = l
	c.windows++
	for i := range c.begin[1:] {
		c.begin[i+1].add()
	}
}

// wait waits until these shards have ended the window. It returns how the first of those has ended
// that did not run to its end.
func (c *crew) wait() (first unwound) {
	others := c.how[1:]
	c.ended.await(c.windows*uint64(len(others)), c.looks)
	for i := range others {
		if u := &others[i]; u.by != nil {
			if first.by == nil {
				first = *u
			}
			*u = unwound{}
		}
	}
	return first
}

func (c *crew) work(s *shard) {
	for window := uint64(1); ; window++ {
		c.begin[s.index].await(window, c.looks)
		if c.leaving {
			return
		}
		c.run(s)
	}
}

// run runs a window of a shard, and says how it has ended.
func (c *crew) run(s *shard) {
	whole := false
	defer func() {
		if r := recover(); r != nil {
			c.how[s.index] = unwound{r, debug.Stack()}
		} else if !whole {
			c.how[s.index] = unwound{by: exited{}}
		}
		c.ended.add()
	}()
	s.runWindow(c.limit)
	whole = true
}

// signal is a number that rises, and for which one goroutine waits. It has its cache lines for
// itself.
type signal struct {
	_      gap
	n      atomic.Uint64
	asleep atomic.Bool
	wake   chan struct{} // has room for one
	_      gap
}

func (s *signal) add() {
	s.n.Add(1)
	if s.asleep.Load() && s.asleep.CompareAndSwap(true, false) {
		s.wake <- struct{}{}
	}
}

// await waits until the number is at least n.
func (s *signal) await(n uint64, looks int) {
	for range looks {
		if s.n.Load() >= n {
			return
		}
	}
	for s.n.Load() < n {
		s.asleep.Store(true)
		if s.n.Load() >= n && s.asleep.CompareAndSwap(true, false) {
			return
		}
		<-s.wake // whoever has reset asleep sends
	}
}
