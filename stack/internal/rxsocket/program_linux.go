package rxsocket

import (
	"encoding/binary"
	"net/netip"

	"golang.org/x/sys/unix"
)

// Table says which socket of a [Steered] receives which datagrams. Index 0 is the Steered itself.
type Table struct {
	// ByQPN is the index of the socket for QPNs with these upper eight bits.
	ByQPN [256]uint16
	// Interface is the index of an interface whose datagrams are for index 0, whatever their QPN; 0:
	// there is none.
	Interface int
	// Sources and Flows are addresses, and addresses with a port, whose datagrams are for index 0,
	// whatever their QPN.
	Sources []netip.Addr
	Flows   []netip.AddrPort
}

// Limits of a Table, which keep the program short.
const (
	MaxSources = 32
	MaxFlows   = 32
)

// Positions of fields. Those below netOffset are relative to the IP header, and all others to the
// payload of UDP. A program that loads beyond the end of a datagram returns 0.
const (
	netOffset   = 1<<32 - 0x100000   // SKF_NET_OFF
	interfaceAt = 1<<32 - 0x1000 + 8 // SKF_AD_OFF + SKF_AD_IFINDEX
	upperQPN    = 5                  // in the BTH
	probeIndex  = 4
)

// probeWord is the beginning of a probe. The opcode in its first byte is not one of RoCE's.
const probeWord = 0xff524e50

// toOne is the program that steers all datagrams to one socket, apart from probes.
func toOne(index uint16) []unix.SockFilter {
	return append(probeFilter(), result(index))
}

// program is the program for a table. With IPv4, v4 is true.
func (t *Table) program(v4 bool) []unix.SockFilter {
	p := probeFilter()
	if t.Interface != 0 {
		p = append(p, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: interfaceAt},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: uint32(t.Interface), Jf: 1}, result(0))
	}
	for _, a := range t.Sources {
		p = append(p, matchSource(a, 0, v4)...)
	}
	for _, f := range t.Flows {
		p = append(p, matchSource(f.Addr(), f.Port(), v4)...)
	}
	p = append(p, unix.SockFilter{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: upperQPN})
	return append(p, search(t.ranges())...)
}

// probeFilter steers a probe to the index that it names.
func probeFilter() []unix.SockFilter {
	return []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: probeWord, Jf: 2},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: probeIndex},
		{Code: unix.BPF_RET | unix.BPF_A},
	}
}

func result(index uint16) unix.SockFilter {
	return unix.SockFilter{Code: unix.BPF_RET | unix.BPF_K, K: uint32(index)}
}

// matchSource steers datagrams from an address to index 0; those from one port only, unless it is
// 0. It expects no IP options and no extension headers.
func matchSource(a netip.Addr, port uint16, v4 bool) (p []unix.SockFilter) {
	if a.Is4() != v4 {
		return nil
	}
	srcAt, udpAt := uint32(8), uint32(ipv6Len)
	if v4 {
		srcAt, udpAt = 12, ipv4Len
	}
	ip := a.AsSlice()
	loads := len(ip) / 4
	if port != 0 {
		loads++
	}
	// A mismatch skips the rest: two instructions for each further load, and the result.
	match := func(size uint16, at, value uint32) {
		skip := 2*loads - len(p) - 1
		p = append(p, unix.SockFilter{Code: unix.BPF_LD | size | unix.BPF_ABS, K: netOffset + at},
			unix.SockFilter{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: value, Jf: uint8(skip)})
	}
	for i := 0; i < len(ip); i += 4 {
		match(unix.BPF_W, srcAt+uint32(i), binary.BigEndian.Uint32(ip[i:]))
	}
	if port != 0 {
		match(unix.BPF_H, udpAt, uint32(port))
	}
	return append(p, result(0))
}

// slots is a range of the QPNs' upper bits, up to the next range, with one socket.
type slots struct {
	first int
	index uint16
}

func (t *Table) ranges() (all []slots) {
	for i, index := range t.ByQPN {
		if i == 0 || index != all[len(all)-1].index {
			all = append(all, slots{i, index})
		}
	}
	return all
}

// search finds the range of the accumulator by bisection, and returns its index.
func search(all []slots) []unix.SockFilter {
	if len(all) == 1 {
		return []unix.SockFilter{result(all[0].index)}
	}
	mid := len(all) / 2
	below, above := search(all[:mid]), search(all[mid:])
	p := []unix.SockFilter{
		{Code: unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K, K: uint32(all[mid].first), Jf: 1},
		{Code: unix.BPF_JMP | unix.BPF_JA, K: uint32(len(below))}, // conditional jumps are at most 255 long
	}
	return append(append(p, below...), above...)
}
