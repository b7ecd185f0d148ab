// Package verbs is the RDMA verbs API in Go, with the objects, rules and names of libibverbs. It
// works over any [Provider], such as package rdmatransport. Package verbs/rdmacm is librdmacm in
// Go.
//
//	Device ─┬─ PD ─┬─ MR           memory that work requests and peers refer to by keys
//	        │      ├─ SRQ          receive requests for any number of QPs
//	        │      ├─ AH           the path to a peer, for datagrams
//	        │      └─ QP ─┬─ send queue ──────┐
//	        │             └─ receive queue ──┐│ completions
//	        ├─ CQ ◄──────────────────────────┴┘
//	        └─ CompChannel ◄── events of CQs for which ReqNotify was called
//
// An application registers memory, connects a QP, posts work requests, and waits for or polls their
// completions in a CQ. To connect a QP, it moves the QP from RESET through INIT and RTR to RTS,
// with the QP number, PSN and GID of its peer. Package rdmacm does this for programs that connect
// by IP address and port. A UD QP has no peer: each of its work requests has an address handle.
// Posting and polling allocate no memory.
//
// # Example
//
// This program writes 100 bytes to the memory of a peer, and waits until they are there. Error
// handling is omitted:
//
//	dev, err := rdmatransport.Open(host, nil) // host is a network stack: see package netstack
//	pd, err := dev.AllocPD()
//	buf := make([]byte, 4096)
//	mr, err := pd.RegMR(buf, verbs.AccessLocalWrite)
//	conn, err := rdmacm.Dial(ctx, dev, "10.0.0.2:7471", &rdmacm.Config{PD: pd})
//	peer := conn.Peer().PrivateData // here the address and rkey of its memory
//	err = conn.QP().PostSend(&verbs.SendWR{
//		ID: 1, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
//		SGList:     []verbs.SGE{mr.SGE(0, 100)},
//		RemoteAddr: binary.BigEndian.Uint64(peer), RKey: binary.BigEndian.Uint32(peer[8:]),
//	})
//	var wcs [1]verbs.WC
//	n, err := conn.SendCQ().Wait(ctx, wcs[:]) // n is 1
//	fmt.Println(wcs[0].WRID, wcs[0].Err()) // 1 <nil>
//
// The examples of package rdmatransport are complete programs, with and without rdmacm.
//
// # Names, values and errors
//
// Names are those of libibverbs in Go spelling: ibv_post_send is [QP.PostSend], IBV_WC_SUCCESS is
// [WCSuccess]. The file cnames.go lists the counterpart of each name in the C headers. Enumerations
// have the values of libibverbs, and their String methods return its names without the prefix.
//
// Errors name the operation, the argument, its value and its bound. They wrap a kind ([ErrInvalid],
// …) and the errno that libibverbs returns, for errors.Is. The Status of a completion reports the
// failure of a posted work request.
//
// Differences from libibverbs: inline data is passed as a slice, or needs an lkey like other data.
// A Go program cannot access memory by its address alone. Queues have exactly the requested sizes,
// except for MaxInlineData. Methods of a destroyed object return [ErrClosed]. GetAsyncEvent
// acknowledges the event that it returns. [Device.PortCounters] and [Device.HWCounters] return the
// counters that Linux has in /sys/class/infiniband. [Device.Shutdown] does what a kernel does for a
// process that exits.
//
// # For providers
//
// Applications do not need [Provider], [ProviderQP], [ProviderAH], [ProviderFlow], [QPHandle],
// [RegisteredMR], [PostedSend], [PostedRecv], [BeginGuard] and [EndGuard]. They are in the files
// provider.go, provider_qp.go and provider_objects.go.
package verbs
