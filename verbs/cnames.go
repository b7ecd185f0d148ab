package verbs

// This file lists the counterpart of each function, structure and enumeration of libibverbs and
// librdmacm. TestNamesOfC keeps the list complete. "none" means that there is no counterpart, for
// the given reason.
//
// Functions of verbs.h:
//
//	ibv_get_device_list, ibv_free_device_list           none: a program passes a provider to Open
//	ibv_get_device_name, ibv_get_device_guid            Device.Name, DeviceAttr.NodeGUID
//	ibv_get_device_index                                none: the kernel assigns it
//	ibv_open_device, ibv_close_device                   Open, Device.Close
//	ibv_import_device, ibv_import_pd, ibv_unimport_pd,  none: a device belongs to one process
//	ibv_import_mr, ibv_unimport_mr, ibv_import_dm,
//	ibv_unimport_dm
//	ibv_fork_init, ibv_is_fork_initialized              none: a Go program does not fork
//	ibv_static_providers                                none: a program imports the provider that it uses
//	ibv_query_device, ibv_query_device_ex               Device.QueryDevice, Device.QueryDeviceEx
//	ibv_query_rt_values_ex                              Device.RawClock
//	ibv_query_port                                      Device.QueryPort
//	ibv_query_gid, ibv_query_gid_ex,                    Device.QueryGID, Device.GIDTable
//	ibv_query_gid_table
//	ibv_query_pkey                                      Device.QueryPKey
//	ibv_get_pkey_index                                  none: Ethernet has one P_Key, at index 0
//	ibv_node_type_str, ibv_port_state_str,              NodeType.String, PortState.String, AsyncEventType.String
//	ibv_event_type_str
//	ibv_get_async_event, ibv_ack_async_event            Device.GetAsyncEvent, Device.TryGetAsyncEvent, AsyncEvent.Ack
//	ibv_alloc_pd, ibv_dealloc_pd                        Device.AllocPD, PD.Close
//	ibv_alloc_td, ibv_dealloc_td,                       none: uncontended locks are cheap
//	ibv_alloc_parent_domain
//	ibv_open_xrcd, ibv_close_xrcd, ibv_open_qp          Device.OpenXRCD, XRCD.Close, XRCD.OpenQP
//	ibv_get_srq_num, ibv_wr_set_xrc_srqn                SRQ.Num, SendWR.RemoteSRQN
//	ibv_reg_mr, ibv_reg_mr_iova, ibv_reg_mr_iova2,      PD.RegMR, PD.RegMREx, MRInitAttr.IOVA, MR.Close
//	ibv_dereg_mr
//	ibv_rereg_mr, ibv_alloc_null_mr                     MR.Rereg, PD.AllocNullMR
//	ibv_reg_dmabuf_mr                                   none: there is no other device to share memory with;
//	                                                    MRInitAttr.Mapped is for memory that is not Go's
//	ibv_advise_mr                                       none: the device has no page tables to prefetch into
//	ibv_alloc_dm, ibv_free_dm, ibv_reg_dm_mr,           none: a software device has no memory of its own
//	ibv_memcpy_to_dm, ibv_memcpy_from_dm
//	ibv_alloc_mw, ibv_dealloc_mw, ibv_bind_mw,          PD.AllocMW, MW.Close, QP.BindMW, IncRKey
//	ibv_inc_rkey
//	ibv_create_comp_channel, ibv_destroy_comp_channel   Device.CreateCompChannel, CompChannel.Close
//	ibv_get_cq_event, ibv_ack_cq_events                 CompChannel.GetEvent, CompChannel.TryGetEvent,
//	                                                    CQ.AckEvents
//	ibv_create_cq, ibv_create_cq_ex, ibv_destroy_cq     Device.CreateCQ, CQ.Close
//	ibv_resize_cq, ibv_modify_cq                        CQ.Resize, CQ.Modify
//	ibv_cq_ex_to_cq, ibv_qp_to_qp_ex                    none: there is one kind of each
//	ibv_poll_cq, ibv_req_notify_cq                      CQ.Poll, CQ.ReqNotify
//	ibv_start_poll, ibv_next_poll, ibv_end_poll         CQ.StartPoll, Poller.Next, Poller.End
//	ibv_wc_read_completion_ts,                          Poller.CompletionTS, Poller.CompletionWallclock
//	ibv_wc_read_completion_wallclock_ns
//	ibv_wc_read_opcode, ibv_wc_read_vendor_err,         WC.Opcode, WC.VendorErr, WC.ByteLen
//	ibv_wc_read_byte_len
//	ibv_wc_read_imm_data, ibv_wc_read_invalidated_rkey  WC.ImmData, WC.InvalidatedRKey
//	ibv_wc_read_qp_num, ibv_wc_read_src_qp,             WC.QPNum, WC.SrcQP, WC.Flags
//	ibv_wc_read_wc_flags
//	ibv_wc_read_slid, ibv_wc_read_sl,                   WC.SLID, WC.SL, WC.DLIDPathBits
//	ibv_wc_read_dlid_path_bits
//	ibv_wc_read_cvlan, ibv_wc_read_flow_tag             WC.CVLAN, WC.FlowTag
//	ibv_wc_read_tm_info                                 none: no provider has tag matching
//	ibv_wc_status_str                                   WCStatus.Description, WCStatus.String
//	ibv_create_srq, ibv_create_srq_ex, ibv_destroy_srq  PD.CreateSRQ, SRQ.Close
//	ibv_modify_srq, ibv_query_srq, ibv_post_srq_recv    SRQ.Modify, SRQ.Query, SRQ.PostRecv
//	ibv_post_srq_ops                                    none: no provider has tag matching
//	ibv_create_qp, ibv_create_qp_ex, ibv_destroy_qp     PD.CreateQP, QP.Close
//	ibv_is_qpt_supported                                none: CreateQP says so with ErrNotSupported
//	ibv_modify_qp, ibv_query_qp                         QP.Modify, QP.Query
//	ibv_modify_qp_rate_limit                            QPAttr.RateLimit
//	ibv_query_qp_data_in_order                          none: data is placed in the order in which packets arrive
//	ibv_query_ece, ibv_set_ece                          none: no provider has options
//	ibv_post_send, ibv_post_recv                        QP.PostSend, QP.PostRecv
//	ibv_wr_start, ibv_wr_complete, ibv_wr_abort         QP.PostSendAll
//	ibv_wr_send, ibv_wr_send_imm, ibv_wr_send_inv       Send, SendWithImm, SendWithInv
//	ibv_wr_rdma_write, ibv_wr_rdma_write_imm,           RDMAWrite, RDMAWriteWithImm, RDMARead
//	ibv_wr_rdma_read
//	ibv_wr_atomic_cmp_swp, ibv_wr_atomic_fetch_add      AtomicCmpAndSwp, AtomicFetchAndAdd
//	ibv_wr_atomic_write, ibv_wr_flush                   AtomicWrite, Flush
//	ibv_wr_bind_mw, ibv_wr_local_inv                    BindMW, LocalInv
//	ibv_wr_set_sge, ibv_wr_set_sge_list                 SendWR.SGList
//	ibv_wr_set_inline_data,                             SendWR.InlineData
//	ibv_wr_set_inline_data_list
//	ibv_wr_set_ud_addr                                  SendWR.AH, SendWR.RemoteQPN, SendWR.RemoteQKey
//	ibv_wr_send_tso                                     none: no provider has TSO of raw packets
//	ibv_create_ah, ibv_destroy_ah                       PD.CreateAH, AH.Close
//	ibv_init_ah_from_wc, ibv_create_ah_from_wc          Device.InitAHFromWC, PD.CreateAHFromWC
//	ibv_resolve_eth_l2_from_gid                         none: a provider resolves neighbours itself
//	ibv_flow_label_to_udp_sport                         none: a provider chooses the source port
//	ibv_attach_mcast, ibv_detach_mcast                  QP.AttachMcast, QP.DetachMcast
//	ibv_rate_to_mbps, ibv_rate_to_mult                  none: Ethernet has no static rates
//	ibv_create_wq, ibv_destroy_wq, ibv_modify_wq,       none: no provider has RSS
//	ibv_post_wq_recv, ibv_create_rwq_ind_table,
//	ibv_destroy_rwq_ind_table
//	ibv_create_flow, ibv_destroy_flow                   QP.CreateFlow, Flow.Close
//	ibv_create_flow_action_esp,                         none: no provider has IPsec offload
//	ibv_modify_flow_action_esp,
//	ibv_destroy_flow_action
//	ibv_create_counters, ibv_destroy_counters,          none: flows have no counters
//	ibv_attach_counters_point_flow, ibv_read_counters
//
// Structures of verbs.h:
//
//	ibv_context, ibv_device                             Device
//	ibv_device_attr, ibv_device_attr_ex,                DeviceAttr, DeviceAttrEx, PortAttr
//	ibv_query_device_ex_input, ibv_port_attr
//	ibv_values_ex                                       Device.RawClock
//	ibv_odp_caps, ibv_cq_moderation_caps                ODPCaps, DeviceAttrEx.CQModeration
//	ibv_gid, ibv_gid_entry                              GID, GIDEntry
//	ibv_context_ops                                     Provider
//	ibv_pd                                              PD
//	ibv_td, ibv_td_init_attr,                           none: uncontended locks are cheap
//	ibv_parent_domain_init_attr
//	ibv_mr, ibv_mw, ibv_mw_bind, ibv_mw_bind_info       MR, MW, MWBind, MWBindInfo
//	ibv_cq, ibv_cq_ex, ibv_cq_init_attr_ex,             CQ, CQInitAttr, Poller
//	ibv_poll_cq_attr
//	ibv_moderate_cq, ibv_modify_cq_attr                 CQModeration
//	ibv_wc, ibv_comp_channel                            WC, CompChannel
//	ibv_qp, ibv_qp_ex, ibv_qp_init_attr,                QP, QPInitAttr
//	ibv_qp_init_attr_ex
//	ibv_qp_attr, ibv_qp_cap, ibv_qp_rate_limit_attr     QPAttr, QPCap, QPAttr.RateLimit
//	ibv_sge, ibv_send_wr, ibv_recv_wr                   SGE, SendWR, RecvWR
//	ibv_data_buf                                        none: InlineData is a slice
//	ibv_srq, ibv_srq_attr, ibv_srq_init_attr,           SRQ, SRQAttr, SRQInitAttr
//	ibv_srq_init_attr_ex
//	ibv_ah, ibv_ah_attr, ibv_global_route, ibv_grh      AH, AHAttr, GRH, GRHLen
//	ibv_async_event                                     AsyncEvent
//	ibv_ece                                             none: no provider has options
//	ibv_xrcd                                            XRCD
//	ibv_xrcd_init_attr, ibv_qp_open_attr                none: arguments of Device.OpenXRCD, XRCD.OpenQP
//	ibv_alloc_dm_attr, ibv_dm                           none: a software device has no memory of its own
//	ibv_packet_pacing_caps                              PacketPacingCaps
//	ibv_rss_caps, ibv_tso_caps, ibv_pci_atomic_caps     none: no provider has these
//	ibv_tm_cap, ibv_tm_caps, ibv_ops_wr,                none: no provider has tag matching
//	ibv_wc_tm_info
//	ibv_rwq_ind_table, ibv_rwq_ind_table_init_attr,     none: no provider has RSS
//	ibv_rx_hash_conf, ibv_wq, ibv_wq_attr,
//	ibv_wq_init_attr
//	ibv_counters                                        none: flows have no counters
//	ibv_counter_attach_attr, ibv_counters_init_attr     none: flows have no counters
//	ibv_flow, ibv_flow_attr, ibv_flow_spec              Flow, FlowAttr, FlowSpec
//	ibv_flow_spec_eth, ibv_flow_eth_filter              FlowSpecEth, FlowEthFilter
//	ibv_flow_spec_ipv4, ibv_flow_ipv4_filter            FlowSpecIPv4, FlowIPv4Filter
//	ibv_flow_spec_ipv4_ext, ibv_flow_ipv4_ext_filter    FlowSpecIPv4Ext, FlowIPv4ExtFilter
//	ibv_flow_spec_ipv6, ibv_flow_ipv6_filter            FlowSpecIPv6, FlowIPv6Filter
//	ibv_flow_spec_tcp_udp, ibv_flow_tcp_udp_filter      FlowSpecTCP, FlowSpecUDP, FlowTCPUDPFilter
//	ibv_flow_spec_action_tag,                           FlowSpecActionTag, FlowSpecActionDrop
//	ibv_flow_spec_action_drop
//	ibv_flow_spec_counter_action                        none: flows have no counters
//	ibv_flow_action, ibv_flow_action_esp_attr,          none: no provider has IPsec offload
//	ibv_flow_spec_action_handle, ibv_flow_spec_esp,
//	ibv_flow_esp_filter
//	ibv_flow_spec_tunnel, ibv_flow_tunnel_filter,       none: no provider parses tunnels
//	ibv_flow_spec_gre, ibv_flow_gre_filter,
//	ibv_flow_spec_mpls, ibv_flow_mpls_filter
//
// Functions and structures of rdma_cma.h and rdma_verbs.h:
//
//	rdma_create_event_channel,                          rdmacm.CreateEventChannel, rdmacm.EventChannel.Close
//	rdma_destroy_event_channel
//	rdma_get_cm_event, rdma_ack_cm_event,               rdmacm.EventChannel.GetEvent, rdmacm.EventChannel.TryGetEvent,
//	rdma_event_str                                      rdmacm.Event.Ack, rdmacm.EventType.String
//	rdma_get_devices, rdma_free_devices                 rdmacm.EventChannel.Devices
//	rdma_create_id, rdma_destroy_id, rdma_migrate_id    rdmacm.EventChannel.CreateID, rdmacm.ID.Close,
//	                                                    rdmacm.ID.Migrate
//	rdma_create_ep, rdma_destroy_ep                     rdmacm.Dial, rdmacm.Listen, rdmacm.Conn.Close
//	rdma_getaddrinfo, rdma_freeaddrinfo                 rdmacm.LookupHost
//	rdma_bind_addr, rdma_listen, rdma_get_request       rdmacm.ID.Bind, rdmacm.ID.Listen, rdmacm.SyncID.GetRequest
//	rdma_resolve_addr, rdma_resolve_route               rdmacm.ID.ResolveAddr, rdmacm.ID.ResolveRoute
//	rdma_create_qp, rdma_create_qp_ex,                  rdmacm.ID.CreateQP, rdmacm.ID.CreateXRCQP, rdmacm.ID.CloseQP,
//	rdma_destroy_qp, rdma_init_qp_attr                  rdmacm.ID.QPAttr
//	rdma_connect, rdma_establish, rdma_accept,          rdmacm.ID.Connect, rdmacm.ID.Establish, rdmacm.ID.Accept,
//	rdma_reject                                         rdmacm.ID.Reject
//	rdma_disconnect, rdma_notify                        rdmacm.ID.Disconnect, rdmacm.ID.Notify
//	rdma_get_local_addr, rdma_get_src_port,             rdmacm.ID.LocalAddr, rdmacm.ID.PeerAddr
//	rdma_get_peer_addr, rdma_get_dst_port
//	rdma_set_option                                     rdmacm.ID.SetTOS, rdmacm.ID.SetReuseAddr,
//	                                                    rdmacm.ID.SetAFOnly, rdmacm.ID.SetAckTimeout
//	rdma_join_multicast, rdma_join_multicast_ex,        rdmacm.ID.JoinMulticast, rdmacm.ID.LeaveMulticast
//	rdma_leave_multicast
//	rdma_get_remote_ece, rdma_set_local_ece,            none: no provider has options for ECE
//	rdma_reject_ece
//	rdma_create_srq, rdma_create_srq_ex,                rdmacm.ID.CreateSRQ, rdmacm.ID.CloseSRQ, rdmacm.Config.SRQ
//	rdma_destroy_srq
//	rdma_reg_msgs, rdma_reg_read, rdma_reg_write,       PD.RegMR, MR.Close
//	rdma_dereg_mr
//	rdma_post_send, rdma_post_sendv,                    QP.PostSend
//	rdma_post_ud_send, rdma_post_read,
//	rdma_post_readv, rdma_post_write, rdma_post_writev
//	rdma_post_recv, rdma_post_recvv,                    QP.PostRecv, CQ.Poll
//	rdma_get_send_comp, rdma_get_recv_comp
//	rdma_seterrno                                       none: errors are returned
//	rdma_cm_id, rdma_event_channel, rdma_cm_event       rdmacm.ID, rdmacm.EventChannel, rdmacm.Event
//	rdma_conn_param, rdma_ud_param                      rdmacm.ConnParam, rdmacm.Event
//	rdma_addr, rdma_route, rdma_addrinfo                rdmacm.Route
//	rdma_ib_addr                                        none: it is for InfiniBand's GIDs and P_Keys
//	rdma_cm_join_mc_attr_ex                             rdmacm.ID.JoinMulticast,
//	                                                    rdmacm.ID.JoinMulticastSendOnly
//
// Enumerations:
//
//	ibv_wc_status, ibv_wc_opcode, ibv_wc_flags          WCStatus, WCOpcode, WCFlags
//	ibv_wr_opcode, ibv_send_flags                       WROpcode, SendFlags
//	ibv_event_type                                      AsyncEventType
//	ibv_qp_type, ibv_qp_state, ibv_mig_state            QPType, QPState, MigState
//	ibv_qp_attr_mask, ibv_srq_attr_mask                 QPAttrMask, SRQAttrMask
//	ibv_qp_create_flags                                 QPInitAttr.BlockSelfMcastLB
//	ibv_srq_type                                        SRQInitAttr.XRCD
//	ibv_access_flags, ibv_rereg_mr_flags                Access, ReregFlags
//	ibv_rereg_mr_err_code                               none: a Rereg with an invalid argument changes nothing
//	ibv_mw_type, ibv_gid_type                           MWType, GIDType
//	ibv_device_cap_flags, ibv_atomic_cap                DeviceCapFlags, AtomicCap
//	ibv_node_type, ibv_transport_type                   NodeType, Transport
//	ibv_port_state, ibv_mtu                             PortState, MTU
//	ibv_port_cap_flags, ibv_port_cap_flags2             PortAttr.PortCapFlags, PortAttr.PortCapFlags2
//	ibv_rate                                            AHAttr.StaticRate
//	ibv_odp_general_caps, ibv_odp_transport_cap_bits    ODPCaps
//	ibv_placement_type, ibv_selectivity_level           FlushType, FlushLevel
//	ibv_flow_attr_type, ibv_flow_flags                  FlowAttrType, FlowFlags
//	ibv_flow_spec_type                                  FlowSpec
//	ibv_counter_description                             none: flows have no counters
//	ibv_read_counters_flags                             none: flows have no counters
//	ibv_cq_attr_mask, ibv_cq_init_attr_mask,            none: a zero field is not set
//	ibv_parent_domain_init_attr_mask,
//	ibv_qp_init_attr_mask, ibv_qp_open_attr_mask,
//	ibv_srq_init_attr_mask, ibv_values_mask,
//	ibv_xrcd_init_attr_mask
//	ibv_create_cq_attr_flags                            none: any number of goroutines may use a CQ, and an overrun
//	                                                    is an error
//	ibv_create_cq_wc_flags                              none: a completion has all its fields
//	ibv_qp_create_send_ops_flags                        none: a QP has all operations of its type
//	ibv_raw_packet_caps                                 none: no provider strips VLAN tags or scatters checksums
//	ibv_fork_status                                     none: a Go program does not fork
//	ibv_dm_mask                                         none: a software device has no memory of its own
//	ibv_advise_mr_advice                                none: the device has no page tables to prefetch into
//	ibv_pci_atomic_op_size                              none: no provider is on PCI
//	ibv_ops_flags, ibv_ops_wr_opcode, ibv_tm_cap_flags  none: no provider has tag matching
//	ibv_ind_table_init_attr_mask, ibv_rx_hash_fields,   none: no provider has RSS
//	ibv_rx_hash_function_flags, ibv_wq_attr_mask,
//	ibv_wq_flags, ibv_wq_init_attr_mask, ibv_wq_state,
//	ibv_wq_type
//	ibv_flow_action_esp_mask, ibv_flow_action_esp,      none: no provider has IPsec offload
//	ibv_flow_action_esp_encap,
//	ibv_flow_action_esp_flags,
//	ibv_flow_action_esp_keymat,
//	ibv_flow_action_esp_keymat_aes_gcm,
//	ibv_flow_action_esp_keymat_aes_gcm_iv_algo,
//	ibv_flow_action_esp_replay,
//	ibv_flow_action_esp_replay_bmp
//	rdma_cm_event_type, rdma_port_space                 rdmacm.EventType, rdmacm.PortSpace
//	rdma_cm_mc_join_flags, rdma_cm_join_mc_attr_mask    rdmacm.ID.JoinMulticastSendOnly
