// The engine's interface for C. libsoftrnic.so has one public symbol, softrnic_engine, which
// returns the functions below. The fronts, libibverbs.so.1 and librdmacm.so.1, hold the structures
// that programs see and call only these functions.
//
// Every function returns 0 or an errno. It writes results through pointers only when it returns 0.
// An object of the engine is a handle: a number above 0, which the fronts keep in the public field
// "handle" of libibverbs' structures. For a handle without an object, a function returns ENOENT or
// EINVAL, and EBADF if it is of an rsocket. Parameters are not const, because Go has no such
// qualifier. Functions only read their arguments.
//
// A structure with the comment "struct ibv_..." has the layout of that structure in verbs.h of
// rdma-core 33 and later, which does not change. The fronts check this at compile time. This header
// includes no header of libibverbs, so that the engine compiles where libibverbs is not installed.
#ifndef SOFTRNIC_H
#define SOFTRNIC_H

#include <stddef.h>
#include <stdint.h>

// SR_VERSION is increased with every change of this interface.
#define SR_VERSION 21

// The largest number of devices of a process.
#define SR_MAX_DEVICES 16

// The parameters of a device's idle policy, which params.go explains. Times are in nanoseconds.
struct sr_idle {
	// 0: no poll enters the engine, because the device's own threads are as fast.
	uint32_t polls_per_call;
	uint32_t polls_per_call_soon, calls_soon, calls_soon_arrivals;
	uint32_t calls_per_yield, calls_per_yield_soon, calls_before_sleep;
	uint32_t sleep, sleep_interval;
	uint32_t first_spin, longest_spin, short_sleep, calls_per_clock;
	uint32_t events_before_poll;
	uint32_t posts_per_take;
};

// A device, for struct ibv_device.
struct sr_device {
	char name[64];
	uint64_t guid;     // in network byte order
	int node_type;     // enum ibv_node_type: 1 is a CA (RoCE), 4 an RNIC (iWARP)
	int transport;     // enum ibv_transport_type: 0 is InfiniBand (RoCE), 1 iWARP
	char netdev[32];   // the network interface
	char board_id[32]; // as in sysfs
	char hca_type[32];
	struct sr_idle idle;
	// If not NULL, shows whether a call of the engine would find packets.
	struct sr_arrivals *arrivals;
};

// The indices of the rings from which the device receives packets. A ring has packets if the words
// at SR_ARRIVED and SR_TAKEN in its page differ. Other processes write the words, so they are only
// hints. The memory is never unmapped.
struct sr_arrivals {
	// One bit for each page after the one that begins here; 0: the memory shows nothing.
	uint32_t pages;
	uint32_t size;  // of a page
};

// Byte offsets of 8-byte words in a page.
#define SR_ARRIVED 0
#define SR_TAKEN 128

// struct ibv_device_attr
struct sr_device_attr {
	char fw_ver[64];
	uint64_t node_guid, sys_image_guid, max_mr_size, page_size_cap;
	uint32_t vendor_id, vendor_part_id, hw_ver;
	int max_qp, max_qp_wr;
	unsigned int device_cap_flags;
	int max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom, max_res_rd_atom;
	int max_qp_init_rd_atom, max_ee_init_rd_atom;
	uint32_t atomic_cap;
	int max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach;
	int max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge;
	uint16_t max_pkeys;
	uint8_t local_ca_ack_delay, phys_port_cnt;
};

// The further fields of struct ibv_device_attr_ex.
struct sr_device_attr_ex {
	uint64_t device_cap_flags, completion_timestamp_mask, hca_core_clock;
	uint32_t rate_limit_min, rate_limit_max, rate_limit_qpts;
	uint32_t max_inline_data;
	uint16_t max_cq_count, max_cq_period;
};

// struct ibv_port_attr
struct sr_port_attr {
	uint32_t state, max_mtu, active_mtu;
	int gid_tbl_len;
	uint32_t port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr;
	uint16_t pkey_tbl_len, lid, sm_lid;
	uint8_t lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state, link_layer, flags;
	uint16_t port_cap_flags2;
	uint32_t active_speed_ex; // rdma-core 44 does not have it
};

// struct ibv_gid_entry
struct sr_gid_entry {
	uint8_t gid[16];
	uint32_t index, port, type, ifindex;
};

// struct ibv_qp_cap
struct sr_qp_cap {
	uint32_t max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data;
};

