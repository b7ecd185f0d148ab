package rdmatransport

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"
	"sync/atomic"

	"github.com/softrnic/softrnic/rdmatransport/internal/access"
	"github.com/softrnic/softrnic/rdmatransport/internal/iwarptransport"
	"github.com/softrnic/softrnic/rdmatransport/internal/memory"
	"github.com/softrnic/softrnic/rdmatransport/internal/raw"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport"
	"github.com/softrnic/softrnic/rdmatransport/internal/rocetransport/cm"
	"github.com/softrnic/softrnic/rdmatransport/internal/timers"
	"github.com/softrnic/softrnic/stack"
	"github.com/softrnic/softrnic/verbs"
	"github.com/softrnic/softrnic/verbs/rdmacm"
)

// Limits of the device. Only memory limits most of them; callers may rely on these numbers.
const (
	maxQP     = 1 << 20
	maxMR     = 1 << 24
	maxMW     = 1 << 22
	maxQueue  = 1 << 20
	maxAH     = 1 << 20
	maxSGE    = 32
	maxInline = 1024
	maxPorts  = 254 // an 8-bit port number that counts from 1, without 255, which multicast trees use

	maxMcastGroup  = 1024
	maxMcastAttach = 256

	ackDelay = 10 // 4.096 µs × 2^10: allowed for by the shortest timeout
)

// provider is a device on a host. It implements verbs.Provider and rdmacm.Provider.
type provider struct {
	name    string
	ownGUID verbs.GUID     // Config.GUID; 0: the MAC address makes it
	rate    verbs.PortAttr // width and speed that ports report
	nics    []stack.NIC
	regions *memory.Regions
	timers  *timers.Queue
	roce    *rocetransport.Engine
	iwarp   *iwarptransport.Engine
	raw     *raw.Engine
	access  *access.Control // nil: all hosts are allowed
	cm      *cm.Manager
	traced  traceQueue
	highest highest // of the counters

	identify func(netip.Addr) (rdmacm.Identity, bool) // nil: hosts have no identity

	watcher    atomic.Pointer[func(t verbs.AsyncEventType, port uint8)] // nil before Watch
	linkDowned atomic.Uint64
}

// Values of PortAttr.PhysState (IBTA Vol 1 §14.2.5.6).
const (
	physPolling  = 2
	physDisabled = 3
	physLinkUp   = 5
)

// newProvider creates the provider for Open.
func newProvider(host stack.Network, cfg *Config) (*provider, error) {
	c, rate, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	if err := rocetransport.CheckConfig(&c.RoCE); err != nil {
		return nil, verbs.Errorf(verbs.ErrInvalid, opOpen, "RoCE.%v", err)
	}
	if host == nil {
		return nil, verbs.Errorf(verbs.ErrInvalid, opOpen, "the host is nil: must be a stack.Network, such as a *netstack.Host")
	}
	nics := host.NICs()
	if n := len(nics); n < 1 || n > maxPorts {
		return nil, verbs.Errorf(verbs.ErrInvalid, opOpen, "the host has %d interfaces, and a device 1 to %d ports", n, maxPorts)
	}
	if c.Name == "" {
		c.Name = fmt.Sprintf("softrnic%d", opened.Add(1)-1)
	}
	hostClock := stack.ClockOf(host)
	if c.Rand == nil {
		c.Rand = hostClock.Rand()
	}
	numbers, err := numbersOf(nics)
	if err != nil {
		return nil, err
	}
	p := &provider{name: c.Name, rate: rate, nics: nics, ownGUID: c.GUID, regions: memory.NewRegions(c.Rand),
		timers: timers.New(hostClock), identify: c.Identify}
	if c.Allow != nil {
		p.access = &access.Control{Allow: c.Allow}
	}
	p.iwarp = iwarptransport.New(host, c.IWARP, p.regions, p.timers, p.access, c.Rand, p.iwarpRoute, numbers.QPNs, p.hasQP)
	p.roce = rocetransport.New(p.nics, c.RoCE, p.regions, p.timers, p.access, c.Rand, numbers.QPNs, p.hasQP)
	if c.Trace != nil {
		p.traced.sink, p.traced.clock = c.Trace, hostClock
		p.iwarp.SetTrace(p.traced.add)
		p.roce.SetTrace(p.traced.add)
	}
	p.raw = raw.New(p.nics, p.regions, c.Rand, numbers.QPNs, p.hasQP)
	p.cm = p.newCM(c.Rand, numbers.CommIDs)
	return p, nil
}

// Name implements verbs.Provider.
func (p *provider) Name() string { return p.name }

// Clock implements verbs.Clocked: the clock of the host.
func (p *provider) Clock() verbs.Clock { return p.timers.Clock() }

