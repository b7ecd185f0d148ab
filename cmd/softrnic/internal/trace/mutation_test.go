package trace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/gopacket/gopacket/layers"

	"github.com/softrnic/softrnic/rdmatransport/wire"
)

// listed returns the names in the list of uncovered fields: the text between "- " and the colon.
func listed() map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(uncovered) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "- "), ":"); ok && strings.HasPrefix(line, "- ") {
			all[name] = true
		}
	}
	return all
}

// part is a range of a packet's bytes.
type part struct {
	name string
	n    int // bytes; −1: the rest
}

// fieldOf returns the name of the field of a byte in an Ethernet frame. It does not use the tested
// code.
func fieldOf(b []byte, at int) string {
	parts := []part{{"Ethernet addresses", 12}, {"EtherType", 2}}
	ip := b[14:]
	var l4 []byte
	end := 0
	if ip[0]>>4 == 4 {
		n := int(ip[0]&15) * 4
		end = 14 + int(binary.BigEndian.Uint16(ip[2:]))
		parts = append(parts, part{"IPv4 header", n})
		l4 = ip[n:]
	} else {
		end = 14 + 40 + int(binary.BigEndian.Uint16(ip[4:]))
		parts = append(parts, part{"IPv6 traffic class and flow label", 4}, part{"IPv6 payload length", 2}, part{"IPv6 next header", 1},
			part{"IPv6 hop limit", 1}, part{"IPv6 addresses", 32})
		l4 = ip[40:]
	}
	udp := ip[0]>>4 == 4 && ip[9] == 17 || ip[0]>>4 == 6 && ip[6] == 17
	var f frame
	f.decode(layers.LinkTypeEthernet, b)
	if udp {
		parts = append(parts, part{"UDP ports and length", 6}, part{"UDP checksum", 2}, part{"BTH", 4}, part{"BTH byte 4", 1},
			part{"rest of the BTH, and payload", end - (len(b) - len(l4)) - 8 - 5})
	} else if f.checksum == offloaded {
		n := int(l4[12]>>4) * 4
		parts = append(parts, part{"TCP header with an offloaded checksum", 16}, part{"TCP checksum", 2},
			part{"TCP header with an offloaded checksum", n - 18},
			part{"TCP payload with an offloaded checksum", end - (len(b) - len(l4)) - n})
	} else {
		parts = append(parts, part{"TCP", end - (len(b) - len(l4))})
	}
	parts = append(parts, part{"bytes after the IP packet", len(b)})
	for _, p := range parts {
		if at < p.n {
			return p.name
		}
		at -= p.n
	}
	return "?"
}

// conversation returns the conversation of a packet: a direction of a connection, or the packets of
// a UD QP.
func conversation(b []byte) string {
	var f frame
	f.decode(layers.LinkTypeEthernet, b)
	var p wire.Packet
	if f.kind != roce || p.Parse(f.payload) != nil {
		// A reset ends the conversation before it.
		return fmt.Sprint(f.src, f.dst, f.srcPort, f.dstPort, f.tcp.rst)
	}
	if p.Opcode.Transport() == wire.UD {
		return fmt.Sprint(f.src, "UD", p.DETH.SrcQP)
	}
	if p.Opcode.Info().Request() {
		return fmt.Sprint(f.src, f.dst, p.DestQP, "requests")
	}
	return fmt.Sprint(f.src, f.dst, p.DestQP, "answers")
}

// neighbours returns the numbers of the packets before and after packet i in its conversation; −1:
// none.
func neighbours(all []record, i int) (before, behind int) {
	c := conversation(all[i].data)
	before, behind = -1, -1
	for k, r := range all {
		if k == i || conversation(r.data) != c {
			continue
		}
		if k < i {
			before = k
		} else if behind < 0 {
			behind = k
		}
	}
	return before, behind
}

