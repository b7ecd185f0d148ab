// Package host is an NVMe over Fabrics host: it uses the namespaces of a target, such as Linux's
// nvmet or package target, as block devices of this program. It needs a verbs device whose provider
// supports rdma_cm, and works over RoCE and iWARP.
//
//	c, err := host.Dial(ctx, dev, "10.0.0.1:4420", &host.Config{NQN: "nqn.2014-08.org.example:disk"})
//	ns, err := c.Namespace(ctx, 1)
//	n, err := ns.ReadAt(buf, 0) // io.ReaderAt, in whole blocks
//
// A [Controller] has an Admin queue and I/O queues. Each queue has a connection with a QP and a CQ.
// Any number of goroutines may use a [Namespace]. Each command is sent on the caller's goroutine,
// and the goroutines that wait for responses poll the CQ themselves, one of them at a time. A
// program that keeps many commands outstanding on one goroutine uses a [Queue].
//
// # Memory
//
// Data of up to 8 KiB moves through memory of the command's slot. Data that is written is part of
// the command capsule then, if the target supports it. Longer data moves through a pool of
// registered memory, or without a copy if the application registers its memory with
// [Controller.Register]. The target has the key of such memory until it is closed. With
// Config.Windows it has one only while a command uses the memory, and invalidates it with the
// response.
//
// # Failures
//
// A command that the controller completes with a status fails with a *nvme.StatusError. If a
// connection is lost, a command is not completed within Config.Timeout, or the target violates the
// protocol, all queues of the controller end. Commands then fail with a [LostError], until
// [Controller.Reset] connects again.
//
// If the ctx of a command ends first, the command fails with its error. Memory of this package
// stays reserved until the response. If the command uses memory of the application, all queues end,
// because the target may still access that memory.
//
// The API is not promised yet: see package nvme.
package host
