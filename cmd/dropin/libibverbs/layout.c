// The engine reads and writes some of libibverbs' structures directly. Here the compiler checks
// that softrnic.h and the installed <infiniband/verbs.h> describe them in the same way. Structures
// that grow from release to release are described here as in the newest; what is missing in the
// installed one is not checked.
#include "front.h"

#define SIZE(ours, theirs) _Static_assert(sizeof(ours) == sizeof(theirs), "the size of " #ours)
#define FIELD(ours, f, theirs, g) _Static_assert(offsetof(ours, f) == offsetof(theirs, g), #ours "." #f)

SIZE(struct sr_device_attr, struct ibv_device_attr);
FIELD(struct sr_device_attr, node_guid, struct ibv_device_attr, node_guid);
FIELD(struct sr_device_attr, max_qp, struct ibv_device_attr, max_qp);
FIELD(struct sr_device_attr, atomic_cap, struct ibv_device_attr, atomic_cap);
FIELD(struct sr_device_attr, max_srq_sge, struct ibv_device_attr, max_srq_sge);
FIELD(struct sr_device_attr, phys_port_cnt, struct ibv_device_attr, phys_port_cnt);

// Programs pass the size of theirs (query_port in device.c).
_Static_assert(sizeof(struct ibv_port_attr) == offsetof(struct sr_port_attr, active_speed_ex) ||
	sizeof(struct ibv_port_attr) == sizeof(struct sr_port_attr), "the size of struct sr_port_attr");
FIELD(struct sr_port_attr, gid_tbl_len, struct ibv_port_attr, gid_tbl_len);
FIELD(struct sr_port_attr, pkey_tbl_len, struct ibv_port_attr, pkey_tbl_len);
FIELD(struct sr_port_attr, lmc, struct ibv_port_attr, lmc);
FIELD(struct sr_port_attr, link_layer, struct ibv_port_attr, link_layer);
FIELD(struct sr_port_attr, port_cap_flags2, struct ibv_port_attr, port_cap_flags2);

SIZE(struct sr_gid_entry, struct ibv_gid_entry);
FIELD(struct sr_gid_entry, type, struct ibv_gid_entry, gid_type);

SIZE(struct sr_qp_cap, struct ibv_qp_cap);
SIZE(struct sr_ah_attr, struct ibv_ah_attr);
FIELD(struct sr_ah_attr, flow_label, struct ibv_ah_attr, grh.flow_label);
FIELD(struct sr_ah_attr, dlid, struct ibv_ah_attr, dlid);
FIELD(struct sr_ah_attr, port_num, struct ibv_ah_attr, port_num);

SIZE(struct sr_qp_attr, struct ibv_qp_attr);
FIELD(struct sr_qp_attr, cap, struct ibv_qp_attr, cap);
FIELD(struct sr_qp_attr, ah_attr, struct ibv_qp_attr, ah_attr);
FIELD(struct sr_qp_attr, alt_ah_attr, struct ibv_qp_attr, alt_ah_attr);
FIELD(struct sr_qp_attr, pkey_index, struct ibv_qp_attr, pkey_index);
FIELD(struct sr_qp_attr, rnr_retry, struct ibv_qp_attr, rnr_retry);
FIELD(struct sr_qp_attr, rate_limit, struct ibv_qp_attr, rate_limit);

SIZE(struct sr_srq_attr, struct ibv_srq_attr);
SIZE(struct sr_sge, struct ibv_sge);

SIZE(struct sr_send_wr, struct ibv_send_wr);
FIELD(struct sr_send_wr, sg_list, struct ibv_send_wr, sg_list);
FIELD(struct sr_send_wr, opcode, struct ibv_send_wr, opcode);
FIELD(struct sr_send_wr, imm_data, struct ibv_send_wr, invalidate_rkey);
FIELD(struct sr_send_wr, remote_addr, struct ibv_send_wr, wr.rdma.remote_addr);
FIELD(struct sr_send_wr, remote_addr, struct ibv_send_wr, wr.ud.ah);
FIELD(struct sr_send_wr, word1, struct ibv_send_wr, wr.rdma.rkey);
FIELD(struct sr_send_wr, word1, struct ibv_send_wr, wr.ud.remote_qpn);
FIELD(struct sr_send_wr, word1, struct ibv_send_wr, wr.atomic.compare_add);
FIELD(struct sr_send_wr, swap, struct ibv_send_wr, wr.atomic.swap);
FIELD(struct sr_send_wr, atomic_rkey, struct ibv_send_wr, wr.atomic.rkey);
FIELD(struct sr_send_wr, remote_srqn, struct ibv_send_wr, qp_type.xrc.remote_srqn);
FIELD(struct sr_send_wr, mw, struct ibv_send_wr, bind_mw.mw);
FIELD(struct sr_send_wr, bind_rkey, struct ibv_send_wr, bind_mw.rkey);
FIELD(struct sr_send_wr, bind_mr, struct ibv_send_wr, bind_mw.bind_info.mr);
FIELD(struct sr_send_wr, bind_access, struct ibv_send_wr, bind_mw.bind_info.mw_access_flags);

SIZE(struct sr_recv_wr, struct ibv_recv_wr);
FIELD(struct sr_recv_wr, num_sge, struct ibv_recv_wr, num_sge);

SIZE(struct sr_wc, struct ibv_wc);
FIELD(struct sr_wc, imm_data, struct ibv_wc, invalidated_rkey);
FIELD(struct sr_wc, wc_flags, struct ibv_wc, wc_flags);
FIELD(struct sr_wc, dlid_path_bits, struct ibv_wc, dlid_path_bits);

_Static_assert(SR_AH_HANDLE == offsetof(struct ah, handle), "ah.handle");
_Static_assert(SR_MW_HANDLE == offsetof(struct ibv_mw, handle), "ibv_mw.handle");
_Static_assert(SR_MW_RKEY == offsetof(struct ibv_mw, rkey), "ibv_mw.rkey");
_Static_assert(SR_MR_HANDLE == offsetof(struct ibv_mr, handle), "ibv_mr.handle");
_Static_assert(SR_MR_LKEY == offsetof(struct ibv_mr, lkey), "ibv_mr.lkey");

// The two structures of a CQ begin with the same fields, and so do those of a QP.
FIELD(struct ibv_cq_ex, handle, struct ibv_cq, handle);
FIELD(struct ibv_cq_ex, async_events_completed, struct ibv_cq, async_events_completed);
_Static_assert(offsetof(struct ibv_qp_ex, qp_base) == 0, "ibv_qp_ex.qp_base");
_Static_assert(sizeof(struct ibv_qp_ex) <= offsetof(struct qp, wr_flush) + sizeof ((struct qp *)0)->wr_flush, "ibv_qp_ex.wr_flush");

// The filters of flows. The engine has room for the largest.
#define FILTER(kind, size, last, at) \
	_Static_assert(sizeof(struct kind) == size && offsetof(struct kind, last) == at && \
		size <= sizeof ((struct sr_flow_spec *)0)->val, #kind)

FILTER(ibv_flow_eth_filter, 16, vlan_tag, 14);
FILTER(ibv_flow_ipv4_filter, 8, dst_ip, 4);
FILTER(ibv_flow_ipv4_ext_filter, 12, flags, 11);
FILTER(ibv_flow_ipv6_filter, 40, hop_limit, 38);
FILTER(ibv_flow_tcp_udp_filter, 4, src_port, 2);
