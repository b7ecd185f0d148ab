// Every capability that a device advertises can be used, and what it does not advertise is refused.
// The program is compiled with the headers of several releases of rdma-core, RELEASE, and runs on
// libraries that were built with others. It exits with 1 at the first failed check.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stddef.h>
#include <rdma/rdma_cma.h>
#include "loopback.h"

#ifndef RELEASE
#define RELEASE 44
#endif

#define OPNOTSUPP(x) CHECK((errno = 0, !(x)) && errno == EOPNOTSUPP)

// Bits that the headers of older releases do not have.
enum { FLUSH = 1 << 11, ATOMIC_WRITE = 1 << 12, ACCESS_FLUSH_GLOBAL = 1 << 8, ACCESS_FLUSH_PERSISTENT = 1 << 9 };
enum { ODP_FLUSH = 1 << 6, ODP_ATOMIC_WRITE = 1 << 7 };
#define FLUSH_GLOBAL (1ull << 38)
#define FLUSH_PERSISTENT (1ull << 39)
#define HAS_ATOMIC_WRITE (1ull << 40)

// What is behind a structure of the program's must stay as it is.
#define GUARDED(type, name) \
	struct { type v; unsigned char after[64]; } name; \
	memset(&name, 0x5a, sizeof name)
#define INTACT(name) \
	for (unsigned i = 0; i < sizeof name.after; i++) \
		CHECK(name.after[i] == 0x5a)

static struct ibv_device_attr_ex attr;
static int iwarp;

static void queries(void)
{
	GUARDED(struct ibv_port_attr, port);
	CHECK(!ibv_query_port(ctx, 1, &port.v));
	INTACT(port);
	CHECK(port.v.state == IBV_PORT_ACTIVE && port.v.active_width == 2 && port.v.gid_tbl_len > 0);
	// The lanes of 800 Gbit/s are XDR's, for which the older field has no value: NDR.
	CHECK(port.v.active_speed == 128);
#if RELEASE >= 65
	CHECK(port.v.active_speed_ex == 256);
#endif
	int (*speed)(struct ibv_context *, uint32_t, uint64_t *) =
		(int (*)(struct ibv_context *, uint32_t, uint64_t *))dlsym(RTLD_DEFAULT, "ibv_query_port_speed");
	uint64_t value;
	CHECK(speed && !speed(ctx, 1, &value) && value == 8000);
	CHECK(port.v.link_layer == IBV_LINK_LAYER_ETHERNET);
	GUARDED(struct ibv_device_attr_ex, device);
	CHECK(!ibv_query_device_ex(ctx, NULL, &device.v));
	INTACT(device);
	attr = device.v;
	CHECK(attr.phys_port_cnt_ex == 1 && attr.orig_attr.phys_port_cnt == 1);
	CHECK((uint32_t)attr.device_cap_flags_ex == attr.orig_attr.device_cap_flags);
	GUARDED(struct ibv_gid_entry, entry);
	CHECK(!ibv_query_gid_ex(ctx, 1, 0, &entry.v, 0));
	INTACT(entry);
	CHECK(!strcmp(ibv_event_type_str((enum ibv_event_type)20), "Device link speed change"));
	CHECK(!strcmp(rdma_event_str((enum rdma_cm_event_type)16), "RDMA_CM_EVENT_ADDRINFO_RESOLVED"));
	CHECK(!strcmp(rdma_event_str((enum rdma_cm_event_type)18), "UNKNOWN EVENT"));
	const char *(*opcode)(enum ibv_wr_opcode) = (const char *(*)(enum ibv_wr_opcode))dlsym(RTLD_DEFAULT, "ibv_wr_opcode_str");
	CHECK(opcode && !strcmp(opcode(IBV_WR_SEND), "send") && !strcmp(opcode((enum ibv_wr_opcode)14), "flush"));
	CHECK(!strcmp(opcode((enum ibv_wr_opcode)12), "unknown") && !strcmp(opcode((enum ibv_wr_opcode)-1), "unknown"));
}

static int has(uint64_t flag) { return !!(attr.device_cap_flags_ex & flag); }

