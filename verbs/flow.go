package verbs

import "slices"

// FlowAttrType says what a flow gives its QP (ibv_flow_attr_type, same values).
type FlowAttrType uint8

const (
	// FlowNormal: the frames that the specs match, which nobody else then sees, the host neither. RoCE packets to the
	// device's own addresses are its QPs' before.
	FlowNormal FlowAttrType = iota
	// FlowAllDefault: what neither a normal flow nor the host takes: frames to other MAC addresses, and those to groups
	// that the host is not in.
	FlowAllDefault
	// FlowMCDefault: of those the multicast frames only.
	FlowMCDefault
	// FlowSniffer: a copy of all that comes to the port and goes from it, whoever it is for.
	FlowSniffer
)

func (t FlowAttrType) String() string {
	return name([]string{"NORMAL", "ALL_DEFAULT", "MC_DEFAULT", "SNIFFER"}, int(t), "flow type")
}

// FlowFlags modify a flow (ibv_flow_flags, same values).
type FlowFlags uint32

// FlowDontTrap gives the QP a copy of what matches: the frames go on to flows of lower priority and to the host.
const FlowDontTrap FlowFlags = 1 << 1

// FlowAttr says which frames a flow is about (ibv_flow_attr). A frame must match all of Specs. Of the normal flows that
// match, that with the lowest Priority gets it, the oldest if there are several; all those that have the same priority
// and the same Specs get a copy each.
type FlowAttr struct {
	Type     FlowAttrType
	Priority uint16
	Port     uint8
	Flags    FlowFlags
	// Specs are of FlowNormal only: headers from the outer to the inner, each at most once, then actions. None matches
	// every frame.
	Specs []FlowSpec
}

// FlowSpec is a [FlowSpecEth], [FlowSpecIPv4], [FlowSpecIPv4Ext], [FlowSpecIPv6], [FlowSpecTCP], [FlowSpecUDP],
// [FlowSpecActionTag], [FlowSpecActionDrop] or [FlowSpecCounterAction] (ibv_flow_spec). In those of headers, Val counts
// where Mask has ones. A header that is not there, or not whole, does not match.
type FlowSpec interface {
	// layer is the place in the order of headers.
	layer() specLayer
}

type specLayer uint8

const (
	layerEth specLayer = iota
	layerIP
	layerTransport
	layerAction
)

// FlowSpecEth matches the Ethernet header (ibv_flow_spec_eth).
type FlowSpecEth struct{ Val, Mask FlowEthFilter }

// FlowEthFilter are its fields. EtherType is that behind a VLAN tag, where there is one; VLANTag is the tag's control
// information, which a frame without tag does not match.
type FlowEthFilter struct {
	DstMAC, SrcMAC     [6]byte
	EtherType, VLANTag uint16
}

// FlowSpecIPv4 matches the addresses of IPv4 (ibv_flow_spec_ipv4), FlowSpecIPv4Ext more of its header.
type (
	FlowSpecIPv4    struct{ Val, Mask FlowIPv4Filter }
	FlowIPv4Filter  struct{ SrcIP, DstIP [4]byte }
	FlowSpecIPv4Ext struct{ Val, Mask FlowIPv4ExtFilter }
)

// FlowIPv4ExtFilter are the fields of [FlowSpecIPv4Ext] (ibv_flow_ipv4_ext_filter). Flags are the three bits before the
// fragment offset.
type FlowIPv4ExtFilter struct {
	SrcIP, DstIP           [4]byte
	Proto, TOS, TTL, Flags uint8
}

// FlowSpecIPv6 matches the IPv6 header (ibv_flow_spec_ipv6).
type FlowSpecIPv6 struct{ Val, Mask FlowIPv6Filter }

// FlowIPv6Filter are its fields; FlowLabel has 20 bits.
type FlowIPv6Filter struct {
	SrcIP, DstIP                    [16]byte
	FlowLabel                       uint32
	NextHdr, TrafficClass, HopLimit uint8
}

// FlowSpecTCP and FlowSpecUDP match the ports behind an IPv4 or IPv6 header (ibv_flow_spec_tcp_udp). Of a fragmented
// datagram only the first fragment has them.
type (
	FlowSpecTCP      struct{ Val, Mask FlowTCPUDPFilter }
	FlowSpecUDP      struct{ Val, Mask FlowTCPUDPFilter }
	FlowTCPUDPFilter struct{ DstPort, SrcPort uint16 }
)

