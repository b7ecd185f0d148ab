package verbs

import (
	"encoding/hex"
	"net/netip"
)

// GID is a global identifier (ibv_gid): for RoCE an IPv6 address, or an IPv4 address mapped into
// IPv6.
type GID [16]byte

// GIDFromAddr returns the GID of an IP address. It maps an IPv4 address into IPv6, and drops a
// zone.
func GIDFromAddr(a netip.Addr) GID { return a.As16() }

// Addr returns the IP address. A mapped IPv4 address is returned as IPv4.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// String formats the GID as ibv_devinfo and sysfs do: eight groups of four hexadecimal digits.
func (g GID) String() string {
	var b [39]byte
	for i := range 8 {
		hex.Encode(b[5*i:], g[2*i:2*i+2])
		if i < 7 {
			b[5*i+4] = ':'
		}
	}
	return string(b[:])
}

// GIDType is the wire protocol of a GID table entry (ibv_gid_type).
type GIDType uint8

const (
	GIDTypeIB GIDType = iota
	GIDTypeRoCEv1
	GIDTypeRoCEv2
)

func (t GIDType) String() string { return name(gidTypes, int(t), "GID type") }

var gidTypes = []string{"IB", "RoCE v1", "RoCE v2"}

// GIDEntry is one entry of a port's GID table (ibv_gid_entry).
type GIDEntry struct {
	GID     GID
	Index   int
	PortNum uint8
	Type    GIDType
	NetDev  string // the network interface that has the address
}