// flows uses QPs of raw packets, and flows to them.
static void flows(void)
{
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} rule = {
		.attr = {.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof rule, .num_of_specs = 1, .port = 1},
		.eth = {.type = IBV_FLOW_SPEC_ETH, .size = sizeof rule.eth, .mask.dst_mac = {255, 255, 255, 255, 255, 255}},
	};
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_RAW_PACKET};
	struct ibv_qp *raw = ibv_create_qp(pd, &a);
	CHECK(cq && !raw == !has(IBV_DEVICE_RAW_MULTI));
	if (raw) {
		struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
		CHECK(!ibv_modify_qp(raw, &init, IBV_QP_STATE | IBV_QP_PORT));
		struct ibv_flow *flow = ibv_create_flow(raw, &rule.attr);
		CHECK(!flow == !has(IBV_DEVICE_MANAGED_FLOW_STEERING) && (!flow || !ibv_destroy_flow(flow)) && !ibv_destroy_qp(raw));
	}
	CHECK(!ibv_destroy_cq(cq));
}

// The flags of the device. Those that the last line names are statements, without a call.
static void flags(void)
{
	flows();
	struct ibv_xrcd_init_attr x = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &x);
	CHECK(!xrcd == !has(IBV_DEVICE_XRC) && (!xrcd || !ibv_close_xrcd(xrcd)));
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CHECK(!mw == !has(IBV_DEVICE_MEM_WINDOW) && (!mw || !ibv_dealloc_mw(mw)));
	mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	CHECK(!mw == !has(IBV_DEVICE_MEM_WINDOW_TYPE_2B) && (!mw || !ibv_dealloc_mw(mw)));
	struct ibv_srq_init_attr s = {.attr = {.max_wr = 4, .max_sge = 1}};
	struct ibv_srq *srq = ibv_create_srq(pd, &s);
	struct ibv_srq_attr more = {.max_wr = 8};
	CHECK(srq && (ibv_modify_srq(srq, &more, IBV_SRQ_MAX_WR) == 0) == has(IBV_DEVICE_SRQ_RESIZE) && !ibv_destroy_srq(srq));
	char memory[64];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | ACCESS_FLUSH_PERSISTENT);
	CHECK(!mr == !has(FLUSH_PERSISTENT) && (!mr || !ibv_dereg_mr(mr)));
	CHECK(iwarp || (has(IBV_DEVICE_RAW_MULTI) && has(FLUSH_GLOBAL) && has(HAS_ATOMIC_WRITE) && has(IBV_DEVICE_XRC)));
	CHECK(!(attr.device_cap_flags_ex & ~(uint64_t)(IBV_DEVICE_XRC | IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
		IBV_DEVICE_SRQ_RESIZE | IBV_DEVICE_RAW_MULTI | IBV_DEVICE_MANAGED_FLOW_STEERING | FLUSH_GLOBAL | HAS_ATOMIC_WRITE |
		IBV_DEVICE_BAD_PKEY_CNTR | IBV_DEVICE_BAD_QKEY_CNTR |
		IBV_DEVICE_UD_AV_PORT_ENFORCE | IBV_DEVICE_PORT_ACTIVE_EVENT | IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID)));
}

// The other numbers of the device.
static void limits(void)
{
	struct ibv_alloc_dm_attr d = {.length = attr.max_dm_size};
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &d);
	CHECK(attr.max_dm_size && dm && !ibv_free_dm(dm));
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq_init_attr_ex c = {.cqe = 16, .channel = ch, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &c);
	CHECK(ch && !cq == !attr.completion_timestamp_mask);
	struct ibv_modify_cq_attr m = {.attr_mask = IBV_CQ_ATTR_MODERATE,
		.moderate = {.cq_count = attr.cq_mod_caps.max_cq_count, .cq_period = attr.cq_mod_caps.max_cq_period}};
	CHECK(cq && m.moderate.cq_count && !ibv_modify_cq(ibv_cq_ex_to_cq(cq), &m) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
	CHECK(!ibv_destroy_comp_channel(ch));
	struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	CHECK((ibv_query_rt_values_ex(ctx, &values) == 0) == (attr.hca_core_clock != 0));
}

static struct ibv_qp *make_qp(struct ibv_cq *cq, uint64_t ops)
{
	struct ibv_qp_init_attr_ex a = {
		.send_cq = cq, .recv_cq = cq, .cap = {8, 8, 1, 1, 64}, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = ops,
	};
	return ibv_create_qp_ex(ctx, &a);
}

