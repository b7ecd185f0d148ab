package verbs

import (
	"fmt"
	"strings"
)

// DeviceAttr describes a device (ibv_device_attr). A limit of 0 means that the device has no
// objects of that kind.
type DeviceAttr struct {
	FWVer                 string
	NodeGUID              GUID
	SysImageGUID          GUID
	NodeType              NodeType
	MaxMRSize             uint64 // bytes
	PageSizeCap           uint64 // bit n: pages of 2^n bytes
	VendorID              uint32
	VendorPartID          uint32
	HWVer                 uint32
	MaxQP                 int
	MaxQPWR               int // work requests in each queue of a QP
	DeviceCapFlags        DeviceCapFlags
	MaxSGE                int
	MaxSGERd              int // SGEs of one RDMA READ
	MaxInlineData         int // bytes of one work request; not in libibverbs
	MaxCQ                 int
	MaxCQE                int
	MaxMR                 int
	MaxPD                 int
	MaxQPRDAtom           int // outstanding READs and atomics of a QP as responder
	MaxEERDAtom           int
	MaxResRDAtom          int
	MaxQPInitRDAtom       int // outstanding READs and atomics of a QP as requester
	MaxEEInitRDAtom       int
	AtomicCap             AtomicCap
	MaxEE                 int
	MaxRDD                int
	MaxMW                 int
	MaxRawIPv6QP          int
	MaxRawEthyQP          int
	MaxMcastGrp           int
	MaxMcastQPAttach      int
	MaxTotalMcastQPAttach int
	MaxAH                 int
	MaxSRQ                int
	MaxSRQWR              int
	MaxSRQSGE             int
	MaxPKeys              uint16
	LocalCAAckDelay       uint8 // 4.096 µs × 2^n
	PhysPortCnt           uint8
	PacketPacing          PacketPacingCaps // in libibverbs, a field of ibv_device_attr_ex
}

// PacketPacingCaps describes which QPs can have a rate limit (ibv_packet_pacing_caps).
type PacketPacingCaps struct {
	RateLimitMin, RateLimitMax uint32 // kbit/s
	SupportedQPTs              uint32 // bit n is QPType n
}

// PortAttr describes a port (ibv_port_attr).
type PortAttr struct {
	State         PortState
	MaxMTU        MTU
	ActiveMTU     MTU
	GIDTblLen     int
	PortCapFlags  uint32 // PortCMSup
	MaxMsgSz      uint32 // bytes
	BadPKeyCntr   uint32
	QKeyViolCntr  uint32
	PKeyTblLen    uint16
	LID           uint16
	SMLID         uint16
	LMC           uint8
	MaxVLNum      uint8
	SMSL          uint8
	SubnetTimeout uint8
	InitTypeReply uint8
	ActiveWidth   uint8 // 1, 2, 4, 8, 16: 1x, 4x, 8x, 12x, 2x
	// ActiveSpeed is 1, 2, 4, 8, 16, 32, 64, 128 or 256 for lanes of 2.5, 5, 10, 10, 14, 25, 50, 100
	// or 200 Gbit/s (ibv_port_attr.active_speed_ex).
	ActiveSpeed   uint16
	PhysState     uint8 // 5 is link up
	LinkLayer     LinkLayer
	Flags         uint8
	PortCapFlags2 uint16
}

// The meaning of the codes of ActiveSpeed and ActiveWidth: Gbit/s per lane, and lanes, in the order
// in which SetRate tries them.
var (
	portSpeeds = []code[float64]{{1, 2.5}, {2, 5}, {4, 10}, {8, 10}, {16, 14}, {32, 25}, {64, 50}, {128, 100}, {256, 200}}
	portWidths = []code[int]{{2, 4}, {1, 1}, {16, 2}, {4, 8}, {8, 12}}
)

type code[T comparable] struct {
	code  uint16
	value T
}

// decode returns the value of a code, or 0.
func decode[T comparable](codes []code[T], c uint16) (value T) {
	for _, k := range codes {
		if k.code == c {
			return k.value
		}
	}
	return value
}