// FlowSpecActionTag makes WC.FlowTag of the frames (ibv_flow_spec_action_tag), 24 bits.
type FlowSpecActionTag struct{ TagID uint32 }

// FlowSpecActionDrop drops the frames (ibv_flow_spec_action_drop).
type FlowSpecActionDrop struct{}

// FlowSpecCounterAction counts the frames (ibv_flow_spec_counter_action).
type FlowSpecCounterAction struct{ Counters *Counters }

func (*FlowSpecEth) layer() specLayer           { return layerEth }
func (*FlowSpecIPv4) layer() specLayer          { return layerIP }
func (*FlowSpecIPv4Ext) layer() specLayer       { return layerIP }
func (*FlowSpecIPv6) layer() specLayer          { return layerIP }
func (*FlowSpecTCP) layer() specLayer           { return layerTransport }
func (*FlowSpecUDP) layer() specLayer           { return layerTransport }
func (*FlowSpecActionTag) layer() specLayer     { return layerAction }
func (*FlowSpecActionDrop) layer() specLayer    { return layerAction }
func (*FlowSpecCounterAction) layer() specLayer { return layerAction }

// Flow is a steering rule (ibv_flow).
type Flow struct {
	qp   *QP
	prov ProviderFlow
	uses []*Counters
}

// CreateFlow gives a raw packet QP the frames that attr describes (ibv_create_flow); without a flow it receives none.
// It may be called from INIT on, and frames come from RTR on. A device in user space has no use for CAP_NET_RAW: whoever
// could open its link may see the frames.
func (qp *QP) CreateFlow(attr *FlowAttr) (*Flow, error) {
	op := qp.op("create flow of")
	if attr == nil {
		return nil, Errorf(ErrInvalid, op, "no attributes")
	}
	qp.modifying.Lock()
	defer qp.modifying.Unlock()
	qp.mu.Lock()
	err, state, port := qp.alive("create flow of"), qp.state, qp.attr.PortNum
	qp.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case qp.init.Type != RawPacket:
		return nil, Errorf(ErrInvalid, op, "it is of type %v: flows are of RAW_PACKET QPs", qp.init.Type)
	case state == StateReset:
		return nil, Errorf(ErrInvalid, op, "it is in RESET and has no port: move it to INIT first")
	case attr.Port != port:
		return nil, Errorf(ErrInvalid, op, "Port is %d, the QP's port %d", attr.Port, port)
	}
	own := *attr
	if own.Specs, err = checkFlow(op, attr, qp.pd.dev); err != nil {
		return nil, err
	}
	f := &Flow{qp: qp}
	if err := f.useCounters(op, own.Specs); err != nil {
		return nil, err
	}
	if f.prov, err = qp.pd.dev.prov.CreateFlow(qp.prov, &own); err != nil {
		f.releaseCounters()
		return nil, wrap(op, err)
	}
	qp.flows++
	return f, nil
}

// checkFlow checks all but the port, and returns a copy of the specs.
func checkFlow(op string, attr *FlowAttr, d *Device) ([]FlowSpec, error) {
	switch {
	case attr.Type > FlowSniffer:
		return nil, Errorf(ErrInvalid, op, "Type %v", attr.Type)
	case attr.Flags&^FlowDontTrap != 0:
		return nil, Errorf(ErrNotSupported, op, "Flags %#x: only FlowDontTrap is known", uint32(attr.Flags))
	case attr.Flags != 0 && attr.Type != FlowNormal:
		return nil, Errorf(ErrInvalid, op, "Flags %#x: a flow of type %v traps nothing", uint32(attr.Flags), attr.Type)
	case len(attr.Specs) > 0 && attr.Type != FlowNormal:
		return nil, Errorf(ErrInvalid, op, "Specs: a flow of type %v has none", attr.Type)
	}
	var specs []FlowSpec
	for i, s := range attr.Specs {
		c := cloneSpec(s)
		if c == nil {
			return nil, Errorf(ErrInvalid, op, "Specs[%d] is %T: want a pointer to one of this package's specs", i, s)
		}
		if err := checkSpec(op, specs, c, i, d); err != nil {
			return nil, err
		}
		specs = append(specs, c)
	}
	return specs, nil
}

