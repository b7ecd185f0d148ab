// Answers to requests that cannot be executed, or that are answered in a special way. The program
// exits with 1 at the first answer that differs from that of the kernel and of hardware.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include "loopback.h"

// The results of a call that returns an errno, and of a call that creates an object.
#define ANSWERS(err, x) CHECK((x) == (err))
#define MAKES_NONE(err, x) CHECK(!(x) && errno == (err))

static enum ibv_wc_status send_one(struct loopback *l, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	wr->send_flags |= IBV_SEND_SIGNALED;
	CHECK(!ibv_post_send(l->qp, wr, &bad));
	return wait_for(l->cq).status;
}


static struct ibv_send_wr bind_of(struct loopback *l, struct ibv_mw *mw, uint32_t rkey, struct ibv_mr *mr)
{
	return (struct ibv_send_wr){.opcode = IBV_WR_BIND_MW, .bind_mw = {.mw = mw, .rkey = rkey,
		.bind_info = {mr, (uintptr_t)l->memory + 4096, 4096, IBV_ACCESS_REMOTE_READ}}};
}

// A window of type 2 takes the lower 8 bits of the requested key. mw->rkey is its key, with either
// way of posting. A key identifies its region or window.
static void windows(void)
{
	struct loopback l;
	loopback_open(&l);
	struct ibv_mr *mr = ibv_reg_mr(pd, l.memory, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_2), *one = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CHECK(mr && mw && one);
	uint32_t index = mw->rkey >> 8, keys[] = {0x400, ~mw->rkey, mw->rkey, mw->rkey + 1};
	for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++) {
		struct ibv_send_wr wr = bind_of(&l, mw, keys[i], mr);
		CHECK(send_one(&l, &wr) == IBV_WC_SUCCESS && mw->rkey == (index << 8 | (keys[i] & 0xff)));
		struct ibv_send_wr inv = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = mw->rkey};
		CHECK(send_one(&l, &inv) == IBV_WC_SUCCESS);
	}
	mr->handle ^= 0x5eadbeef; // its lkey is what counts
	mw->handle ^= 0x5eadbeef;
	struct ibv_send_wr wr = bind_of(&l, mw, 7, mr), *bad;
	CHECK(send_one(&l, &wr) == IBV_WC_SUCCESS && mw->rkey == (index << 8 | 7));
	struct ibv_mw_bind b = {.wr_id = 1, .send_flags = IBV_SEND_SIGNALED, .bind_info = wr.bind_mw.bind_info};
	CHECK(!ibv_bind_mw(l.qp, one, &b) && wait_for(l.cq).status == IBV_WC_SUCCESS);
	mr->handle ^= 0x5eadbeef;
	mw->handle ^= 0x5eadbeef;

	// A list that is refused at its second request has executed the bind of the first.
	struct ibv_send_wr inv = {.opcode = IBV_WR_LOCAL_INV, .invalidate_rkey = mw->rkey}, again = bind_of(&l, mw, 9, mr),
		none = {.opcode = (enum ibv_wr_opcode)99};
	CHECK(send_one(&l, &inv) == IBV_WC_SUCCESS);
	again.next = &none;
	again.send_flags = IBV_SEND_SIGNALED;
	CHECK(ibv_post_send(l.qp, &again, &bad) && bad == &none && wait_for(l.cq).status == IBV_WC_SUCCESS && mw->rkey == (index << 8 | 9));

	// The owner of the window is qp; its peer reads through it.
	struct ibv_sge sge = {(uintptr_t)l.memory, 8, l.mr->lkey};
	struct ibv_send_wr read = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {(uintptr_t)l.memory + 4096, mw->rkey}};
	CHECK(!ibv_post_send(l.peer, &read, &bad) && wait_for(l.cq).status == IBV_WC_SUCCESS);
	CHECK(ibv_bind_mw(l.qp, mw, &b) == EINVAL);
	CHECK(!ibv_dealloc_mw(mw) && !ibv_dealloc_mw(one) && !ibv_dereg_mr(mr));
	loopback_close(&l);
}

