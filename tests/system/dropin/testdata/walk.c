// The program walks all flags of QPs, CQs, SRQs, ports and on-demand paging: what a device accepts
// when an object is created is used, and all else is refused. The argument is an address of the
// device that rdma_cm chooses, RoCE or iWARP. The program exits with 1 at the first failed check.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <netinet/in.h>
#include "cmevents.h"

// Bits that the headers of older releases do not have.
enum { FLUSH = 1 << 11, ATOMIC_WRITE = 1 << 12, FLUSH_GLOBAL = 1 << 8, ODP_FLUSH = 1 << 6, ODP_ATOMIC_WRITE = 1 << 7 };

enum { HERE, THERE }; // requester, responder

static struct rdma_cm_id *ids[2];
static struct ibv_qp *qps[2];
static struct ibv_cq_ex *cq, *recv_cq; // of all send queues, and of all receive queues
static struct ibv_srq *srq, *xrc_srq;
static struct ibv_xrcd *xrcd;
static struct ibv_ah *ah;
static struct ibv_device_attr_ex attr;
static struct ibv_mr *mr;
static char *memory; // what the requester has is in the first page, and what the responder has in the second
static int iwarp;
static uint64_t wc_flags;

#define QKEY 0x11111111

// The flags of completions.
static void walk_cqs(void)
{
	for (int bit = 0; bit < 64; bit++) {
		struct ibv_cq_init_attr_ex a = {.cqe = 4, .wc_flags = 1ull << bit};
		struct ibv_cq_ex *made = ibv_create_cq_ex(ctx, &a);
		CHECK(made || errno == EOPNOTSUPP);
		if (made) {
			wc_flags |= 1ull << bit;
			CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(made)));
		}
	}
	CHECK(wc_flags == (IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK |
		IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG));
	for (int bit = 0; bit < 32; bit++) {
		struct ibv_cq_init_attr_ex a = {.cqe = 4, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS, .flags = 1u << bit};
		struct ibv_cq_ex *made = ibv_create_cq_ex(ctx, &a);
		CHECK(!made == (1u << bit != IBV_CREATE_CQ_ATTR_SINGLE_THREADED) && (made || errno == EOPNOTSUPP));
		CHECK(!made || !ibv_destroy_cq(ibv_cq_ex_to_cq(made)));
	}
	struct ibv_cq_init_attr_ex a = {.cqe = 64, .wc_flags = wc_flags, .comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS,
		.flags = IBV_CREATE_CQ_ATTR_SINGLE_THREADED};
	CHECK((cq = ibv_create_cq_ex(ctx, &a)) && (recv_cq = ibv_create_cq_ex(ctx, &a)));
}

// The types of SRQs.
static void walk_srqs(void)
{
	if (!iwarp) {
		struct ibv_xrcd_init_attr x = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1};
		CHECK((xrcd = ibv_open_xrcd(ctx, &x)));
	}
	for (int type = 0; type < 32; type++) {
		struct ibv_srq_init_attr_ex a = {.attr = {.max_wr = 32, .max_sge = 1}, .srq_type = (enum ibv_srq_type)type, .pd = pd,
			.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD};
		if (type == IBV_SRQT_XRC && !iwarp) {
			a.comp_mask |= IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
			a.xrcd = xrcd;
			a.cq = ibv_cq_ex_to_cq(recv_cq);
			CHECK((xrc_srq = ibv_create_srq_ex(ctx, &a)));
		} else if (type == IBV_SRQT_BASIC) {
			CHECK((srq = ibv_create_srq_ex(ctx, &a)));
		} else {
			struct ibv_srq *made = ibv_create_srq_ex(ctx, &a);
			CHECK(!made && (errno == EOPNOTSUPP || (errno == EINVAL && type == IBV_SRQT_XRC))); // it has no domain
		}
	}
}

