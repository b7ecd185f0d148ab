//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"math/bits"
	"syscall"
	"time"
	"unsafe"

	"github.com/softrnic/softrnic/cmd/dropin/libsoftrnic/internal/handle"
	"github.com/softrnic/softrnic/verbs"
)

// setString copies a string into a C array, truncated to its length and ended by a 0.
func setString(to []C.char, s string) {
	clear(to)
	for i := range min(len(s), len(to)-1) {
		to[i] = C.char(s[i])
	}
}

//export srOpen
func srOpen(list *C.struct_sr_device, n *C.int, above C.uint32_t) C.int {
	handle.Above(uint32(above))
	if stacks.open() != nil {
		return C.int(syscall.ENODEV) // the reason is on stderr
	}
	out := unsafe.Slice(list, C.SR_MAX_DEVICES)
	for i, d := range stacks.devices {
		out[i] = C.struct_sr_device{guid: d.guid(), node_type: C.int(verbs.NodeCA)}
		if d.transport == verbs.IWARP {
			out[i].node_type, out[i].transport = C.int(verbs.NodeRNIC), 1
		}
		out[i].idle = idleParameters()
		if !d.receivesOnItsOwn() {
			out[i].idle.polls_per_call = C.uint32_t(pollParams.PollsPerCall)
			out[i].arrivals = d.arrivals()
		}
		setString(out[i].name[:], d.name)
		setString(out[i].netdev[:], d.netdev())
		board, hca := "softrnic", "softrnic"
		if d.card != nil {
			board, hca = d.card.Board, d.card.HCA
		}
		setString(out[i].board_id[:], board)
		setString(out[i].hca_type[:], hca)
	}
	*n = C.int(len(stacks.devices))
	return 0
}

//export srShutdown
func srShutdown() C.int { return errno(stacks.shutdown()) }

//export srQueryDevice
func srQueryDevice(dev C.int, attr *C.struct_sr_device_attr, ex *C.struct_sr_device_attr_ex) C.int {
	d := stacks.device(int(dev))
	if d == nil {
		return invalid
	}
	q := d.dev.QueryDeviceEx()
	// The regions of a file, which can be flushed to persistent memory, are not those of ibv_reg_mr.
	q.DeviceCapFlags &^= verbs.DeviceFlushPersistent
	if d.transport == verbs.IWARP {
		q.DeviceCapFlags &^= verbs.DeviceRawMulti | verbs.DeviceUDAVPortEnforce | verbs.DeviceRCRNRNAKGen | verbs.DeviceXRC |
			verbs.DeviceManagedFlowSteering | verbs.DeviceFlushGlobal | verbs.DeviceAtomicWrite
	}
	if d.card != nil {
		q.VendorID, q.VendorPartID, q.HWVer, q.FWVer = d.card.VendorID, uint32(d.card.Device), d.card.HWVer(), d.card.FWVer
	}
	a := C.struct_sr_device_attr{
		node_guid: d.guid(), sys_image_guid: bigEndian(q.SysImageGUID),
		max_mr_size: C.uint64_t(q.MaxMRSize), page_size_cap: C.uint64_t(q.PageSizeCap),
		vendor_id: C.uint32_t(q.VendorID), vendor_part_id: C.uint32_t(q.VendorPartID), hw_ver: C.uint32_t(q.HWVer),
		max_qp: C.int(q.MaxQP), max_qp_wr: C.int(q.MaxQPWR), device_cap_flags: C.uint(uint32(q.DeviceCapFlags)),
		max_sge: C.int(q.MaxSGE), max_sge_rd: C.int(q.MaxSGERd), max_cq: C.int(q.MaxCQ), max_cqe: C.int(q.MaxCQE),
		max_mr: C.int(q.MaxMR), max_pd: C.int(q.MaxPD), max_qp_rd_atom: C.int(q.MaxQPRDAtom), max_ee_rd_atom: C.int(q.MaxEERDAtom),
		max_res_rd_atom: C.int(q.MaxResRDAtom), max_qp_init_rd_atom: C.int(q.MaxQPInitRDAtom),
		max_ee_init_rd_atom: C.int(q.MaxEEInitRDAtom),
		atomic_cap:          C.uint32_t(q.AtomicCap), max_ee: C.int(q.MaxEE), max_rdd: C.int(q.MaxRDD), max_mw: C.int(q.MaxMW),
		max_raw_ipv6_qp: C.int(q.MaxRawIPv6QP), max_raw_ethy_qp: C.int(q.MaxRawEthyQP), max_mcast_grp: C.int(q.MaxMcastGrp),
		max_mcast_qp_attach: C.int(q.MaxMcastQPAttach), max_total_mcast_qp_attach: C.int(q.MaxTotalMcastQPAttach), max_ah: C.int(q.MaxAH),
		max_srq: C.int(q.MaxSRQ), max_srq_wr: C.int(q.MaxSRQWR), max_srq_sge: C.int(q.MaxSRQSGE),
		max_pkeys: C.uint16_t(q.MaxPKeys), local_ca_ack_delay: C.uint8_t(q.LocalCAAckDelay), phys_port_cnt: C.uint8_t(q.PhysPortCnt),
	}
	setString(a.fw_ver[:], q.FWVer)
	*attr = a
	*ex = C.struct_sr_device_attr_ex{
		device_cap_flags: C.uint64_t(q.DeviceCapFlags), completion_timestamp_mask: C.uint64_t(q.CompletionTimestampMask),
		hca_core_clock: C.uint64_t(q.HCACoreClock),
		rate_limit_min: C.uint32_t(q.PacketPacing.RateLimitMin), rate_limit_max: C.uint32_t(q.PacketPacing.RateLimitMax),
		rate_limit_qpts: C.uint32_t(q.PacketPacing.SupportedQPTs),
		max_inline_data: C.uint32_t(q.MaxInlineData),
		max_cq_count:    C.uint16_t(q.CQModeration.Count), max_cq_period: C.uint16_t(q.CQModeration.Period / time.Microsecond),
	}
	return 0
}