// The number of events of a CQ, QP or SRQ that the engine has returned. It is part of the front's
// structure of the object, and its address identifies the object. The engine counts an event before
// it returns it. When the function that destroys the object has returned, the count is final.
struct sr_events {
	uint32_t async; // by get_async_event
	uint32_t comp;  // by get_cq_event
};

struct sr_qp_init_attr {
	struct sr_events *events;
	uint32_t pd, send_cq, recv_cq, srq, xrcd; // handles; 0: none
	uint32_t type;                            // enum ibv_qp_type
	int sq_sig_all;
	int block_self_mcast_lb;
	struct sr_qp_cap cap;
};

// struct ibv_ah_attr
struct sr_ah_attr {
	uint8_t dgid[16];
	uint32_t flow_label;
	uint8_t sgid_index, hop_limit, traffic_class;
	uint16_t dlid;
	uint8_t sl, src_path_bits, static_rate, is_global, port_num;
} __attribute__((aligned(8)));

// struct ibv_qp_attr
struct sr_qp_attr {
	uint32_t qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags;
	struct sr_qp_cap cap;
	struct sr_ah_attr ah_attr, alt_ah_attr;
	uint16_t pkey_index, alt_pkey_index;
	uint8_t en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt;
	uint8_t rnr_retry, alt_port_num, alt_timeout;
	uint32_t rate_limit;
};

// struct ibv_srq_attr
struct sr_srq_attr {
	uint32_t max_wr, max_sge, srq_limit;
};

struct sr_srq_init_attr {
	struct sr_events *events;
	uint32_t pd, xrcd, cq; // handles; xrcd and cq are 0 except for an XRC SRQ
	struct sr_srq_attr attr;
};

// struct ibv_sge
struct sr_sge {
	uint64_t addr;
	uint32_t length, lkey;
};

// struct ibv_send_wr
struct sr_send_wr {
	uint64_t wr_id;
	struct sr_send_wr *next;
	struct sr_sge *sg_list;
	int num_sge;
	uint32_t opcode, send_flags, imm_data;
	uint64_t remote_addr; // or wr.ud.ah
	// wr.rdma.rkey; or wr.ud.remote_qpn and remote_qkey; or wr.atomic.compare_add.
	uint64_t word1;
	uint64_t swap;
	uint32_t atomic_rkey, pad1, remote_srqn, pad2;
	void *mw;
	uint32_t bind_rkey, pad3;
	void *bind_mr;
	uint64_t bind_addr, bind_length;
	uint32_t bind_access, pad4;
};

// struct ibv_recv_wr
struct sr_recv_wr {
	uint64_t wr_id;
	struct sr_recv_wr *next;
	struct sr_sge *sg_list;
	int num_sge;
};

// A ring in which the front posts receive requests of a QP without a call. The package verbs of the
// engine explains it (RecvRing). The slots, each with max_recv_sge of sges, are used in turn.
struct sr_recv_ring {
	uint32_t posted;    // by the front: requests added to the ring
	uint32_t completed; // by the engine: requests of the QP that are no longer posted
	uint32_t closed;    // by the engine: not 0: the front calls post_recv
	uint32_t size;      // slots, max_recv_wr
	struct sr_ring_wr *wrs;
	struct sr_sge *sges;
};

struct sr_ring_wr {
	uint64_t wr_id;
	uint32_t num_sge, pad;
};

// struct ibv_wc
struct sr_wc {
	uint64_t wr_id;
	uint32_t status, opcode, vendor_err, byte_len;
	uint32_t imm_data; // in network byte order; or the invalidated rkey
	uint32_t qp_num, src_qp, wc_flags;
	uint16_t pkey_index, slid;
	uint8_t sl, dlid_path_bits;
};

// The further fields of a completion that struct ibv_cq_ex has.
struct sr_wc_ex {
	uint64_t completion_ts, wallclock_ns;
	uint32_t flow_tag;
	uint16_t cvlan;
};

// A spec of a flow: a filter of a header, or an action. type is an enum ibv_flow_spec_type. val and
// mask have the layout of the filters in verbs.h.
struct sr_flow_spec {
	uint32_t type;
	uint32_t tag; // of IBV_FLOW_SPEC_ACTION_TAG
	uint8_t val[40], mask[40];
};

// The fields of struct ibv_flow_attr.
struct sr_flow_attr {
	uint32_t type, priority, port, flags;
	int n; // specs
	struct sr_flow_spec *specs;
};

struct sr_async_event {
	uint32_t type; // enum ibv_event_type
	uint32_t port;
	struct sr_events *of; // of the CQ, QP or SRQ; NULL if the event is of a port or the device
};