// flush posts a FLUSH. struct ibv_qp_ex of release 44 ends before its function.
static void flush(struct ibv_qp_ex *q, uint32_t rkey, void *addr, size_t length, uint8_t type, uint8_t level)
{
#if RELEASE >= 65
	ibv_wr_flush(q, rkey, (uintptr_t)addr, length, type, level);
#else
	void (*f)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
	memcpy(&f, (char *)q + offsetof(struct ibv_qp_ex, wr_atomic_write) + sizeof f, sizeof f);
	f(q, rkey, (uintptr_t)addr, length, type, level);
#endif
}

static struct fields {
	enum ibv_wc_status status;
	enum ibv_wc_opcode opcode;
} polled(struct ibv_cq_ex *cq)
{
	struct ibv_poll_cq_attr a = {0};
	double t = now();
	int err;
	while ((err = ibv_start_poll(cq, &a)) == ENOENT)
		CHECK(now() - t < 20);
	CHECK(!err);
	struct fields f = {cq->status, ibv_wc_read_opcode(cq)};
	ibv_end_poll(cq);
	return f;
}

#if RELEASE >= 65
static uint64_t count(struct ibv_comp_cntr *c, int errors)
{
	uint64_t v;
	CHECK(!(errors ? ibv_read_err_comp_cntr(c, &v) : ibv_read_comp_cntr(c, &v)));
	return v;
}

// attach_all attaches two new counters to a QP, of WRITEs and READs of either side. It checks that
// all else is refused.
static void attach_all(struct ibv_qp *qp, struct ibv_comp_cntr *c[2])
{
	GUARDED(struct ibv_comp_cntr_caps, caps);
	CHECK(!ibv_query_comp_cntr_caps(ctx, &caps.v));
	INTACT(caps);
	CHECK(caps.v.max_value == UINT64_MAX && caps.v.max_counters > 1 && caps.v.supported_qp_attach_ops == 63);
	for (int i = 0; i < 2; i++) {
		struct ibv_comp_cntr_init_attr a = {.type = i ? IBV_COMP_CNTR_TYPE_BYTES : IBV_COMP_CNTR_TYPE_WRS};
		CHECK((c[i] = ibv_create_comp_cntr(ctx, &a)) && c[i]->context == ctx && !count(c[i], 0) && !count(c[i], 1));
	}
	struct ibv_comp_cntr_init_attr bad = {.flags = 1};
	OPNOTSUPP(ibv_create_comp_cntr(ctx, &bad));
	bad = (struct ibv_comp_cntr_init_attr){.type = (enum ibv_comp_cntr_type)2};
	OPNOTSUPP(ibv_create_comp_cntr(ctx, &bad));
	struct ibv_qp_attach_comp_cntr_attr attach = {
		.op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_WRITE | IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_WRITE,
	};
	CHECK(!ibv_qp_attach_comp_cntr(qp, c[0], &attach) && ibv_qp_attach_comp_cntr(qp, c[1], &attach) == EBUSY);
	attach.op_mask = IBV_QP_ATTACH_COMP_CNTR_OP_RDMA_READ | IBV_QP_ATTACH_COMP_CNTR_OP_REMOTE_RDMA_READ;
	CHECK(!ibv_qp_attach_comp_cntr(qp, c[1], &attach));
	attach.op_mask = 1 << 6;
	CHECK(ibv_qp_attach_comp_cntr(qp, c[1], &attach) == EOPNOTSUPP);
	attach.op_mask = 0;
	CHECK(ibv_qp_attach_comp_cntr(qp, c[1], &attach) == EINVAL);
	CHECK(!ibv_set_comp_cntr(c[0], UINT64_MAX) && !ibv_inc_comp_cntr(c[0], 1) && !count(c[0], 0));
	CHECK(!ibv_inc_err_comp_cntr(c[0], 4) && count(c[0], 1) == 4 && !ibv_set_err_comp_cntr(c[0], 0));
	CHECK(ibv_destroy_comp_cntr(c[0]) == EBUSY);
}
#endif