// QueryDevice implements verbs.Provider.
func (p *provider) QueryDevice() verbs.DeviceAttr {
	attr := verbs.DeviceAttr{
		FWVer:        "1.0",
		NodeGUID:     p.guid(),
		SysImageGUID: p.guid(),
		NodeType:     verbs.NodeCA,
		MaxMRSize:    1<<63 - 1,
		PageSizeCap:  0xfffff000,
		VendorID:     0xffffff, // no IEEE company, as defined in IBTA Vol 1 annex A3 for software
		MaxQP:        maxQP,
		MaxQPWR:      maxQueue,
		DeviceCapFlags: verbs.DeviceBadPKeyCntr | verbs.DeviceBadQKeyCntr | verbs.DeviceUDAVPortEnforce | verbs.DevicePortActiveEvent |
			verbs.DeviceRCRNRNAKGen | verbs.DeviceSysImageGUID | verbs.DeviceSRQResize |
			verbs.DeviceMemWindow | verbs.DeviceMemWindowType2B |
			verbs.DeviceXRC | verbs.DeviceFlushGlobal | verbs.DeviceFlushPersistent | verbs.DeviceAtomicWrite,
		MaxSGE:          maxSGE,
		MaxSGERd:        maxSGE,
		MaxInlineData:   maxInline,
		MaxCQ:           maxQP,
		MaxCQE:          1 << 22,
		MaxMR:           maxMR,
		MaxMW:           maxMW,
		MaxPD:           1 << 20,
		MaxQPRDAtom:     rocetransport.MaxReadAtomic,
		MaxResRDAtom:    rocetransport.MaxReadAtomic * maxQP,
		MaxQPInitRDAtom: rocetransport.MaxReadAtomic,
		AtomicCap:       verbs.AtomicGlob,
		MaxSRQ:          maxQP,
		MaxSRQWR:        maxQueue,
		MaxSRQSGE:       maxSGE,
		MaxPKeys:        1,
		MaxAH:           maxAH,

		MaxMcastGrp:           maxMcastGroup,
		MaxMcastQPAttach:      maxMcastAttach,
		MaxTotalMcastQPAttach: maxMcastGroup * maxMcastAttach,

		PacketPacing: verbs.PacketPacingCaps{
			RateLimitMin: 1, RateLimitMax: rocetransport.MaxRateLimit,
			SupportedQPTs: 1<<verbs.RC | 1<<verbs.UC | 1<<verbs.UD | 1<<verbs.XRCSend | 1<<verbs.XRCRecv,
		},

		LocalCAAckDelay: ackDelay,
		PhysPortCnt:     uint8(len(p.nics)),
	}
	if p.hasFrames() {
		attr.MaxRawEthyQP = maxQP
		attr.DeviceCapFlags |= verbs.DeviceRawMulti | verbs.DeviceManagedFlowSteering
	}
	return attr
}

// hasFrames reports whether any interface carries Ethernet frames.
func (p *provider) hasFrames() bool {
	return slices.ContainsFunc(p.nics, func(n stack.NIC) bool { return n.Frames() != nil })
}

// QueryPort implements verbs.Provider.
func (p *provider) QueryPort(port uint8) (verbs.PortAttr, error) {
	nic, err := p.nic(port)
	if err != nil {
		return verbs.PortAttr{}, err
	}
	state, phys := verbs.PortActive, uint8(physLinkUp)
	switch nic.State() {
	case stack.LinkNoCarrier:
		state, phys = verbs.PortDown, physPolling
	case stack.LinkDisabled, stack.LinkRemoved:
		state, phys = verbs.PortDown, physDisabled
	}
	return verbs.PortAttr{
		State:        state,
		MaxMTU:       verbs.MTU4096,
		ActiveMTU:    activeMTU(nic),
		GIDTblLen:    gidTblLen(nic),
		PortCapFlags: verbs.PortCMSup,
		MaxMsgSz:     rocetransport.MaxMessage,
		// As in IBTA Vol 1 §14.2.5.6 these saturate. They count for all ports.
		BadPKeyCntr:  uint32(min(p.roce.Counters.BadPKey.Load(), 0xffff)),
		QKeyViolCntr: uint32(min(p.roce.Counters.QKeyViolations.Load(), 0xffff)),
		PKeyTblLen:   1,
		MaxVLNum:     1,
		ActiveWidth:  p.rate.ActiveWidth,
		ActiveSpeed:  p.rate.ActiveSpeed,
		PhysState:    phys,
		LinkLayer:    verbs.LinkLayerEthernet,
	}, nil
}

// Watch implements verbs.Provider. DEVICE_FATAL is reported when the last interface is removed, or
// the host is closed.
func (p *provider) Watch(f func(t verbs.AsyncEventType, port uint8)) {
	p.watcher.Store(&f)
	for i, nic := range p.nics {
		if d, ok := nic.(stack.Departures); ok {
			d.WatchDepartures(func(addr netip.Addr) {
				p.roce.HostLeft(addr) // first, while the unanswered requests are still queued
				p.cm.HostLeft(addr)
			})
		}
		nic.Watch(func(c stack.Change) {
			switch c {
			case stack.GIDsChanged:
				f(verbs.EventGIDChange, uint8(i+1))
			case stack.LinkWentDown:
				p.linkDowned.Add(1)
				f(verbs.EventPortErr, uint8(i+1))
			case stack.LinkCameUp:
				p.cm.LinkUp(uint8(i + 1))
				f(verbs.EventPortActive, uint8(i+1))
			case stack.LinkGone:
				if p.allRemoved() {
					f(verbs.EventDeviceFatal, 0)
				} else {
					f(verbs.EventGIDChange, uint8(i+1)) // the port has no GIDs any more
				}
			}
		})
	}
}