// struct rdma_conn_param
struct sr_cm_param {
	void *private_data;
	uint8_t private_data_len, responder_resources, initiator_depth, flow_control, retry_count, rnr_retry_count, srq;
	uint32_t qp_num;
};

// struct rdma_ud_param
struct sr_cm_ud_param {
	void *private_data;
	uint8_t private_data_len;
	struct sr_ah_attr ah_attr;
	uint32_t qp_num, qkey;
};

// A struct sockaddr_in or sockaddr_in6. Family 0 is no address.
struct sr_cm_addr {
	uint8_t bytes[28];
} __attribute__((aligned(4)));

// The state of an ID of rdma_cm.
struct sr_cm_id {
	struct sr_cm_addr src, dst;
	int dev;      // the device that the ID is bound to; -1: none
	uint8_t port; // of the device
	uint32_t qp_type;
	int routed;   // the route to the peer is known; the next line is valid
	uint8_t sgid[16], dgid[16], mtu, traffic_class, sl;
};

struct sr_cm_event {
	uint64_t id, listen_id; // cookies; listen_id is 0 except in a CONNECT_REQUEST
	uint32_t handle;        // in a CONNECT_REQUEST, the handle of its new ID
	uint32_t type;          // enum rdma_cm_event_type
	int status;
	struct sr_cm_param conn;  // private_data is NULL here and in ud; see data
	struct sr_cm_ud_param ud; // in port space UDP and in multicast events
	uint8_t data_len, data[255];
	struct sr_cm_addr group; // of multicast events; its port is 0
	uint64_t arg;            // of cm_write_event
};

// Options of cm_set_option, of level RDMA_OPTION_ID.
#define SR_CM_TOS 0
#define SR_CM_REUSEADDR 1
#define SR_CM_AFONLY 2
#define SR_CM_ACK_TIMEOUT 3

// The calls of cm_fault.
#define SR_CM_CREATE_QP 0
#define SR_CM_CREATE_SRQ 1

// Options of rs_set_option and rs_get_option. ACCEPTCONN, ERROR, MAXSEG, STATE and RETRANSMITTED
// can only be read.
#define SR_RS_SNDBUF 0
#define SR_RS_RCVBUF 1
#define SR_RS_SQSIZE 2
#define SR_RS_RQSIZE 3
#define SR_RS_INLINE 4
#define SR_RS_V6ONLY 5
#define SR_RS_REUSEADDR 6
#define SR_RS_KEEPALIVE 7
#define SR_RS_KEEPIDLE 8 // s
#define SR_RS_LINGER 9   // s; -1: off
#define SR_RS_ACCEPTCONN 10
#define SR_RS_ERROR 11  // an errno, or 0; reading clears it
#define SR_RS_MAXSEG 12 // bytes
#define SR_RS_IOMAPSIZE 13
#define SR_RS_STATE 14         // the closest state of TCP, as in tcpi_state
#define SR_RS_RETRANSMITTED 15 // retransmissions of RoCE; 0 over iWARP, as TCP does not report them

// Byte offsets in libibverbs' structures of the handle and key of an object that a work request
// points to. The engine writes the key of a window that it binds.
#define SR_AH_HANDLE 32 // in the front's own structure
#define SR_MW_RKEY 16
#define SR_MW_HANDLE 20
#define SR_MR_HANDLE 32
#define SR_MR_LKEY 36

// Flags of post_send.
#define SR_POST_UD 1         // the requests have wr.ud
#define SR_POST_ALL 2        // post all or nothing, as ibv_wr_complete does
// From this bit on: the largest number of SGEs of an inline request. A longer list is refused and
// not read.
#define SR_POST_SGES 8

struct sr_engine {
	uint32_t version; // SR_VERSION
	uint32_t size;    // of this struct

	// open lists the devices that the environment describes. The first call opens them. All handles
	// are greater than above.
	int (*open)(struct sr_device *devices, int *n, uint32_t above);
	// shutdown ends all connections, so that their peers know that the process ends. No function may
	// be called after it.
	int (*shutdown)(void);

	int (*query_device)(int dev, struct sr_device_attr *attr, struct sr_device_attr_ex *ex);
	int (*query_port)(int dev, int port, struct sr_port_attr *attr);
	// query_gid returns ENODATA for an empty entry of the table.
	int (*query_gid)(int dev, int port, int index, struct sr_gid_entry *entry);
	int (*query_pkey)(int dev, int port, int index, uint16_t *pkey);
	int (*query_clock)(int dev, uint64_t *ns);

