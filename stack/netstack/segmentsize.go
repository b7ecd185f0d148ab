package netstack

import (
	"encoding/binary"
	"sync"

	"gvisor.dev/gvisor/pkg/tcpip/checksum"
	"gvisor.dev/gvisor/pkg/tcpip/header"
	gstack "gvisor.dev/gvisor/pkg/tcpip/stack"
)

// MPA needs a connection's segment size to lay out its frames, and gVisor does not report it. The
// segment size follows from the options of the peer's SYN. They are recorded when the SYN arrives,
// and kept until the connection becomes a stream.

// maxSYNs limits the number of records, and thus the memory that a flood of SYNs takes. Beyond it,
// all records are dropped. Without a record the segment size follows from the path's MTU alone.
const maxSYNs = 1 << 14

// synNotes are records of the SYNs of connections that are not streams yet.
type synNotes struct {
	mu    sync.Mutex
	notes map[gstack.TransportEndpointID]synNote
}

type synNote struct {
	mss     uint16
	seq     uint32
	options uint8 // largest number of option bytes in a segment
}

// see records the options of an incoming segment if it is a SYN. segment may be only a part of the
// header, because gVisor has not checked the data offset yet.
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
		// gVisor reserves room for as many blocks as fit into 40 bytes of options.
		note.options += 4 + (40-4-note.options)/8*8
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.notes == nil || len(n.notes) >= maxSYNs {
		n.notes = map[gstack.TransportEndpointID]synNote{}
	}
	n.notes[id] = note
}

// leastMSS is the smallest segment size that a peer may request: the size that every host must
// accept (RFC 9293 §3.7.1). With a smaller size, every few bytes of data would take a packet of
// hundreds of bytes.
const leastMSS = header.TCPDefaultMSS

// raiseMSS raises the segment size in a SYN to at least leastMSS. segment may be only a part of the
// header, as in see.
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
	// The checksum is adjusted by the difference, so that a wrong checksum stays wrong.
	after := checksum.Checksum(segment, 0)
	segment.SetChecksum(checksum.Combine(segment.Checksum(), checksum.Combine(before, ^after)))
}

// take returns and removes a connection's record.
func (n *synNotes) take(id gstack.TransportEndpointID) (synNote, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	note, ok := n.notes[id]
	delete(n.notes, id)
	return note, ok
}

// segmentSize returns the payload of a full segment of a new connection, from the record of the
// peer's SYN if there is one.
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
		return size - 40 // largest options
	}
	return min(size, int(note.mss)) - int(note.options)
}