// What a port says of itself. connected uses its communication manager, and too_long its longest
// message.
static void walk_port(void)
{
	struct ibv_port_attr a;
	union ibv_gid entry;
	uint16_t pkey;
	uint64_t speed;
	CHECK(!ibv_query_port(ctx, 1, &a) && ibv_query_port(ctx, 0, &a) == EINVAL && ibv_query_port(ctx, 2, &a) == EINVAL);
	CHECK(!ibv_query_port(ctx, 1, &a) && a.port_cap_flags == IBV_PORT_CM_SUP && !a.port_cap_flags2 && !a.flags);
	CHECK(a.state == IBV_PORT_ACTIVE && a.phys_state == 5 && a.link_layer == IBV_LINK_LAYER_ETHERNET && a.max_vl_num == 1);
	CHECK(!a.lid && !a.lmc && !a.sm_lid && !a.sm_sl && !a.subnet_timeout && !a.init_type_reply); // of InfiniBand only
	CHECK(a.max_mtu == IBV_MTU_4096 && a.active_mtu >= IBV_MTU_1024 && a.active_mtu <= a.max_mtu);
	CHECK(a.gid_tbl_len == (iwarp ? 1 : 256) && a.pkey_tbl_len == 1 && !a.bad_pkey_cntr && !a.qkey_viol_cntr);
	for (int i = 0; i < a.gid_tbl_len; i++)
		CHECK(!ibv_query_gid(ctx, 1, i, &entry));
	CHECK(ibv_query_gid(ctx, 1, a.gid_tbl_len, &entry) == -1 && errno == EINVAL);
	CHECK(!ibv_query_pkey(ctx, 1, 0, &pkey) && pkey == 0xffff && ibv_query_pkey(ctx, 1, a.pkey_tbl_len, &pkey) == -1 && errno == EINVAL);
	// 4 lanes of QDR are 40 Gbit/s, of which later releases also have the product.
	int (*query_speed)(struct ibv_context *, uint32_t, uint64_t *) =
		(int (*)(struct ibv_context *, uint32_t, uint64_t *))dlsym(RTLD_DEFAULT, "ibv_query_port_speed");
	CHECK(a.active_width == 2 && a.active_speed == 4 && query_speed && !query_speed(ctx, 1, &speed) && speed == 400);
}

// too_long posts a WRITE that is longer than the port's longest message.
static void too_long(struct ibv_qp *qp)
{
	struct ibv_port_attr a;
	CHECK(!ibv_query_port(ctx, 1, &a) && a.max_msg_sz == 1u << 30);
	struct ibv_sge sge = {(uintptr_t)memory, a.max_msg_sz + 1, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE}, *bad;
	CHECK(ibv_post_send(qp, &wr, &bad) == EINVAL && bad == &wr);
}

static struct ibv_qp *create(enum ibv_qp_type type, uint64_t ops, uint32_t flags)
{
	struct ibv_qp_init_attr_ex a = {
		.send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(recv_cq), .cap = {16, 16, 1, 1, 64}, .qp_type = type, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS | IBV_QP_INIT_ATTR_CREATE_FLAGS,
		.send_ops_flags = ops, .create_flags = flags,
	};
	if (type != IBV_QPT_XRC_SEND && type != IBV_QPT_UC && type != IBV_QPT_RAW_PACKET)
		a.srq = srq;
	if (type == IBV_QPT_XRC_RECV) {
		a.comp_mask = IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS;
		a.xrcd = xrcd;
	}
	return ibv_create_qp_ex(ctx, &a);
}

// The flags with which QPs of a type are created. It returns the operations.
static uint64_t walk_qps(enum ibv_qp_type type, uint32_t create_flags)
{
	for (int bit = 0; bit < 32; bit++) {
		struct ibv_qp *made = create(type, IBV_QP_EX_WITH_SEND, 1u << bit);
		int of_ud = 1u << bit == IBV_QP_CREATE_BLOCK_SELF_MCAST_LB && errno == EINVAL;
		CHECK(!made == !(create_flags & 1u << bit) && (made || errno == EOPNOTSUPP || of_ud) && (!made || !ibv_destroy_qp(made)));
	}
	uint64_t ops = 0;
	for (int bit = 0; bit < 64; bit++) {
		struct ibv_qp *made = create(type, 1ull << bit, 0);
		CHECK(made || errno == EOPNOTSUPP);
		if (made) {
			ops |= 1ull << bit;
			CHECK(!ibv_destroy_qp(made));
		}
	}
	return ops;
}

// ready takes a QP to RTS. A responder of XRC stays in RTR.
static void ready(struct ibv_qp *qp, uint32_t peer)
{
	enum ibv_qp_type type = qp->qp_type;
	struct ibv_qp_attr a = {
		.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 1,
		.min_rnr_timer = 12, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | (type == IBV_QPT_UC ? 0 : IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | FLUSH_GLOBAL),
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 1}},
	};
	int init = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT, rtr = IBV_QP_STATE, rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
	init |= type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS;
	if (type != IBV_QPT_UD)
		rtr |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_RECV)
		rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if (type == IBV_QPT_RC || type == IBV_QPT_XRC_SEND)
		rts |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(!ibv_modify_qp(qp, &a, init));
	a.qp_state = IBV_QPS_RTR;
	CHECK(!ibv_modify_qp(qp, &a, rtr));
	a.qp_state = IBV_QPS_RTS;
	CHECK(type == IBV_QPT_XRC_RECV || !ibv_modify_qp(qp, &a, rts));
}

