// Package rdmacm is librdmacm in Go: it connects QPs by IP address and port, with the names and the rules of rdma_cm, on any
// verbs device whose provider implements [Provider].
//
// # Example
//
// A connection takes four calls, two on each side:
//
//	l, err := rdmacm.Listen(dev, ":7471", nil)                  conn, err := rdmacm.Dial(ctx, dev, "10.0.0.2:7471", nil)
//	conn, err := l.Accept(ctx)                                  err = conn.QP().PostSend(…)
//
// A [Config] sets the PD, CQs, private data and other options of a connection; its Prepare posts the first receive
// requests. Package rdmatransport has complete programs as examples.
//
// # IDs and events
//
// As in C, a program may also use an [ID] and its events. The active side calls ResolveAddr, ResolveRoute, CreateQP and
// Connect. The passive side calls Bind and Listen, and for each ConnectRequest CreateQP and Accept. Each call returns at
// once, and its outcome is an [Event] in the ID's [EventChannel]. The methods of a [SyncID] wait for that event.
//
//	idle ──Bind──► bound ──Listen──► listening ──ConnectRequest──► requested ─┬─Accept──► accepted ──► Established
//	  └──ResolveAddr─┴─► AddrResolved ──ResolveRoute──► RouteResolved         └─Reject
//	                                                        └─Connect──► [ConnectResponse ──Establish──►] Established
//	Established ──Disconnect, by either side──► Disconnected ──► TimewaitExit
//
// An ID that has a device may also get AddrChange, when its address is removed from the device, and at any time
// DeviceRemoval, after which it can only be destroyed.
//
// XRC uses port space IB, as in librdmacm. The sender calls CreateQP for an XRC_SEND QP. On the other side, the IDs of such
// requests have the QPType XRC_RECV; the program calls CreateXRCQP, and CreateSRQ for the SRQ that the peer sends to. It
// tells the peer the SRQ's number, for example in the private data.
//
// # Names and errors
//
// Names are those of librdmacm, spelt as in Go: rdma_resolve_addr is [ID.ResolveAddr]. The file cnames.go of package verbs
// lists what stands for each name of the C headers. Errors wrap the errno that librdmacm returns.
//
// Unlike librdmacm: devices are given, not looked for; Destroy destroys the ID's QP too; a port that is in use is
// EADDRINUSE also for an unspecified address; a call that fails changes nothing.
//
// # For providers
//
// Applications do not need [Provider], [ProviderConn], [Handler], [ConnEvent], [ListenAttr] and [ConnectAttr]. They are in
// the file provider.go.
package rdmacm
