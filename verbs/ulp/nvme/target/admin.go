package target

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

const (
	firmware = "1"
	maxLog   = 64 << 10 // bytes of a log page that one command reads
)

// admin executes a command of the Admin queue.
func (ctrl *controller) admin(c *command) {
	switch c.sqe.Opcode {
	case nvme.Identify:
		ctrl.identify(c)
	case nvme.GetLogPage:
		ctrl.logPage(c)
	case nvme.GetFeatures:
		ctrl.getFeature(c)
	case nvme.SetFeatures:
		ctrl.setFeature(c)
	case nvme.AsyncEventRequest:
		ctrl.asyncRequest(c)
	case nvme.KeepAlive:
		c.succeed(0)
	case nvme.Abort:
		// Other commands end by themselves.
		const notAborted = 1
		result := uint64(notAborted)
		if uint16(c.sqe.CDW10) == 0 && ctrl.abortRequest(uint16(c.sqe.CDW10>>16)) {
			result = 0
		}
		c.succeed(result)
	default:
		c.fail(nvme.InvalidOpcode)
	}
}

func (ctrl *controller) identify(c *command) {
	cns, nsid := c.sqe.CNS(), c.sqe.NSID
	if ctrl.discovery && cns != nvme.CNSController && cns != nvme.CNSCommandSetCtrl {
		c.fail(nvme.InvalidField)
		return
	}
	const nvm = 0
	set := c.sqe.CDW11 >> 24 // the I/O command set
	ns := ctrl.t.namespace(nsid)
	switch cns {
	case nvme.CNSController:
		i := ctrl.identifyController()
		c.reply(i.Append(nil))
	case nvme.CNSNamespaceList:
		if nsid >= nvme.AllNamespaces-1 {
			c.fail(nvme.InvalidNamespace)
			return
		}
		var list []uint32
		for _, ns := range ctrl.t.namespaces {
			if ns.id > nsid {
				list = append(list, ns.id)
			}
		}
		c.reply(nvme.AppendNamespaceList(nil, list))
	case nvme.CNSNamespace, nvme.CNSDescriptors, nvme.CNSIndependentNS:
		if ns == nil {
			c.fail(nvme.InvalidNamespace)
			return
		}
		c.reply(ns.identify(cns))
	case nvme.CNSCommandSetCtrl:
		if set != nvm {
			c.fail(nvme.InvalidField)
			return
		}
		c.reply(make([]byte, nvme.IdentifyLen)) // no limits
	case nvme.CNSControllers, nvme.CNSControllersOfNS:
		if cns == nvme.CNSControllersOfNS && ns == nil {
			c.fail(nvme.InvalidNamespace)
			return
		}
		c.reply(nvme.AppendControllerList(nil, ctrl.t.controllerIDs(uint16(c.sqe.CDW10>>16))))
	default:
		c.fail(nvme.InvalidField)
	}
}

func (ctrl *controller) identifyController() nvme.IdentifyController {
	cfg := ctrl.t.cfg
	i := nvme.IdentifyController{
		Serial: cfg.Serial, Model: cfg.Model, Firmware: firmware, CMIC: nvme.MultiPort | nvme.MultiController, MDTS: mdts, CNTLID: ctrl.id,
		Version: nvme.Version, Attributes: nvme.HostID128 | nvme.TrafficKeepAlive, Type: nvme.ControllerIO, AbortLimit: 3,
		AsyncLimit: asyncRequests - 1, FirmwareSlots: 1<<1 | 1, LPA: nvme.LogExtended, ErrorEntries: errorEntries - 1,
		KeepAliveUnits: keepAliveUnits, MaxCommands: uint16(cfg.QueueDepth), SGLS: nvme.SGLSupported | nvme.SGLKeyed | nvme.SGLInCapsule,
		SubsystemNQN: cfg.NQN, CommandCapsule: capsuleSize / 16, Response: nvme.CompletionLen / 16, SGLDescriptors: 1,
		OFCS: nvme.FabricsDisconnect,
	}
	if ctrl.discovery {
		i.SubsystemNQN, i.Type = nvme.DiscoveryNQN, nvme.ControllerDiscovery
		i.CMIC = 0
		return i
	}
	i.OAES, i.Namespaces = nvme.AEAttribute, uint32(len(ctrl.t.namespaces))
	i.ONCS, i.VolatileCache = nvme.SupportsCompare|nvme.SupportsDSM|nvme.SupportsZeroes, true
	i.LPA |= nvme.LogEffects
	return i
}