// seconds returns the time since 1970. time() is that of the last tick, and so may be less than
// what was read from the clock before.
static uint64_t seconds(void)
{
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	return t.tv_sec;
}

// completed takes a completion, and reads all that it has.
static void completed(struct ibv_cq_ex *from, enum ibv_wc_opcode opcode, uint32_t qp_num, uint32_t length, int with)
{
	static uint64_t last[2];
	uint64_t *before = &last[from == recv_cq];
	struct ibv_poll_cq_attr none = {0};
	double t = now();
	int err;
	while ((err = ibv_start_poll(from, &none)) == ENOENT)
		CHECK(now() - t < 20);
	if (!err && from->status)
		printf("status %d (%s), opcode %d\n", from->status, ibv_wc_status_str(from->status), ibv_wc_read_opcode(from));
	CHECK(!err && !from->status && ibv_wc_read_opcode(from) == opcode && ibv_wc_read_qp_num(from) == qp_num);
	CHECK(!(opcode & IBV_WC_RECV) || ibv_wc_read_byte_len(from) == length);
	unsigned int flags = ibv_wc_read_wc_flags(from);
	CHECK((flags & (IBV_WC_WITH_IMM | IBV_WC_WITH_INV)) == (unsigned int)with);
	CHECK(!(with & IBV_WC_WITH_IMM) || ibv_wc_read_imm_data(from) == htonl(7));
	CHECK(!(flags & IBV_WC_GRH) || ibv_wc_read_src_qp(from) == qps[HERE]->qp_num);
	CHECK(!ibv_wc_read_slid(from) && !ibv_wc_read_dlid_path_bits(from) && (ibv_wc_read_sl(from) & 8) == (flags & IBV_WC_GRH ? 8 : 0));
	uint64_t stamp = ibv_wc_read_completion_ts(from), wall = ibv_wc_read_completion_wallclock_ns(from);
	CHECK(stamp > 0 && stamp >= *before && wall / 1000000000 <= seconds() && wall / 1000000000 + 60 > seconds());
	CHECK(!ibv_wc_read_cvlan(from) && !ibv_wc_read_flow_tag(from) && !ibv_wc_read_vendor_err(from));
	*before = stamp;
	ibv_end_poll(from);
}

// receive posts what the responder needs for a message.
static void receive(void)
{
	struct ibv_sge sge = {(uintptr_t)memory + 6144, 2048, mr->lkey};
	struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
	struct ibv_srq *of = qps[THERE]->qp_type == IBV_QPT_XRC_RECV ? xrc_srq : qps[THERE]->srq;
	CHECK(!(of ? ibv_post_srq_recv(of, &wr, &bad) : ibv_post_recv(qps[THERE], &wr, &bad)));
}

static struct ibv_qp_ex *begin(void)
{
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(qps[HERE]);
	CHECK(q);
	q->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_start(q);
	return q;
}

// posted completes a request with a local SGE of the given length.
static void posted(struct ibv_qp_ex *q, int length, enum ibv_wc_opcode opcode)
{
	if (qps[HERE]->qp_type == IBV_QPT_XRC_SEND) {
		uint32_t num;
		CHECK(!ibv_get_srq_num(xrc_srq, &num));
		ibv_wr_set_xrc_srqn(q, num);
	} else if (qps[HERE]->qp_type == IBV_QPT_UD) {
		ibv_wr_set_ud_addr(q, ah, qps[THERE]->qp_num, QKEY);
	}
	if (length)
		ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory, length);
	CHECK(!ibv_wr_complete(q));
	completed(cq, opcode, qps[HERE]->qp_num, 0, 0);
}

static void received(enum ibv_wc_opcode opcode, uint32_t length, int with)
{
	int ud = qps[HERE]->qp_type == IBV_QPT_UD;
	completed(recv_cq, opcode, qps[THERE]->qp_num, length + (ud ? 40 : 0), with);
	if (opcode == IBV_WC_RECV)
		CHECK(!memcmp(memory + 6144 + (ud ? 40 : 0), memory, length));
}

