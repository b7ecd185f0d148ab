// Package fault makes an RDMA device fail on purpose, so that the error paths of a program can be
// tested: calls, work completions, asynchronous events, events of rdma_cm, and the state of the
// device. What fails is what fails on real cards, with the same errno, status or event.
//
//	faults, err := fault.New(dev, nil)
//	rules, err := fault.Parse("reg_mr=ENOMEM; wc:opcode=write,nth=100=RETRY_EXC_ERR")
//	err = faults.Add(rules...)
//
// [Parse] describes the rules. A device without a Device of this package loses no time: see
// verbs.Injector.
//
// # Sources
//
// Errnos of calls are those of the manual pages of rdma-core (ibv_post_send(3), rdma_connect(3) …)
// and of the kernel's ib_uverbs and rdma_ucm, which the libraries pass on. Statuses of completions
// are those of mlx5's error CQEs (mlx5_handle_error_cqe in rdma-core). Asynchronous events are
// those that mlx5's event queue has for Ethernet ports (mlx5_ib and rdma-core's
// ibv_get_async_event(3)). A removed device is one that ib_uverbs has disassociated: each command
// gets EIO, and a catastrophic event comes first; rdma_ucm reports the removal and continues. Its
// objects cannot be closed any more, so neither can the device: it ends with the process. A
// revoked region is mlx5's region of a dma-buf whose exporter takes the memory back. Package
// documentation of verbs says what a QP does then.
package fault
