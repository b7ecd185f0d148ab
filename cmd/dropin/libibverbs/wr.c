// ibv_wr_start and the functions that follow it. They build a list of requests. wr_complete passes
// it to the engine in one call.
#include "front.h"

#define Q(qp) ((struct qp *)(qp))

static void wr_start(struct ibv_qp_ex *qp)
{
	lock(&Q(qp)->life, &Q(qp)->list);
	Q(qp)->n = Q(qp)->error = 0;
}

static void wr_abort(struct ibv_qp_ex *qp) { unlock(&Q(qp)->life, &Q(qp)->list); }

static int wr_complete(struct ibv_qp_ex *qp)
{
	struct qp *q = Q(qp);
	int done, err = q->error;
	if (!err && q->n) {
		enter_engine();
		err = engine->post_send(qp->qp_base.handle, (struct sr_send_wr *)q->wrs, q->flags | SR_POST_ALL, &done, 0, NULL, NULL);
	}
	unlock(&q->life, &q->list);
	return fail(err);
}

static void refuse(struct qp *q, int err)
{
	if (!q->error)
		q->error = err;
}

// begin appends a request. If there is no room, it returns a request that will not be posted.
static struct ibv_send_wr *begin(struct ibv_qp_ex *qp, enum ibv_wr_opcode op)
{
	struct qp *q = Q(qp);
	if (q->n == q->room)
		refuse(q, ENOMEM);
	int i = q->n < q->room ? q->n++ : q->room;
	struct ibv_send_wr *w = &q->wrs[i];
	memset(w, 0, sizeof *w);
	w->wr_id = qp->wr_id;
	w->send_flags = qp->wr_flags;
	w->opcode = op;
	w->sg_list = q->sges + (size_t)i * (q->cap.max_send_sge + 1);
	if (i)
		q->wrs[i - 1].next = w;
	return w;
}

// last returns the request that was begun last.
static struct ibv_send_wr *last(struct ibv_qp_ex *qp) { return &Q(qp)->wrs[Q(qp)->n ? Q(qp)->n - 1 : 0]; }

static struct ibv_send_wr *begin_rdma(struct ibv_qp_ex *qp, enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr)
{
	struct ibv_send_wr *w = begin(qp, op);
	w->wr.rdma.rkey = rkey;
	w->wr.rdma.remote_addr = addr;
	return w;
}

static struct ibv_send_wr *begin_atomic(struct ibv_qp_ex *qp, enum ibv_wr_opcode op, uint32_t rkey, uint64_t addr)
{
	struct ibv_send_wr *w = begin(qp, op);
	w->wr.atomic.rkey = rkey;
	w->wr.atomic.remote_addr = addr;
	return w;
}

static void wr_send(struct ibv_qp_ex *qp) { begin(qp, IBV_WR_SEND); }
static void wr_send_imm(struct ibv_qp_ex *qp, __be32 imm) { begin(qp, IBV_WR_SEND_WITH_IMM)->imm_data = imm; }
static void wr_send_inv(struct ibv_qp_ex *qp, uint32_t rkey) { begin(qp, IBV_WR_SEND_WITH_INV)->invalidate_rkey = rkey; }
static void wr_local_inv(struct ibv_qp_ex *qp, uint32_t rkey) { begin(qp, IBV_WR_LOCAL_INV)->invalidate_rkey = rkey; }
static void wr_rdma_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr) { begin_rdma(qp, IBV_WR_RDMA_WRITE, rkey, addr); }
static void wr_rdma_read(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr) { begin_rdma(qp, IBV_WR_RDMA_READ, rkey, addr); }

static void wr_rdma_write_imm(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, __be32 imm)
{
	begin_rdma(qp, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr)->imm_data = imm;
}

static void wr_atomic_cmp_swp(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
	struct ibv_send_wr *w = begin_atomic(qp, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr);
	w->wr.atomic.compare_add = compare;
	w->wr.atomic.swap = swap;
}

static void wr_atomic_fetch_add(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, uint64_t add)
{
	begin_atomic(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr)->wr.atomic.compare_add = add;
}

static void wr_bind_mw(struct ibv_qp_ex *qp, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *info)
{
	struct ibv_send_wr *w = begin(qp, IBV_WR_BIND_MW);
	w->bind_mw.mw = mw;
	w->bind_mw.rkey = rkey;
	w->bind_mw.bind_info = *info;
}

