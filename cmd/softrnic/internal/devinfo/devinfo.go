// Package devinfo is `softrnic devinfo`: it prints a node's device as ibv_devinfo does.
package devinfo

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/softrnic/softrnic/verbs"

	"github.com/softrnic/softrnic/cmd/internal/cli"
	"github.com/softrnic/softrnic/cmd/internal/node"
)

// Command is ibv_devinfo for a node.
type Command struct {
	Verbose bool `short:"v" help:"Print all attributes, and the GID table."`
	JSON    bool `name:"json" help:"Print everything as JSON, with the same names."`

	node.Flags
}

// Run prints the devices.
func (c *Command) Run(e *cli.Env) error {
	all, err := c.Each()
	if err != nil {
		return err
	}
	for i := range all {
		if err := c.describe(e, &all[i]); err != nil {
			return err
		}
	}
	return nil
}

// describe prints one node.
func (c *Command) describe(e *cli.Env, f *node.Flags) (err error) {
	n, err := f.Open(e)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.Close()) }()
	d, err := describe(n.Dev)
	if err != nil {
		return err
	}
	if n.OnMachinesStack() {
		d.onInterface(n.Name(), n.Why())
	}
	if c.JSON {
		return e.WriteJSON(d.json())
	}
	return d.print(e.Stdout, c.Verbose)
}

// field is one line of the description.
type field struct {
	name    string
	value   any    // in JSON
	text    string // in print, if not the value
	verbose bool   // with -v only
}

// description describes a device, in the order of ibv_devinfo.
type description struct {
	device []field
	caps   verbs.DeviceCapFlags
	ports  []portDescription
}

type portDescription struct {
	fields []field
	gids   []verbs.GIDEntry
}

func describe(dev *verbs.Device) (*description, error) {
	a := dev.QueryDevice()
	d := &description{device: deviceFields(dev.Name(), &a), caps: a.DeviceCapFlags}
	for port := uint8(1); port <= a.PhysPortCnt; port++ {
		attr, err := dev.QueryPort(port)
		if err != nil {
			return nil, err
		}
		gids, err := dev.GIDTable(port)
		if err != nil {
			return nil, err
		}
		d.ports = append(d.ports, portDescription{portFields(port, &attr), gids})
	}
	return d, nil
}

// onInterface adds the machine's interface that the device is on, and the reason.
func (d *description) onInterface(name, why string) {
	text := name
	if why != "" {
		text += ", " + why
	}
	d.device = append(d.device, field{"netdev", map[string]string{"name": name, "why": why}, text, false})
}

func deviceFields(name string, a *verbs.DeviceAttr) []field {
	always := func(name string, value any, text string) field { return field{name, value, text, false} }
	verbose := func(name string, value any) field { return field{name, value, "", true} }
	hex := func(name string, v uint64) field { return field{name, v, fmt.Sprintf("%#x", v), true} }
	return []field{
		always("hca_id", name, ""),
		always("transport", "InfiniBand", "InfiniBand (0)"),
		always("wire_protocols", []string{verbs.RoCEv2.String(), verbs.IWARP.String()}, fmt.Sprintf("%v, %v", verbs.RoCEv2, verbs.IWARP)),
		always("fw_ver", a.FWVer, ""),
		always("node_guid", a.NodeGUID.String(), ""),
		always("sys_image_guid", a.SysImageGUID.String(), ""),
		always("vendor_id", a.VendorID, fmt.Sprintf("0x%04x", a.VendorID)),
		always("vendor_part_id", a.VendorPartID, ""),
		always("hw_ver", a.HWVer, fmt.Sprintf("0x%X", a.HWVer)),
		always("phys_port_cnt", a.PhysPortCnt, ""),
		hex("max_mr_size", a.MaxMRSize),
		hex("page_size_cap", a.PageSizeCap),
		verbose("max_qp", a.MaxQP),
		verbose("max_qp_wr", a.MaxQPWR),
		{"device_cap_flags", uint32(a.DeviceCapFlags), fmt.Sprintf("0x%08x", uint32(a.DeviceCapFlags)), true},
		verbose("max_sge", a.MaxSGE),
		verbose("max_sge_rd", a.MaxSGERd),
		verbose("max_cq", a.MaxCQ),
		verbose("max_cqe", a.MaxCQE),
		verbose("max_mr", a.MaxMR),
		verbose("max_pd", a.MaxPD),
		verbose("max_qp_rd_atom", a.MaxQPRDAtom),
		verbose("max_ee_rd_atom", a.MaxEERDAtom),
		verbose("max_res_rd_atom", a.MaxResRDAtom),
		verbose("max_qp_init_rd_atom", a.MaxQPInitRDAtom),
		verbose("max_ee_init_rd_atom", a.MaxEEInitRDAtom),
		{"atomic_cap", "ATOMIC_" + a.AtomicCap.String(), fmt.Sprintf("ATOMIC_%v (%d)", a.AtomicCap, a.AtomicCap), true},
		verbose("max_ee", a.MaxEE),
		verbose("max_rdd", a.MaxRDD),
		verbose("max_mw", a.MaxMW),
		verbose("max_raw_ipv6_qp", a.MaxRawIPv6QP),
		verbose("max_raw_ethy_qp", a.MaxRawEthyQP),
		verbose("max_mcast_grp", a.MaxMcastGrp),
		verbose("max_mcast_qp_attach", a.MaxMcastQPAttach),
		verbose("max_total_mcast_qp_attach", a.MaxTotalMcastQPAttach),
		verbose("max_ah", a.MaxAH),
		verbose("max_srq", a.MaxSRQ),
		verbose("max_srq_wr", a.MaxSRQWR),
		verbose("max_srq_sge", a.MaxSRQSGE),
		verbose("max_pkeys", a.MaxPKeys),
		verbose("max_inline_data", a.MaxInlineData),
		verbose("local_ca_ack_delay", a.LocalCAAckDelay),
	}
}

