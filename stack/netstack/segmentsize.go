package netstack

import (
	"encoding/binary"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// MPA needs a connection's segment size to lay out its frames, and gVisor does not tell it. It follows from the options
// of the peer's SYN, which are noted when that arrives, until the connection becomes a stream.

// maxSYNs is how many notes there may be, so that a flood of SYNs takes no more memory than that. With more, all are
// forgotten; the segment size of connections without a note follows from the path's MTU alone.
const maxSYNs = 1 << 14

// synNotes are the notes of the SYNs of connections that are not streams yet.
type synNotes struct {
	mu   sync.Mutex
	said map[gstack.TransportEndpointID]synNote
}

type synNote struct {
	mss     uint16
	seq     uint32
	options uint8 // bytes of TCP options in a segment, at most
}

// see notes an incoming segment's options if it is a SYN. segment may be only a part of the header: gVisor has not
// checked the data offset yet.
func (n *synNotes) see(id gstack.TransportEndpointID, segment header.TCP) {
	if segment.Flags()&header.TCPFlagSyn == 0 || int(segment.DataOffset()) != len(segment) {
		return
	}
	o := header.ParseSynOptions(segment.Options(), segment.Flags()&header.TCPFlagAck != 0)
	note := synNote{mss: o.MSS, seq: segment.SequenceNumber()}
	if o.TS {
		note.options = 12
	}
	if o.SACKPermitted {
		// gVisor keeps room for as many blocks as fit into the 40 bytes that options may take.
		note.options += 4 + (40-4-note.options)/8*8
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.said == nil || len(n.said) >= maxSYNs {
		n.said = map[gstack.TransportEndpointID]synNote{}
	}
	n.said[id] = note
}

// leastMSS is the smallest segment size that a peer may ask for: what every host has to accept (RFC 9293 §3.7.1). A peer
// that asked for a smaller one would have us send a packet, which costs hundreds of bytes, for every few bytes of data.
const leastMSS = header.TCPDefaultMSS

// raiseMSS raises the segment size in a SYN to leastMSS if it is less. segment may be only a part of the header, as in
// see.
func raiseMSS(segment header.TCP) {
	if int(segment.DataOffset()) != len(segment) {
		return
	}
	before := checksum.Checksum(segment, 0)
	for o := segment.Options(); len(o) > 0 && o[0] != header.TCPOptionEOL; {
		n := 1
		if o[0] != header.TCPOptionNOP {
			if len(o) < 2 || int(o[1]) < 2 || int(o[1]) > len(o) {
				break
			}
			n = int(o[1])
		}
		if o[0] == header.TCPOptionMSS && n == 4 && binary.BigEndian.Uint16(o[2:]) < leastMSS {
			binary.BigEndian.PutUint16(o[2:], leastMSS)
		}
		o = o[n:]
	}
	// The checksum is adjusted by the difference, so that a wrong one stays wrong.
	after := checksum.Checksum(segment, 0)
	segment.SetChecksum(checksum.Combine(segment.Checksum(), checksum.Combine(before, ^after)))
}

// take returns and forgets a connection's note.
func (n *synNotes) take(id gstack.TransportEndpointID) (synNote, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	note, ok := n.said[id]
	delete(n.said, id)
	return note, ok
}

// segmentSize is the payload of a full segment of a new connection, by the note of the peer's SYN if there is one.
func (h *Host) segmentSize(id gstack.TransportEndpointID, note synNote, noted bool) int {
	ip := header.IPv6MinimumSize
	if id.LocalAddress.Len() == header.IPv4AddressSize {
		ip = header.IPv4MinimumSize
	}
	size := header.TCPDefaultMSS
	if n := h.owner(addrOf(id.LocalAddress)); n != nil {
		size = n.MTU() - ip - header.TCPMinimumSize
	}
	if !noted {
		return size - 40 // of options, at most
	}
	return min(size, int(note.mss)) - int(note.options)
}