// allRemoved reports whether all interfaces are removed.
func (p *provider) allRemoved() bool {
	return !slices.ContainsFunc(p.nics, func(n stack.NIC) bool { return n.State() != stack.LinkRemoved })
}

// notify passes an event to the watcher.
func (p *provider) notify(t verbs.AsyncEventType, port uint8) {
	if f := p.watcher.Load(); f != nil {
		(*f)(t, port)
	}
}

// activeMTU returns the largest path MTU of an interface.
func activeMTU(nic stack.NIC) verbs.MTU {
	return max(verbs.MTUFor(nic.MTU()-rocetransport.Overhead), verbs.MTU256)
}

func (p *provider) nic(port uint8) (stack.NIC, error) {
	if port < 1 || int(port) > len(p.nics) {
		return nil, fmt.Errorf("port %d: device %s has ports 1 to %d: %w", port, p.name, len(p.nics), verbs.ErrInvalid)
	}
	return p.nics[port-1], nil
}

// RegMR implements verbs.Provider.
func (p *provider) RegMR(mr *verbs.MR) (lkey, rkey uint32, err error) { return p.regions.Register(mr) }

// DeregMR implements verbs.Provider.
func (p *provider) DeregMR(mr *verbs.MR) { p.regions.Deregister(mr) }

// AllocMW implements verbs.Provider.
func (p *provider) AllocMW(mw *verbs.MW) (rkey uint32, err error) { return p.regions.AllocWindow(mw) }

// DeallocMW implements verbs.Provider.
func (p *provider) DeallocMW(mw *verbs.MW) { p.regions.DeallocWindow(mw) }

// hasQP reports whether a QP number is in use.
func (p *provider) hasQP(qpn uint32) bool {
	return p.roce.HasQP(qpn) || p.iwarp.HasQP(qpn) || p.raw.HasQP(qpn)
}

// CreateQP implements verbs.Provider.
func (p *provider) CreateQP(h verbs.QPHandle, attr *verbs.QPInitAttr) (verbs.ProviderQP, uint32, error) {
	if attr.Type == verbs.RawPacket {
		if !p.hasFrames() {
			return nil, 0, fmt.Errorf("raw packet QPs on a device whose network stack carries no raw frames: %w", verbs.ErrNotSupported)
		}
		return p.raw.CreateQP(h)
	}
	switch attr.Transport {
	case verbs.RoCEv2:
		return p.roce.CreateQP(h, attr)
	case verbs.IWARP:
		return p.iwarp.CreateQP(h, attr)
	}
	return nil, 0, fmt.Errorf("transport %v: %w", attr.Transport, verbs.ErrNotSupported)
}

// CreateAH implements verbs.Provider.
func (p *provider) CreateAH(attr *verbs.AHAttr) (verbs.ProviderAH, error) {
	return p.roce.CreateAH(attr)
}

// AttachMcast implements verbs.Provider.
func (p *provider) AttachMcast(qp verbs.ProviderQP, group verbs.GID) error {
	return p.roce.AttachMcast(qp, group)
}

// DetachMcast implements verbs.Provider.
func (p *provider) DetachMcast(qp verbs.ProviderQP, group verbs.GID) error {
	return p.roce.DetachMcast(qp, group)
}

// CreateFlow implements verbs.Provider.
func (p *provider) CreateFlow(qp verbs.ProviderQP, attr *verbs.FlowAttr) (verbs.ProviderFlow, error) {
	return p.raw.CreateFlow(qp, attr)
}

// Progress implements verbs.Provider.
func (p *provider) Progress() bool { return p.roce.Progress() }

// EndProgress implements verbs.Provider.
func (p *provider) EndProgress() { p.roce.EndProgress() }

// Close implements verbs.Provider.
func (p *provider) Close() error {
	p.notify(verbs.EventDeviceFatal, 0) // unless verbs has called
	for _, nic := range p.nics {
		nic.Watch(nil)
		if d, ok := nic.(stack.Departures); ok {
			d.WatchDepartures(nil)
		}
	}
	p.cm.Close()
	p.roce.Close()
	p.iwarp.Close()
	p.raw.Close()
	p.timers.Close()
	return p.traced.drain(context.Background())
}

// guid returns the node and system image GUID, which the CM also sends in its messages. Unless
// Config.GUID is set, it is the modified EUI-64 of the first port's MAC address (RFC 4291 appendix
// A), as of Linux's rxe: the bytes of the address in their order, with 0xff and 0xfe between the
// third and the fourth, and with the universal/local bit, 2 in the first byte, inverted. The first
// byte is the most significant.
func (p *provider) guid() verbs.GUID {
	if p.ownGUID != 0 {
		return p.ownGUID
	}
	mac := p.nics[0].MAC()
	b := [8]byte{mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]}
	return verbs.GUID(binary.BigEndian.Uint64(b[:]))
}