static void wr_set_ud_addr(struct ibv_qp_ex *qp, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct ibv_send_wr *w = last(qp);
	w->wr.ud.ah = ah;
	w->wr.ud.remote_qpn = qpn;
	w->wr.ud.remote_qkey = qkey;
}

static void wr_set_xrc_srqn(struct ibv_qp_ex *qp, uint32_t srqn) { last(qp)->qp_type.xrc.remote_srqn = srqn; }

static void wr_set_sge_list(struct ibv_qp_ex *qp, size_t n, const struct ibv_sge *list)
{
	struct ibv_send_wr *w = last(qp);
	if (n > Q(qp)->cap.max_send_sge) {
		refuse(Q(qp), EINVAL);
		return;
	}
	memcpy(w->sg_list, list, n * sizeof *list);
	w->num_sge = n;
}

static void wr_set_sge(struct ibv_qp_ex *qp, uint32_t lkey, uint64_t addr, uint32_t length)
{
	struct ibv_sge s = {.addr = addr, .length = length, .lkey = lkey};
	wr_set_sge_list(qp, 1, &s);
}

// The data is copied here, because the program may reuse its memory before wr_complete.
static void wr_set_inline_data_list(struct ibv_qp_ex *qp, size_t n, const struct ibv_data_buf *list)
{
	struct qp *q = Q(qp);
	struct ibv_send_wr *w = last(qp);
	size_t room = q->cap.max_inline_data, length = 0;
	char *to = q->inline_data + (size_t)(w - q->wrs) * room;
	for (size_t i = 0; i < n; i++) {
		if (list[i].length > room - length) {
			refuse(q, EINVAL);
			return;
		}
		memcpy(to + length, list[i].addr, list[i].length);
		length += list[i].length;
	}
	w->sg_list[0] = (struct ibv_sge){.addr = (uintptr_t)to, .length = length};
	w->num_sge = 1;
	w->send_flags |= IBV_SEND_INLINE;
}

static void wr_set_inline_data(struct ibv_qp_ex *qp, void *addr, size_t length)
{
	struct ibv_data_buf b = {.addr = addr, .length = length};
	wr_set_inline_data_list(qp, 1, &b);
}

static void wr_atomic_write(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, const void *data)
{
	begin_rdma(qp, (enum ibv_wr_opcode)WR_ATOMIC_WRITE, rkey, addr);
	struct ibv_data_buf b = {.addr = (void *)data, .length = 8};
	if (Q(qp)->cap.max_inline_data >= 8)
		wr_set_inline_data_list(qp, 1, &b);
	else
		refuse(Q(qp), EINVAL);
}

// No field of struct ibv_send_wr is for FLUSH. The engine finds the length in swap, and the type
// and the level in imm_data.
static void wr_flush(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, size_t length, uint8_t type, uint8_t level)
{
	struct ibv_send_wr *w = begin_rdma(qp, (enum ibv_wr_opcode)WR_FLUSH, rkey, addr);
	w->wr.atomic.swap = length;
	w->imm_data = type | level << 8;
	if (length > UINT32_MAX)
		refuse(Q(qp), EINVAL);
}

void qp_ops(struct qp *q, uint64_t ops)
{
	struct ibv_qp_ex *x = &q->ibv;
	x->wr_start = wr_start;
	x->wr_complete = wr_complete;
	x->wr_abort = wr_abort;
	x->wr_send = wr_send;
	x->wr_send_imm = wr_send_imm;
	x->wr_send_inv = wr_send_inv;
	x->wr_local_inv = wr_local_inv;
	x->wr_rdma_write = wr_rdma_write;
	x->wr_rdma_write_imm = wr_rdma_write_imm;
	x->wr_rdma_read = wr_rdma_read;
	x->wr_atomic_cmp_swp = wr_atomic_cmp_swp;
	x->wr_atomic_fetch_add = wr_atomic_fetch_add;
	x->wr_atomic_write = wr_atomic_write;
	q->wr_flush = wr_flush;
	x->wr_bind_mw = wr_bind_mw;
	x->wr_set_ud_addr = wr_set_ud_addr;
	x->wr_set_xrc_srqn = wr_set_xrc_srqn;
	x->wr_set_sge = wr_set_sge;
	x->wr_set_sge_list = wr_set_sge_list;
	x->wr_set_inline_data = wr_set_inline_data;
	x->wr_set_inline_data_list = wr_set_inline_data_list;
	(void)ops; // all functions are set, even if not requested
}
