//go:build linux && cgo && (amd64 || arm64)

package main

/*
#include "softrnic.h"
*/
import "C"

import (
	"encoding/binary"
	"syscall"
	"unsafe"

	"github.com/softrnic/softrnic/cmd/dropin/libsoftrnic/internal/handle"
	"github.com/softrnic/softrnic/verbs"
)

var flows handle.Table[verbs.Flow]

//export srCreateFlow
func srCreateFlow(h C.uint32_t, a *C.struct_sr_flow_attr, out *C.uint32_t) C.int {
	q := qps.Get(uint32(h))
	if q == nil {
		return notFound
	}
	attr := verbs.FlowAttr{Type: enum[verbs.FlowAttrType](a._type), Priority: uint16(a.priority), Port: uint8(a.port),
		Flags: verbs.FlowFlags(a.flags)}
	specs := unsafe.Slice(a.specs, a.n)
	for i := range specs {
		s := flowSpec(&specs[i])
		if s == nil {
			return C.int(syscall.EOPNOTSUPP)
		}
		attr.Specs = append(attr.Specs, s)
	}
	f, err := q.CreateFlow(&attr)
	if err != nil {
		return errno(err)
	}
	*out = C.uint32_t(flows.Add(f))
	return 0
}

//export srDestroyFlow
func srDestroyFlow(h C.uint32_t) C.int { return errno(flows.Remove(uint32(h), (*verbs.Flow).Close)) }

// The types of specs (enum ibv_flow_spec_type).
const (
	specEth     = 0x20
	specIPv4    = 0x30
	specIPv6    = 0x31
	specIPv4Ext = 0x32
	specTCP     = 0x40
	specUDP     = 0x41
	specTag     = 0x1000
	specDrop    = 0x1001
)

// flowSpec reads a spec. Its filters have the layout of verbs.h, in network byte order. It returns
// nil if no device here supports the kind of spec.
func flowSpec(s *C.struct_sr_flow_spec) verbs.FlowSpec {
	val, mask := (*[40]byte)(unsafe.Pointer(&s.val)), (*[40]byte)(unsafe.Pointer(&s.mask))
	switch s._type {
	case specEth:
		of := func(b *[40]byte) verbs.FlowEthFilter {
			return verbs.FlowEthFilter{
				DstMAC: [6]byte(b[0:]), SrcMAC: [6]byte(b[6:]),
				EtherType: binary.BigEndian.Uint16(b[12:]), VLANTag: binary.BigEndian.Uint16(b[14:]),
			}
		}
		return &verbs.FlowSpecEth{Val: of(val), Mask: of(mask)}
	case specIPv4:
		of := func(b *[40]byte) verbs.FlowIPv4Filter {
			return verbs.FlowIPv4Filter{SrcIP: [4]byte(b[0:]), DstIP: [4]byte(b[4:])}
		}
		return &verbs.FlowSpecIPv4{Val: of(val), Mask: of(mask)}
	case specIPv4Ext:
		of := func(b *[40]byte) verbs.FlowIPv4ExtFilter {
			return verbs.FlowIPv4ExtFilter{SrcIP: [4]byte(b[0:]), DstIP: [4]byte(b[4:]), Proto: b[8], TOS: b[9], TTL: b[10], Flags: b[11]}
		}
		return &verbs.FlowSpecIPv4Ext{Val: of(val), Mask: of(mask)}
	case specIPv6:
		of := func(b *[40]byte) verbs.FlowIPv6Filter {
			return verbs.FlowIPv6Filter{
				SrcIP: [16]byte(b[0:]), DstIP: [16]byte(b[16:]),
				FlowLabel: binary.BigEndian.Uint32(b[32:]), NextHdr: b[36], TrafficClass: b[37], HopLimit: b[38],
			}
		}
		return &verbs.FlowSpecIPv6{Val: of(val), Mask: of(mask)}
	case specTCP, specUDP:
		of := func(b *[40]byte) verbs.FlowTCPUDPFilter {
			return verbs.FlowTCPUDPFilter{DstPort: binary.BigEndian.Uint16(b[0:]), SrcPort: binary.BigEndian.Uint16(b[2:])}
		}
		if s._type == specTCP {
			return &verbs.FlowSpecTCP{Val: of(val), Mask: of(mask)}
		}
		return &verbs.FlowSpecUDP{Val: of(val), Mask: of(mask)}
	case specTag:
		return &verbs.FlowSpecActionTag{TagID: uint32(s.tag)}
	case specDrop:
		return &verbs.FlowSpecActionDrop{}
	}
	return nil
}
