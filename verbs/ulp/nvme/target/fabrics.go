package target

import (
	"slices"

	"github.com/softrnic/softrnic/verbs/ulp/nvme"
)

// fabrics executes a Fabrics command. ctrl is nil before Connect.
func (q *queue) fabrics(ctrl *controller, c *command) {
	kind := c.sqe.FabricsType()
	switch {
	case kind == nvme.Connect && ctrl == nil && q.connecting.CompareAndSwap(nil, c):
		q.connect(c)
	case ctrl == nil || kind == nvme.Connect:
		c.fail(nvme.CommandSequenceError)
	case kind == nvme.PropertyGet && q.id == 0:
		ctrl.propertyGet(c)
	case kind == nvme.PropertySet && q.id == 0:
		ctrl.propertySet(c)
	case kind == nvme.AuthenticationSend && q.auth != nil:
		q.authSend(c)
	case kind == nvme.AuthenticationReceive && q.auth != nil:
		q.authReceive(c)
	case kind == nvme.Disconnect && q.id > 0:
		c.last = true
		c.succeed(0)
	default:
		c.fail(nvme.InvalidOpcode)
	}
}

// Offsets of fields in a Connect command.
const (
	connectQID    = 42
	connectSQSize = 44
)

// connectInvalid completes a Connect command whose field at an offset is invalid.
func (c *command) connectInvalid(offset uint16, inData bool) {
	c.result = nvme.ConnectInvalidResult(offset, inData)
	c.fail(nvme.ConnectInvalid)
}

// connect executes Connect.
func (q *queue) connect(c *command) {
	p := c.sqe.ConnectParams()
	switch {
	case p.RecordFormat != 0:
		c.fail(nvme.ConnectFormat)
	case p.QID != q.id:
		c.connectInvalid(connectQID, false)
	case p.SQSize == 0 || int(p.SQSize) >= q.depth:
		c.connectInvalid(connectSQSize, false)
	default:
		c.fetch(nvme.ConnectDataLen, func(c *command) {
			d, err := nvme.ParseConnectData(c.buf)
			if err != nil {
				q.log.Warn("connect", "error", err)
				c.connectInvalid(nvme.ConnectSubNQNOffset, true)
				return
			}
			if q.id == 0 {
				q.connectAdmin(c, &p, &d)
			} else {
				q.connectIO(c, &p, &d)
			}
		})
	}
}

// connectAdmin creates a controller.
func (q *queue) connectAdmin(c *command, p *nvme.ConnectCommand, d *nvme.ConnectData) {
	discovery := d.SubsystemNQN == nvme.DiscoveryNQN
	switch {
	case !discovery && d.SubsystemNQN != q.t.cfg.NQN:
		q.log.Warn("connect: no such subsystem", "nqn", d.SubsystemNQN, "hostnqn", d.HostNQN)
		c.connectInvalid(nvme.ConnectSubNQNOffset, true)
		return
	// spdk_nvme_perf sends no host NQN. It is enough where all hosts are allowed.
	case d.HostNQN != "" && nvme.CheckNQN(d.HostNQN) != nil:
		c.connectInvalid(nvme.ConnectHostNQNOffset, true)
		return
	case !discovery && !q.t.allowed(d.HostNQN):
		q.log.Warn("connect: the host is not allowed", "hostnqn", d.HostNQN)
		c.fail(nvme.ConnectHost)
		return
	case d.CNTLID != nvme.DynamicController:
		c.connectInvalid(nvme.ConnectCNTLIDOffset, true)
		return
	}
	ctrl := q.t.newController(q, p, d, discovery)
	if ctrl == nil {
		c.fail(nvme.ConnectBusy)
		return
	}
	q.connected(ctrl, c, p)
}

// connectIO adds the queue to a controller.
func (q *queue) connectIO(c *command, p *nvme.ConnectCommand, d *nvme.ConnectData) {
	ctrl := q.t.controller(d.CNTLID)
	switch {
	case ctrl == nil || ctrl.discovery:
		c.connectInvalid(nvme.ConnectCNTLIDOffset, true)
	case d.SubsystemNQN != q.t.cfg.NQN:
		c.connectInvalid(nvme.ConnectSubNQNOffset, true)
	case d.HostNQN != ctrl.hostNQN || d.HostID != ctrl.hostID:
		c.connectInvalid(nvme.ConnectHostNQNOffset, true)
	case !ctrl.ready():
		c.fail(nvme.CommandSequenceError)
	case !ctrl.add(q):
		c.connectInvalid(connectQID, false)
	default:
		q.connected(ctrl, c, p)
	}
}

// connected completes a Connect command.
func (q *queue) connected(ctrl *controller, c *command, p *nvme.ConnectCommand) {
	q.mu.Lock()
	q.sqSize, q.noSQFlow = p.SQSize+1, p.Attributes&nvme.ConnectNoSQFlow != 0
	q.mu.Unlock()
	result := uint64(ctrl.id)
	if q.requireAuth(ctrl) {
		result |= nvme.ConnectAuthenticate
	} else if !ctrl.discovery {
		q.place.Prove()
	}
	q.ctrl.Store(ctrl)
	if ctrl.gone() { // it ended meanwhile, and does not know this queue
		q.end(errGone)
	}
	q.log.Debug("queue connected", "controller", ctrl.id, "entries", p.SQSize+1)
	c.succeed(result)
}

// allowed reports whether a host may connect to the subsystem.
func (t *Target) allowed(host string) bool {
	_, hasKey := t.cfg.Keys[host]
	return hasKey || len(t.cfg.Hosts)+len(t.cfg.Keys) == 0 || slices.Contains(t.cfg.Hosts, host)
}

// capability returns the property CAP.
func (t *Target) capability() uint64 {
	return nvme.MakeCAP(uint16(t.cfg.QueueDepth-1), readyTimeout)
}

func (ctrl *controller) propertyGet(c *command) {
	p, length, _ := c.sqe.PropertyParams()
	want := 4
	var value uint64
	switch p {
	case nvme.PropertyCAP:
		want, value = 8, ctrl.t.capability()
	case nvme.PropertyVS:
		value = nvme.Version
	case nvme.PropertyCC, nvme.PropertyCSTS:
		cc, csts := ctrl.registers()
		value = uint64(cc)
		if p == nvme.PropertyCSTS {
			value = uint64(csts)
		}
	default:
		want = 0
	}
	if length != want {
		c.fail(nvme.InvalidField)
		return
	}
	c.succeed(value)
}

func (ctrl *controller) propertySet(c *command) {
	p, length, value := c.sqe.PropertyParams()
	if p != nvme.PropertyCC || length != 4 {
		c.fail(nvme.InvalidField)
		return
	}
	if ctrl.configure(uint32(value)) {
		c.q.shutDown(ctrl)
	}
	c.succeed(0)
}
