package trace

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket/layers"

	"github.com/softrnic/softrnic/rdmatransport/roce/wire"
)

// listed are the names on the list of what nothing covers: what is behind "- " up to the colon.
func listed() map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(uncovered) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, "- "), ":"); ok && strings.HasPrefix(line, "- ") {
			all[name] = true
		}
	}
	return all
}

// part is a stretch of a packet's bytes.
type part struct {
	name string
	n    int // bytes; −1: the rest
}

// fieldOf names the field that a byte of an Ethernet frame is in. It does not use what it tests.
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
		parts = append(parts, part{"UDP ports and length", 6}, part{"UDP checksum", 2}, part{"BTH", 4}, part{"BTH byte 4", 1}, part{"BTH and behind", end - (len(b) - len(l4)) - 8 - 5})
	} else if f.checksum == offloaded {
		n := int(l4[12]>>4) * 4
		parts = append(parts, part{"TCP header with an offloaded checksum", 16}, part{"TCP checksum", 2}, part{"TCP header with an offloaded checksum", n - 18},
			part{"TCP payload with an offloaded checksum", end - (len(b) - len(l4)) - n})
	} else {
		parts = append(parts, part{"TCP", end - (len(b) - len(l4))})
	}
	parts = append(parts, part{"bytes behind the IP packet", len(b)})
	for _, p := range parts {
		if at < p.n {
			return p.name
		}
		at -= p.n
	}
	return "?"
}

// conversation is what a packet is one of: a direction of a connection, or what a UD QP sends.
func conversation(b []byte) string {
	var f frame
	f.decode(layers.LinkTypeEthernet, b)
	var p wire.Packet
	if f.kind != roce || p.Parse(f.payload) != nil {
		return fmt.Sprint(f.src, f.dst, f.srcPort, f.dstPort, f.tcp.rst) // a reset ends what is before it
	}
	if p.Opcode.Transport() == wire.UD {
		return fmt.Sprint(f.src, "UD", p.DETH.SrcQP)
	}
	if p.Opcode.Info().Request() {
		return fmt.Sprint(f.src, f.dst, p.DestQP, "requests")
	}
	return fmt.Sprint(f.src, f.dst, p.DestQP, "answers")
}

// neighbours are the numbers of the packets before and behind packet i of the same conversation; −1: there is none.
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

// special is what of the list a packet is, or "" if nothing: then it is to be noticed that it is missing or there twice.
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
			if g.kind == segment && g.src == f.src && g.srcPort == f.srcPort && g.dstPort == f.dstPort && g.length > 0 && g.tcp.seq == f.tcp.seq {
				return "a TCP segment that came again"
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
				return "an acknowledgement of packets that came again"
			}
		}
	case p.Opcode == wire.RCAck:
		for _, i := range []int{i - 1, i + 1} {
			if i >= 0 && i < len(all) && k(i, true) && o.PSN == p.PSN && !o.AETH.IsACK() {
				return "a NAK beside another of the same PSN"
			}
		}
	case p.Opcode.Info().Request():
		for i := i + 1; i < len(all); i++ {
			if k(i, false) {
				if wire.PSNDiff(o.PSN, p.PSN) <= 0 {
					return "the last packet before others are repeated"
				}
				break
			}
		}
	}
	return ""
}

// mutant is a capture with one change.
type mutant struct {
	what    string // what was done
	field   string // what of the list it may be
	end     bool   // at an end of the capture: nothing of the conversation is before or behind it
	packets []record
	number  int // of the packet where it is to be seen
}

