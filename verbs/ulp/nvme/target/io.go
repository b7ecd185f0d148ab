package target

import "github.com/softrnic/softrnic/verbs/ulp/nvme"

const (
	mdts        = 8 // 2^8 × 4 KiB
	maxTransfer = 4096 << mdts
)

// io executes a command of an I/O queue.
func (ctrl *controller) io(c *command) {
	q, sqe := c.q, &c.sqe
	if sqe.Opcode == nvme.Flush && sqe.NSID == nvme.AllNamespaces {
		c.sync(q.t.sync)
		return
	}
	ns := q.t.namespace(sqe.NSID)
	if ns == nil {
		c.fail(nvme.InvalidNamespace)
		return
	}
	switch sqe.Opcode {
	case nvme.Flush:
		c.sync(ns.durability.sync)
	case nvme.Read:
		ctrl.transfer(c, ns, toHost)
	case nvme.Write:
		ctrl.transfer(c, ns, fromHost)
	case nvme.Compare:
		ctrl.transfer(c, ns, comparison)
	case nvme.WriteZeroes:
		ctrl.writeZeroes(c, ns)
	case nvme.DatasetManagement:
		ctrl.datasetManagement(c, ns)
	default:
		c.fail(nvme.InvalidOpcode)
	}
}

// durable reports whether the response of a write says that its data is durable.
func (ctrl *controller) durable(c *command) bool {
	return ctrl.writeThrough.Load() || c.sqe.CDW12&nvme.ForceUnitAccess != 0
}

// change completes the command with the outcome of f, which changes the namespace. f runs on
// another goroutine unless it does not block.
func (ctrl *controller) change(c *command, ns *namespace, f func() nvme.Status) {
	durable := ctrl.durable(c)
	run := func() {
		if status := f(); status != nvme.Success || !durable {
			c.complete(status)
			return
		}
		c.sync(ns.durability.sync)
	}
	if ns.inline() {
		run()
		return
	}
	c.q.block(run)
}

// span returns the range of a command in bytes. If it is invalid, the command fails, and ok is
// false.
func (c *command) span(ns *namespace, write bool) (off, n int64, ok bool) {
	off, n, ok = ns.span(c.sqe.SLBA(), uint64(c.sqe.Blocks()))
	switch {
	case !ok:
		c.fail(nvme.LBAOutOfRange)
	case write && ns.readOnly:
		c.fail(nvme.WriteProtected)
		ok = false
	}
	return off, n, ok
}

// transfer executes Read, Write or Compare.
func (ctrl *controller) transfer(c *command, ns *namespace, way direction) {
	off, n, ok := c.span(ns, way == fromHost)
	if !ok {
		return
	}
	if n > maxTransfer {
		c.fail(nvme.InvalidField)
		return
	}
	counters := &c.q.counters
	switch way {
	case toHost:
		counters.reads.Add(1)
		counters.readBytes.Add(uint64(n))
	case fromHost:
		counters.writes.Add(1)
		counters.writtenBytes.Add(uint64(n))
		if ctrl.durable(c) {
			c.then = func(c *command) { c.sync(ns.durability.sync) }
		}
	}
	c.ns, c.off = ns, off
	c.move(way, int(n))
}

func (ctrl *controller) writeZeroes(c *command, ns *namespace) {
	off, n, ok := c.span(ns, true)
	if !ok {
		return
	}
	deallocate := c.sqe.CDW12&nvme.Deallocate != 0
	ctrl.change(c, ns, func() nvme.Status { return ns.zero(c.q.ctx, off, n, deallocate) })
}

func (ctrl *controller) datasetManagement(c *command, ns *namespace) {
	switch {
	case ns.readOnly:
		c.fail(nvme.WriteProtected)
		return
	case c.sqe.CDW11&nvme.DSMDeallocate == 0: // the other attributes are hints
		c.succeed(0)
		return
	}
	ranges := int(c.sqe.CDW10&0xff) + 1
	c.fetch(ranges*nvme.DSMRangeLen, func(c *command) {
		var list []nvme.DSMRange
		for b := c.buf; len(b) > 0; b = b[nvme.DSMRangeLen:] {
			r, err := nvme.ParseDSMRange(b)
			if err != nil {
				c.fail(nvme.InvalidField)
				return
			}
			if _, _, ok := ns.span(r.SLBA, uint64(r.Blocks)); !ok {
				c.fail(nvme.LBAOutOfRange)
				return
			}
			list = append(list, r)
		}
		ctrl.change(c, ns, func() nvme.Status { return ns.deallocate(c.q.ctx, list) })
	})
}