// ndr is the highest speed that the field of 8 bits has, as in Linux (ib_uverbs). The other field
// has all speeds.
const ndr = 128

//export srQueryPort
func srQueryPort(dev, port C.int, attr *C.struct_sr_port_attr) C.int {
	d := stacks.device(int(dev))
	if d == nil || port < 0 || port > 255 {
		return invalid
	}
	q, err := d.dev.QueryPort(uint8(port))
	if err != nil {
		return errno(err)
	}
	if d.transport == verbs.IWARP {
		q.GIDTblLen, q.PKeyTblLen = 1, 1
	}
	*attr = C.struct_sr_port_attr{
		state: C.uint32_t(q.State), max_mtu: C.uint32_t(q.MaxMTU), active_mtu: C.uint32_t(q.ActiveMTU), gid_tbl_len: C.int(q.GIDTblLen),
		port_cap_flags: C.uint32_t(q.PortCapFlags), max_msg_sz: C.uint32_t(q.MaxMsgSz), bad_pkey_cntr: C.uint32_t(q.BadPKeyCntr),
		qkey_viol_cntr: C.uint32_t(q.QKeyViolCntr),
		pkey_tbl_len:   C.uint16_t(q.PKeyTblLen), lid: C.uint16_t(q.LID), sm_lid: C.uint16_t(q.SMLID), lmc: C.uint8_t(q.LMC),
		max_vl_num: C.uint8_t(q.MaxVLNum),
		sm_sl:      C.uint8_t(q.SMSL), subnet_timeout: C.uint8_t(q.SubnetTimeout), init_type_reply: C.uint8_t(q.InitTypeReply),
		active_width: C.uint8_t(q.ActiveWidth),
		active_speed: C.uint8_t(min(q.ActiveSpeed, ndr)), phys_state: C.uint8_t(q.PhysState), link_layer: C.uint8_t(q.LinkLayer),
		flags:           C.uint8_t(q.Flags),
		port_cap_flags2: C.uint16_t(q.PortCapFlags2), active_speed_ex: C.uint32_t(q.ActiveSpeed),
	}
	return 0
}

//export srQueryGID
func srQueryGID(dev, port, index C.int, entry *C.struct_sr_gid_entry) C.int {
	d := stacks.device(int(dev))
	if d == nil {
		return invalid
	}
	if err := verbs.InjectedFault("query_gid", d.dev); err != nil {
		return errno(err)
	}
	e, err := d.gid(int(port), int(index))
	if err != nil {
		return errnoQuietly(err) // programs query every index of the table, of which most are empty
	}
	*entry = C.struct_sr_gid_entry{index: C.uint32_t(e.Index), port: C.uint32_t(port), _type: C.uint32_t(e.Type),
		ifindex: C.uint32_t(ifindex(e.NetDev))}
	for i, b := range e.GID {
		entry.gid[i] = C.uint8_t(b)
	}
	return 0
}

//export srQueryPKey
func srQueryPKey(dev, port, index C.int, pkey *C.uint16_t) C.int {
	d := stacks.device(int(dev))
	if d == nil || port < 0 || port > 255 {
		return invalid
	}
	k, err := d.dev.QueryPKey(uint8(port), int(index))
	if err != nil {
		return errno(err)
	}
	*pkey = C.uint16_t(bits.ReverseBytes16(k))
	return 0
}

//export srQueryClock
func srQueryClock(dev C.int, ns *C.uint64_t) C.int {
	d := stacks.device(int(dev))
	if d == nil {
		return invalid
	}
	*ns = C.uint64_t(d.dev.RawClock())
	return 0
}
