package powercut

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
)

// Cuts takes images of a disk, as after a power failure, at random moments of the work on it: when
// the disk is asked for something, or when the work has got a reply. It checks them while the work
// goes on.
type Cuts struct {
	// Mutex protects what the test expects. It is held by the callers of Reply.
	sync.Mutex
	Disk *Disk
	Done chan struct{} // is closed after the last cut, or the first one that has failed

	t       testing.TB
	seed    uint64
	random  *rand.Rand
	expect  func() func(image []byte) error
	total   int
	left    int  // 0 before Start
	replies bool // the next cut is after a reply
	wait    int  // for so many events
	checks  sync.WaitGroup
	busy    bool // checking
}

// NewCuts makes a disk of size bytes, and takes n cuts of it from Start on. expect is called at the
// moment of a cut, with the mutex, and returns the check of the image.
func NewCuts(t testing.TB, size, n int, seed uint64, expect func() func(image []byte) error) *Cuts {
	t.Helper()
	c := &Cuts{Done: make(chan struct{}), t: t, seed: seed, random: rand.New(rand.NewPCG(seed, 0)), expect: expect}
	c.Disk = NewDisk(t, size, func() {
		c.Lock()
		defer c.Unlock()
		c.moment(false)
	})
	c.total = n
	return c
}

// Start starts the cuts.
func (c *Cuts) Start() {
	c.Lock()
	defer c.Unlock()
	c.left = c.total
	c.next()
}

// Wait waits for the last check.
func (c *Cuts) Wait() { c.checks.Wait() }

// Ended reports whether there are no more cuts.
func (c *Cuts) Ended() bool {
	select {
	case <-c.Done:
		return true
	default:
		return false
	}
}

// next chooses the next moment.
func (c *Cuts) next() {
	c.replies = c.random.IntN(2) == 0
	c.wait = c.random.IntN(30)
}

// Reply is called after a reply, once the test expects what it promises.
func (c *Cuts) Reply() { c.moment(true) }

// moment takes a cut if it is time.
func (c *Cuts) moment(reply bool) {
	if c.left <= 0 || c.busy || reply != c.replies {
		return
	}
	if c.wait > 0 {
		c.wait--
		return
	}
	image, check, cut := c.Disk.Cut(c.random), c.expect(), c.left
	c.busy = true
	c.left--
	c.next()
	c.checks.Go(func() {
		err := check(image)
		c.Lock()
		defer c.Unlock()
		c.busy = false
		if err != nil {
			c.t.Error(fmt.Errorf("seed %d, when %d cuts were left, after a reply %v: %w", c.seed, cut, reply, err))
			c.left = 0
		}
		if c.left == 0 {
			close(c.Done)
		}
	})
}