func mutate(r *rand.Rand, name string, all []record) mutant {
	i := r.IntN(len(all))
	before, behind := neighbours(all, i)
	m := mutant{packets: slices.Clone(all), number: i + 1, end: before < 0 || behind < 0}
	switch kind := r.IntN(5); kind {
	case 0, 1:
		bit := r.IntN(len(all[i].data) * 8)
		m.packets[i].data = bytes.Clone(all[i].data)
		m.packets[i].data[bit/8] ^= 0x80 >> (bit % 8)
		m.field = fieldOf(all[i].data, bit/8)
		m.end = false
		m.what = fmt.Sprintf("%s: packet %d: bit %d of byte %d flipped: %s", name, i+1, bit%8, bit/8, m.field)
	case 2:
		m.packets = slices.Delete(m.packets, i, i+1)
		m.what = fmt.Sprintf("%s: packet %d removed", name, i+1)
		m.field = special(all, i)
	case 3:
		at := min(i+1+r.IntN(3), len(all))
		c := all[i]
		c.info.Timestamp = all[at-1].info.Timestamp
		m.packets = slices.Insert(m.packets, at, c)
		m.number = at + 1
		m.end = false
		m.what = fmt.Sprintf("%s: packet %d copied behind %d", name, i+1, at)
		m.field = special(all, i)
	case 4:
		j := behind
		if j < 0 {
			i, j = before, i
		}
		if i < 0 || bytes.Equal(all[i].data, all[j].data) {
			return mutate(r, name, all)
		}
		m.packets[i].data, m.packets[j].data = all[j].data, all[i].data
		m.packets[i].info.CaptureLength, m.packets[i].info.Length = len(all[j].data), len(all[j].data)
		m.packets[j].info.CaptureLength, m.packets[j].info.Length = len(all[i].data), len(all[i].data)
		b, _ := neighbours(all, i)
		_, e := neighbours(all, j)
		m.end = b < 0 || e < 0
		m.what = fmt.Sprintf("%s: packets %d and %d exchanged", name, i+1, j+1)
		m.field = "packets that have changed places"
	}
	return m
}

// TestMutations: a flipped bit, and a packet that is removed, copied, or has changed places with the next one of its
// conversation, is noticed in any capture, but for fields that are on the written list, and at the ends of a capture.
func TestMutations(t *testing.T) {
	captures := captured(t)
	names := slices.Sorted(maps.Keys(captures))
	all := map[string][]record{}
	for _, n := range names {
		all[n] = records(t, captures[n])
	}
	list := listed()
	runs := 1000
	if os.Getenv("SOFTRNIC_LONG") != "" {
		runs = 50000
	}
	r := rand.New(rand.NewPCG(15, 4))
	wrongs, doubts, reordered, losses, ends := 0, 0, 0, 0, 0
	unnoticed := map[string]int{}
	begun := time.Now()
	for range runs {
		name := names[r.IntN(len(names))]
		m := mutate(r, name, all[name])
		a, out := traced(t, new(Command), m.packets)
		switch {
		case a.counts.Wrong > 0:
			wrongs++
		case a.counts.Doubtful > 0:
			doubts++
		case a.counts.Reordered > 0 && strings.Contains(m.what, "exchanged"):
			reordered++
		case strings.Contains(out, " missing\n"): // on its way, as what is missing came when it was asked for
			losses++
		case m.end && list["the first and last packets of a conversation"]:
			ends++
		case list[m.field]:
			unnoticed[m.field]++
		default:
			t.Errorf("%s: unnoticed", m.what)
		}
	}
	t.Logf("%d mutations in %v: %d wrong, %d doubtful, %d reordered, %d lost and repeated, %d at the ends unnoticed, on the list %v", runs, time.Since(begun), wrongs, doubts, reordered, losses, ends, unnoticed)
}

// TestCopiesAndLosses: what thousands of mutations once left unnoticed.
func TestCopiesAndLosses(t *testing.T) {
	captures := captured(t)
	// The first packet of a response that comes for the second time, before its request comes for the third.
	all := records(t, captures["wire/rc-read"])
	if _, out := traced(t, new(Command), slices.Delete(all, 167, 168)); !strings.Contains(out, "PSN 16459835 is missing\n") {
		t.Errorf("a packet of a repeated response removed:\n%s", out)
	}
	// A TCP segment behind the next one; IPv6 has no identification to tell by.
	all = records(t, captures["rdmap/rping6"])
	c := all[13]
	c.info.Timestamp = all[15].info.Timestamp
	if a, out := traced(t, new(Command), slices.Insert(all, 16, c)); a.counts.Doubtful != 1 || !strings.Contains(out, "DOUBTFUL packet 17: repeats packet 14 ") {
		t.Errorf("a segment copied: %+v\n%s", a.counts, out)
	}
}
