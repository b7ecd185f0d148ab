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
// goroutine, which receives commands and executes them if that does not block. What may block runs
// on other goroutines, of which hosts have a limited number, and in turn. Flushes share a Sync of
// the backend.
//
// A reply that promises that data is stored is true. Once a backend has failed to store what hosts
// have written, no Flush, write with FUA or shutdown of any host succeeds, until the target is
// started with the backend opened again: see Syncer.
//
// Data moves by RDMA READs and WRITEs of this side, between memory that the host names in its
// commands and a pool of registered memory, or the memory of a [Memory]. Hosts get no key to memory
// of this side. The pool and the number of connections are limited: see Config. A command that
// finds the pool empty waits. A host that sends more commands than its queue holds, or none, loses
// its connection.
//
// On a simulated network (link/fabric), goroutines take turns, and what a backend does takes no
// virtual time. A backend other than Memory may wait by the device's clock (verbs.Clock.Park), as
// for a disk.
//
// The API is not promised yet: see package nvme.
package target