// special returns the name of a packet in the list, or "". The loss or copy of a packet not in the
// list must be reported.
func special(all []record, i int) string {
	var f frame
	f.decode(layers.LinkTypeEthernet, all[i].data)
	if f.kind == segment && f.length == 0 && !f.tcp.syn && !f.tcp.fin {
		return "a TCP acknowledgement or reset without data"
	}
	if f.kind == segment {
		for k := range all[:i] {
			var g frame
			g.decode(layers.LinkTypeEthernet, all[k].data)
			if g.kind == segment && g.src == f.src && g.srcPort == f.srcPort && g.dstPort == f.dstPort && g.length > 0 &&
				g.tcp.seq == f.tcp.seq {
				return "a retransmitted TCP segment"
			}
		}
	}
	var p, o wire.Packet
	if f.kind != roce || p.Parse(f.payload) != nil {
		return ""
	}
	k := func(i int, answer bool) bool { // packet i is of the same flow
		var g frame
		g.decode(layers.LinkTypeEthernet, all[i].data)
		return g.kind == roce && g.src == f.src && o.Parse(g.payload) == nil && o.DestQP == p.DestQP && o.Opcode.Info().Response() == answer
	}
	switch {
	case p.Opcode == wire.RCAck && p.AETH.IsACK():
		for i := range i {
			if k(i, true) && o.PSN == p.PSN && o.AETH.IsACK() {
				return "an acknowledgement of retransmitted packets"
			}
		}
	case p.Opcode == wire.RCAck:
		if last, ok := lastRequest(all[:i], f.src, f.dst); ok && last == p.PSN {
			return "a NAK of the last packet"
		}
		for _, i := range []int{i - 1, i + 1} {
			if i >= 0 && i < len(all) && k(i, true) && o.PSN == p.PSN && !o.AETH.IsACK() {
				return "a second NAK of the same PSN"
			}
		}
	case p.Opcode.Info().Request():
		for i := i + 1; i < len(all); i++ {
			if k(i, false) {
				if wire.PSNDiff(o.PSN, p.PSN) <= 0 {
					return "the last packet before a retransmission"
				}
				break
			}
		}
	case p.Opcode.Info().Read():
		for i := i + 1; i < len(all); i++ {
			if k(i, true) {
				if wire.PSNDiff(o.PSN, p.PSN) <= 0 {
					return "the last packet of a response that begins again"
				}
				break
			}
		}
	}
	return ""
}

// lastRequest returns the PSN of the last request to one address from another.
func lastRequest(all []record, to, from netip.Addr) (psn uint32, ok bool) {
	for _, r := range all {
		var f frame
		var p wire.Packet
		f.decode(layers.LinkTypeEthernet, r.data)
		if f.kind == roce && f.src == from && f.dst == to && p.Parse(f.payload) == nil && p.Opcode.Info().Request() {
			psn, ok = p.PSN, true
		}
	}
	return psn, ok
}

// original is an unchanged capture.
type original struct {
	packets []record
	of      []int // connection of each packet, for both directions
}

// originalOf pairs the two directions as the trace of the unchanged capture does, which
// TestCapturesAreRight checks.
func originalOf(t *testing.T, packets []record) *original {
	seen := look(t, packets)
	o := &original{packets: packets, of: make([]int, len(packets))}
	number := map[any]int{}
	for i, e := range seen.events {
		var k any
		switch {
		case e.flow != nil:
			k = e.flow.root()
		case e.stream != nil:
			k = e.stream
		case e.exchange != nil:
			k = e.exchange
		default:
			k = conversation(packets[i].data)
		}
		if number[k] == 0 {
			number[k] = len(number) + 1
		}
		o.of[i] = number[k]
	}
	return o
}

// sight is an output that keeps the findings.
type sight struct {
	events   []event
	findings []finding
	missing  []finding // packets that lines report as lost and retransmitted
}

func (s *sight) packet(_ *analysis, e *event) {
	s.events = append(s.events, *e)
	s.findings = append(s.findings, e.findings...)
	if e.missing != "" {
		s.missing = append(s.missing, finding{Level: note, Packet: e.number, Text: e.missing + " missing"})
	}
}
func (s *sight) late(_ *analysis, _ *flow, f finding) { s.findings = append(s.findings, f) }
func (*sight) statistics(*analysis, *flow)            {}
func (*sight) streamStatistics(*analysis, *stream)    {}

func look(t *testing.T, packets []record) *sight {
	s := new(sight)
	if err := newAnalysis(s, false).read(&sequence{packets, layers.LinkTypeEthernet}, func() bool { return false }); err != nil {
		t.Fatal(err)
	}
	return s
}

// mutant is a capture with one change.
type mutant struct {
	what    string // description of the change
	field   string // its name in the list, if any
	end     bool   // it is the first or last packet of its conversation
	packets []record
	at      []int // numbers of the packets that may be named in a finding
	// Numbers of the next packets of the connection in either direction, which may be named
	// instead.
	next      []int
	gone      []byte // the removed packet
	exchanged bool
}

