package verbs

// FlowAttrType selects the frames that a flow steers to its QP (ibv_flow_attr_type, same values).
type FlowAttrType uint8

const (
	// FlowNormal steers the frames that match the specs. No other QP and no part of the host
	// receives them. RoCE packets to the device's own addresses go to its QPs and match no flow.
	FlowNormal FlowAttrType = iota
	// FlowAllDefault steers the frames that no normal flow and no part of the host receives. These
	// are frames to other MAC addresses, and to multicast groups that the host has not joined.
	FlowAllDefault
	// FlowMCDefault steers the multicast frames of FlowAllDefault.
	FlowMCDefault
	// FlowSniffer steers a copy of every frame that the port receives or sends.
	FlowSniffer
)

func (t FlowAttrType) String() string {
	return name([]string{"NORMAL", "ALL_DEFAULT", "MC_DEFAULT", "SNIFFER"}, int(t), "flow type")
}

// FlowFlags modify a flow (ibv_flow_flags, same values).
type FlowFlags uint32

// FlowDontTrap gives the QP a copy of the frames that match. Flows of lower priority and the host
// still receive the frames themselves.
const FlowDontTrap FlowFlags = 1 << 1

// FlowAttr selects the frames that a flow steers to its QP (ibv_flow_attr). A frame must match all
// of Specs. Of the normal flows that match, the one with the lowest Priority value receives the
// frame, and among equal ones the oldest. Other flows with the same Priority and Specs receive a
// copy each.
type FlowAttr struct {
	Type     FlowAttrType
	Priority uint16
	Port     uint8
	Flags    FlowFlags
	// Specs are for FlowNormal only: headers from the outermost to the innermost, each at most
	// once, then actions. An empty list matches every frame.
	Specs []FlowSpec
}