// An unknown handle is ENOENT, and so is an object of another context.
static void gone(void)
{
	struct ibv_context *other = ibv_open_device(ctx->device);
	struct ibv_pd *otherPD = ibv_alloc_pd(other);
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0), *otherCQ = ibv_create_cq(other, 4, NULL, NULL, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, &gid, sizeof gid, 0);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	struct ibv_srq_init_attr sa = {.attr = {4, 1, 0}};
	struct ibv_srq *srq = ibv_create_srq(pd, &sa), *otherSRQ = ibv_create_srq(otherPD, &sa);
	struct ibv_ah_attr aa = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1}};
	struct ibv_ah *ah = ibv_create_ah(pd, &aa);
	struct ibv_qp_init_attr qa = {.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = ibv_create_qp(pd, &qa);
	struct ibv_pd *spare = ibv_alloc_pd(ctx);
	CHECK(otherCQ && mr && mw && srq && otherSRQ && ah && qp && spare);

#define BOTH(v, call) \
	do { \
		(v)->handle ^= 0x5eadbeef; \
		ANSWERS(ENOENT, call); \
		(v)->handle ^= 0x5eadbeef; \
		struct ibv_context *was = (v)->context; \
		(v)->context = other; \
		ANSWERS(ENOENT, call); \
		(v)->context = was; \
	} while (0)
	BOTH(mw, ibv_dealloc_mw(mw));
	BOTH(mr, ibv_dereg_mr(mr));
	BOTH(ah, ibv_destroy_ah(ah));
	BOTH(qp, ibv_destroy_qp(qp));
	BOTH(srq, ibv_destroy_srq(srq));
	BOTH(cq, ibv_destroy_cq(cq));
	BOTH(spare, ibv_dealloc_pd(spare));
#undef BOTH
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_ERR};
	qp->handle ^= 0x5eadbeef;
	ANSWERS(ENOENT, ibv_modify_qp(qp, &a, IBV_QP_STATE));
	ANSWERS(ENOENT, ibv_query_qp(qp, &a, IBV_QP_STATE, &qa));
	qp->handle ^= 0x5eadbeef;
	spare->handle ^= 0x5eadbeef;
	MAKES_NONE(ENOENT, ibv_reg_mr(spare, &gid, sizeof gid, 0));
	MAKES_NONE(ENOENT, ibv_alloc_mw(spare, IBV_MW_TYPE_1));
	MAKES_NONE(ENOENT, ibv_create_srq(spare, &sa));
	MAKES_NONE(ENOENT, ibv_create_ah(spare, &aa));
	qa = (struct ibv_qp_init_attr){.send_cq = cq, .recv_cq = cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	MAKES_NONE(ENOENT, ibv_create_qp(spare, &qa));
	spare->handle ^= 0x5eadbeef;
	qa.recv_cq = otherCQ;
	MAKES_NONE(ENOENT, ibv_create_qp(pd, &qa));
	qa.recv_cq = cq;
	qa.srq = otherSRQ;
	MAKES_NONE(ENOENT, ibv_create_qp(pd, &qa));
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, otherPD, NULL, 0, 0) == IBV_REREG_MR_ERR_INPUT && errno == ENOENT);

	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_ah(ah) && !ibv_destroy_srq(srq) && !ibv_destroy_srq(otherSRQ) && !ibv_dealloc_mw(mw) &&
		!ibv_dereg_mr(mr));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_cq(otherCQ) && !ibv_dealloc_pd(spare) && !ibv_dealloc_pd(otherPD) &&
		!ibv_close_device(other));
}