	// open_context returns an eventfd with EFD_SEMAPHORE. It counts the asynchronous events that
	// get_async_event can take. close_context closes it.
	int (*open_context)(int dev, uint32_t *context, int *async_fd);
	int (*close_context)(uint32_t context);
	int (*get_async_event)(uint32_t context, struct sr_async_event *event); // EAGAIN if there is none

	int (*alloc_pd)(uint32_t context, uint32_t *pd);
	int (*dealloc_pd)(uint32_t pd);
	int (*reg_mr)(uint32_t pd, void *addr, size_t length, uint64_t iova, uint32_t access, uint32_t *mr, uint32_t *lkey, uint32_t *rkey);
	int (*reg_dmabuf_mr)(uint32_t pd, uint64_t offset, size_t length, uint64_t iova, int fd, uint32_t access, uint32_t *mr,
		uint32_t *lkey, uint32_t *rkey);
	// rereg_mr returns the result of ibv_rereg_mr, an enum ibv_rereg_mr_err_code, in code. Its own
	// result is the errno.
	int (*rereg_mr)(uint32_t mr, int flags, uint32_t pd, void *addr, size_t length, uint32_t access, uint32_t *lkey, uint32_t *rkey,
		int *code);
	int (*alloc_null_mr)(uint32_t pd, uint32_t *mr, uint32_t *lkey);
	int (*advise_mr)(uint32_t pd, int write, struct sr_sge *list, uint32_t n);
	int (*dereg_mr)(uint32_t mr);
	int (*alloc_mw)(uint32_t pd, int type, uint32_t *mw, uint32_t *rkey);
	int (*dealloc_mw)(uint32_t mw);
	int (*bind_mw)(uint32_t qp, void *mw, uint64_t wr_id, uint32_t flags, void *mr, uint64_t addr, uint64_t length, uint32_t access,
		uint32_t *rkey);

	// Each thread of the program calls thread with 0 before any other function. The reason is that
	// signal handlers may interrupt the other functions and need room on the thread's stack. A thread
	// also calls it with 1 before its first call of post_send, post_recv, post_srq_recv, poll_cq or
	// progress, and with -1 when it ends. That many threads can be in the engine without waiting for
	// each other.
	int (*thread)(int n);
	// progress makes the device of a context progress. It sets busy to 1 if there was something to do,
	// and otherwise to 0. For a millisecond or two the device then expects more calls of progress or
	// poll_cq. end_progress announces that there will be none.
	int (*progress)(uint32_t context, int *busy);
	int (*end_progress)(uint32_t context);

	// create_channel returns an eventfd like open_context, for the events that get_cq_event can take.
	// Just before the engine adds to the eventfd, it adds to *events, until destroy_channel has
	// returned.
	int (*create_channel)(uint32_t context, uint32_t *events, uint32_t *channel, int *fd);
	int (*destroy_channel)(uint32_t channel);
	int (*get_cq_event)(uint32_t channel, struct sr_events **of); // EAGAIN if there is none
	// create_cq returns in room the number of completions that the CQ holds. Until destroy_cq has
	// returned, the engine keeps *ready at 1 while poll_cq has a completion or an error to return,
	// and at 0 otherwise.
	int (*create_cq)(uint32_t context, int cqe, uint32_t channel, int timestamps, struct sr_events *events, uint32_t *ready, uint32_t *cq,
		int *room);
	int (*resize_cq)(uint32_t cq, int cqe, int *room);
	int (*modify_cq)(uint32_t cq, int count, int period_us);
	// If sleeps is 0, the caller calls end_progress after req_notify_cq, before the program sleeps.
	int (*req_notify_cq)(uint32_t cq, int solicited_only, int sleeps);
	int (*destroy_cq)(uint32_t cq);
	// poll_cq moves up to n completions to wcs, and to exs unless it is NULL. If there are none, it
	// makes the device progress and tries again. If other is not 0, it then also moves up to n
	// completions of that CQ to others.
	int (*poll_cq)(uint32_t cq, int n, struct sr_wc *wcs, struct sr_wc_ex *exs, int *got, uint32_t other, struct sr_wc *others,
		int *got_others);

