// Package rdmacm is librdmacm in Go. It connects QPs by IP address and port, with the names and
// rules of rdma_cm. It supports any verbs device whose provider implements [Provider].
//
// # Example
//
// A connection takes four calls, two on each side:
//
//	l, err := rdmacm.Listen(dev, ":7471", nil) // passive side
//	conn, err := l.Accept(ctx)
//
//	conn, err := rdmacm.Dial(ctx, dev, "10.0.0.2:7471", nil) // active side
//	err = conn.QP().PostSend(…)
//
// A [Config] sets the PD, CQs, private data and other options of a connection; its Prepare posts
// the first receive requests. Package rdmatransport has complete programs as examples.
//
// # IDs and events
//
// As in C, a program may also use an [ID] and its events. The active side calls ResolveAddr,
// ResolveRoute, CreateQP and Connect. The passive side calls Bind and Listen, and for each
// ConnectRequest CreateQP and Accept. Each call returns immediately, and its outcome is an [Event]
// in the ID's [EventChannel]. The methods of a [SyncID] wait for this event.
//
//	idle ─Bind─► bound ─Listen─► listening ─ConnectRequest─► requested ─┬─Accept─► Established
//	 └─ResolveAddr─┴─► AddrResolved ─ResolveRoute─► RouteResolved       └─Reject
//	                                                 └─Connect─► [ConnectResponse ─Establish─►]
//	                                                             Established
//	Established ─Disconnect, by either side─► Disconnected ─► TimewaitExit
//
// If the peer takes back a ConnectRequest, its ID gets no event before Accept, which then fails;
// Done tells it. An ID that has a device also gets AddrChange when its address is removed from the
// device. At any time it may get DeviceRemoval, after which it can only be closed.
//
// XRC uses port space IB, as in librdmacm. The sender calls CreateQP for an XRC_SEND QP. On the
// other side, the IDs of such requests have the QPType XRC_RECV. The program calls CreateXRCQP, and
// CreateSRQ for the SRQ that the peer sends to. It sends the SRQ's number to the peer, for example
// in the private data.
//
// # Names and errors
//
// Names are those of librdmacm in Go spelling: rdma_resolve_addr is [ID.ResolveAddr]. The file
// cnames.go of package verbs lists the counterpart of each name in the C headers. Errors wrap the
// errno that librdmacm returns.
//
// Differences from librdmacm: the program passes the devices; Close also closes the ID's QP; a call
// that fails changes nothing.
//
// # For providers
//
// Applications do not need [Provider], [ProviderConn], [Handler], [ConnEvent], [ListenAttr] and
// [ConnectAttr]. They are in the file provider.go.
package rdmacm