// Empty regions are valid. Regions of memory that the process may not access are invalid, unless
// the pages may appear later.
static void regions(void)
{
	char *page = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(page != MAP_FAILED);
	struct ibv_mr *mr;
	CHECK((mr = ibv_reg_mr(pd, page, 0, IBV_ACCESS_LOCAL_WRITE)) && !mr->length && !ibv_dereg_mr(mr));
	CHECK((mr = ibv_reg_mr(pd, page, 8192, IBV_ACCESS_LOCAL_WRITE)));
	CHECK(!mprotect(page + 4096, 4096, PROT_READ));
	struct ibv_mr *read_only = ibv_reg_mr(pd, page, 8192, 0);
	CHECK(read_only && !ibv_dereg_mr(read_only));
	MAKES_NONE(EFAULT, ibv_reg_mr(pd, page, 8192, IBV_ACCESS_LOCAL_WRITE));
	CHECK(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, pd, page + 4096, 4096, 0) && errno == EFAULT);
	CHECK(!ibv_dereg_mr(mr) && !munmap(page + 4096, 4096));
	MAKES_NONE(EFAULT, ibv_reg_mr(pd, page, 8192, 0));
	MAKES_NONE(EFAULT, ibv_reg_mr(pd, (void *)4096, 4096, 0));
	MAKES_NONE(EFAULT, ibv_reg_mr(pd, NULL, 4096, 0));
	CHECK((mr = ibv_reg_mr(pd, page, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND)) && !ibv_dereg_mr(mr));
	CHECK(!munmap(page, 4096));
}

// Datagrams and atomics whose error is detected during execution.
static void faults(void)
{
	static const struct {
		enum ibv_wr_opcode op;
		uint32_t length;
		enum ibv_wc_status want;
	} ud[] = {
		{IBV_WR_SEND, 8, IBV_WC_SUCCESS}, {IBV_WR_SEND, 8000, IBV_WC_LOC_LEN_ERR}, {IBV_WR_RDMA_WRITE, 8, IBV_WC_LOC_QP_OP_ERR},
		{IBV_WR_RDMA_READ, 8, IBV_WC_LOC_QP_OP_ERR}, {IBV_WR_ATOMIC_FETCH_AND_ADD, 8, IBV_WC_LOC_QP_OP_ERR},
	};
	struct loopback l;
	loopback_open(&l);
	for (unsigned i = 0; i < sizeof ud / sizeof *ud; i++) {
		struct ibv_qp_init_attr qa = {.send_cq = l.cq, .recv_cq = l.cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_UD};
		struct ibv_qp *qp = ibv_create_qp(pd, &qa);
		struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5};
		CHECK(qp && !ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
		a.qp_state = IBV_QPS_RTR;
		CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE));
		a.qp_state = IBV_QPS_RTS;
		CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN));
		struct ibv_ah_attr aa = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 1}};
		struct ibv_ah *ah = ibv_create_ah(pd, &aa);
		CHECK(ah);
		ah->handle ^= 0x5eadbeef; // the address is in the structure
		struct ibv_sge sge = {(uintptr_t)l.memory, ud[i].length, l.mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = ud[i].op, .send_flags = IBV_SEND_SIGNALED,
			.wr.ud = {ah, 0xff000000 | qp->qp_num, 5}}, *bad;
		CHECK(!ibv_post_send(qp, &wr, &bad));
		CHECK(wait_for(l.cq).status == ud[i].want);
		ah->handle ^= 0x5eadbeef;
		CHECK(!ibv_destroy_ah(ah) && !ibv_destroy_qp(qp));
	}
	loopback_close(&l);

	static const struct {
		uint32_t length;
		int off;
		uint32_t key;
		enum ibv_wc_status want;
	} atomic[] = {
		{8, 0, 0, IBV_WC_SUCCESS}, {4, 0, 0, IBV_WC_LOC_LEN_ERR}, {9, 0, 0, IBV_WC_LOC_LEN_ERR}, {8, 4, 0, IBV_WC_REM_INV_REQ_ERR},
		{8, 0, 1, IBV_WC_REM_ACCESS_ERR}, {8, 4, 1, IBV_WC_REM_INV_REQ_ERR},
	};
	for (unsigned i = 0; i < sizeof atomic / sizeof *atomic; i++) {
		loopback_open(&l);
		struct ibv_mr *mr = ibv_reg_mr(pd, l.memory, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_ATOMIC);
		CHECK(mr);
		struct ibv_sge sge = {(uintptr_t)l.memory, atomic[i].length, mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
			.wr.atomic = {.remote_addr = (uintptr_t)l.memory + 4096 + atomic[i].off, .compare_add = 1, .rkey = mr->rkey ^ atomic[i].key}};
		CHECK(send_one(&l, &wr) == atomic[i].want);
		CHECK(!ibv_dereg_mr(mr));
		loopback_close(&l);
	}
}

