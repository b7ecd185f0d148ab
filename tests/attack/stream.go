package attack

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"

	"github.com/softrnic/softrnic/link/checksum"
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/verbs"
)

// StreamAttacks are for connections over iWARP, each for a connection of its own.
var StreamAttacks = []Attack{
	{"an old WRITE again", replaySegment},
	{"WRITE with a wrong CRC of MPA", wrongCRC},
	{"WRITE with a wrong STag", wrongSTag},
	{"reset within the window", resetWithinWindow},
}

// segment is a TCP segment of the requester with one FPDU, a tagged DDP segment.
type segment struct {
	Seen
	tcp     []byte // header
	fpdu    []byte
	header  ddp.Tagged
	payload []byte
}

// parseSegment parses a frame. ok is false if it has no FPDU of a WRITE.
func parseSegment(s Seen) (g segment, ok bool) {
	b := s.Data
	if !carries(b, protocolTCP, 20) {
		return g, false
	}
	end := ipAt + int(binary.BigEndian.Uint16(b[ipAt+2:]))
	data := udpAt + int(b[udpAt+12]>>4)*4
	if end > len(b) || data+2+ddp.TaggedLen > end {
		return g, false
	}
	g.Seen, g.tcp, g.fpdu = s, b[udpAt:data], b[data:end]
	n := int(binary.BigEndian.Uint16(g.fpdu))
	if n+2 > len(g.fpdu) || !ddp.IsTagged(g.fpdu[2:]) {
		return g, false
	}
	var err error
	g.header, g.payload, err = ddp.ParseTagged(g.fpdu[2 : 2+n])
	return g, err == nil && len(g.payload) == TextLen
}

// writeStream performs a WRITE, which succeeds, and returns its segment.
func (v *Victim) writeStream() (segment, error) {
	if err := v.write(text, 0); err != nil {
		return segment{}, err
	}
	return v.lastSegment()
}

// lastSegment returns the segment of the last WRITE. The stack may send it after the completion.
func (v *Victim) lastSegment() (g segment, err error) {
	seen, err := until(func() (bool, error) {
		v.Path.mu.Lock()
		defer v.Path.mu.Unlock()
		for _, s := range slices.Backward(v.Path.seen) {
			var ok bool
			if g, ok = parseSegment(s); ok && s.Out {
				return true, nil
			}
		}
		return false, nil
	})
	if err == nil && !seen {
		err = errNothing
	}
	return g, err
}

// with returns the frame of another segment with the same addresses and ports, `ahead` bytes after
// the end of g, with the flags of TCP.
func (g *segment) with(ahead int, flags byte, fpdu []byte) Seen {
	head := len(g.Data[:udpAt]) + len(g.tcp)
	b := append(bytes.Clone(g.Data[:head]), fpdu...)
	binary.BigEndian.PutUint16(b[ipAt+2:], uint16(len(b)-ipAt))
	checksum.PutIPv4(b[ipAt:udpAt])
	tcp := b[udpAt:]
	binary.BigEndian.PutUint32(tcp[4:], binary.BigEndian.Uint32(g.tcp[4:])+uint32(len(g.fpdu)+ahead))
	tcp[13] = flags
	putTCPSum(b)
	return Seen{g.Out, b}
}

// putTCPSum writes the checksum of a TCP segment without superfluous bytes after it.
func putTCPSum(b []byte) {
	tcp := b[udpAt:]
	tcp[16], tcp[17] = 0, 0
	pseudo := append(bytes.Clone(b[ipAt+12:ipAt+20]), 0, protocolTCP, byte(len(tcp)>>8), byte(len(tcp)))
	binary.BigEndian.PutUint16(tcp[16:], ^checksum.Sum(tcp, checksum.Sum(pseudo, 0)))
}

// Flags of TCP.
const (
	rst = 4
	ack = 16
)

// fpduOf returns an FPDU of a tagged segment.
func fpduOf(h ddp.Tagged, payload []byte) []byte {
	ulpdu := make([]byte, ddp.TaggedLen, ddp.TaggedLen+len(payload))
	h.Encode(ulpdu)
	ulpdu = append(ulpdu, payload...)
	s := mpa.NewSender(mpa.Config{CRC: true})
	b := make([]byte, s.Size(len(ulpdu)))
	s.Begin(b, len(ulpdu))
	s.Add(ulpdu)
	s.End()
	return b
}

// next returns the FPDU of another WRITE.
func (g *segment) next() []byte {
	h := g.header
	h.TO += strangeAt
	return fpduOf(h, strange)
}

// replaySegment repeats a WRITE after another one at the same place.
func replaySegment(v *Victim) (bool, error) {
	g, err := v.writeStream()
	if err != nil {
		return false, err
	}
	return v.replayed(g.Seen)
}

// resetWithinWindow sends a RST whose sequence number is not the expected one. The acknowledgement
// of the next WRITE shows that the connection still exists.
func resetWithinWindow(v *Victim) (bool, error) {
	g, err := v.writeStream()
	if err != nil {
		return false, err
	}
	if err := v.Path.Inject(g.with(100, rst|ack, nil)); err != nil {
		return false, err
	}
	if g, err = v.writeStream(); err != nil {
		return true, err
	}
	alive, err := until(func() (bool, error) { return v.acknowledged(&g), nil })
	return !alive, err
}

// acknowledged reports whether the responder's TCP has acknowledged a segment.
func (v *Victim) acknowledged(g *segment) bool {
	v.Path.mu.Lock()
	defer v.Path.mu.Unlock()
	end := binary.BigEndian.Uint32(g.tcp[4:]) + uint32(len(g.fpdu))
	return slices.ContainsFunc(v.Path.seen, func(s Seen) bool {
		if s.Out || len(s.Data) < udpAt+20 || s.Data[ipAt+9] != protocolTCP {
			return false
		}
		tcp := s.Data[udpAt:]
		return tcp[13]&(rst|ack) == ack && int32(binary.BigEndian.Uint32(tcp[8:])-end) >= 0
	})
}

// ends waits until the connection ends, which the requester sees at the latest when it WRITEs.
func (v *Victim) ends() (bool, error) {
	return until(func() (bool, error) {
		if v.Ended() {
			return true, nil
		}
		status, err := v.Write(newText, 0)
		return status != verbs.WCSuccess, err
	})
}

// endsConnection sends a segment that ends the connection, and reports whether it was executed.
func (v *Victim) endsConnection(s Seen) (bool, error) {
	if err := v.Path.Inject(s); err != nil {
		return false, err
	}
	ended, err := v.ends()
	if err != nil || !ended {
		return true, errors.Join(errNothing, err)
	}
	through, err := v.has(strange, strangeAt)
	return through, err
}

func wrongCRC(v *Victim) (bool, error) {
	g, err := v.writeStream()
	if err != nil {
		return false, err
	}
	f := g.next()
	f[len(f)-1] ^= 1
	return v.endsConnection(g.with(0, ack, f))
}

// wrongSTag names an STag that does not exist, which ends the connection.
func wrongSTag(v *Victim) (bool, error) {
	g, err := v.writeStream()
	if err != nil {
		return false, err
	}
	g.header.STag ^= 0x01010101
	return v.endsConnection(g.with(0, ack, g.next()))
}
