package rocetransport

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/softrnic/softrnic/rdmatransport/roce"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
)

// Paths of address vectors.

// defaultPKey is the only partition key on Ethernet: full member of the default partition.
const defaultPKey = 0xffff

// openPath opens the path of an address vector for one QP, which is locked while it sends. If qpn
// is 0, the path is for any QP. Service levels 0 to 7 are Ethernet priorities. The others are
// reserved. Of these the lower bits count, as in hardware (IBTA A16.5).
func openPath(nic stack.NIC, port uint8, ah *verbs.AHAttr, qpn uint32, srcPort uint16) (stack.Path, error) {
	grh, gids := &ah.GRH, nic.GIDs()
	i := int(grh.SGIDIndex) % roce.V1Index
	if i >= len(gids) || !gids[i].IsValid() {
		return nil, fmt.Errorf("SGID index %d: port %d has no such GID: %w", grh.SGIDIndex, port, verbs.ErrInvalid)
	}
	datagrams, err := datagramsOf(nic)
	switch {
	case err != nil:
		return nil, err
	case isV1(grh) && nic.Frames() == nil:
		return nil, fmt.Errorf("SGID index %d, of RoCE v1, on %s, whose network stack carries no Ethernet frames: %w",
			grh.SGIDIndex, nic.Name(), verbs.ErrNotSupported)
	}
	path, err := datagrams.Path(stack.PathAttr{
		Src:          gids[i],
		V1:           isV1(grh),
		Dst:          grh.DGID.Addr(),
		SrcPort:      srcPort,
		TrafficClass: grh.TrafficClass,
		Priority:     ah.SL & 7,
		HopLimit:     grh.HopLimit,
		FlowLabel:    grh.FlowLabel,
		QPN:          qpn,
		OneSender:    qpn != 0,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %w", verbs.ErrInvalid, err)
	}
	return path, nil
}

// datagramsOf returns a NIC's port for RoCE packets, or an error if the stack cannot carry them.
func datagramsOf(nic stack.NIC) (stack.DatagramPort, error) {
	if p := nic.Datagrams(); p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("RoCE on %s, whose network stack carries no RoCE packets, only iWARP: %w", nic.Name(), verbs.ErrNotSupported)
}

// isV1 reports whether a GRH's source is a GID of RoCE v1.
func isV1(grh *verbs.GRH) bool { return grh.SGIDIndex >= roce.V1Index }

// sourcePort returns the UDP source port of a connection, 49152 and up. IBTA annex A17 asks for
// different ports, for the hashing of routers and receive queues.
func sourcePort(qpn, dest uint32) uint16 {
	h := fnv.New32a()
	var b [8]byte
	binary.BigEndian.PutUint32(b[:], qpn)
	binary.BigEndian.PutUint32(b[4:], dest)
	h.Write(b[:])
	s := h.Sum32()
	return 0xc000 | uint16(s^s>>16)&0x3fff
}
