package verbs

import "sync/atomic"

// CounterDescription is the quantity that a counter counts (ibv_counter_description, same values).
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

	// protected by dev.mu
	flows  int
	dead   bool
	points []CounterDescription // attached counters, by index
}

// maxCounters is the number of indices of one object.
const maxCounters = 32

// CreateCounters creates a Counters object without counters, which AttachPoint adds
// (ibv_create_counters).
func (d *Device) CreateCounters() (*Counters, error) {
	const op = "create counters"
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil, Errorf(ErrClosed, op, "%s is closed", d.Name())
	}
	return &Counters{dev: d}, nil
}

// AttachPoint assigns a counter to an index (ibv_attach_counters_point_flow). It fails with ErrBusy
// while a flow uses the object.
func (c *Counters) AttachPoint(counter CounterDescription, index int) error {
	const op = "attach counters"
	if err := checkRange(op, "index", index, 0, maxCounters-1); err != nil {
		return err
	}
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	switch {
	case c.dead:
		return Errorf(ErrClosed, op, "they are closed")
	case counter > CounterBytes:
		return Errorf(ErrInvalid, op, "description %d is neither CounterPackets nor CounterBytes", counter)
	case c.flows > 0:
		return Errorf(ErrBusy, op, "%d flows use them", c.flows)
	}
	for len(c.points) <= index {
		c.points = append(c.points, noCounter)
	}
	c.points[index] = counter
	return nil
}

const noCounter CounterDescription = 0xff

// Read fills values with the counters, by index (ibv_read_counters). Indices without a counter are
// 0.
func (c *Counters) Read(values []uint64) error {
	const op = "read counters"
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	if c.dead {
		return Errorf(ErrClosed, op, "they are closed")
	}
	if len(values) < len(c.points) {
		return Errorf(ErrInvalid, op, "values has length %d, but the highest attached index is %d", len(values), len(c.points)-1)
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

// Close destroys the counters (ibv_destroy_counters). The error is ErrBusy while a flow uses them,
// and ErrClosed after the first Close.
func (c *Counters) Close() error {
	const op = "close counters"
	c.dev.mu.Lock()
	defer c.dev.mu.Unlock()
	switch {
	case c.dead:
		return Errorf(ErrClosed, op, "they are already closed")
	case c.flows > 0:
		return Errorf(ErrBusy, op, "%d flows use them", c.flows)
	}
	c.dead = true
	return nil
}

// useCounters counts f as a user of the counters that specs name.
func (f *Flow) useCounters(op string, specs []FlowSpec) error {
	d := f.qp.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	var counters []*Counters
	for i, s := range specs {
		a, ok := s.(*FlowSpecCounterAction)
		if !ok {
			continue
		}
		if a.Counters.dead {
			return Errorf(ErrClosed, op, "Specs[%d].Counters is closed", i)
		}
		counters = append(counters, a.Counters)
	}
	for _, c := range counters {
		c.flows++
	}
	f.counters = counters
	return nil
}

// releaseCounters undoes useCounters.
func (f *Flow) releaseCounters() {
	d := f.qp.pd.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, c := range f.counters {
		c.flows--
	}
	f.counters = nil
}