	// create_qp returns the actual sizes in attr->cap. max_inline_data may be larger than requested.
	int (*create_qp)(struct sr_qp_init_attr *attr, uint32_t *qp, uint32_t *num);
	int (*open_qp)(uint32_t xrcd, uint32_t num, struct sr_events *events, uint32_t *qp);
	int (*modify_qp)(uint32_t qp, struct sr_qp_attr *attr, int mask);
	int (*query_qp)(uint32_t qp, struct sr_qp_attr *attr);
	int (*destroy_qp)(uint32_t qp);
	// post_send, post_recv and post_srq_recv post a list. They set done to the number of posted
	// requests, also if a later one is refused. post_send then moves up to n completions of
	// the send CQ to wcs, as poll_cq does. These are often the completions of its own requests.
	int (*post_send)(uint32_t qp, struct sr_send_wr *wr, int flags, int *done, int n, struct sr_wc *wcs, int *got);
	// With wr NULL, post_recv handles the requests in the ring of use_recv_ring.
	int (*post_recv)(uint32_t qp, struct sr_recv_wr *wr, int *done);
	// use_recv_ring makes the engine use a ring until destroy_qp has returned. The QP is new. It
	// returns EOPNOTSUPP if the QP has no receive queue of its own, or its device needs the call of
	// post_recv.
	int (*use_recv_ring)(uint32_t qp, struct sr_recv_ring *ring);
	int (*attach_mcast)(uint32_t qp, uint8_t gid[16]);
	int (*detach_mcast)(uint32_t qp, uint8_t gid[16]);
	// create_flow returns EOPNOTSUPP for a spec that no device here supports.
	int (*create_flow)(uint32_t qp, struct sr_flow_attr *attr, uint32_t *flow);
	int (*destroy_flow)(uint32_t flow);

	int (*create_srq)(struct sr_srq_init_attr *attr, uint32_t *srq, uint32_t *num);
	int (*modify_srq)(uint32_t srq, struct sr_srq_attr *attr, int mask);
	int (*query_srq)(uint32_t srq, struct sr_srq_attr *attr);
	int (*destroy_srq)(uint32_t srq);
	int (*post_srq_recv)(uint32_t srq, struct sr_recv_wr *wr, int *done);
	// fd -1: an anonymous domain.
	int (*open_xrcd)(uint32_t context, int fd, int oflags, uint32_t *xrcd);
	int (*close_xrcd)(uint32_t xrcd);

	int (*create_ah)(uint32_t pd, struct sr_ah_attr *attr, uint32_t *ah);
	int (*destroy_ah)(uint32_t ah);
	int (*init_ah)(int dev, int port, struct sr_wc *wc, void *grh, struct sr_ah_attr *attr);

	int (*query_comp_cntr_caps)(int dev, uint64_t *max_value, uint32_t *max_counters, uint32_t *ops);
	// create_comp_cntr sets both values to 0. The engine adds to them until destroy_comp_cntr has
	// returned. It returns EOPNOTSUPP for a type that no device here supports, as attach_comp_cntr
	// does for operations.
	int (*create_comp_cntr)(uint32_t context, uint32_t type, uint64_t *count, uint64_t *errors, uint32_t *cntr);
	int (*destroy_comp_cntr)(uint32_t cntr);
	int (*attach_comp_cntr)(uint32_t qp, uint32_t cntr, uint32_t ops);

