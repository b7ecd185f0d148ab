package fabric

import (
	"fmt"
	"math"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
)

// crew is the goroutines that run the shards at the same time, during one call of Run. They differ
// by little: who waits for the others looks for a while, before it sleeps and has to be woken.
type crew struct {
	leaving   bool
	looks     int // before a goroutine sleeps
	stretches int64
	begun     level       // counts stretches
	ended     []level     // by shard: too
	how       []unwound   // by shard
	failed    atomic.Bool // a shard has not run to the end of the stretch
}

// manyLooks is how often a goroutine looks before it sleeps, for about a millisecond. The shards of
// hundreds of hosts seldom differ by more. Whoever sleeps gives its processor, and the caches of
// that, to another program.
const manyLooks = 1 << 20

// hire starts the goroutines.
func (f *Fabric) hire() *crew {
	n := len(f.shards)
	c := &crew{ended: make([]level, n), how: make([]unwound, n)}
	if n <= min(runtime.GOMAXPROCS(0), runtime.NumCPU()) {
		c.looks = manyLooks
	}
	for _, s := range f.shards[1:] {
		go c.work(s)
	}
	return c
}

// dismiss ends the goroutines.
func (c *crew) dismiss() {
	c.leaving = true
	c.start()
}

// start begins a stretch of all shards but the first.
func (c *crew) start() {
	c.stretches++
	c.begun.raise(c.stretches)
}

// wait waits until these shards have ended the stretch. It returns how the first of those has ended
// that did not run to its end.
func (c *crew) wait() (first unwound) {
	for i := 1; i < len(c.how); i++ {
		c.ended[i].await(c.stretches, c.stretches, c.looks)
		if first.by == nil {
			first = c.how[i]
		}
	}
	return first
}

func (c *crew) work(s *shard) {
	for stretch := int64(1); ; stretch++ {
		c.begun.await(stretch, stretch, c.looks)
		if c.leaving {
			return
		}
		c.run(s)
	}
}

// run runs a stretch of a shard, and says how it has ended.
func (c *crew) run(s *shard) {
	whole := false
	defer func() {
		if r := recover(); r != nil {
			c.how[s.index] = unwound{r, debug.Stack()}
			c.fail(s)
		} else if !whole {
			c.how[s.index] = unwound{by: exited{}}
			c.fail(s)
		}
		c.ended[s.index].raise(c.stretches)
	}()
	s.runSteps(c)
	whole = true
}

// fail lets the others return that wait for a shard.
func (c *crew) fail(s *shard) {
	c.failed.Store(true)
	s.clock.raise(int64(never))
}

// unwound is how a shard's stretch has ended: by a panic, by runtime.Goexit, as t.Fatal calls it,
// or as it should.
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

// level is a number that rises, and that goroutines wait for. It has its cache lines for itself.
type level struct {
	_      gap
	n      atomic.Int64
	wanted atomic.Int64 // the least number that somebody sleeps for
	mu     sync.Mutex
	woken  sync.Cond
	_      gap
}

func (v *level) raise(n int64) {
	v.n.Store(n)
	if n < v.wanted.Load() {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wanted.Store(math.MaxInt64)
	v.woken.Broadcast()
}

// await waits for a number, or, if that takes so long that it sleeps, for another one, which is not
// less: so it is seldom woken.
func (v *level) await(soon, later int64, looks int) {
	for range looks {
		if v.n.Load() >= soon {
			return
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.woken.L = &v.mu
	for {
		v.wanted.Store(min(v.wanted.Load(), later))
		if v.n.Load() >= later {
			return
		}
		v.woken.Wait()
	}
}