// checkSpec tells whether c, Specs[i], may come after the specs before it.
func checkSpec(op string, before []FlowSpec, c FlowSpec, i int, d *Device) error {
	if i > 0 {
		if last := before[i-1].layer(); last > c.layer() || last == c.layer() && last != layerAction {
			return Errorf(ErrInvalid, op, "Specs[%d], %T, comes after %T: headers go from the outer to the inner, each once, actions last",
				i, c, before[i-1])
		}
	}
	switch c := c.(type) {
	case *FlowSpecIPv4:
		return checkEtherType(op, before, etherTypeIPv4)
	case *FlowSpecIPv4Ext:
		if c.Val.Flags|c.Mask.Flags > 7 {
			return Errorf(ErrInvalid, op, "Specs[%d].Flags has more than 3 bits", i)
		}
		return checkEtherType(op, before, etherTypeIPv4)
	case *FlowSpecIPv6:
		if c.Val.FlowLabel|c.Mask.FlowLabel >= 1<<20 {
			return Errorf(ErrInvalid, op, "Specs[%d].FlowLabel has more than 20 bits", i)
		}
		return checkEtherType(op, before, etherTypeIPv6)
	case *FlowSpecActionTag:
		if c.TagID >= 1<<24 {
			return Errorf(ErrInvalid, op, "Specs[%d].TagID %#x has more than 24 bits", i, c.TagID)
		}
	case *FlowSpecCounterAction:
		if c.Counters == nil || c.Counters.dev != d {
			return Errorf(ErrInvalid, op, "Specs[%d].Counters: not of this device", i)
		}
	}
	return nil
}

const (
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
)

// checkEtherType tells whether an Ethernet spec leaves room for a network header.
func checkEtherType(op string, before []FlowSpec, want uint16) error {
	if len(before) == 0 {
		return nil
	}
	if e, ok := before[0].(*FlowSpecEth); ok && (e.Val.EtherType^want)&e.Mask.EtherType != 0 {
		return Errorf(ErrInvalid, op, "the Ethernet spec has EtherType %#04x, the next header's is %#04x", e.Val.EtherType, want)
	}
	return nil
}

// cloneSpec copies a spec, so that the caller may change its own; nil if there is none.
func cloneSpec(s FlowSpec) FlowSpec {
	switch s := s.(type) {
	case *FlowSpecEth:
		return clone(s)
	case *FlowSpecIPv4:
		return clone(s)
	case *FlowSpecIPv4Ext:
		return clone(s)
	case *FlowSpecIPv6:
		return clone(s)
	case *FlowSpecTCP:
		return clone(s)
	case *FlowSpecUDP:
		return clone(s)
	case *FlowSpecActionTag:
		return clone(s)
	case *FlowSpecActionDrop:
		return clone(s)
	case *FlowSpecCounterAction:
		return clone(s)
	}
	return nil
}

func clone[T any, P interface {
	*T
	FlowSpec
}](s P) FlowSpec {
	if s == nil {
		return nil
	}
	c := *s
	return P(&c)
}

// Destroy ends the flow (ibv_destroy_flow). A frame that is being received may still complete.
func (f *Flow) Destroy() error {
	qp := f.qp
	qp.modifying.Lock()
	defer qp.modifying.Unlock()
	if f.prov == nil {
		return Errorf(ErrDestroyed, qp.op("destroy flow of"), "it is destroyed already")
	}
	f.prov.Destroy()
	f.prov = nil
	f.releaseCounters()
	qp.flows--
	return nil
}

// QP is where the frames go.
func (f *Flow) QP() *QP { return f.qp }

// SameSpecs tells whether two flows match the same frames, for providers: their headers' specs are equal.
func SameSpecs(a, b []FlowSpec) bool {
	headers := func(s []FlowSpec) []FlowSpec {
		if i := slices.IndexFunc(s, func(s FlowSpec) bool { return s.layer() == layerAction }); i >= 0 {
			return s[:i]
		}
		return s
	}
	return slices.EqualFunc(headers(a), headers(b), sameSpec)
}

func sameSpec(a, b FlowSpec) bool {
	switch a := a.(type) {
	case *FlowSpecEth:
		return same(a, b)
	case *FlowSpecIPv4:
		return same(a, b)
	case *FlowSpecIPv4Ext:
		return same(a, b)
	case *FlowSpecIPv6:
		return same(a, b)
	case *FlowSpecTCP:
		return same(a, b)
	case *FlowSpecUDP:
		return same(a, b)
	}
	return false
}

func same[T comparable](a *T, b FlowSpec) bool {
	p, ok := any(b).(*T)
	return ok && *a == *p
}