func portFields(port uint8, p *verbs.PortAttr) []field {
	number := func(name string, v any) field { return field{name, v, "", true} }
	hex := func(name string, v any, format string) field { return field{name, v, fmt.Sprintf(format, v), true} }
	named := func(name, value string, code any, verbose bool) field {
		return field{name, value, fmt.Sprintf("%s (%d)", value, code), verbose}
	}
	return []field{
		{"port", port, "", false},
		named("state", "PORT_"+p.State.String(), p.State, false),
		named("max_mtu", p.MaxMTU.String(), p.MaxMTU, false),
		named("active_mtu", p.ActiveMTU.String(), p.ActiveMTU, false),
		{"sm_lid", p.SMLID, "", false},
		{"port_lid", p.LID, "", false},
		{"port_lmc", p.LMC, fmt.Sprintf("0x%02x", p.LMC), false},
		{"link_layer", p.LinkLayer.String(), "", false},
		hex("max_msg_sz", p.MaxMsgSz, "0x%x"),
		hex("port_cap_flags", p.PortCapFlags, "0x%08x"),
		hex("port_cap_flags2", p.PortCapFlags2, "0x%04x"),
		named("max_vl_num", vls[p.MaxVLNum], p.MaxVLNum, true),
		hex("bad_pkey_cntr", p.BadPKeyCntr, "0x%x"),
		hex("qkey_viol_cntr", p.QKeyViolCntr, "0x%x"),
		number("sm_sl", p.SMSL),
		number("pkey_tbl_len", p.PKeyTblLen),
		number("gid_tbl_len", p.GIDTblLen),
		number("subnet_timeout", p.SubnetTimeout),
		number("init_type_reply", p.InitTypeReply),
		named("active_width", widths[p.ActiveWidth], p.ActiveWidth, true),
		named("active_speed", speeds[p.ActiveSpeed], p.ActiveSpeed, true),
		named("phys_state", physStates[p.PhysState], p.PhysState, true),
	}
}

// The meanings of the codes of ibv_port_attr.
var (
	vls    = map[uint8]string{1: "1", 2: "2", 3: "4", 4: "8", 5: "15"}
	widths = map[uint8]string{1: "1X", 2: "4X", 4: "8X", 8: "12X", 16: "2X"}
	speeds = map[uint16]string{1: "2.5 Gbps", 2: "5.0 Gbps", 4: "10.0 Gbps", 8: "10.0 Gbps", 16: "14.0 Gbps",
		32: "25.0 Gbps", 64: "50.0 Gbps", 128: "100.0 Gbps", 256: "200.0 Gbps"}
	physStates = map[uint8]string{1: "SLEEP", 2: "POLLING", 3: "DISABLED", 4: "PORT_CONFIGURATION_TRAINING", 5: "LINK_UP",
		6: "LINK_ERROR_RECOVERY", 7: "PHY_TEST"}
)

// print writes the description in the layout of ibv_devinfo.
func (d *description) print(w io.Writer, verbose bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "hca_id:\t%v\n", d.device[0].value)
	for _, f := range d.device[1:] {
		f.print(&b, 1, 40, verbose)
		if f.name == "device_cap_flags" && verbose {
			for flag := range strings.SplitSeq(d.caps.String(), "|") {
				fmt.Fprintf(&b, "\t\t\t\t\t%s\n", flag)
			}
		}
	}
	for _, p := range d.ports {
		fmt.Fprintf(&b, "\t\tport:\t%v\n", p.fields[0].value)
		for _, f := range p.fields[1:] {
			f.print(&b, 3, 48, verbose)
		}
		for _, g := range p.gids {
			field{name: fmt.Sprintf("GID[%3d]", g.Index), value: gidText(g), verbose: true}.print(&b, 3, 48, verbose)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func gidText(g verbs.GIDEntry) string { return fmt.Sprintf("%v, %v", netip.AddrFrom16(g.GID), g.Type) }

// print writes a line, indented by tabs, with the value at a column.
func (f field) print(b *strings.Builder, tabs, column int, verbose bool) {
	if f.verbose && !verbose {
		return
	}
	text := cmp.Or(f.text, fmt.Sprint(f.value))
	at := 8*tabs + len(f.name) + 1
	fmt.Fprintf(b, "%s%s:%s%s\n", strings.Repeat("\t", tabs), f.name, strings.Repeat("\t", (column-at+7)/8), text)
}

// json returns the description as an object with the names as keys.
func (d *description) json() map[string]any {
	object := func(fields []field) map[string]any {
		m := make(map[string]any, len(fields))
		for _, f := range fields {
			m[f.name] = f.value
		}
		return m
	}
	device := object(d.device)
	var flags []string
	if d.caps != 0 {
		flags = strings.Split(d.caps.String(), "|")
	}
	device["device_cap_flags"] = flags
	ports := make([]any, len(d.ports))
	for i, p := range d.ports {
		port := object(p.fields)
		gids := make([]any, len(p.gids))
		for j, g := range p.gids {
			gids[j] = map[string]any{"index": g.Index, "gid": netip.AddrFrom16(g.GID).String(), "type": g.Type.String(), "netdev": g.NetDev}
		}
		port["gids"] = gids
		ports[i] = port
	}
	device["ports"] = ports
	return device
}