// The two sides of a refused WRITE with immediate data, and an SRQ of another PD, whose buffers
// belong to that PD.
static void receives(void)
{
	struct loopback l;
	loopback_open(&l);
	struct ibv_recv_wr recv = {.wr_id = 12}, *bad_recv;
	CHECK(!ibv_post_recv(l.peer, &recv, &bad_recv));
	struct ibv_sge sge = {(uintptr_t)l.memory, 8, l.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 13, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
		.wr.rdma = {(uintptr_t)l.memory, l.mr->rkey ^ 1}}, *bad;
	CHECK(!ibv_post_send(l.qp, &wr, &bad));
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = wait_for(l.cq);
		CHECK(wc.status == (wc.wr_id == 12 ? IBV_WC_LOC_ACCESS_ERR : IBV_WC_REM_ACCESS_ERR));
	}
	loopback_close(&l);

	struct ibv_pd *other = ibv_alloc_pd(ctx);
	struct ibv_srq_init_attr sa = {.attr = {4, 1, 0}};
	struct ibv_srq *srq = ibv_create_srq(other, &sa);
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	CHECK(srq && cq);
	struct ibv_qp_init_attr qa = {.send_cq = cq, .recv_cq = cq, .srq = srq, .cap = {4, 0, 1, 0, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = ibv_create_qp(pd, &qa);
	CHECK(qp);
	connect_qp(qp, qp->qp_num);
	static char buf[64];
	struct ibv_mr *own = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE),
		*of_srq = ibv_reg_mr(other, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
	CHECK(own && of_srq);
	struct ibv_sge from = {(uintptr_t)buf, 8, own->lkey}, to = {(uintptr_t)buf + 32, 8, of_srq->lkey};
	struct ibv_recv_wr r = {.wr_id = 1, .sg_list = &to, .num_sge = 1};
	struct ibv_send_wr s = {.wr_id = 2, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED};
	CHECK(!ibv_post_srq_recv(srq, &r, &bad_recv) && !ibv_post_send(qp, &s, &bad));
	CHECK(wait_for(cq).status == IBV_WC_SUCCESS && wait_for(cq).status == IBV_WC_SUCCESS);
	to.lkey = own->lkey;
	CHECK(!ibv_post_srq_recv(srq, &r, &bad_recv) && !ibv_post_send(qp, &s, &bad));
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = wait_for(cq);
		// The request is the QP's own.
		CHECK(wc.status == (wc.wr_id == 1 ? IBV_WC_LOC_PROT_ERR : IBV_WC_WR_FLUSH_ERR));
	}
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(own) && !ibv_dereg_mr(of_srq) &&
		!ibv_dealloc_pd(other));
}

// The attributes of RC that programs set on an XRC QP of one side.
static void xrc(void)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 4, NULL, NULL, 0);
	struct ibv_xrcd_init_attr xa = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1};
	struct ibv_xrcd *x = ibv_open_xrcd(ctx, &xa);
	struct ibv_qp_init_attr_ex sa = {.qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .cap = {4, 0, 1, 0, 0}, .comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd};
	struct ibv_qp_init_attr_ex ra = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = x};
	CHECK(cq && x);
	struct ibv_qp *send = ibv_create_qp_ex(ctx, &sa), *recv = ibv_create_qp_ex(ctx, &ra);
	CHECK(send && recv);
	connect_qp(send, recv->qp_num);
	connect_qp(recv, send->qp_num);
	CHECK(!ibv_destroy_qp(send) && !ibv_destroy_qp(recv) && !ibv_close_xrcd(x) && !ibv_destroy_cq(cq));
}

