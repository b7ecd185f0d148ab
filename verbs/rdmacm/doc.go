// Package rdmacm is rdma_cm in Go: connections of QPs by address and port, with the names and the rules of librdmacm,
// over any verbs device whose provider implements [Provider].
//
// The short way is four calls, two on each side:
//
//	l, err := rdmacm.Listen(dev, ":7471", nil)                  conn, err := rdmacm.Dial(ctx, dev, "10.0.0.2:7471", nil)
//	conn, err := l.Accept(ctx)                                  err = conn.QP().PostSend(…)
//
// A [Config] gives PD, CQs, private data and what else a connection has; its Prepare posts the first receives.
//
// The long way is an [ID] and its events, as in C. The active side calls ResolveAddr, ResolveRoute, CreateQP, Connect;
// the passive side Bind, Listen, and for each ConnectRequest CreateQP, Accept. Each call returns at once, and its
// outcome is an [Event] in the ID's [EventChannel]; the calls of a [SyncID] wait for it instead.
//
//	idle ──Bind──► bound ──Listen──► listening ──ConnectRequest──► requested ─┬─Accept──► accepted ──► Established
//	  └──ResolveAddr─┴─► AddrResolved ──ResolveRoute──► RouteResolved         └─Reject
//	                                                        └─Connect──► [ConnectResponse ──Establish──►] Established
//	Established ──Disconnect, by either side──► Disconnected ──► TimewaitExit
//
// An ID that is on a device may also get AddrChange, when its address is taken from the device, and at any time
// DeviceRemoval, after which it can only be destroyed.
//
// XRC is in port space IB, as in librdmacm: who sends calls CreateQP for an XRC_SEND QP, and the listener's IDs, whose
// QPType is XRC_RECV, CreateXRCQP, and CreateSRQ for what is sent to. Its number goes into the private data.
//
// Names are those of librdmacm, spelt as Go:
//
//	rdma_create_event_channel, rdma_destroy_…      CreateEventChannel, EventChannel.Destroy
//	rdma_get_cm_event, rdma_ack_cm_event           EventChannel.GetEvent, Event.Ack
//	rdma_event_str                                 EventType.String
//	rdma_get_devices, rdma_free_devices            EventChannel.Devices
//	rdma_create_id, rdma_destroy_id                EventChannel.CreateID, CreateSyncID, ID.Destroy
//	rdma_migrate_id                                ID.Migrate, ID.Synchronous, SyncID.Migrate
//	rdma_bind_addr, rdma_listen                    ID.Bind, ID.Listen
//	rdma_getaddrinfo                               LookupHost
//	rdma_resolve_addr, rdma_resolve_route          ID.ResolveAddr, ID.ResolveHost, ID.ResolveRoute
//	rdma_create_qp, rdma_create_qp_ex              ID.CreateQP, ID.CreateXRCQP
//	rdma_destroy_qp                                ID.DestroyQP
//	rdma_create_srq, rdma_create_srq_ex            ID.CreateSRQ
//	rdma_destroy_srq                               ID.DestroySRQ
//	rdma_init_qp_attr                              ID.QPAttr
//	rdma_connect, rdma_establish                   ID.Connect, ID.Establish
//	rdma_get_request                               SyncID.GetRequest
//	rdma_accept, rdma_reject                       ID.Accept, ID.Reject
//	rdma_disconnect, rdma_notify                   ID.Disconnect, ID.Notify
//	rdma_join_multicast, rdma_leave_multicast      ID.JoinMulticast, ID.LeaveMulticast
//	rdma_get_local_addr, rdma_get_src_port         ID.LocalAddr
//	rdma_get_peer_addr, rdma_get_dst_port          ID.PeerAddr
//	rdma_set_option                                ID.SetTOS, SetReuseAddr, SetAFOnly, SetAckTimeout
//	rdma_create_ep, rdma_destroy_ep                Dial, Listen, Conn.Close
//
// Unlike librdmacm: devices are given, not found; Destroy takes the ID's QP along; a port in use is EADDRINUSE, on a
// wildcard address too; a bad call changes nothing and its error wraps the errno that librdmacm gives.
package rdmacm
