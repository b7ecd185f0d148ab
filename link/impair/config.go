package impair

import (
	"errors"
	"fmt"
	"time"
)

// Config describes the impairments. The zero value impairs nothing.
type Config struct {
	Seed    uint64
	In, Out Direction // received and sent packets of the host
}

// Direction describes the impairments in one direction. Probabilities are 0 to 1, and apply to each
// packet independently.
type Direction struct {
	Loss      float64
	Burst     Burst
	Duplicate float64
	Corrupt   float64 // flip one random bit of the frame
	Reorder   float64 // delay the packet by Hold while others pass
	Hold      time.Duration
	// Each packet is delayed by Delay plus a random time, uniform in [−Jitter, Jitter]. Jitter
	// may reorder packets.
	Delay, Jitter time.Duration
	Rate          int64 // bits of frames per second; 0 means no limit
	Limit         int   // packets held at a time, beyond which packets are lost; 0 means DefaultLimit
	// Queue is the number of bytes that may wait for Rate; a packet that does not fit is lost.
	// 0 means that only Limit applies.
	Queue int
	// ECN makes the queue mark packets, as switches do.
	ECN   ECN
	Rules []Rule
}

// ECN configures Congestion Experienced marks on packets of ECN-capable transports (RFC 3168 §5).
// The queue marks no packet below Min bytes, and every packet at Max bytes or more. In between, the
// probability grows linearly. Max 0 means Min. The zero value marks nothing.
type ECN struct{ Min, Max int }

// Burst is the Gilbert–Elliott model of burst loss: nothing is lost in the good state, everything
// in the bad one.
type Burst struct {
	Enter, Leave float64 // probability per packet to go from good to bad, and back
}

// Defaults of Direction.Hold and Direction.Limit.
const (
	DefaultHold  = time.Millisecond
	DefaultLimit = 10000
)

// Rule applies an action to selected packets.
type Rule struct {
	Match func(frame []byte) bool // nil: every packet
	// Nth is the first match that the rule acts on, counted from 1 in each direction; 0 means
	// 1. Count is the number of matches from there; 0 means one, a negative number all.
	Nth, Count int
	Action     Action
}

// Action is the effect of a rule.
type Action uint8

// The actions.
const (
	Drop Action = iota
	Duplicate
	Corrupt
	Reorder
)

func (c *Config) check() error {
	for _, d := range []struct {
		name string
		d    *Direction
	}{{"In", &c.In}, {"Out", &c.Out}} {
		if err := d.d.check(); err != nil {
			return fmt.Errorf("impair: %s: %w", d.name, err)
		}
	}
	return nil
}

func (d *Direction) check() error {
	for _, p := range []struct {
		name string
		v    float64
	}{{"Loss", d.Loss}, {"Duplicate", d.Duplicate}, {"Corrupt", d.Corrupt}, {"Reorder", d.Reorder},
		{"Burst.Enter", d.Burst.Enter}, {"Burst.Leave", d.Burst.Leave}} {
		if !(p.v >= 0 && p.v <= 1) { // also for NaN
			return fmt.Errorf("probability %s is %v: must be 0 to 1", p.name, p.v)
		}
	}
	if d.Burst.Enter > 0 && d.Burst.Leave == 0 {
		return errors.New("probability Burst.Leave is 0: the first burst would never end: must be more than 0")
	}
	if d.Delay < 0 || d.Jitter < 0 || d.Hold < 0 || d.Jitter > d.Delay {
		return fmt.Errorf("times Delay %v, Jitter %v, Hold %v: must not be negative, and Jitter must not exceed Delay", d.Delay, d.Jitter,
			d.Hold)
	}
	if d.Rate < 0 || d.Limit < 0 {
		return fmt.Errorf("limits Rate %d, Limit %d: must not be negative", d.Rate, d.Limit)
	}
	e := d.ECN
	belowZero := d.Queue < 0 || e.Min < 0 || e.Max < 0
	if belowZero || e.Max != 0 && e.Max < e.Min {
		return fmt.Errorf("limits Queue %d, ECN.Min %d, ECN.Max %d: must be none below 0, and no Max below Min", d.Queue, e.Min, e.Max)
	}
	if (d.Queue > 0 || d.ECN != ECN{}) && d.Rate == 0 {
		return errors.New("a queue or ECN without Rate: set Rate, as packets wait for it only")
	}
	for i, r := range d.Rules {
		if r.Nth < 0 || r.Action > Reorder {
			return fmt.Errorf("rule Rules[%d]: Nth %d, Action %d: matches count from 1, actions are Drop to Reorder", i, r.Nth, r.Action)
		}
	}
	return nil
}
