// Package verbs is the RDMA verbs in Go: the objects, rules and names of libibverbs, over any [Provider].
//
//	Device ─┬─ PD ─┬─ MR           memory that work requests and peers name by keys
//	        │      └─ QP ─┬─ send queue ──────┐
//	        │             └─ receive queue ──┐│ completions
//	        ├─ CQ ◄──────────────────────────┴┘
//	        └─ CompChannel ◄── events of CQs that asked
//
// An application registers memory, connects a QP by moving it RESET → INIT → RTR → RTS with what its peer told it,
// posts work requests and polls for their completions. Posting and polling allocate nothing.
//
// Names are those of libibverbs, spelt as Go:
//
//	ibv_open_device, ibv_close_device          Open, Device.Close
//	ibv_query_device, _port, _gid, _gid_table  Device.QueryDevice, QueryPort, QueryGID, GIDTable
//	ibv_get_async_event                        Device.GetAsyncEvent
//	ibv_alloc_pd, ibv_dealloc_pd               Device.AllocPD, PD.Dealloc
//	ibv_reg_mr, ibv_reg_mr_iova, ibv_dereg_mr  PD.RegMR, PD.RegMRIOVA, MR.Dereg
//	ibv_create_comp_channel, ibv_destroy_…     Device.CreateCompChannel, CompChannel.Destroy
//	ibv_get_cq_event, ibv_ack_cq_events        CompChannel.GetEvent, CQ.AckEvents
//	ibv_create_cq, ibv_destroy_cq              Device.CreateCQ, CQ.Destroy
//	ibv_poll_cq, ibv_req_notify_cq             CQ.Poll, CQ.RequestNotify
//	ibv_create_qp, ibv_destroy_qp              PD.CreateQP, QP.Destroy
//	ibv_modify_qp, ibv_query_qp                QP.Modify, QP.Query
//	ibv_post_send, ibv_post_recv               QP.PostSend, QP.PostRecv
//	ibv_wc_status_str                          WCStatus.String (the name), WCStatus.Description
//
// Enumerations have the values of ibverbs, and their String is its name without the prefix. Errors wrap a kind
// ([ErrInvalid], …) and the errno that libibverbs would give.
//
// Unlike libibverbs: inline data is found through its lkey, as other data is, because an address alone means
// nothing in Go; queues have exactly the sizes asked for; a destroyed object answers [ErrDestroyed].
package verbs