// identify returns a structure of the namespace.
func (ns *namespace) identify(cns nvme.CNS) []byte {
	const nmic = nvme.NamespaceShared
	var attributes uint8
	if ns.readOnly {
		attributes = nvme.NamespaceReadOnly
	}
	switch cns {
	case nvme.CNSDescriptors:
		d := nvme.Descriptors{NGUID: ns.uuid, UUID: ns.uuid}
		return d.Append(nil)
	case nvme.CNSIndependentNS:
		i := nvme.IndependentNamespace{NMIC: nmic, Attributes: attributes, Ready: true}
		return i.Append(nil)
	}
	blocks := ns.blocks.Load()
	i := nvme.IdentifyNamespace{
		Size: blocks, Capacity: blocks, Used: blocks, Features: nvme.NamespaceOptimal, NMIC: nmic,
		Bytes: blocks << ns.shift, Granularity: uint16(maxBlockSize>>ns.shift - 1), Attributes: attributes, NGUID: ns.uuid,
		BlockShift: ns.shift,
	}
	if _, ok := ns.backend.(Discarder); ok && !ns.readOnly {
		i.Features |= nvme.NamespaceThin
		i.Deallocated = nvme.DeallocateByZeroes
	}
	return i.Append(nil)
}

func (ctrl *controller) logPage(c *command) {
	p := c.sqe.LogParams()
	if p.Length > maxLog || p.Offset%4 != 0 {
		c.fail(nvme.InvalidField)
		return
	}
	var page []byte
	switch {
	case ctrl.discovery && p.Page == nvme.LogDiscovery:
		page = ctrl.discoveryLog()
	case ctrl.discovery || p.Page == nvme.LogDiscovery:
		c.fail(nvme.InvalidLogPage)
		return
	case p.Page == nvme.LogErrors:
		page = ctrl.errorLog()
	case p.Page == nvme.LogSMART:
		page = ctrl.smart()
	case p.Page == nvme.LogFirmware:
		page = nvme.AppendFirmwareLog(nil, firmware)
	case p.Page == nvme.LogChangedNamespaces:
		page = nvme.AppendNamespaceList(nil, ctrl.takeChanged(p.Retain))
	case p.Page == nvme.LogCommands:
		page = commandLog()
	default:
		c.fail(nvme.InvalidLogPage)
		return
	}
	if p.Offset > uint64(len(page)) {
		c.fail(nvme.InvalidField)
		return
	}
	page = page[p.Offset:]
	if n := int(p.Length) - len(page); n > 0 {
		page = append(page, make([]byte, n)...) // what follows the page is zeros
	}
	c.reply(page[:p.Length])
}

// discoveryLog returns the discovery log page for the controller's host: the subsystem, if the host
// may connect to it, at the address that the host has connected to.
func (ctrl *controller) discoveryLog() []byte {
	h := nvme.DiscoveryHeader{Generation: 1}
	if !ctrl.t.allowed(ctrl.hostNQN) {
		return h.Append(nil)
	}
	h.Records = 1
	at := ctrl.adminQ.conn.LocalAddr()
	e := nvme.DiscoveryEntry{
		Transport: nvme.TransportRDMA, Subtype: nvme.SubsystemNVM, Requirements: nvme.RequirementNoSecure | nvme.RequirementNoSQFlow,
		CNTLID: nvme.DynamicController, SubsystemNQN: ctrl.t.cfg.NQN, Addr: netip.AddrPortFrom(at.Addr().Unmap(), at.Port()),
		Provider: nvme.ProviderAny,
	}
	return e.Append(h.Append(nil))
}

// smart returns the log page SMART.
func (ctrl *controller) smart() []byte {
	const unit = 512 * 1000
	s := ctrl.t.Stats()
	ctrl.mu.Lock()
	failures := ctrl.failures
	ctrl.mu.Unlock()
	page := nvme.SMART{
		AvailableSpare: 100, UnitsRead: (s.ReadBytes + unit - 1) / unit, UnitsWritten: (s.WrittenBytes + unit - 1) / unit,
		Reads: s.Reads, Writes: s.Writes, PowerCycles: 1, PowerOn: ctrl.t.clock.Since(ctrl.t.started), ErrorLogEntries: failures,
	}
	if slices.ContainsFunc(ctrl.t.namespaces, func(ns *namespace) bool { return ns.durability.hasLost() }) {
		page.CriticalWarning = nvme.WarnReliability
	}
	return page.Append(nil)
}