// bound binds a window of type 2 to the responder's page, with the QP that posts.
static struct ibv_mw *bound(int side)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(mw);
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(qps[side]);
	q->wr_flags = IBV_SEND_SIGNALED;
	struct ibv_mw_bind_info info = {mr, (uintptr_t)memory + 4096, 64, IBV_ACCESS_REMOTE_WRITE};
	ibv_wr_start(q);
	uint32_t rkey = ibv_inc_rkey(mw->rkey);
	ibv_wr_bind_mw(q, mw, rkey, &info);
	CHECK(!ibv_wr_complete(q));
	completed(cq, IBV_WC_BIND_MW, qps[side]->qp_num, 0, 0);
	mw->rkey = rkey;
	return mw;
}

// use does each of a connection's operations.
static void use(uint64_t ops)
{
	uint64_t *here = (uint64_t *)memory, *there = (uint64_t *)(memory + 4096);
	uintptr_t to = (uintptr_t)there;
	struct ibv_qp_ex *q;
	for (int i = 0; i < 4096; i++)
		memory[i] = i;
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE) {
		q = begin();
		ibv_wr_rdma_write(q, mr->rkey, to);
		posted(q, 1500, IBV_WC_RDMA_WRITE);
		for (double t = now(); memcmp(memory, (char *)there, 1500);) // it may not have arrived
			CHECK(now() - t < 20);
	}
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM) {
		receive();
		q = begin();
		ibv_wr_rdma_write_imm(q, mr->rkey, to, htonl(7));
		posted(q, 64, IBV_WC_RDMA_WRITE);
		received(IBV_WC_RECV_RDMA_WITH_IMM, 64, IBV_WC_WITH_IMM);
	}
	if (ops & IBV_QP_EX_WITH_SEND) {
		receive();
		q = begin();
		ibv_wr_send(q);
		posted(q, 1000, IBV_WC_SEND);
		received(IBV_WC_RECV, 1000, 0);
	}
	if (ops & IBV_QP_EX_WITH_SEND_WITH_IMM) {
		receive();
		q = begin();
		ibv_wr_send_imm(q, htonl(7));
		posted(q, 1000, IBV_WC_SEND);
		received(IBV_WC_RECV, 1000, IBV_WC_WITH_IMM);
	}
	if (ops & IBV_QP_EX_WITH_RDMA_READ) {
		memset(there, 3, 1500);
		q = begin();
		ibv_wr_rdma_read(q, mr->rkey, to);
		posted(q, 1500, IBV_WC_RDMA_READ);
		CHECK(!memcmp(memory, (char *)there, 1500));
	}
	there[0] = 5;
	if (ops & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP) {
		q = begin();
		ibv_wr_atomic_cmp_swp(q, mr->rkey, to, 5, 6);
		posted(q, 8, IBV_WC_COMP_SWAP);
		CHECK(here[0] == 5 && there[0] == 6);
	}
	if (ops & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD) {
		uint64_t had = there[0];
		q = begin();
		ibv_wr_atomic_fetch_add(q, mr->rkey, to, 2);
		posted(q, 8, IBV_WC_FETCH_ADD);
		CHECK(here[0] == had && there[0] == had + 2);
	}
	if (ops & IBV_QP_EX_WITH_BIND_MW) {
		struct ibv_mw *mw = bound(HERE);
		if (ops & IBV_QP_EX_WITH_LOCAL_INV) {
			q = begin();
			ibv_wr_local_inv(q, mw->rkey);
			posted(q, 0, IBV_WC_LOCAL_INV);
		}
		CHECK(!ibv_dealloc_mw(mw));
	}
	if (ops & IBV_QP_EX_WITH_SEND_WITH_INV && qps[THERE]->qp_type == IBV_QPT_RC) {
		struct ibv_mw *mw = bound(THERE);
		receive();
		q = begin();
		ibv_wr_send_inv(q, mw->rkey);
		posted(q, 100, IBV_WC_SEND);
		received(IBV_WC_RECV, 100, IBV_WC_WITH_INV);
		CHECK(!ibv_dealloc_mw(mw));
	}
	if (ops & FLUSH) { // struct ibv_qp_ex of older releases ends before its function
		void (*flush)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
		q = begin();
		memcpy(&flush, (char *)q + offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof flush, sizeof flush);
		flush(q, mr->rkey, to, 64, 1, 0);
		posted(q, 0, (enum ibv_wc_opcode)8);
	}
	if (ops & ATOMIC_WRITE) {
		uint64_t value = 0x0102030405060708;
		q = begin();
		ibv_wr_atomic_write(q, mr->rkey, to, &value);
		posted(q, 0, (enum ibv_wc_opcode)9);
		CHECK(there[0] == value);
	}
}

