// Package ladder draws what two ends of a connection send each other as a sequence diagram: a vertical line for each end, time
// from top to bottom, and an arrow for each packet. What a person looks for stands out: packets that are repeated, negative
// acknowledgements, gaps and silences.
package ladder

import (
	"cmp"
	"slices"
	"time"
)

// Kind is what an arrow stands for. It has a colour, and a word in the legend.
type Kind uint8

const (
	Request    Kind = iota
	Answer          // an acknowledgement or a response
	Repeated        // a packet that was sent before
	Negative        // a NAK, a reject, a Terminate
	NotReady        // an RNR NAK
	Management      // the set-up of a connection and its end
	kinds
)

// Packet is one packet.
type Packet struct {
	Number    int           // in the capture; 0 if it has none
	Time      time.Duration // since the beginning of the capture
	FromLeft  bool
	Kind      Kind
	Operation string // such as "SEND Middle"
	// Group is what consecutive packets of one direction and kind that share an arrow have in common, such as "SEND".
	Group string
	// Sequence is the packet's number in the order of its direction, such as "PSN 5"; of packets that share an arrow, the first
	// and the last are shown.
	Sequence string
	Detail   string // the rest of what its arrow says; a packet that has one has an arrow of its own
	Remark   string // what it answers or repeats, beside the arrow
	Missing  string // what is missing before it
	Wrong    []string
	Title    string // what is shown when the mouse is on the arrow
}

// Chart is one connection.
type Chart struct {
	Title       string
	Left, Right string // the names of the two ends
	Packets     []Packet
	Omitted     int // packets that are not in Packets
}

// MaxRows is how many rows of a chart are drawn.
const MaxRows = 500

// row is one arrow, or what stands in the place of one.
type row struct {
	silence time.Duration // how long nothing was sent before it, if that is long
	first   Packet
	last    Packet
	count   int
	mixed   bool // the packets have several operations
}

// joined says whether p belongs to the arrow of the packets before it.
func (r *row) joined(p *Packet, silence time.Duration) bool {
	f := &r.first
	return silence == 0 && f.FromLeft == p.FromLeft && f.Kind == p.Kind && f.Group == p.Group && p.Group != "" &&
		f.Detail == "" && p.Detail == "" && p.Missing == "" && len(f.Wrong) == 0 && len(p.Wrong) == 0 && f.Kind != Management
}

// together is how many packets have to follow each other to share an arrow.
const together = 4

// rows are the rows of a chart.
func (c *Chart) rows() (rows []row, more int) {
	long := c.longSilence()
	var runs []row
	for i := range c.Packets {
		p := &c.Packets[i]
		var silence time.Duration
		if i > 0 {
			if d := p.Time - c.Packets[i-1].Time; d >= long {
				silence = d
			}
		}
		if n := len(runs); n > 0 && runs[n-1].joined(p, silence) {
			r := &runs[n-1]
			r.last = *p
			r.count++
			r.mixed = r.mixed || p.Operation != r.first.Operation
			continue
		}
		runs = append(runs, row{silence: silence, first: *p, last: *p, count: 1})
	}
	at := 0
	for _, r := range runs {
		if r.count < together {
			for i := range r.count {
				one := row{first: c.Packets[at+i], last: c.Packets[at+i], count: 1}
				if i == 0 {
					one.silence = r.silence
				}
				rows = append(rows, one)
			}
		} else {
			rows = append(rows, r)
		}
		at += r.count
		if len(rows) >= MaxRows {
			return rows, len(c.Packets) - at
		}
	}
	return rows, 0
}

// longSilence is the time between two packets from which on a chart says so: twenty times what is usual in it.
func (c *Chart) longSilence() time.Duration {
	var between []time.Duration
	for i := 1; i < len(c.Packets); i++ {
		if d := c.Packets[i].Time - c.Packets[i-1].Time; d > 0 {
			between = append(between, d)
		}
	}
	if len(between) < 2 {
		return time.Hour * 24 * 365
	}
	slices.SortFunc(between, cmp.Compare)
	return max(20*between[len(between)/2], time.Millisecond)
}