	// cm_create_channel returns an eventfd like open_context, for the events that cm_get_event can
	// take.
	int (*cm_create_channel)(uint32_t *channel, int *fd);
	// cm_destroy_channel disables the IDs of the channel. They can then only be destroyed.
	int (*cm_destroy_channel)(uint32_t channel);
	// cm_get_event returns EAGAIN if there is no event. The new ID of a CONNECT_REQUEST gets
	// new_cookie.
	int (*cm_get_event)(uint32_t channel, uint64_t new_cookie, struct sr_cm_event *event);
	int (*cm_create_id)(uint32_t channel, uint64_t cookie, int port_space, uint32_t *id);
	// cm_destroy_id and cm_migrate_id return the number of the ID's events that cm_get_event has
	// returned. A CONNECT_REQUEST counts as an event of the listener.
	int (*cm_destroy_id)(uint32_t id, uint32_t *events);
	int (*cm_migrate_id)(uint32_t id, uint32_t channel, uint32_t *events);
	int (*cm_query_id)(uint32_t id, struct sr_cm_id *info);
	int (*cm_set_option)(uint32_t id, int option, int value);
	int (*cm_bind)(uint32_t id, struct sr_cm_addr *addr);
	// src may be NULL.
	int (*cm_resolve_addr)(uint32_t id, struct sr_cm_addr *src, struct sr_cm_addr *dst, int timeout_ms);
	int (*cm_resolve_route)(uint32_t id);
	int (*cm_listen)(uint32_t id, int backlog);
	// cm_use_qp gives the ID a QP. The engine moves the QP to INIT, or to RTS if it is a UD QP. Later
	// it changes the QP's state when a connection begins or ends. A handle of 0 removes the QP from
	// the ID.
	int (*cm_use_qp)(uint32_t id, uint32_t qp);
	// cm_connect and cm_accept call cm_use_qp if the ID does not have the QP yet. Without a QP, param
	// has the number of a QP whose state the program changes; over iWARP the engine changes it. If
	// param is NULL, the defaults are used.
	int (*cm_connect)(uint32_t id, uint32_t qp, struct sr_cm_param *param);
	int (*cm_accept)(uint32_t id, uint32_t qp, struct sr_cm_param *param);
	int (*cm_establish)(uint32_t id);
	int (*cm_reject)(uint32_t id, void *private_data, int length);
	int (*cm_disconnect)(uint32_t id);
	int (*cm_notify)(uint32_t id);
	// cm_write_event adds an event of type USER or ADDRINFO_RESOLVED to the channel of an ID.
	int (*cm_write_event)(uint32_t id, uint32_t type, int status, uint64_t arg);
	// For the transition to attr->qp_state.
	int (*cm_init_qp_attr)(uint32_t id, struct sr_qp_attr *attr, int *mask);
	int (*cm_join)(uint32_t id, struct sr_cm_addr *group, int send_only);
	int (*cm_leave)(uint32_t id, struct sr_cm_addr *group);
	// cm_fault returns the errno with which a call fails on purpose, or 0.
	int (*cm_fault)(uint32_t id, int call);

	// Rsockets, of type SOCK_STREAM or SOCK_DGRAM. A function that would have to wait returns EAGAIN
	// or EINPROGRESS. rs_arm then returns a descriptor to wait for. The number of the descriptor fd is
	// the number of the rsocket. rs_close closes it and waits according to SO_LINGER.
	int (*rs_socket)(int domain, int datagrams, uint32_t *rs, int *fd);
	int (*rs_bind)(uint32_t rs, struct sr_cm_addr *addr);
	int (*rs_listen)(uint32_t rs, int backlog);
	int (*rs_accept)(uint32_t rs, uint32_t *conn, int *fd);
	int (*rs_connect)(uint32_t rs, struct sr_cm_addr *addr);
	int (*rs_shutdown)(uint32_t rs, int how);
	int (*rs_close)(uint32_t rs);
	// done is 0 at the end of the stream.
	int (*rs_recv)(uint32_t rs, void *buf, size_t n, int peek, size_t *done);
	int (*rs_send)(uint32_t rs, void *buf, size_t n, size_t *done);
	// rs_recvfrom and rs_sendto transfer one datagram. If to is NULL, the datagram goes to the
	// address of rs_connect.
	int (*rs_recvfrom)(uint32_t rs, void *buf, size_t n, int peek, size_t *done, struct sr_cm_addr *from);
	int (*rs_sendto)(uint32_t rs, void *buf, size_t n, struct sr_cm_addr *to);
	// rs_map returns the offset in at. If offset is -1, the engine chooses it.
	int (*rs_map)(uint32_t rs, void *addr, size_t length, int64_t offset, int64_t *at);
	int (*rs_unmap)(uint32_t rs, void *addr, size_t length);
	int (*rs_write_at)(uint32_t rs, void *buf, size_t n, int64_t offset, size_t *done);
	int (*rs_name)(uint32_t rs, int peer, struct sr_cm_addr *addr);
	int (*rs_set_option)(uint32_t rs, int option, int value);
	int (*rs_get_option)(uint32_t rs, int option, int *value);
	// rs_arm returns the rsocket's events in revents, like poll. If events has POLLIN, fds[0] is a
	// descriptor to sleep on, and otherwise -1. The same holds for POLLOUT and fds[1]. The descriptor
	// is readable while the rsocket is ready for the event, has failed or has hung up. This ends when
	// rs_disarm is called with the same events. If events is 0, rs_disarm must not be called.
	int (*rs_arm)(uint32_t rs, int events, int *revents, int *fds);
	int (*rs_disarm)(uint32_t rs, int events);
};

// softrnic_engine is the only function that libsoftrnic.so exports.
const struct sr_engine *softrnic_engine(void);

#endif