// The operations of a QP, with memory that is registered with on-demand paging if the device can do
// so.
static void operations(void)
{
	struct ibv_cq_init_attr_ex c = {.cqe = 64, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN};
	struct ibv_cq_ex *cq = ibv_create_cq_ex(ctx, &c);
	CHECK(cq);
	uint64_t common = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP |
		IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
	uint64_t more = (has(FLUSH_GLOBAL) ? FLUSH : 0) | (has(HAS_ATOMIC_WRITE) ? ATOMIC_WRITE : 0);
	OPNOTSUPP(make_qp(ibv_cq_ex_to_cq(cq), common | IBV_QP_EX_WITH_TSO));
	if (iwarp) {
		OPNOTSUPP(make_qp(ibv_cq_ex_to_cq(cq), FLUSH));
		OPNOTSUPP(make_qp(ibv_cq_ex_to_cq(cq), ATOMIC_WRITE));
		CHECK(!more && !attr.odp_caps.per_transport_caps.uc_odp_caps && !attr.odp_caps.per_transport_caps.ud_odp_caps);
	}
	struct ibv_qp *qp = make_qp(ibv_cq_ex_to_cq(cq), common | more), *peer = make_qp(ibv_cq_ex_to_cq(cq), common | more);
	CHECK(qp && peer);
#if RELEASE >= 65
	struct ibv_comp_cntr *own[2], *others[2];
	attach_all(qp, own);
	attach_all(peer, others);
#endif
	if (iwarp) { // its QPs are connected by rdma_cm
		CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cq)));
#if RELEASE >= 65
		for (int i = 0; i < 2; i++)
			CHECK(!ibv_destroy_comp_cntr(own[i]) && !ibv_destroy_comp_cntr(others[i]));
#endif
		return;
	}
	connect_qp(qp, peer->qp_num);
	connect_qp(peer, qp->qp_num);
	struct ibv_qp_attr access = {.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC |
		ACCESS_FLUSH_GLOBAL | ACCESS_FLUSH_PERSISTENT};
	CHECK(!ibv_modify_qp(peer, &access, IBV_QP_ACCESS_FLAGS));
	struct ibv_qp_attr pace = {.qp_state = IBV_QPS_RTS, .rate_limit = attr.packet_pacing_caps.qp_rate_limit_max};
	CHECK(attr.packet_pacing_caps.supported_qpts & 1 << IBV_QPT_RC && !ibv_modify_qp(qp, &pace, IBV_QP_STATE | IBV_QP_RATE_LIMIT));

	uint32_t odp = attr.odp_caps.per_transport_caps.rc_odp_caps;
	CHECK(attr.odp_caps.general_caps & IBV_ODP_SUPPORT);
	CHECK(odp == (IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC |
		IBV_ODP_SUPPORT_SRQ_RECV | ODP_FLUSH | ODP_ATOMIC_WRITE));
	uint64_t *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_ON_DEMAND | ACCESS_FLUSH_GLOBAL);
	CHECK(memory != MAP_FAILED && mr);
	uint64_t *here = memory, *there = memory + 512;
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(qp);
	CHECK(q);
	q->wr_flags = IBV_SEND_SIGNALED;

#define POSTED(opcode_of_wc, ...) \
	do { \
		ibv_wr_start(q); \
		__VA_ARGS__; \
		CHECK(!ibv_wr_complete(q)); \
		struct fields f = polled(cq); \
		CHECK(f.status == IBV_WC_SUCCESS && f.opcode == (enum ibv_wc_opcode)(opcode_of_wc)); \
	} while (0)

	here[0] = 7;
	POSTED(IBV_WC_RDMA_WRITE, ibv_wr_rdma_write(q, mr->rkey, (uintptr_t)there); ibv_wr_set_sge(q, mr->lkey, (uintptr_t)here, 8));
	CHECK(there[0] == 7);
	POSTED(IBV_WC_FETCH_ADD, ibv_wr_atomic_fetch_add(q, mr->rkey, (uintptr_t)there, 3);
		ibv_wr_set_sge(q, mr->lkey, (uintptr_t)here, 8));
	CHECK(here[0] == 7 && there[0] == 10);
	uint64_t eleven = 11;
	POSTED(9 /* IBV_WC_ATOMIC_WRITE */, ibv_wr_atomic_write(q, mr->rkey, (uintptr_t)there, &eleven));
	CHECK(there[0] == 11);
	POSTED(8 /* IBV_WC_FLUSH */, flush(q, mr->rkey, there, 8, 1, 0));
	POSTED(8, flush(q, mr->rkey, there, 0, 1, 1));
	POSTED(IBV_WC_RDMA_READ, ibv_wr_rdma_read(q, mr->rkey, (uintptr_t)there); ibv_wr_set_sge(q, mr->lkey, (uintptr_t)here, 8));
	CHECK(here[0] == 11);