// Rate returns the port's signalling rate in Gbit/s over all lanes, and the number of lanes. An
// invalid width or speed gives 0.
func (a *PortAttr) Rate() (gbps float64, lanes int) {
	lanes = decode(portWidths, uint16(a.ActiveWidth))
	return decode(portSpeeds, a.ActiveSpeed) * float64(lanes), lanes
}

// SetRate sets ActiveWidth and ActiveSpeed for a rate in Gbit/s over 1, 2, 4, 8 or 12 lanes. With
// lanes 0, it takes the first of 4, 1, 2, 8 and 12 lanes that has the rate. The error lists the
// possible rates.
func (a *PortAttr) SetRate(gbps float64, lanes int) error {
	for _, w := range portWidths {
		for _, s := range portSpeeds {
			if (lanes == 0 || lanes == w.value) && s.value*float64(w.value) == gbps {
				a.ActiveWidth, a.ActiveSpeed = uint8(w.code), s.code
				return nil
			}
		}
	}
	subject := fmt.Sprintf("%d lanes do not make", lanes)
	if lanes == 0 {
		subject = "no number of lanes makes"
	}
	return fmt.Errorf("%s %g Gbit/s: a port has 1, 2, 4, 8 or 12 lanes of 2.5, 5, 10, 14, 25, 50, 100 or 200, such as 100 over 4",
		subject, gbps)
}

// MTU is a path MTU in IBTA's encoding (ibv_mtu): 1 is 256 bytes, 5 is 4096.
type MTU uint8

const (
	MTU256 MTU = iota + 1
	MTU512
	MTU1024
	MTU2048
	MTU4096
)

// Bytes returns the payload of a full packet in bytes, 0 if m is not a valid MTU.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

func (m MTU) String() string {
	if m.Bytes() == 0 {
		return fmt.Sprintf("invalid MTU %d", uint8(m))
	}
	return fmt.Sprint(m.Bytes())
}

// MTUFor returns the largest MTU of at most n bytes, 0 if n < 256.
func MTUFor(n int) MTU {
	for m := MTU4096; m >= MTU256; m-- {
		if m.Bytes() <= n {
			return m
		}
	}
	return 0
}

// Transport is the wire protocol of a QP.
type Transport uint8

const (
	RoCEv2 Transport = iota // RoCE v1 if the source GID is of GIDTypeRoCEv1
	IWARP
)

func (t Transport) String() string { return name([]string{"RoCEv2", "iWARP"}, int(t), "transport") }

// PortState is the logical state of a port (ibv_port_state).
type PortState uint8

const (
	PortNop PortState = iota
	PortDown
	PortInit
	PortArmed
	PortActive
	PortActiveDefer
)

var portStates = []string{"NOP", "DOWN", "INIT", "ARMED", "ACTIVE", "ACTIVE_DEFER"}

func (s PortState) String() string { return name(portStates, int(s), "port state") }

// NodeType is the kind of a device (ibv_node_type).
type NodeType uint8

const (
	NodeCA NodeType = iota + 1
	NodeSwitch
	NodeRouter
	NodeRNIC
)

var nodeTypes = []string{"", "CA", "SWITCH", "ROUTER", "RNIC"}

func (t NodeType) String() string { return name(nodeTypes, int(t), "node type") }

// PortCMSup in PortAttr.PortCapFlags says that the port has a communication manager
// (IBV_PORT_CM_SUP).
const PortCMSup uint32 = 1 << 16

// LinkLayer is the link layer of a port (IBV_LINK_LAYER_…).
type LinkLayer uint8

const (
	LinkLayerUnspecified LinkLayer = iota
	LinkLayerInfiniBand
	LinkLayerEthernet
)

var linkLayers = []string{"Unspecified", "InfiniBand", "Ethernet"}

func (l LinkLayer) String() string { return name(linkLayers, int(l), "link layer") }

// AtomicCap is the set of operations relative to which remote atomics are atomic (ibv_atomic_cap).
type AtomicCap uint8

const (
	AtomicNone AtomicCap = iota
	AtomicHCA            // other remote atomics of the device
	AtomicGlob           // these, and atomic operations of the local processors
)

var atomicCaps = []string{"NONE", "HCA", "GLOB"}