// FlowSpec is a [FlowSpecEth], [FlowSpecIPv4], [FlowSpecIPv4Ext], [FlowSpecIPv6], [FlowSpecTCP],
// [FlowSpecUDP], [FlowSpecActionTag] or [FlowSpecActionDrop] (ibv_flow_spec). A header's spec
// compares the bits of Val for which Mask has ones. It does not match a frame in which the header
// is absent or truncated.
type FlowSpec interface {
	// layer returns the spec's place in the order of headers.
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

// FlowEthFilter has the fields of [FlowSpecEth] (ibv_flow_eth_filter). EtherType is the one after
// the VLAN tag, if there is a tag. VLANTag is the tag control information; if its Mask is not 0, a
// frame without a tag does not match.
type FlowEthFilter struct {
	DstMAC, SrcMAC     [6]byte
	EtherType, VLANTag uint16
}

// FlowSpecIPv4 matches the addresses of an IPv4 header (ibv_flow_spec_ipv4), FlowSpecIPv4Ext more
// of its fields.
type (
	FlowSpecIPv4    struct{ Val, Mask FlowIPv4Filter }
	FlowIPv4Filter  struct{ SrcIP, DstIP [4]byte }
	FlowSpecIPv4Ext struct{ Val, Mask FlowIPv4ExtFilter }
)

// FlowIPv4ExtFilter has the fields of [FlowSpecIPv4Ext] (ibv_flow_ipv4_ext_filter). Flags has the
// header's three flag bits.
type FlowIPv4ExtFilter struct {
	SrcIP, DstIP           [4]byte
	Proto, TOS, TTL, Flags uint8
}

// FlowSpecIPv6 matches the IPv6 header (ibv_flow_spec_ipv6).
type FlowSpecIPv6 struct{ Val, Mask FlowIPv6Filter }

// FlowIPv6Filter has the fields of [FlowSpecIPv6] (ibv_flow_ipv6_filter). FlowLabel has 20 bits.
type FlowIPv6Filter struct {
	SrcIP, DstIP                    [16]byte
	FlowLabel                       uint32
	NextHdr, TrafficClass, HopLimit uint8
}

// FlowSpecTCP and FlowSpecUDP match the ports after an IPv4 or IPv6 header (ibv_flow_spec_tcp_udp).
// Only the first fragment of a fragmented datagram has ports.
type (
	FlowSpecTCP      struct{ Val, Mask FlowTCPUDPFilter }
	FlowSpecUDP      struct{ Val, Mask FlowTCPUDPFilter }
	FlowTCPUDPFilter struct{ DstPort, SrcPort uint16 }
)

// FlowSpecActionTag sets WC.FlowTag of the frames, 24 bits (ibv_flow_spec_action_tag).
type FlowSpecActionTag struct{ TagID uint32 }

// FlowSpecActionDrop drops the frames (ibv_flow_spec_action_drop).
type FlowSpecActionDrop struct{}

func (*FlowSpecEth) layer() specLayer        { return layerEth }
func (*FlowSpecIPv4) layer() specLayer       { return layerIP }
func (*FlowSpecIPv4Ext) layer() specLayer    { return layerIP }
func (*FlowSpecIPv6) layer() specLayer       { return layerIP }
func (*FlowSpecTCP) layer() specLayer        { return layerTransport }
func (*FlowSpecUDP) layer() specLayer        { return layerTransport }
func (*FlowSpecActionTag) layer() specLayer  { return layerAction }
func (*FlowSpecActionDrop) layer() specLayer { return layerAction }

// Flow is a steering rule (ibv_flow).
type Flow struct {
	qp   *QP
	prov ProviderFlow
}

// CreateFlow steers the frames that attr selects to a raw packet QP (ibv_create_flow). Without a
// flow, the QP receives no frames. The QP must be in INIT or a later state, and receives frames
// from RTR on. Unlike in the kernel, CAP_NET_RAW is not needed: a program that was able to open the
// device's link may see its frames.
func (qp *QP) CreateFlow(attr *FlowAttr) (*Flow, error) {
	if err := qp.faultCall("create_flow"); err != nil {
		return nil, err
	}
	op := qp.op("create flow of")
	if attr == nil {
		return nil, Errorf(ErrInvalid, op, "no attributes")
	}
	qp.modifying.Lock()
	defer qp.modifying.Unlock()
	qp.lock()
	err, state, port := qp.alive("create flow of"), qp.state, qp.attr.PortNum
	qp.mu.Unlock()
	switch {
	case err != nil:
		return nil, err
	case qp.init.Type != RawPacket:
		return nil, Errorf(ErrInvalid, op, "it has type %v: only RAW_PACKET QPs have flows", qp.init.Type)
	case state == StateReset:
		return nil, Errorf(ErrInvalid, op, "it is in RESET and has no port: move it to INIT first")
	case attr.Port != port:
		return nil, Errorf(ErrInvalid, op, "Port is %d, but the QP is on port %d", attr.Port, port)
	}
	own := *attr
	if own.Specs, err = checkFlow(op, attr); err != nil {
		return nil, err
	}
	f := &Flow{qp: qp}
	if f.prov, err = qp.pd.dev.prov.CreateFlow(qp.prov, &own); err != nil {
		return nil, wrap(op, err)
	}
	qp.flows++
	return f, nil
}

// checkFlow checks everything but the port, and returns a copy of the specs.
func checkFlow(op string, attr *FlowAttr) ([]FlowSpec, error) {
	switch {
	case attr.Type > FlowSniffer:
		return nil, Errorf(ErrInvalid, op, "Type %v", attr.Type)
	case attr.Flags&^FlowDontTrap != 0:
		return nil, Errorf(ErrNotSupported, op, "Flags %#x: only FlowDontTrap is known", uint32(attr.Flags))
	case attr.Flags != 0 && attr.Type != FlowNormal:
		return nil, Errorf(ErrInvalid, op, "Flags %#x: a flow of type %v cannot have FlowDontTrap", uint32(attr.Flags), attr.Type)
	case len(attr.Specs) > 0 && attr.Type != FlowNormal:
		return nil, Errorf(ErrInvalid, op, "Specs: a flow of type %v has none", attr.Type)
	}
	var specs []FlowSpec
	for i, s := range attr.Specs {
		c := cloneSpec(s)
		if c == nil {
			return nil, Errorf(ErrInvalid, op, "Specs[%d] is %T: want a pointer to one of this package's specs", i, s)
		}
		if err := checkSpec(op, specs, c, i); err != nil {
			return nil, err
		}
		specs = append(specs, c)
	}
	return specs, nil
}

// checkSpec checks c, which is Specs[i] and follows the specs in before.
func checkSpec(op string, before []FlowSpec, c FlowSpec, i int) error {
	if i > 0 {
		if last := before[i-1].layer(); last > c.layer() || last == c.layer() && last != layerAction {
			return Errorf(ErrInvalid, op, "Specs[%d], a %T, follows a %T: "+
				"headers go from the outermost to the innermost, each at most once, and actions are last", i, c, before[i-1])
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
	}
	return nil
}

const (
	etherTypeIPv4 = 0x0800
	etherTypeIPv6 = 0x86dd
)

// checkEtherType checks that an Ethernet spec before a network header's spec can match that
// header's EtherType.
func checkEtherType(op string, before []FlowSpec, want uint16) error {
	if len(before) == 0 {
		return nil
	}
	if e, ok := before[0].(*FlowSpecEth); ok && (e.Val.EtherType^want)&e.Mask.EtherType != 0 {
		return Errorf(ErrInvalid, op, "the Ethernet spec has EtherType %#04x, but the next spec needs %#04x", e.Val.EtherType, want)
	}
	return nil
}

// cloneSpec copies a spec, so that the caller may change the original. It returns nil if s is not a
// valid spec.
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

// Close destroys the flow (ibv_destroy_flow). Frames that are being received may still complete.
// The error is ErrClosed after the first Close.
func (f *Flow) Close() error {
	if err := f.qp.faultCall("destroy_flow"); err != nil {
		return err
	}
	qp := f.qp
	qp.modifying.Lock()
	defer qp.modifying.Unlock()
	if f.prov == nil {
		return Errorf(ErrClosed, qp.op("close flow of"), "it is already closed")
	}
	f.prov.Destroy()
	f.prov = nil
	qp.flows--
	return nil
}
