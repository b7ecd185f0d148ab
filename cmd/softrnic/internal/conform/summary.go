package conform

import (
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/softrnic/softrnic/cmd/softrnic/internal/conform/suite"
	"github.com/softrnic/softrnic/rdmatransport/ddp"
	"github.com/softrnic/softrnic/rdmatransport/mpa"
	"github.com/softrnic/softrnic/rdmatransport/rdmap"
	"github.com/softrnic/softrnic/rdmatransport/wire"
)

const protoTCP = 6

// summary returns a packet on one line.
func summary(p suite.Packet) string {
	if p.Data[9] == protoTCP {
		return summaryTCP(p.Data)
	}
	var w wire.Packet
	if err := w.Parse(p.Data.Packet()); err != nil {
		return err.Error()
	}
	s := fmt.Sprintf("%v, QP %#06x, PSN %d", w.Opcode, w.DestQP, w.PSN)
	info := w.Opcode.Info()
	if info.HasAETH() {
		s += fmt.Sprintf(", syndrome %#02x, MSN %d", w.AETH.Syndrome, w.AETH.MSN)
	}
	if info.HasRETH() {
		s += fmt.Sprintf(", address %#x, R_Key %#x, length %d", w.RETH.Addr, w.RETH.RKey, w.RETH.Length)
	}
	if len(w.Payload) > 0 {
		s += fmt.Sprintf(", %d bytes", len(w.Payload))
	}
	if !wire.CheckICRC(p.Data.Header(), p.Data.Packet()) {
		s += ", ICRC wrong"
	}
	return s
}

// summaryTCP returns a TCP packet on one line: its flags, and the frame or FPDUs that start with
// its payload.
func summaryTCP(ip []byte) string {
	const ipLen, tcpLen = 20, 20
	if len(ip) < ipLen+tcpLen {
		return "a short packet"
	}
	tcp := ip[ipLen:]
	var flags []string
	for i, name := range []string{"FIN", "SYN", "RST", "PSH", "ACK"} {
		if tcp[13]>>i&1 != 0 {
			flags = append(flags, name)
		}
	}
	payload := tcp[min(int(tcp[12]>>4)*4, len(tcp)):]
	s := fmt.Sprintf("TCP %s, sequence %d, %d bytes", strings.Join(flags, " "), binary.BigEndian.Uint32(tcp[4:]), len(payload))
	if f, _, err := mpa.Parse(payload); err == nil {
		return s + fmt.Sprintf("; MPA frame: reply %v, markers %v, CRC %v, rejected %v, revision %d, %+v, %d bytes of private data",
			f.Reply, f.Markers, f.CRC, f.Rejected, f.Revision, f.Enhanced, len(f.PrivateData))
	}
	for len(payload) >= 2 {
		n := int(binary.BigEndian.Uint16(payload))
		size := (2+n+3)&^3 + 4
		if size > len(payload) {
			break
		}
		s += "; " + summaryULPDU(payload[2:2+n])
		payload = payload[size:]
	}
	return s
}

// summaryULPDU returns a DDP segment on one line.
func summaryULPDU(b []byte) string {
	if ddp.IsTagged(b) {
		h, data, err := ddp.ParseTagged(b)
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("%v, STag %#x, TO %#x, %d bytes", rdmap.Opcode(h.RsvdULP&0x0f), h.STag, h.TO, len(data))
	}
	h, data, err := ddp.ParseUntagged(b)
	if err != nil {
		return err.Error()
	}
	op := rdmap.Opcode(h.RsvdULP & 0x0f)
	if t, err := rdmap.ParseTerminate(data); op == rdmap.Terminate && err == nil {
		return "Terminate: " + t.Cause.String()
	}
	return fmt.Sprintf("%v, queue %d, MSN %d, offset %d, %d bytes", op, h.QN, h.MSN, h.MO, len(data))
}
