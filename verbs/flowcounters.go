package verbs

import "sync/atomic"

// CounterDescription says what a counter counts (ibv_counter_description, same values).
type CounterDescription uint8

const (
	CounterPackets CounterDescription = iota
	CounterBytes                      // of Ethernet frames, without FCS
)

// Counters counts the frames of the flows that name it in a [FlowSpecCounterAction] (ibv_counters).
type Counters struct {
	dev     *Device
	packets atomic.Uint64
	bytes   atomic.Uint64

	// guarded by dev.mu
	flows  int
	dead   bool
	points []CounterDescription // by index
}

// maxCounters is how many counters are in one object; there are only two kinds to count.
const maxCounters = 32

// CreateCounters makes an object without counters: AttachPoint puts some in.
func (d *Device) CreateCounters() (*Counters, error) {
	const op = "create counters"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, Errorf(ErrDestroyed, op, "%s is closed", d.Name())
	}
	return &Counters{dev: d}, nil
}

// AttachPoint makes what is counted the value of an index (ibv_attach_counters_point_flow), before a flow uses it.
func (c *Counters) AttachPoint(what CounterDescription, index int) error {
	const op = "attach counters"
	if err := checkRange(op, "index", index, 0, maxCounters-1); err != nil {
		return err
	}
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	switch {
	case c.dead:
		return Errorf(ErrDestroyed, op, "they are destroyed")
	case what > CounterBytes:
		return Errorf(ErrInvalid, op, "description %d is neither CounterPackets nor CounterBytes", what)
	case c.flows > 0:
		return Errorf(ErrBusy, op, "%d flows use them", c.flows)
	}
	for len(c.points) <= index {
		c.points = append(c.points, noCounter)
	}
	c.points[index] = what
	return nil
}

const noCounter CounterDescription = 0xff

// Read fills values with the counters, by index (ibv_read_counters); those that are not attached are 0.
func (c *Counters) Read(values []uint64) error {
	const op = "read counters"
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	if c.dead {
		return Errorf(ErrDestroyed, op, "they are destroyed")
	}
	if len(values) < len(c.points) {
		return Errorf(ErrInvalid, op, "room for %d values, %d are attached", len(values), len(c.points))
	}
	clear(values)
	for i, p := range c.points {
		switch p {
		case CounterPackets:
			values[i] = c.packets.Load()
		case CounterBytes:
			values[i] = c.bytes.Load()
		}
	}
	return nil
}

// Destroy ends the counters. ErrBusy while a flow uses them.
func (c *Counters) Destroy() error {
	const op = "destroy counters"
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	switch {
	case c.dead:
		return Errorf(ErrDestroyed, op, "they are destroyed already")
	case c.flows > 0:
		return Errorf(ErrBusy, op, "%d flows use them", c.flows)
	}
	c.dead = true
	return nil
}

// useCounters makes f a flow of the counters that specs name.
func (f *Flow) useCounters(op string, specs []FlowSpec) error {
	d := f.qp.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	var uses []*Counters
	for i, s := range specs {
		a, ok := s.(*FlowSpecCounterAction)
		if !ok {
			continue
		}
		if a.Counters.dead {
			return Errorf(ErrDestroyed, op, "Specs[%d].Counters: destroyed", i)
		}
		uses = append(uses, a.Counters)
	}
	for _, c := range uses {
		c.flows++
	}
	f.uses = uses
	return nil
}

// releaseCounters undoes useCounters.
func (f *Flow) releaseCounters() {
	d := f.qp.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range f.uses {
		c.flows--
	}
	f.uses = nil
}

// Count is for providers: one more frame of n bytes.
func (c *Counters) Count(n int) {
	c.packets.Add(1)
	c.bytes.Add(uint64(n))
}
