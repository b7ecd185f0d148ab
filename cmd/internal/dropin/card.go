package dropin

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/softrnic/softrnic/cmd/internal/node"
)

// Card is the identity that a rail's device takes from a model of network card: what programs read
// in sysfs and by ibv_query_device. It changes no capability of the device.
//
// Programs choose code for a card by these values, so a card is listed only if this code calls
// nothing but libibverbs and librdmacm. Programs ask mlx5dv_is_supported before they call other
// functions of libmlx5, and the answer is no.
type Card struct {
	// Identity of the PCI function.
	Vendor, Device, SubVendor, SubDevice uint16
	Revision                             uint8
	Driver                               string  // Linux's driver of the PCI function
	PCIe                                 float64 // GT/s of each of its 16 lanes
	// Identity of the RDMA device, as Linux's driver reports it.
	VendorID                 uint32
	FWVer, HWRev, Board, HCA string
	prefix                   string // of the default device names
	rate                     node.Rate
	// IWARP is set if the card's iWARP device is a function of the card, too.
	IWARP bool
}

// cards are the cards by name. The IDs are those of pci.ids, and subsystem and board are those of a
// model with one port, if there is one.
var cards = map[string]Card{
	"connectx5": mellanox(Card{Device: 0x1017, SubDevice: 0x0006, PCIe: 8, FWVer: "16.35.4030",
		Board: "MT_0000000011", HCA: "MT4119", rate: node.Rate{Gbps: 100}}),
	"connectx6dx": mellanox(Card{Device: 0x101d, SubDevice: 0x0083, PCIe: 16, FWVer: "22.39.3004",
		Board: "MT_0000000359", HCA: "MT4125", rate: node.Rate{Gbps: 100}}),
	"connectx7": mellanox(Card{Device: 0x1021, SubDevice: 0x0041, PCIe: 32, FWVer: "28.39.3004",
		Board: "MT_0000000838", HCA: "MT4129", rate: node.Rate{Gbps: 400}}),
	"connectx8": mellanox(Card{Device: 0x1023, SubDevice: 0x0041, PCIe: 64, FWVer: "40.44.1036",
		Board: "MT_0000001222", HCA: "MT4131", rate: node.Rate{Gbps: 800}}),
	"bluefield3": mellanox(Card{Device: 0xa2dc, SubDevice: 0x0009, PCIe: 32, FWVer: "32.39.3004",
		Board: "MT_0000001070", HCA: "MT41692", rate: node.Rate{Gbps: 400}}),
	"bcm57508": {Vendor: 0x14e4, Device: 0x1750, SubVendor: 0x14e4, SubDevice: 0x2100, Revision: 0x11,
		Driver: "bnxt_en", PCIe: 16, VendorID: 0x14e4, FWVer: "230.0.157.0", HWRev: "0x11", Board: "BCM957508-P2100G", HCA: "bnxt_re",
		prefix: "bnxt_re", rate: node.Rate{Gbps: 100}},
	"e810": {Vendor: 0x8086, Device: 0x1592, SubVendor: 0x8086, SubDevice: 0x0001, Revision: 0x02,
		Driver: "ice", PCIe: 16, VendorID: 0x8086, FWVer: "1.71", HWRev: "2", Board: "IRDMA Board ID", HCA: "IRDMA", prefix: "irdma",
		rate: node.Rate{Gbps: 100}, IWARP: true},
}

// mellanox returns c with what all devices of Linux's mlx5 have in common.
func mellanox(c Card) Card {
	c.Vendor, c.SubVendor, c.Driver, c.prefix = 0x15b3, 0x15b3, "mlx5_core", "mlx5_"
	c.VendorID, c.HWRev = 0x02c9, "0" // the vendor's OUI
	return c
}

// findCard returns a card by its name, or nil for an empty name.
func findCard(name string) (*Card, error) {
	if c, ok := cards[name]; ok {
		return &c, nil
	}
	names := strings.Join(slices.Sorted(maps.Keys(cards)), ", ")
	switch name {
	case "":
		return nil, nil
	case "efa":
		return nil, fmt.Errorf("programs use an EFA by its own kind of queue pair (SRD) and efadv_create_driver_qp, which SoftRNIC does "+
			"not have: must be one of %s", names)
	}
	return nil, fmt.Errorf("%q is not a card: must be one of %s", name, names)
}

// cards returns the card of each rail, or one for all. It is nil for a rail without one.
func (s *Settings) cards() (list []*Card, err error) {
	for _, name := range s.Card.parts() {
		c, err := findCard(name)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.source(&s.Card), err)
		}
		list = append(list, c)
	}
	return list, nil
}

// defaultDevices returns the device names of the next rail with this card: mlx5_0 without an iWARP
// device, as the card's driver names them. seen has the names of earlier rails.
func (c *Card) defaultDevices(seen map[string]bool) string {
	for i := 0; ; i++ {
		if name := c.prefix + strconv.Itoa(i); !seen[name] {
			return name + ","
		}
	}
}

// HWVer returns hw_ver of ibv_query_device.
func (c *Card) HWVer() uint32 {
	v, _ := strconv.ParseUint(c.HWRev, 0, 32) // TestCards checks them
	return uint32(v)
}

// OfDevice returns the card of one of the rail's devices, or nil. A card without iWARP leaves the
// iWARP device as it is.
func (r *Rail) OfDevice(iwarp bool) *Card {
	if iwarp && r.Card != nil && !r.Card.IWARP {
		return nil
	}
	return r.Card
}