static const uint64_t sends = IBV_QP_EX_WITH_SEND, sends_imm = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM,
	writes = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM, windows = IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV,
	answered = IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;

// QPs that rdma_cm connects, of either transport.
static void connected(struct rdma_cm_id *listener)
{
	uint64_t ops = walk_qps(IBV_QPT_RC, 0);
	CHECK(ops == (sends | writes | answered | windows | IBV_QP_EX_WITH_SEND_WITH_INV |
		(iwarp ? 0 : IBV_QP_EX_WITH_SEND_WITH_IMM | FLUSH | ATOMIC_WRITE)));
	CHECK(!rdma_listen(listener, 1) && !rdma_resolve_route(ids[HERE], 10000));
	rdma_ack_cm_event(take(RDMA_CM_EVENT_ROUTE_RESOLVED));
	CHECK((ids[HERE]->qp = qps[HERE] = create(IBV_QPT_RC, ops, 0)));
	struct rdma_conn_param p = {.responder_resources = 1, .initiator_depth = 1, .retry_count = 7, .rnr_retry_count = 7};
	CHECK(!rdma_connect(ids[HERE], &p));
	struct rdma_cm_event *e = take(RDMA_CM_EVENT_CONNECT_REQUEST);
	ids[THERE] = e->id;
	rdma_ack_cm_event(e);
	CHECK(ids[THERE]->verbs == ctx && (ids[THERE]->qp = qps[THERE] = create(IBV_QPT_RC, ops, 0)) && !rdma_accept(ids[THERE], &p));
	rdma_ack_cm_event(take(RDMA_CM_EVENT_ESTABLISHED));
	rdma_ack_cm_event(take(RDMA_CM_EVENT_ESTABLISHED));
	struct ibv_qp_attr access;
	struct ibv_qp_init_attr init;
	CHECK(!ibv_query_qp(qps[THERE], &access, IBV_QP_ACCESS_FLAGS, &init));
	access.qp_access_flags |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | (iwarp ? 0 : FLUSH_GLOBAL);
	CHECK(!ibv_modify_qp(qps[THERE], &access, IBV_QP_ACCESS_FLAGS));
	too_long(qps[HERE]);
	use(ops);
	CHECK(!rdma_disconnect(ids[HERE]));
	rdma_ack_cm_event(take(RDMA_CM_EVENT_DISCONNECTED));
	rdma_disconnect(ids[THERE]); // of RoCE, the answer
	rdma_ack_cm_event(take(RDMA_CM_EVENT_DISCONNECTED));
	for (int i = 0; i < 2; i++) {
		ids[i]->qp = NULL;
		CHECK(!ibv_destroy_qp(qps[i]) && !rdma_destroy_id(ids[i]));
	}
}

// QPs of another type, and what their memory with on-demand paging is advertised for.
static void others(enum ibv_qp_type type, uint64_t want, uint32_t odp, uint32_t caps)
{
	uint64_t ops = walk_qps(type, type == IBV_QPT_UD ? IBV_QP_CREATE_BLOCK_SELF_MCAST_LB : 0);
	CHECK(ops == want && odp == caps);
	CHECK((qps[HERE] = create(type, ops, 0)));
	CHECK((qps[THERE] = create(type == IBV_QPT_XRC_SEND ? IBV_QPT_XRC_RECV : type, type == IBV_QPT_XRC_SEND ? 0 : ops, 0)));
	ready(qps[HERE], qps[THERE]->qp_num);
	ready(qps[THERE], qps[HERE]->qp_num);
	use(ops);
	CHECK(!ibv_destroy_qp(qps[HERE]) && !ibv_destroy_qp(qps[THERE]));
}

