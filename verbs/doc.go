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
//		WRID: 1, Opcode: verbs.RDMAWrite, Flags: verbs.SendSignaled,
//		SGList:     []verbs.SGE{mr.SGE(0, 100)},
//		RemoteAddr: binary.BigEndian.Uint64(peer), RKey: binary.BigEndian.Uint32(peer[8:]),
//	})
//	var wcs [1]verbs.WC
//	n, err := conn.SendCQ().Wait(ctx, wcs[:]) // n is 1
//	fmt.Println(wcs[0].WRID, wcs[0].Err()) // 1 <nil>
//
// The examples of package rdmatransport are complete programs, with and without rdmacm.
//
// # Waiting
//
// There are four ways to wait for completions:
//
//   - [CQ.Wait] is for most programs: it waits with a context, and needs no channel.
//   - [CQ.Poll] in a loop has the lowest latency and occupies a processor. [CQ.StartPoll] does the
//     same one completion at a time, and also returns timestamps.
//   - [CompChannel.GetEvent] after [CQ.ReqNotify] waits for any of several CQs.
//   - [CompChannel.OnEvent] and [CQInitAttr].Ready are for a program that has an event loop of its
//     own, such as the drop-in C libraries: it waits for a descriptor or reads a word in memory.
//
// There are three ways to receive asynchronous events. [Device.GetAsyncEvent] waits for the next
// one. [Device.OnAsyncEvent] with [Device.TryGetAsyncEvent] is for an event loop. [Device.Watch]
// tells any number of packages about the device and its ports, and takes no event from the program.
//
// # Closing
//
// Each object ends with its method Close, whose errors its documentation lists. Close of an object
// that others still use returns [ErrBusy] and changes nothing, and a second Close returns
// [ErrClosed]. A usual order is therefore QPs, CQs, completion channels, memory regions, PDs,
// device.
//
// # Memory model
//
// The device reads and writes the memory of regions with ordinary accesses, on its own goroutines
// or on those that call Post, Poll, Wait or Progress. A race in the sense of the Go memory model is
// therefore possible between the program and the device. These rules avoid it. "A happens before B"
// has the meaning of https://go.dev/ref/mem.
//
// Ownership. From PostSend until the request's completion, its memory belongs to the device: the
// program must not write to it, and for a READ or an atomic, whose result the device writes, also
// not read it. With SendInline, the device has copied the data when PostSend returns. From PostRecv
// until the completion, the program must not access the memory. The program's writes before the
// post happen before the device's access. If the program changes the data of a request in flight,
// the peer may receive old and new bytes mixed, without an error: checksums cover the copy that is
// sent.
//
// Completions. Everything that the device has done for a request happens before the Poll or Wait
// that returns its completion. The program may then read received data, or reuse the memory. This
// includes requests that complete with an error and those flushed in state ERR. A request that was
// posted without SendSignaled is complete when Poll or Wait returns a later completion of its
// queue. An event of a completion channel, or Ready, only says that it is worth calling Poll.
//
// Data that peers write. A WRITE without immediate data causes no completion here. The device
// places the WRITEs and SENDs of one QP completely and in order. When Poll or Wait returns the
// completion of a receive request, of a SEND or of a WRITE with immediate data, all WRITEs that the
// peer posted earlier to the same QP are placed, and their placement happens before. On an
// unreliable QP, lost WRITEs are missing. There is no order between different QPs, and none for
// atomics, which the device may execute later than the WRITEs and SENDs after them.
//
// Completion at the sender. On RoCE, the completion of a WRITE on an RC QP says that the peer's
// device has placed the data. On iWARP, as for all unreliable services, the completion of a WRITE
// or SEND only says that the memory may be reused. The peer's program is not notified.
//
// Atomics. Remote atomics and [AtomicWrite] access their aligned 8 bytes as sync/atomic does, in
// the byte order of the host. The program accesses these bytes with sync/atomic too. An atomic
// executes after the placement of all WRITEs that the peer posted earlier to the same QP. A peer
// may therefore write data and then set a flag with an atomic. If the program's atomic.LoadUint64
// returns the flag's new value, the placement of the data happens before it.
//
// Polling memory. A loop that reads the last byte of a message until a WRITE changes it, as C
// programs do, is a data race in Go, which the race detector reports. The device copies with the
// runtime's memmove, which is not atomic for any size: the loop may see parts of the data, and the
// compiler may move its loads. Use a completion or an atomic instead.
//
// Memory that peers may read. The device reads it at any time while its rkey is valid. If the
// program writes to it meanwhile, the peer may receive old and new bytes mixed. If the program
// writes to it and then posts a message to a QP, the peer may answer with READs on the same QP. The
// program's writes happen before the device's reads for these READs.
//
// End. All accesses through the keys of a region happen before the return of [MR.Close], or of
// [MR.Rereg] of its memory. All accesses for a QP's requests happen before the return of
// [QP.Close].
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
// except for MaxInlineData. Methods of a closed object return [ErrClosed]. GetAsyncEvent
// acknowledges the event that it returns. [Device.PortCounters] and [Device.HWCounters] return the
// counters that Linux has in /sys/class/infiniband. [Device.Shutdown] closes connections, as a
// kernel does for a process that exits.
//
// # For providers
//
// Applications do not need [Provider], [ProviderQP], [ProviderAH], [ProviderFlow], [QPHandle],
// [RegisteredMR], [PostedSend], [PostedRecv], [BeginGuard] and [EndGuard]. They are in the files
// provider.go, provider_qp.go and provider_objects.go.
package verbs
