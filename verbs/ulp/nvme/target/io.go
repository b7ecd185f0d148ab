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
		q.spawn(func() { c.complete(q.t.sync()) })
		return
	}
	ns := q.t.namespace(sqe.NSID)
	if ns == nil {
		c.fail(nvme.InvalidNamespace)
		return
	}
	switch sqe.Opcode {
	case nvme.Flush:
		c.mayBlock(ns, ns.sync)
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

// mayBlock completes the command with the outcome of f, which runs on another goroutine unless it
// does not block.
func (c *command) mayBlock(ns *namespace, f func() nvme.Status) {
	if ns.inline() {
		c.complete(f())
		return
	}
	c.q.spawn(func() { c.complete(f()) })
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
		if c.sqe.CDW12&nvme.ForceUnitAccess != 0 || ctrl.writeThrough.Load() {
			c.then = func(c *command) { c.mayBlock(ns, ns.sync) }
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
	durable := c.sqe.CDW12&nvme.ForceUnitAccess != 0 || ctrl.writeThrough.Load()
	deallocate := c.sqe.CDW12&nvme.Deallocate != 0
	c.mayBlock(ns, func() nvme.Status {
		status := ns.zero(off, n, deallocate)
		if status == nvme.Success && durable {
			status = ns.sync()
		}
		return status
	})
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
		list := c.buf
		for at := 0; at < len(list); at += nvme.DSMRangeLen {
			if r, err := nvme.ParseDSMRange(list[at:]); err != nil {
				c.fail(nvme.InvalidField)
				return
			} else if _, _, ok := ns.span(r.SLBA, uint64(r.Blocks)); !ok {
				c.fail(nvme.LBAOutOfRange)
				return
			}
		}
		c.mayBlock(ns, func() nvme.Status {
			for at := 0; at < len(list); at += nvme.DSMRangeLen {
				r, _ := nvme.ParseDSMRange(list[at:])
				off, n, ok := ns.span(r.SLBA, uint64(r.Blocks))
				if !ok { // it has shrunk
					return nvme.LBAOutOfRange
				}
				if status := ns.discard(off, n); status != nvme.Success {
					return status
				}
			}
			return nvme.Success
		})
	})
}