func (c AtomicCap) String() string { return name(atomicCaps, int(c), "atomic capability") }

// DeviceCapFlags are the optional features of a device (ibv_device_cap_flags; above bit 31,
// device_cap_flags_ex).
type DeviceCapFlags uint64

const (
	DeviceResizeMaxWR         DeviceCapFlags = 1 << 0
	DeviceBadPKeyCntr         DeviceCapFlags = 1 << 1
	DeviceBadQKeyCntr         DeviceCapFlags = 1 << 2
	DeviceRawMulti            DeviceCapFlags = 1 << 3
	DeviceAutoPathMig         DeviceCapFlags = 1 << 4
	DeviceChangePhyPort       DeviceCapFlags = 1 << 5
	DeviceUDAVPortEnforce     DeviceCapFlags = 1 << 6
	DeviceCurrQPStateMod      DeviceCapFlags = 1 << 7
	DeviceShutdownPort        DeviceCapFlags = 1 << 8
	DeviceInitType            DeviceCapFlags = 1 << 9
	DevicePortActiveEvent     DeviceCapFlags = 1 << 10
	DeviceSysImageGUID        DeviceCapFlags = 1 << 11
	DeviceRCRNRNAKGen         DeviceCapFlags = 1 << 12
	DeviceSRQResize           DeviceCapFlags = 1 << 13
	DeviceNNotifyCQ           DeviceCapFlags = 1 << 14
	DeviceMemWindow           DeviceCapFlags = 1 << 17
	DeviceUDIPCsum            DeviceCapFlags = 1 << 18
	DeviceXRC                 DeviceCapFlags = 1 << 20
	DeviceMemMgtExtensions    DeviceCapFlags = 1 << 21
	DeviceMemWindowType2A     DeviceCapFlags = 1 << 23
	DeviceMemWindowType2B     DeviceCapFlags = 1 << 24
	DeviceRCIPCsum            DeviceCapFlags = 1 << 25
	DeviceRawIPCsum           DeviceCapFlags = 1 << 26
	DeviceManagedFlowSteering DeviceCapFlags = 1 << 29
	DeviceFlushGlobal         DeviceCapFlags = 1 << 38
	DeviceFlushPersistent     DeviceCapFlags = 1 << 39
	DeviceAtomicWrite         DeviceCapFlags = 1 << 40
)

var deviceCaps = []string{0: "RESIZE_MAX_WR", "BAD_PKEY_CNTR", "BAD_QKEY_CNTR", "RAW_MULTI", "AUTO_PATH_MIG",
	"CHANGE_PHY_PORT", "UD_AV_PORT_ENFORCE", "CURR_QP_STATE_MOD", "SHUTDOWN_PORT", "INIT_TYPE", "PORT_ACTIVE_EVENT",
	"SYS_IMAGE_GUID", "RC_RNR_NAK_GEN", "SRQ_RESIZE", "N_NOTIFY_CQ", 17: "MEM_WINDOW", "UD_IP_CSUM", 20: "XRC",
	"MEM_MGT_EXTENSIONS", 23: "MEM_WINDOW_TYPE_2A", "MEM_WINDOW_TYPE_2B", "RC_IP_CSUM", "RAW_IP_CSUM",
	29: "MANAGED_FLOW_STEERING", 38: "FLUSH_GLOBAL", "FLUSH_PERSISTENT", "ATOMIC_WRITE"}

func (f DeviceCapFlags) String() string { return flags(deviceCaps, f) }

// name returns the name of value v of an enumeration.
func name(names []string, v int, what string) string {
	if v < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("invalid %s %d", what, v)
}

// flags returns the names of the bits set in v, joined by "|". Bits without a name are in
// hexadecimal.
func flags[T ~uint32 | ~uint64](names []string, v T) string {
	if v == 0 {
		return "0"
	}
	var s []string
	for i, n := range names {
		if bit := T(1) << i; n != "" && v&bit != 0 {
			s = append(s, n)
			v &^= bit
		}
	}
	if v != 0 {
		s = append(s, fmt.Sprintf("%#x", v))
	}
	return strings.Join(s, "|")
}
