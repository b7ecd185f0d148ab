package wakeup

// Calls is the state of a goroutine that makes calls, and of those who wait until a call has
// returned. The owner's lock is held in all methods. Nothing is allocated while nobody waits.
type Calls struct {
	running  bool
	returned chan struct{} // closed when the current call has returned; nil while nobody waits
}

// Start starts the goroutine, unless it runs. run calls Returned after each call, and End as its
// last action. The caller keeps the value of run, if it is a method's: making it allocates.
func (c *Calls) Start(clock Clock, run func()) {
	if c.running {
		return
	}
	c.running = true
	clock.Go(run)
}

// Current returns a channel that is closed when the current call has returned. It returns nil if
// the goroutine does not run.
func (c *Calls) Current() <-chan struct{} {
	if c.running && c.returned == nil {
		c.returned = make(chan struct{})
	}
	return c.returned
}

// Returned records that a call has returned.
func (c *Calls) Returned() {
	if c.returned != nil {
		close(c.returned)
		c.returned = nil
	}
}

// End records that the goroutine ends.
func (c *Calls) End() {
	c.Returned()
	c.running = false
}
