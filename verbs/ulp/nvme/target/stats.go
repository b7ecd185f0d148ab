package target

import (
	"sync/atomic"

	"github.com/softrnic/softrnic/verbs/admission"
)

// counters count the commands of a queue.
type counters struct {
	reads, writes, readBytes, writtenBytes, copiedBytes, errors, unauthenticated atomic.Uint64
}

// add adds the counters of a queue that has ended.
func (c *counters) add(o *counters) {
	c.reads.Add(o.reads.Load())
	c.writes.Add(o.writes.Load())
	c.readBytes.Add(o.readBytes.Load())
	c.writtenBytes.Add(o.writtenBytes.Load())
	c.copiedBytes.Add(o.copiedBytes.Load())
	c.errors.Add(o.errors.Load())
	c.unauthenticated.Add(o.unauthenticated.Load())
}

// Stats are the numbers of a target.
type Stats struct {
	Controllers int // of the subsystem
	Discovering int // controllers of the discovery service
	Queues      int // connections
	Lost        int // namespaces that may have lost data

	// Since Listen:
	Reads, Writes           uint64 // commands
	ReadBytes, WrittenBytes uint64
	CopiedBytes             uint64 // of these; RDMA moves the others to and from the memory of a Memory
	Errors                  uint64 // commands that have failed
	Unauthenticated         uint64 // queues whose authentication has failed

	// What had to wait, because the hosts at its address, or all, had as much as they may.
	WaitedForMemory  uint64 // queues, each time
	WaitedForWorkers uint64 // operations of a backend

	// Admission has the places of connections. Those before authentication, before Connect, and with
	// the discovery service are strangers'.
	Admission admission.Stats
}

// Stats returns the numbers of the target.
func (t *Target) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	var sum counters
	sum.add(&t.retired)
	for q := range t.queues {
		sum.add(&q.counters)
	}
	s := Stats{
		Queues: len(t.queues), Reads: sum.reads.Load(), Writes: sum.writes.Load(), ReadBytes: sum.readBytes.Load(),
		WrittenBytes: sum.writtenBytes.Load(), CopiedBytes: sum.copiedBytes.Load(), Errors: sum.errors.Load(),
		Unauthenticated: sum.unauthenticated.Load(), Admission: t.gate.Stats(),
		WaitedForMemory: t.pool.waited.Load(), WaitedForWorkers: t.work.waited.Load(),
	}
	for _, ns := range t.namespaces {
		if ns.durability.hasLost() {
			s.Lost++
		}
	}
	for _, ctrl := range t.controllers {
		if ctrl.discovery {
			s.Discovering++
		} else {
			s.Controllers++
		}
	}
	return s
}
