package trace

import (
	"fmt"
	"net/netip"
)

// level is how sure it is that something is wrong.
type level uint8

const (
	// wrong: the packets contradict the protocol, a checksum or each other, or one that must have been there is not in the capture.
	wrong level = iota
	// doubtful: the packets are right, but follow another pattern than the sender's others, as when one is missing.
	doubtful
	// note: something was not checked, or packets have changed places, which a network may do.
	note
	// damage is wrong too, whatever may be missing.
	damage
)

func (l level) String() string { return [...]string{"WRONG", "DOUBTFUL", "NOTE"}[l] }

// MarshalText implements encoding.TextMarshaler.
func (l level) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

// finding says what was found, and which packet shows it.
type finding struct {
	Level  level  `json:"level"`
	Packet int    `json:"packet"`
	Text   string `json:"text"`
}

// report notes a finding. It belongs to the line of the packet that is being looked at, or has a line of its own if it is about
// an earlier one. w is the flow that it is about, or nil.
func (a *analysis) report(l level, w *flow, packet int, format string, args ...any) {
	switch {
	case l == damage:
		l = wrong
	case l == wrong && a.counts.Dropped+a.counts.Cut > 0: // it may be for want of what was dropped, or cut off
		l = doubtful
	}
	f := finding{Level: l, Packet: packet, Text: fmt.Sprintf(format, args...)}
	if packet == a.ev.number && a.open {
		a.ev.findings = append(a.ev.findings, f)
		return
	}
	a.out.late(a, w, f)
}

// reordered notes that a packet has come behind later ones of its sender. A network may do that.
func (a *analysis) reordered(w *flow, packet int, format string, args ...any) {
	a.counts.Reordered++
	if w != nil {
		w.disordered = true
	}
	l := note
	if a.strict {
		l = wrong
	}
	a.report(l, w, packet, "reordered: "+format, args...)
}

// event is what is known of one packet when it was looked at.
type event struct {
	number    int
	time      int64
	src, dst  netip.Addr
	sport     uint16
	dport     uint16
	shown     bool // it is a packet of RDMA, which has a line even if nothing is wrong with it
	flow      *flow
	exchange  *exchange
	stream    *stream
	roce      bool
	qp, from  uint32 // destination, and source if it is known
	knownFrom bool
	psn       uint32
	operation string
	class     class
	message   uint32 // number, from 1; 0 if it is none's
	place     uint32 // of the packet within the message, from 1
	bytes     int
	about     string
	answers   int   // the packet that this one answers
	since     int64 // and the time since that
	repeats   int   // the packet that this one repeats
	why       string
	missing   string // what is missing before it
	findings  []finding
}

// class is what kind of packet it is, for the ladder.
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
