//go:build linux && cgo && (amd64 || arm64)

package main

import (
	"reflect"
	"syscall"
	"testing"

	"github.com/softrnic/softrnic/verbs"
)

type cFlowSpec = _Ctype_struct_sr_flow_spec

// TestFlowSpec: each kind of spec. The filters have the layout of verbs.h, here the bytes 1, 2, ….
func TestFlowSpec(t *testing.T) {
	var c cFlowSpec
	for i := range c.val {
		c.val[i], c.mask[i] = cU8(i+1), 0xff
	}
	c.tag = 0x12345678
	const ff = 0xffff
	ones4, ones6, ones16 := [4]byte{255, 255, 255, 255}, [6]byte{255, 255, 255, 255, 255, 255}, [16]byte{}
	for i := range ones16 {
		ones16[i] = 255
	}
	for kind, want := range map[cU32]verbs.FlowSpec{
		0x20: &verbs.FlowSpecEth{
			Val:  verbs.FlowEthFilter{DstMAC: [6]byte{1, 2, 3, 4, 5, 6}, SrcMAC: [6]byte{7, 8, 9, 10, 11, 12}, EtherType: 0x0d0e, VLANTag: 0x0f10},
			Mask: verbs.FlowEthFilter{DstMAC: ones6, SrcMAC: ones6, EtherType: ff, VLANTag: ff}},
		0x30: &verbs.FlowSpecIPv4{Val: verbs.FlowIPv4Filter{SrcIP: [4]byte{1, 2, 3, 4}, DstIP: [4]byte{5, 6, 7, 8}},
			Mask: verbs.FlowIPv4Filter{SrcIP: ones4, DstIP: ones4}},
		0x32: &verbs.FlowSpecIPv4Ext{
			Val:  verbs.FlowIPv4ExtFilter{SrcIP: [4]byte{1, 2, 3, 4}, DstIP: [4]byte{5, 6, 7, 8}, Proto: 9, TOS: 10, TTL: 11, Flags: 12},
			Mask: verbs.FlowIPv4ExtFilter{SrcIP: ones4, DstIP: ones4, Proto: 255, TOS: 255, TTL: 255, Flags: 255}},
		0x31: &verbs.FlowSpecIPv6{
			Val: verbs.FlowIPv6Filter{SrcIP: [16]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16},
				DstIP:     [16]byte{17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32},
				FlowLabel: 0x21222324, NextHdr: 37, TrafficClass: 38, HopLimit: 39},
			Mask: verbs.FlowIPv6Filter{SrcIP: ones16, DstIP: ones16, FlowLabel: 1<<32 - 1, NextHdr: 255, TrafficClass: 255, HopLimit: 255}},
		0x40: &verbs.FlowSpecTCP{Val: verbs.FlowTCPUDPFilter{DstPort: 0x0102, SrcPort: 0x0304},
			Mask: verbs.FlowTCPUDPFilter{DstPort: ff, SrcPort: ff}},
		0x41: &verbs.FlowSpecUDP{Val: verbs.FlowTCPUDPFilter{DstPort: 0x0102, SrcPort: 0x0304},
			Mask: verbs.FlowTCPUDPFilter{DstPort: ff, SrcPort: ff}},
		0x1000: &verbs.FlowSpecActionTag{TagID: 0x12345678},
		0x1001: &verbs.FlowSpecActionDrop{},
	} {
		c._type = kind
		if got := flowSpec(&c); !reflect.DeepEqual(got, want) {
			t.Errorf("type %#x: %+v, want %+v", kind, got, want)
		}
	}
	for _, kind := range []cU32{0, 0x21, 0x34, 0x50, 0x60, 0x120, 0x1002, 0x1003, 1 << 31} { // ESP, tunnels, GRE, MPLS, inner, actions
		if c._type = kind; flowSpec(&c) != nil {
			t.Errorf("type %#x: %+v, want none", kind, flowSpec(&c))
		}
	}
}

// TestFlow: a flow of a raw packet QP, and what is refused.
func TestFlow(t *testing.T) {
	u := newUser(t, roce)
	init := u.qpInit(verbs.RawPacket)
	init.cap.max_inline_data = 0
	var qp, num, h cU32
	check(t, srCreateQP(&init, &qp, &num))
	defer func() { check(t, srDestroyQP(qp)) }()
	check(t, modify(qp, cQPAttr{qp_state: cU32(verbs.StateInit), port_num: 1}, verbs.QPAttrState|verbs.QPAttrPort))
	rc, _ := u.newQP(verbs.RC)
	specs := [3]cFlowSpec{{_type: 0x20}, {_type: 0x30}, {_type: 0x21}}
	create := func(qp cU32, a _Ctype_struct_sr_flow_attr) cInt {
		a.specs = &specs[0]
		return srCreateFlow(qp, &a, &h)
	}
	fails(t, "unknown spec", create(qp, _Ctype_struct_sr_flow_attr{port: 1, n: 3}), syscall.EOPNOTSUPP)
	fails(t, "type 256", create(qp, _Ctype_struct_sr_flow_attr{_type: 256, port: 1}), syscall.EINVAL)
	fails(t, "port 2", create(qp, _Ctype_struct_sr_flow_attr{port: 2, n: 1}), syscall.EINVAL)
	fails(t, "RC QP", create(rc, _Ctype_struct_sr_flow_attr{port: 1, n: 1}), syscall.EINVAL)
	check(t, create(qp, _Ctype_struct_sr_flow_attr{port: 1, n: 2}))
	check(t, srDestroyFlow(h))
	fails(t, "destroy again", srDestroyFlow(h), syscall.ENOENT)
	check(t, srCreateFlow(qp, &_Ctype_struct_sr_flow_attr{port: 1}, &h)) // no specs
	check(t, srDestroyFlow(h))
}
