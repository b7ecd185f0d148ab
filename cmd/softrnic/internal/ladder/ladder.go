// Package ladder draws the packets of a connection as a sequence diagram: a vertical line for each
// end, time from top to bottom, and an arrow for each packet. Retransmissions, negative
// acknowledgements, gaps and silences are highlighted.
package ladder

import (
	"cmp"
	"slices"
	"time"
)

// Kind is the kind of packet that an arrow shows. It has a colour and a word in the legend.
type Kind uint8

const (
	Request    Kind = iota
	Answer          // an acknowledgement or a response
	Repeated        // a packet that was sent before
	Negative        // a NAK, a reject, a Terminate
	NotReady        // an RNR NAK
	Management      // set-up and end of a connection
	kinds
)

// Packet is one packet.
type Packet struct {
	Number    int           // in the capture; 0: none
	Time      time.Duration // since the beginning of the capture
	FromLeft  bool
	Kind      Kind
	Operation string // such as "SEND Middle"
	// Group is the label of an arrow that consecutive packets of one direction and kind share, such
	// as "SEND".
	Group string
	// Sequence is the packet's sequence number in its direction, such as "PSN 5". An arrow of
	// several packets shows the first and the last.
	Sequence string
	Detail   string // the rest of the arrow's label; a packet with a Detail does not share an arrow
	Remark   string // the packet that it answers or retransmits, shown beside the arrow
	Missing  string // packets missing before it
	Wrong    []string
	Title    string // tooltip of the arrow
}

// Chart is one connection.
type Chart struct {
	Title       string
	Left, Right string // the names of the two ends
	Packets     []Packet
	Omitted     int // number of packets that are not in Packets
}

// MaxRows is the most rows of a chart.
const MaxRows = 500

// row is one arrow or its replacement.
type row struct {
	silence time.Duration // the time without packets before it, if long
	first   Packet
	last    Packet
	count   int
	mixed   bool // the packets have different operations
}

// joined reports whether p shares the arrow of the packets before it.
func (r *row) joined(p *Packet, silence time.Duration) bool {
	f := &r.first
	same := f.FromLeft == p.FromLeft && f.Kind == p.Kind && f.Group == p.Group && p.Group != ""
	remarkable := f.Detail != "" || p.Detail != "" || p.Missing != "" || len(f.Wrong) > 0 || len(p.Wrong) > 0
	return silence == 0 && same && !remarkable && f.Kind != Management
}

// together is the least number of consecutive packets that share an arrow.
const together = 4

// rows returns the rows of a chart.
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

// longSilence returns the least time between two packets that a chart shows as a silence: twenty
// times the usual time.
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