// blocked sends to a group, of which the sender gets no copy.
static void blocked(void)
{
	union ibv_gid group = {.raw = {0xff, 0x0e, [15] = 9}};
	struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.dgid = group, .sgid_index = 1, .hop_limit = 1}}, unicast = to;
	if (gid.raw[10] == 0xff) // an IPv4 address
		group = (union ibv_gid){.raw = {[10] = 0xff, 0xff, 239, 1, 2, 3}};
	to.grh.dgid = group;
	unicast.grh.dgid = gid;
	CHECK((qps[HERE] = create(IBV_QPT_UD, IBV_QP_EX_WITH_SEND, IBV_QP_CREATE_BLOCK_SELF_MCAST_LB)));
	CHECK((qps[THERE] = create(IBV_QPT_UD, IBV_QP_EX_WITH_SEND, 0)));
	for (int i = 0; i < 2; i++) {
		ready(qps[i], 0);
		receive();
		CHECK(!ibv_attach_mcast(qps[i], &group, 0));
	}
	struct ibv_qp_ex *q = begin();
	struct ibv_ah *all = ibv_create_ah(pd, &to);
	CHECK(all);
	ibv_wr_send(q);
	ibv_wr_set_ud_addr(q, all, 0xffffff, QKEY);
	ibv_wr_set_sge(q, mr->lkey, (uintptr_t)memory, 10);
	CHECK(!ibv_wr_complete(q));
	completed(cq, IBV_WC_SEND, qps[HERE]->qp_num, 0, 0);
	received(IBV_WC_RECV, 10, 0);
	ah = ibv_create_ah(pd, &unicast); // the next datagram comes after a copy that was not blocked
	q = begin();
	ibv_wr_send(q);
	posted(q, 10, IBV_WC_SEND);
	received(IBV_WC_RECV, 10, 0);
	CHECK(!ibv_destroy_ah(all));
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_detach_mcast(qps[i], &group, 0) && !ibv_destroy_qp(qps[i]));
}

int main(int argc, char **argv)
{
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(7471)};
	CHECK(argc == 2 && inet_pton(AF_INET, argv[1], &addr.sin_addr) == 1 && (channel = rdma_create_event_channel()));
	struct rdma_cm_id *listener;
	CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) && !rdma_bind_addr(listener, (struct sockaddr *)&addr));
	CHECK(!rdma_create_id(channel, &ids[HERE], NULL, RDMA_PS_TCP) && !rdma_resolve_addr(ids[HERE], NULL, (struct sockaddr *)&addr, 10000));
	rdma_ack_cm_event(take(RDMA_CM_EVENT_ADDR_RESOLVED));
	ctx = ids[HERE]->verbs;
	iwarp = ctx->device->transport_type == IBV_TRANSPORT_IWARP;
	CHECK((pd = ibv_alloc_pd(ctx)) && !ibv_query_gid(ctx, 1, !iwarp, &gid) && !ibv_query_device_ex(ctx, NULL, &attr));
	walk_port();
	walk_cqs();
	walk_srqs();

	// All memory, as far as it is registered at all, is paged on demand.
	memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(memory != MAP_FAILED && attr.odp_caps.general_caps == (IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT));
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND |
		IBV_ACCESS_ON_DEMAND | (iwarp ? 0 : FLUSH_GLOBAL);
	CHECK((mr = ibv_reg_mr(pd, memory, 8192, access)));
	uint32_t reliable = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC |
		IBV_ODP_SUPPORT_SRQ_RECV;
	CHECK(attr.odp_caps.per_transport_caps.rc_odp_caps == (reliable | (iwarp ? 0 : ODP_FLUSH | ODP_ATOMIC_WRITE)));
	connected(listener);
	if (iwarp) {
		CHECK(!attr.odp_caps.per_transport_caps.uc_odp_caps && !attr.odp_caps.per_transport_caps.ud_odp_caps && !attr.xrc_odp_caps);
		for (int type = 0; type < 16; type++)
			CHECK(type == IBV_QPT_RC || !create((enum ibv_qp_type)type, 0, 0));
	} else {
		struct ibv_ah_attr a = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 1}};
		CHECK((ah = ibv_create_ah(pd, &a)));
		others(IBV_QPT_UC, sends_imm | writes | windows, IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE,
			attr.odp_caps.per_transport_caps.uc_odp_caps);
		others(IBV_QPT_UD, sends_imm, IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV,
			attr.odp_caps.per_transport_caps.ud_odp_caps);
		others(IBV_QPT_XRC_SEND, sends_imm | writes | answered | windows | IBV_QP_EX_WITH_SEND_WITH_INV | FLUSH | ATOMIC_WRITE, reliable,
			attr.xrc_odp_caps);
		CHECK(!ibv_destroy_ah(ah));
		blocked();
		CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_srq(xrc_srq) && !ibv_close_xrcd(xrcd));
	}
	CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) && !ibv_destroy_cq(ibv_cq_ex_to_cq(recv_cq)) && !ibv_dereg_mr(mr));
	CHECK(!ibv_dealloc_pd(pd) && !rdma_destroy_id(listener));
	rdma_destroy_event_channel(channel);
	return 0;
}
