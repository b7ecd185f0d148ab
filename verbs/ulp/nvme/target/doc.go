// Package target is an NVMe over Fabrics target: hosts, such as Linux's nvme-rdma, see its backends
// as block devices. It needs a verbs device whose provider supports rdma_cm, and works over RoCE
// and iWARP.
//
//	t, err := target.Listen(dev, ":4420", &target.Config{
//		NQN:        "nqn.2014-08.org.example:disk",
//		Namespaces: []target.Namespace{{Backend: target.NewMemory(1 << 30)}},
//	})
//	// on a Linux host: nvme connect -t rdma -a ADDRESS -s 4420 -n nqn.2014-08.org.example:disk
//
// A target has one subsystem and the discovery service. A host has a controller of the subsystem,
// with an Admin queue and I/O queues. Each queue has a connection with a QP, a CQ, and one
// goroutine, which receives commands and executes them if that does not block. Commands that may
// block, such as Flush, run on goroutines of their own. No queue waits for another queue's backend
// operations.
//
// Data moves by RDMA READs and WRITEs of this side, between memory that the host names in its
// commands and a pool of registered memory, or the memory of a [Memory]. Hosts get no key to memory
// of this side. The pool and the number of connections are limited: see Config. A command that
// finds the pool empty waits. A host that sends more commands than its queue holds, or none, loses
// its connection.
//
// The API is not promised yet: see package nvme.
package target
