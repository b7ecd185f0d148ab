package trace

import (
	"fmt"
	"net/netip"
)

// level is the certainty of a finding.
type level uint8

const (
	// wrong: the packets violate the protocol, a checksum is wrong, or a packet is missing from the
	// capture.
	wrong level = iota
	// doubtful: the packets are valid, but break the sender's pattern, as if one is missing. Once a
	// packet of the connection has come late, this is a note.
	doubtful
	// note: something was not checked, or packets were reordered, as networks do.
	note
	// damage is wrong even if packets may be missing from the capture.
	damage
	// unsure is shown as doubtful: it would be wrong, but late packets of the connection may be why.
	unsure
)

func (l level) String() string { return [...]string{"WRONG", "DOUBTFUL", "NOTE"}[l] }

// MarshalText implements encoding.TextMarshaler.
func (l level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// finding is a finding with the packet that shows it.
type finding struct {
	Level  level  `json:"level"`
	Packet int    `json:"packet"`
	Text   string `json:"text"`
	damage bool
}

// report records a finding. It is added to the line of the current packet, or has its own line if
// it concerns an earlier one. w is its flow, or nil.
func (a *analysis) report(l level, w *flow, packet int, format string, args ...any) {
	damaged, pattern := l == damage, l == doubtful
	switch {
	case damaged:
		l = wrong
	case l == unsure:
		l = doubtful
	case l == wrong && a.counts.Dropped+a.counts.Cut > 0:
		// Dropped or truncated packets may be the cause.
		l = doubtful
	}
	if pattern && w.reordered() && !a.strict {
		l = note // the pattern is that of the network
	}
	f := finding{Level: l, Packet: packet, Text: fmt.Sprintf(format, args...), damage: damaged}
	if packet == a.ev.number && a.open {
		a.ev.findings = append(a.ev.findings, f)
		return
	}
	a.out.late(a, w, f)
}

// reordered records that a packet was captured after later ones of its sender, as networks may
// reorder.
func (a *analysis) reordered(w *flow, packet int, format string, args ...any) {
	if w != nil {
		w.disordered, w.late = true, true
	}
	a.overtaken(w, packet, format, args...)
}

// overtaken is reordered for a packet that only one of the other direction has overtaken: the order
// of its sender's packets is right.
func (a *analysis) overtaken(w *flow, packet int, format string, args ...any) {
	a.counts.Reordered++
	l := note
	if a.strict {
		l = wrong
	}
	a.report(l, w, packet, "reordered: "+format, args...)
}

// event has the results of one packet's analysis.
type event struct {
	number    int
	time      int64
	src, dst  netip.Addr
	sport     uint16
	dport     uint16
	shown     bool // an RDMA packet, which has a line even without findings
	flow      *flow
	exchange  *exchange
	stream    *stream
	roce      bool
	qp, from  uint32 // destination, and source if it is known
	knownFrom bool
	psn       uint32
	operation string
	class     class
	message   uint32 // number, from 1; 0: none
	place     uint32 // of the packet within the message, from 1
	bytes     int
	about     string
	upper     string // the messages of NVMe or RPC that end in it
	uppers    int    // their number
	answers   int    // the packet that this one answers
	since     int64  // and the time since that
	repeats   int    // the packet that this one retransmits
	why       string
	missing   string // packets missing before it
	findings  []finding
}

// class is the kind of packet for the ladder.
type class uint8

const (
	request class = iota
	response
	acknowledgement
	negative
	notReady
	management
	control
)

var classNames = [...]string{"request", "response", "ack", "nak", "rnr", "cm", "control"}