// After ibv_next_poll has found nothing, it finds later completions.
static void polls_again(void)
{
	struct ibv_cq_init_attr_ex ca = {.cqe = 16};
	struct ibv_cq_ex *x = ibv_create_cq_ex(ctx, &ca);
	CHECK(x);
	struct loopback l = {.cq = ibv_cq_ex_to_cq(x)};
	struct ibv_qp_init_attr a = {.send_cq = l.cq, .recv_cq = l.cq, .cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	CHECK((l.qp = ibv_create_qp(pd, &a)) && (l.memory = calloc(1, 8192)) &&
		(l.mr = ibv_reg_mr(pd, l.memory, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	connect_qp(l.qp, l.qp->qp_num);
	struct ibv_poll_cq_attr pa = {0};
	double t = now();
	loopback_write(&l, (uintptr_t)l.memory, l.mr->lkey, (uintptr_t)l.memory + 4096, l.mr->rkey, 8);
	while (ibv_start_poll(x, &pa) == ENOENT)
		CHECK(now() - t < 20);
	for (int i = 0; i < 4; i++) {
		CHECK(ibv_next_poll(x) == ENOENT && ibv_next_poll(x) == ENOENT);
		loopback_write(&l, (uintptr_t)l.memory, l.mr->lkey, (uintptr_t)l.memory + 4096, l.mr->rkey, 8);
		int err;
		while ((err = ibv_next_poll(x)) == ENOENT)
			CHECK(now() - t < 20);
		CHECK(!err && x->status == IBV_WC_SUCCESS);
	}
	ibv_end_poll(x);
	CHECK(!ibv_destroy_qp(l.qp) && !ibv_destroy_cq(l.cq) && !ibv_dereg_mr(l.mr));
	free(l.memory);
}

// Functions of later releases of libibverbs. They are looked up by name, since the installed
// headers may lack them.
static void *later(const char *name)
{
	void *f = dlsym(RTLD_DEFAULT, name);
	if (!f)
		printf("there is no %s\n", name);
	CHECK(f);
	return f;
}

// A buffer of the library, and regions of it. One region carries data. A region outside the buffer
// or its PD is EINVAL.
static void buffers(void)
{
	struct init { size_t length; int access; uint64_t comp_mask, iova; void *addr; int fd; uint64_t fd_offset; void *dmah, *buf; };
	enum { IOVA = 1, ADDR = 2, FD = 4, FD_OFFSET = 8, DMAH = 16, BUF = 32 };
	void *(*alloc)(struct ibv_pd *, size_t, void **) = later("ibv_alloc_buf");
	void (*release)(void *) = later("ibv_free_buf");
	int (*export)(void *) = later("ibv_export_buf_dmabuf_fd");
	struct ibv_mr *(*reg_buf)(struct ibv_pd *, void *, void *, size_t, int) = later("ibv_reg_buf_mr");
	struct ibv_mr *(*reg_ex)(struct ibv_pd *, struct init *) = later("ibv_reg_mr_ex");
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
	struct loopback l;
	loopback_open(&l);
	// A parent domain may request memory that devices reach in confidential computing; here that is
	// all memory.
	struct ibv_parent_domain_init_attr attr = {.pd = pd, .comp_mask = 4};
	struct ibv_pd *parent = ibv_alloc_parent_domain(ctx, &attr);
	CHECK(parent);
	struct ibv_pd *pds[] = {pd, parent};
	for (int i = 0; i < 2; i++) {
		const size_t size = 10000;
		void *buf;
		char *m = alloc(pds[i], size, &buf);
		CHECK(m && !((uintptr_t)m % sysconf(_SC_PAGESIZE)));
		memset(m, 0, size);
		struct ibv_mr *mr = reg_buf(pds[i], buf, m, size, access);
		CHECK(mr && mr->addr == m && mr->length == size && mr->pd == pds[i]);
		loopback_write(&l, (uintptr_t)l.memory, l.mr->lkey, (uintptr_t)m + size - 100, mr->rkey, 100);
		CHECK(wait_for(l.cq).status == IBV_WC_SUCCESS && !memcmp(m + size - 100, l.memory, 100) && !m[size - 101]);
		CHECK(!ibv_dereg_mr(mr));
		struct init in = {.length = 64, .access = access, .comp_mask = ADDR | BUF | IOVA, .addr = m + 4096, .iova = 0x10000, .buf = buf};
		CHECK((mr = reg_ex(pds[i], &in)));
		loopback_write(&l, (uintptr_t)l.memory, l.mr->lkey, 0x10000, mr->rkey, 64);
		CHECK(wait_for(l.cq).status == IBV_WC_SUCCESS && !memcmp(m + 4096, l.memory, 64) && !m[4096 + 64]);
		CHECK(!ibv_dereg_mr(mr));
		MAKES_NONE(EINVAL, reg_buf(pds[!i], buf, m, size, access));
		MAKES_NONE(EINVAL, reg_buf(pds[i], buf, m, size + 1, access));
		MAKES_NONE(EINVAL, reg_buf(pds[i], buf, m + 1, size, access));
		MAKES_NONE(EINVAL, reg_buf(pds[i], buf, m - 1, 1, access));
		MAKES_NONE(EINVAL, reg_buf(pds[i], buf, m + 1, SIZE_MAX, access));
		in.comp_mask = BUF; // without an address
		MAKES_NONE(EINVAL, reg_ex(pds[i], &in));
		in.comp_mask = ADDR | BUF | FD;
		MAKES_NONE(EINVAL, reg_ex(pds[i], &in));
		const uint64_t unsupported[] = {ADDR | 64, ADDR | DMAH, ADDR | BUF | DMAH};
		for (size_t j = 0; j < sizeof unsupported / sizeof *unsupported; j++) {
			in.comp_mask = unsupported[j];
			MAKES_NONE(EOPNOTSUPP, reg_ex(pds[i], &in));
		}
		const uint64_t invalid[] = {0, IOVA, ADDR | FD_OFFSET, FD, FD | FD_OFFSET, FD | IOVA, FD | FD_OFFSET | IOVA | ADDR};
		for (size_t j = 0; j < sizeof invalid / sizeof *invalid; j++) {
			in.comp_mask = invalid[j];
			MAKES_NONE(EINVAL, reg_ex(pds[i], &in));
		}
		in.comp_mask = FD | FD_OFFSET | IOVA;
		in.fd = -1;
		MAKES_NONE(EBADF, reg_ex(pds[i], &in));
		CHECK((errno = 0, export(buf) == -1) && errno == ENODATA);
		release(buf);
	}
	void *none;
	MAKES_NONE(ENOMEM, alloc(pd, SIZE_MAX / 2, &none));
	CHECK(!ibv_dealloc_pd(parent));
	attr.comp_mask = 8;
	MAKES_NONE(EINVAL, ibv_alloc_parent_domain(ctx, &attr));
	loopback_close(&l);
}

// The speed of a port in units of 100 Mbit/s is that of all its lanes.
static void speed(void)
{
	int (*query)(struct ibv_context *, uint32_t, uint64_t *) = later("ibv_query_port_speed");
	struct ibv_port_attr port;
	uint64_t units = 0;
	// 4 lanes of 10 Gbit/s.
	CHECK(!ibv_query_port(ctx, 1, &port) && port.active_width == 2 && port.active_speed == 4);
	ANSWERS(0, query(ctx, 1, &units));
	CHECK(units == 400);
	ANSWERS(EINVAL, query(ctx, 2, &units));
	ANSWERS(EINVAL, query(ctx, 257, &units));
}

// A device with ATOMIC WRITE supports it for regions with on-demand paging, too.
static void paging(void)
{
	struct ibv_device_attr_ex attr;
	const uint64_t atomic_write = 1ull << 40;
	CHECK(!ibv_query_device_ex(ctx, NULL, &attr) && attr.device_cap_flags_ex & atomic_write);
	CHECK(attr.odp_caps.per_transport_caps.rc_odp_caps & 1 << 7 && !(attr.odp_caps.per_transport_caps.ud_odp_caps & 1 << 7));
}

int main(void)
{
	device_open();
	windows();
	gone();
	regions();
	faults();
	receives();
	xrc();
	polls_again();
	buffers();
	speed();
	paging();
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	return 0;
}