func commandLog() []byte {
	const reads, writes = nvme.EffectSupported, nvme.EffectSupported | nvme.EffectWrites
	return nvme.AppendCommandLog(nil,
		map[nvme.Opcode]uint32{nvme.GetLogPage: reads, nvme.Identify: reads, nvme.Abort: reads, nvme.SetFeatures: reads,
			nvme.GetFeatures: reads, nvme.AsyncEventRequest: reads, nvme.KeepAlive: reads},
		map[nvme.Opcode]uint32{nvme.Flush: reads, nvme.Write: writes, nvme.Read: reads, nvme.Compare: reads, nvme.WriteZeroes: writes,
			nvme.DatasetManagement: writes})
}

// queueCount returns the value of FeatureQueues.
func (t *Target) queueCount() uint64 {
	n := uint64(t.cfg.IOQueues - 1)
	return n<<16 | n
}

func (ctrl *controller) getFeature(c *command) {
	if c.sqe.CDW10>>8&7 != 0 { // only current values
		c.fail(nvme.InvalidField)
		return
	}
	feature := c.sqe.Feature()
	ctrl.mu.Lock()
	events, keepAlive := ctrl.events, ctrl.keepAlive
	ctrl.mu.Unlock()
	switch feature {
	case nvme.FeatureAsyncEvents:
		c.succeed(uint64(events))
		return
	case nvme.FeatureKeepAlive:
		c.succeed(uint64(keepAlive / time.Millisecond))
		return
	}
	switch {
	case ctrl.discovery:
		c.fail(nvme.InvalidField)
	case feature == nvme.FeatureQueues:
		c.succeed(ctrl.t.queueCount())
	case feature == nvme.FeatureVolatileCache:
		value := uint64(1)
		if ctrl.writeThrough.Load() {
			value = 0
		}
		c.succeed(value)
	case feature == nvme.FeatureHostID:
		if c.sqe.CDW11&1 == 0 { // 8 bytes
			c.fail(nvme.InvalidField)
			return
		}
		c.reply(slices.Clone(ctrl.hostID[:]))
	case feature == nvme.FeatureArbitration || feature == nvme.FeaturePower || feature == nvme.FeatureTemperature ||
		feature == nvme.FeatureErrorRecovery || feature == nvme.FeatureWriteAtomicity:
		c.succeed(0)
	default:
		c.fail(nvme.InvalidField)
	}
}

func (ctrl *controller) setFeature(c *command) {
	value := c.sqe.CDW11
	if c.sqe.CDW10&nvme.FeatureSave != 0 {
		c.fail(nvme.FeatureNotSaveable)
		return
	}
	switch feature := c.sqe.Feature(); {
	case feature == nvme.FeatureAsyncEvents:
		ctrl.mu.Lock()
		ctrl.events = value
		ctrl.report()
		ctrl.mu.Unlock()
		c.succeed(0)
	case feature == nvme.FeatureKeepAlive:
		ctrl.setKeepAlive(time.Duration(value) * time.Millisecond)
		c.succeed(0)
	case ctrl.discovery:
		c.fail(nvme.InvalidField)
	case feature == nvme.FeatureQueues:
		ctrl.mu.Lock()
		inUse := len(ctrl.queues) > 0
		ctrl.mu.Unlock()
		switch {
		case inUse:
			c.fail(nvme.CommandSequenceError)
		case value&0xffff == 0xffff || value>>16 == 0xffff:
			c.fail(nvme.InvalidField)
		default:
			c.succeed(ctrl.t.queueCount())
		}
	case feature == nvme.FeatureVolatileCache:
		through := value&1 == 0
		ctrl.writeThrough.Store(through)
		if through { // the cache is written, as the host needs no Flush from now on
			c.sync(ctrl.t.sync)
			return
		}
		c.succeed(0)
	case feature == nvme.FeatureHostID, feature == nvme.FeatureArbitration, feature == nvme.FeaturePower,
		feature == nvme.FeatureTemperature, feature == nvme.FeatureErrorRecovery, feature == nvme.FeatureWriteAtomicity:
		c.fail(nvme.FeatureNotChangeable)
	default:
		c.fail(nvme.InvalidField)
	}
}

// controllerIDs returns the IDs of the subsystem's controllers from one on.
func (t *Target) controllerIDs(from uint16) (ids []uint16) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(t.controllers)) {
		if id >= from && !t.controllers[id].discovery {
			ids = append(ids, id)
		}
	}
	return ids
}

// serial returns the default serial number.
func serial(hash []byte) string {
	const digits = "0123456789abcdef"
	n := binary.LittleEndian.Uint64(hash)
	s := make([]byte, 16)
	for i := range s {
		s[i], n = digits[n&0xf], n>>4
	}
	return string(s)
}