// named returns the finding that names the change, or "". A finding of reordering only names a
// reordering.
func (m *mutant) named(s *sight) string {
	how := ""
	for _, x := range s.findings {
		switch {
		case x.Level == note && !m.exchanged:
		case slices.Contains(m.at, x.Packet):
			return "at the packet"
		case m.gone != nil && missing(x.Text, m.gone):
			how = "by what is missing"
		case slices.Contains(m.next, x.Packet) && how == "":
			how = "at the next packet"
		}
	}
	for _, x := range s.missing {
		if m.gone != nil && how == "" && (missing(x.Text, m.gone) || slices.Contains(m.next, x.Packet)) {
			how = "missing and repeated"
		}
	}
	return how
}

var (
	missingPSNs  = regexp.MustCompile(`PSNs? (\d+)(?: to (\d+))? (?:(?:is|are) (?:missing|not)|asked for an acknowledgement and has none|comes more often than its request)`)
	missingBytes = regexp.MustCompile(`(\d+) (?:bytes|are missing) .*from sequence number (\d+) on`)
	missingIDs   = regexp.MustCompile(`skips (\d+) from 0x([0-9a-f]+) on`)
)

// missing reports whether a finding names a packet as missing by its PSN, sequence number or IPv4
// identification.
func missing(text string, packet []byte) bool {
	var f frame
	f.decode(layers.LinkTypeEthernet, packet)
	number := func(s string, base int) uint32 {
		n, _ := strconv.ParseUint(s, base, 32)
		return uint32(n)
	}
	if m := missingIDs.FindStringSubmatch(text); m != nil {
		return f.counts && uint32(f.id-uint16(number(m[2], 16))) < number(m[1], 10)
	}
	if f.kind == segment {
		m := missingBytes.FindStringSubmatch(text)
		return m != nil && f.tcp.seq-number(m[2], 10) < number(m[1], 10)
	}
	var p wire.Packet
	if f.kind != roce || p.Parse(f.payload) != nil {
		return false
	}
	m := missingPSNs.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	from := number(m[1], 10)
	to := from
	if m[2] != "" {
		to = number(m[2], 10)
	}
	return wire.PSNDiff(p.PSN, from) >= 0 && wire.PSNDiff(p.PSN, to) <= 0
}

func mutate(r *rand.Rand, name string, o *original) mutant {
	all := o.packets
	i := r.IntN(len(all))
	before, behind := neighbours(all, i)
	m := mutant{packets: slices.Clone(all), end: before < 0 || behind < 0}
	of, shown, mutated := slices.Clone(o.of), i, i // shown: the last changed packet
	switch kind := r.IntN(5); kind {
	case 0, 1:
		bit := r.IntN(len(all[i].data) * 8)
		m.packets[i].data = bytes.Clone(all[i].data)
		m.packets[i].data[bit/8] ^= 0x80 >> (bit % 8)
		m.field = fieldOf(all[i].data, bit/8)
		var was, is frame
		was.decode(layers.LinkTypeEthernet, all[i].data)
		if is.decode(layers.LinkTypeEthernet, m.packets[i].data); was.checksum == offloaded && is.checksum == right {
			m.field = "an offloaded checksum that the change makes right"
		}
		m.end = false
		m.at = []int{i + 1}
		m.what = fmt.Sprintf("%s: packet %d: bit %d of byte %d flipped: %s", name, i+1, bit%8, bit/8, m.field)
	case 2:
		m.packets = slices.Delete(m.packets, i, i+1)
		of = slices.Delete(of, i, i+1)
		shown--
		m.gone = all[i].data
		m.what = fmt.Sprintf("%s: packet %d removed", name, i+1)
		m.field = special(all, i)
	case 3:
		at := min(i+1+r.IntN(3), len(all))
		c := all[i]
		c.info.Timestamp = all[at-1].info.Timestamp
		m.packets = slices.Insert(m.packets, at, c)
		of = slices.Insert(of, at, of[i])
		shown = at
		m.at = []int{at + 1}
		m.end = false
		m.what = fmt.Sprintf("%s: packet %d copied after %d", name, i+1, at)
		m.field = special(all, i)
	case 4:
		j := behind
		if j < 0 {
			i, j = before, i
		}
		if i < 0 || bytes.Equal(all[i].data, all[j].data) {
			return mutate(r, name, o)
		}
		m.packets[i].data, m.packets[j].data = all[j].data, all[i].data
		m.packets[i].info.CaptureLength, m.packets[i].info.Length = len(all[j].data), len(all[j].data)
		m.packets[j].info.CaptureLength, m.packets[j].info.Length = len(all[i].data), len(all[i].data)
		b, _ := neighbours(all, i)
		_, e := neighbours(all, j)
		m.end = b < 0 || e < 0
		m.at, m.exchanged = []int{i + 1, j + 1}, true
		shown, mutated = j, i
		m.what = fmt.Sprintf("%s: packets %d and %d exchanged", name, i+1, j+1)
		m.field = "packets that have changed places"
	}
	m.next = nextOf(m.packets, of, o.of[mutated], shown+1)
	if mutated != shown && shown >= 0 && len(m.at) == 2 {
		m.next = append(m.next, nextOf(m.packets, of, o.of[mutated], mutated+1)...)
	}
	return m
}