#if RELEASE >= 65
	// A WRITE, and the 8 bytes of a READ, on both sides. Atomics and FLUSHes do not count.
	CHECK(count(own[0], 0) == 1 && count(others[0], 0) == 1 && count(own[1], 0) == 8 && count(others[1], 0) == 8);
#endif

	// A FLUSH of no type, and one that is too long, are refused. So is one to persistent memory, by
	// the responder, because the region does not allow it.
	ibv_wr_start(q);
	flush(q, mr->rkey, there, 8, 0, 0);
	CHECK(ibv_wr_complete(q) == EINVAL);
	ibv_wr_start(q);
	flush(q, mr->rkey, there, 1ull << 32, 1, 0);
	CHECK(ibv_wr_complete(q) == EINVAL);
	ibv_wr_start(q);
	flush(q, mr->rkey, there, 8, 2, 0);
	CHECK(!ibv_wr_complete(q) && polled(cq).status == IBV_WC_REM_ACCESS_ERR);
	ibv_wr_start(q);
	ibv_wr_rdma_write(q, mr->rkey, (uintptr_t)there);
	ibv_wr_set_sge(q, mr->lkey, (uintptr_t)here, 8);
	CHECK(!ibv_wr_complete(q) && polled(cq).status == IBV_WC_WR_FLUSH_ERR);

#if RELEASE >= 65
	CHECK(count(own[0], 0) == 1 && count(own[0], 1) == 1 && !count(own[1], 1));
	struct ibv_mr_init_attr init = {.length = 8192, .access = IBV_ACCESS_LOCAL_WRITE, .comp_mask = IBV_REG_MR_MASK_ADDR, .addr = memory};
	struct ibv_mr *other = ibv_reg_mr_ex(pd, &init);
	CHECK(other && !ibv_dereg_mr(other));
	struct ibv_buf *buf;
	void *p = ibv_alloc_buf(pd, 100, &buf);
	CHECK(p && (other = ibv_reg_buf_mr(pd, buf, p, 100, IBV_ACCESS_LOCAL_WRITE)) && !ibv_dereg_mr(other));
	struct ibv_dmah *handle = (struct ibv_dmah *)memory; // none can be allocated
	struct ibv_mr_init_attr both = {.length = 100, .access = IBV_ACCESS_LOCAL_WRITE, .addr = p, .buf = buf, .dmah = handle,
		.comp_mask = IBV_REG_MR_MASK_ADDR | IBV_REG_MR_MASK_BUF | IBV_REG_MR_MASK_DMAH};
	OPNOTSUPP(ibv_reg_mr_ex(pd, &both));
	CHECK(ibv_export_buf_dmabuf_fd(buf) == -1 && errno == ENODATA);
	ibv_free_buf(buf);
	struct ibv_dmah_init_attr dmah = {0};
	OPNOTSUPP(ibv_alloc_dmah(ctx, &dmah));
#endif
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer));
#if RELEASE >= 65
	for (int i = 0; i < 2; i++)
		CHECK(!ibv_destroy_comp_cntr(own[i]) && !ibv_destroy_comp_cntr(others[i]));
#endif
	CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) && !ibv_dereg_mr(mr));
	munmap(memory, 8192);
}

int main(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n == 2);
	for (int i = 0; i < n; i++) {
		iwarp = list[i]->transport_type == IBV_TRANSPORT_IWARP;
		CHECK((ctx = ibv_open_device(list[i])) && (pd = ibv_alloc_pd(ctx)) && !ibv_query_gid(ctx, 1, !iwarp, &gid));
		queries();
		flags();
		limits();
		operations();
		CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	}
	ibv_free_device_list(list);
	return 0;
}