// nextOf returns the numbers of the first packets of a connection from packet i on, in either
// direction.
func nextOf(packets []record, of []int, connection, i int) (numbers []int) {
	var from []netip.Addr
	for ; i < len(packets) && len(from) < 2; i++ {
		var f frame
		if of[i] != connection {
			continue
		}
		if f.decode(layers.LinkTypeEthernet, packets[i].data); !slices.Contains(from, f.src) {
			from = append(from, f.src)
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}

// TestMutations: a flipped bit, and a packet that is removed, copied, or swapped with the next one
// of its conversation, is reported in any capture. Exceptions are the fields in the list, and the
// ends of a capture.
func TestMutations(t *testing.T) {
	captures := captured(t)
	names := slices.Sorted(maps.Keys(captures))
	all := map[string]*original{}
	for _, n := range names {
		all[n] = originalOf(t, records(t, captures[n]))
	}
	list := listed()
	runs := 1000
	if os.Getenv("SOFTRNIC_LONG") != "" {
		runs = 50000
	}
	r := rand.New(rand.NewPCG(15, 4))
	named, listedAs := map[string]int{}, map[string]int{}
	for range runs {
		name := names[r.IntN(len(names))]
		m := mutate(r, name, all[name])
		seen := look(t, m.packets)
		how := m.named(seen)
		switch {
		case how != "":
			named[how]++
		case m.end && list["the first and last packets of a conversation"]:
			listedAs["the first and last packets of a conversation"]++
		case list[m.field]:
			listedAs[m.field]++
		default:
			t.Errorf("%s: not named, but %+v", m.what, seen.findings)
		}
	}
	t.Logf("result: %d mutations: named %v; on the list %v", runs, named, listedAs)
}

// TestCopiesAndLosses: mutations that were once not reported.
func TestCopiesAndLosses(t *testing.T) {
	captures := captured(t)
	// The first packet of a response sent for the second time, before the third copy of its
	// request.
	all := records(t, captures["wire/rc-read"])
	if _, out := traced(t, new(Command), slices.Delete(all, 167, 168)); !strings.Contains(out, "PSN 16459835 is missing\n") {
		t.Errorf("a packet of a repeated response removed:\n%s", out)
	}
	// Retransmitted packets: the finding about a missing one names it.
	for _, x := range []struct {
		capture string
		packet  int
		want    string
	}{
		{"wire/rc-send-mtu4096", 24,
			"DOUBTFUL packet 24: repeats from PSN 13243900, though no acknowledgement ends before it: PSN 13243899 is not repeated"},
		{"wire/rc-send-mtu4096", 26, "DOUBTFUL packet 26: PSN 13243901 is not repeated with those before and after"},
		{"wire/rc-send-mtu4096", 38, "acknowledges PSN 6914887 again, and what was repeated ends before it: PSN 6914887 is missing"},
		{"wire/rc-write", 263, "acknowledges PSN 10374060 more often than packets came again: PSN 10374043 is missing before packet 263"},
		{"wire/rc-write", 141, "PSN 10374060 is not acknowledged as often"},
		{"wire/rc-read", 42, "the response of PSN 16459830 comes more often than its request"},
		{"rdmap/read", 138, "WRONG packet 139: acknowledges 736 bytes that the capture does not have: from sequence number "},
	} {
		all := records(t, captures[x.capture])
		if _, out := traced(t, new(Command), slices.Delete(all, x.packet-1, x.packet)); !strings.Contains(out, x.want) {
			t.Errorf("%s, packet %d removed: no %q in\n%s", x.capture, x.packet, x.want, out)
		}
	}
	// A TCP segment swapped with the next one. IPv6 has no identification.
	all = records(t, captures["rdmap/rping6"])
	c := all[13]
	c.info.Timestamp = all[15].info.Timestamp
	if a, out := traced(t, new(Command), slices.Insert(all, 16, c)); a.counts.Doubtful != 1 ||
		!strings.Contains(out, "DOUBTFUL packet 17: repeats packet 14 ") {
		t.Errorf("a segment copied: %+v\n%s", a.counts, out)
	}
}
