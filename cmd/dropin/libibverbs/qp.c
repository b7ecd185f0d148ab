// Queue pairs, shared receive queues and XRC domains.
#include "front.h"

// send_ops_of returns the ibv_wr_… functions of a type of QP.
static uint64_t send_ops_of(struct ibv_context *c, enum ibv_qp_type type)
{
	uint64_t ops = IBV_QP_EX_WITH_SEND;
	if (type == IBV_QPT_RAW_PACKET)
		return ops;
	int iwarp = c->device->transport_type == IBV_TRANSPORT_IWARP;
	if (!iwarp)
		ops |= IBV_QP_EX_WITH_SEND_WITH_IMM;
	if (type == IBV_QPT_UD)
		return ops;
	ops |= IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_LOCAL_INV;
	if (type == IBV_QPT_UC)
		return ops;
	ops |= IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_SEND_WITH_INV;
	return iwarp ? ops : ops | QP_EX_WITH_FLUSH | IBV_QP_EX_WITH_ATOMIC_WRITE;
}

static void free_qp(struct qp *q)
{
	free(q->wrs);
	free(q->sges);
	free(q->inline_data);
	free_recv_ring(q);
	q->wrs = NULL;
	q->sges = NULL;
	q->inline_data = NULL;
	end_destroy(&q->life, q);
}

// make_list allocates the requests of ibv_wr_start. It allocates one more than fits in the QP, to
// hold refused requests.
static int make_list(struct qp *q, struct ibv_qp_cap *cap)
{
	size_t n = cap->max_send_wr;
	q->room = n;
	q->wrs = calloc(n + 1, sizeof *q->wrs);
	q->sges = calloc((n + 1) * (cap->max_send_sge + 1), sizeof *q->sges);
	q->inline_data = malloc((n + 1) * (size_t)cap->max_inline_data + 1);
	return q->wrs && q->sges && q->inline_data ? 0 : ENOMEM;
}

static uint32_t handle_of_cq(struct ibv_cq *cq) { return cq ? cq->handle : 0; }

static struct ibv_qp *create_qp(struct ibv_context *c, struct ibv_qp_init_attr_ex *a, int block_loopback, uint64_t send_ops)
{
	if (send_ops & ~send_ops_of(c, a->qp_type))
		return fail_null(EOPNOTSUPP);
	struct qp *q = calloc(1, sizeof *q);
	if (!q)
		return NULL;
	struct ibv_qp *v = &q->ibv.qp_base;
	struct sr_qp_init_attr s = {
		.events = &q->events,
		.pd = a->pd ? a->pd->handle : 0,
		.send_cq = handle_of_cq(a->send_cq),
		.recv_cq = handle_of_cq(a->recv_cq),
		.srq = a->srq ? a->srq->handle : 0,
		.xrcd = a->xrcd ? ((struct xrcd *)a->xrcd)->handle : 0,
		.type = a->qp_type,
		.sq_sig_all = a->sq_sig_all,
		.block_self_mcast_lb = block_loopback,
	};
	if (a->srq)
		a->cap.max_recv_wr = a->cap.max_recv_sge = 0;
	memcpy(&s.cap, &a->cap, sizeof s.cap);
	pthread_mutex_init(&v->mutex, NULL);
	pthread_cond_init(&v->cond, NULL);
	pthread_mutex_init(&q->list, NULL);
	int err = engine->create_qp(&s, &v->handle, &v->qp_num);
	if (!err) {
		memcpy(&a->cap, &s.cap, sizeof a->cap);
		q->cap = a->cap;
		if (send_ops)
			err = make_list(q, &a->cap);
		if (!err)
			make_recv_ring(q);
		if (err)
			engine->destroy_qp(v->handle);
	}
	if (err) {
		free_qp(q);
		return fail_null(err);
	}
	v->context = q->made_by = c;
	v->qp_context = a->qp_context;
	v->pd = a->pd;
	v->send_cq = a->send_cq;
	v->recv_cq = a->recv_cq;
	v->srq = a->srq;
	if (a->send_cq && a->recv_cq && a->send_cq != a->recv_cq)
		pair_cqs(a->send_cq, a->recv_cq);
	v->state = IBV_QPS_RESET;
	v->qp_type = a->qp_type;
	q->sq_sig_all = a->sq_sig_all;
	q->flags = (a->qp_type == IBV_QPT_UD ? SR_POST_UD : 0) | (q->cap.max_send_sge > 1 ? q->cap.max_send_sge : 1) << SR_POST_SGES;
	if (send_ops)
		qp_ops(q, send_ops);
	publish(&q->life);
	return v;
}

PUBLIC struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct ibv_qp_init_attr_ex ex;
	memset(&ex, 0, sizeof ex);
	memcpy(&ex, a, offsetof(struct ibv_qp_init_attr, sq_sig_all) + sizeof a->sq_sig_all);
	ex.pd = pd;
	struct ibv_qp *qp = create_qp(pd->context, &ex, 0, 0);
	if (qp)
		a->cap = ex.cap;
	return qp;
}

struct ibv_qp *create_qp_ex(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	uint32_t mask = a->comp_mask;
	if (mask & ~(uint32_t)(IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS))
		return fail_null(EOPNOTSUPP);
	uint32_t flags = mask & IBV_QP_INIT_ATTR_CREATE_FLAGS ? a->create_flags : 0;
	if (flags & ~(uint32_t)IBV_QP_CREATE_BLOCK_SELF_MCAST_LB)
		return fail_null(EOPNOTSUPP);
	struct ibv_qp_init_attr_ex ex = *a;
	if (!(mask & IBV_QP_INIT_ATTR_PD))
		ex.pd = NULL;
	if (!(mask & IBV_QP_INIT_ATTR_XRCD))
		ex.xrcd = NULL;
	if (a->qp_type == IBV_QPT_XRC_RECV) { // it has none of these, so the fields are ignored
		ex.send_cq = ex.recv_cq = NULL;
		ex.srq = NULL;
		memset(&ex.cap, 0, sizeof ex.cap);
	}
	struct ibv_qp *qp = create_qp(c, &ex, flags != 0, mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS ? a->send_ops_flags : 0);
	if (qp)
		a->cap = ex.cap;
	return qp;
}

struct ibv_qp *open_qp(struct ibv_context *c, struct ibv_qp_open_attr *a)
{
	uint32_t need = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
	if ((a->comp_mask & need) != need || a->qp_type != IBV_QPT_XRC_RECV)
		return fail_null(EINVAL);
	struct qp *q = calloc(1, sizeof *q);
	if (!q)
		return NULL;
	struct ibv_qp *v = &q->ibv.qp_base;
	pthread_mutex_init(&v->mutex, NULL);
	pthread_cond_init(&v->cond, NULL);
	pthread_mutex_init(&q->list, NULL);
	int err = engine->open_qp(((struct xrcd *)a->xrcd)->handle, a->qp_num, &q->events, &v->handle);
	if (err) {
		free_qp(q);
		return fail_null(err);
	}
	v->context = q->made_by = c;
	v->qp_context = a->comp_mask & IBV_QP_OPEN_ATTR_CONTEXT ? a->qp_context : NULL;
	v->qp_num = a->qp_num;
	v->qp_type = a->qp_type;
	publish(&q->life);
	return v;
}

PUBLIC struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp)
{
	return ((struct qp *)qp)->wrs ? &((struct qp *)qp)->ibv : NULL;
}

PUBLIC int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask)
{
	int err = engine->modify_qp(qp->handle, (struct sr_qp_attr *)a, mask);
	if (!err && mask & IBV_QP_STATE) {
		qp->state = a->qp_state;
		if (a->qp_state == IBV_QPS_RESET && qp->send_cq)
			drop_completions(qp->send_cq, qp->qp_num);
		if (a->qp_state == IBV_QPS_RESET && qp->recv_cq)
			drop_completions(qp->recv_cq, qp->qp_num);
	}
	return fail(err);
}

int modify_qp_rate_limit(struct ibv_qp *qp, struct ibv_qp_rate_limit_attr *attr)
{
	struct ibv_qp_attr a = {.qp_state = qp->state, .cur_qp_state = qp->state, .rate_limit = attr->rate_limit};
	if (attr->comp_mask || attr->max_burst_sz || attr->typical_pkt_sz)
		return EOPNOTSUPP;
	return engine->modify_qp(qp->handle, (struct sr_qp_attr *)&a, IBV_QP_STATE | IBV_QP_RATE_LIMIT);
}

PUBLIC int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init)
{
	struct qp *q = (struct qp *)qp;
	(void)mask; // all attributes are filled in
	int err = engine->query_qp(qp->handle, (struct sr_qp_attr *)a);
	if (err)
		return fail(err);
	memset(init, 0, sizeof *init);
	init->qp_context = qp->qp_context;
	init->send_cq = qp->send_cq;
	init->recv_cq = qp->recv_cq;
	init->srq = qp->srq;
	init->qp_type = qp->qp_type;
	init->cap = a->cap;
	init->sq_sig_all = q->sq_sig_all;
	qp->state = a->qp_state;
	return 0;
}

PUBLIC int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags)
{
	(void)qp; (void)op; (void)flags;
	return 0; // retransmitted data may be written again, out of order
}

// The devices have no extensions of connection establishment (ECE), as rxe and siw.
PUBLIC int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *ece) { (void)qp; (void)ece; return fail(EOPNOTSUPP); }
PUBLIC int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *ece) { (void)qp; (void)ece; return fail(EOPNOTSUPP); }

PUBLIC int ibv_destroy_qp(struct ibv_qp *qp)
{
	struct qp *q = (struct qp *)qp;
	int err = FOREIGN(qp, qp) ? ENOENT : begin_destroy(&q->life);
	if (err)
		return fail(err);
	if (qp->handle) {
		if ((err = engine->destroy_qp(qp->handle)))
			return fail(undo_destroy(&q->life, err));
		qp->handle = 0; // another QP may soon have this handle
	}
	mark_gone(&q->life);
	wait_acked(&q->life, &qp->mutex, &qp->cond, &qp->events_completed, &q->events.async);
	free_qp(q);
	return 0;
}

PUBLIC int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)lid;
	return fail(engine->attach_mcast(qp->handle, (uint8_t *)gid->raw));
}

PUBLIC int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *gid, uint16_t lid)
{
	(void)lid;
	return fail(engine->detach_mcast(qp->handle, (uint8_t *)gid->raw));
}

// touch reads a byte of each page of inline data, which the engine copies. If a page is not mapped,
// the program gets its SIGSEGV here, in the faulty call, and not in Go. The engine refuses data
// that is too long to be inline, and lists that are NULL or longer than the QP allows.
static void touch(struct qp *q, struct ibv_send_wr *wr)
{
	for (; wr; wr = wr->next) {
		if (!(wr->send_flags & IBV_SEND_INLINE) || !wr->sg_list || wr->num_sge > q->flags >> SR_POST_SGES)
			continue;
		for (int i = 0; i < wr->num_sge; i++) {
			struct ibv_sge *s = &wr->sg_list[i];
			uint32_t n = s->length < 65536 ? s->length : 65536;
			for (uint32_t at = 0; at < n; at += 4096)
				(void)*(volatile char *)(uintptr_t)(s->addr + at);
			if (n)
				(void)*(volatile char *)(uintptr_t)(s->addr + n - 1);
		}
	}
}

int post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	int done = 0;
	struct qp *q = (struct qp *)qp;
	touch(q, wr);
	enter_engine();
	struct cq *cq = take_with_post(q, wr);
	int got = 0, err = engine->post_send(qp->handle, (struct sr_send_wr *)wr, q->flags, &done, cq ? CQ_BATCH : 0, cq ? cq->wc : NULL, &got);
	if (cq)
		taken_with_post(q, cq, got);
	if (err)
		SET_BAD(wr, done, bad);
	return err;
}

static struct ibv_srq *create_srq(struct ibv_context *c, struct ibv_pd *pd, void *srq_context, struct ibv_srq_attr *attr,
	struct ibv_xrcd *x, struct ibv_cq *cq)
{
	struct srq *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	struct sr_srq_init_attr a = {
		.events = &s->events,
		.pd = pd->handle,
		.xrcd = x ? ((struct xrcd *)x)->handle : 0,
		.cq = handle_of_cq(cq),
		.attr = {attr->max_wr, attr->max_sge, 0},
	};
	int err = engine->create_srq(&a, &s->ibv.handle, &s->num);
	if (err) {
		free(s);
		return fail_null(err);
	}
	s->ibv.context = s->made_by = c;
	s->ibv.srq_context = srq_context;
	s->ibv.pd = pd;
	pthread_mutex_init(&s->ibv.mutex, NULL);
	pthread_cond_init(&s->ibv.cond, NULL);
	publish(&s->life);
	return &s->ibv;
}

PUBLIC struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
	return create_srq(pd->context, pd, a->srq_context, &a->attr, NULL, NULL);
}

struct ibv_srq *create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *a)
{
	uint32_t mask = a->comp_mask, xrc = IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ;
	if (mask & ~(uint32_t)(IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | xrc))
		return fail_null(EOPNOTSUPP);
	if (!(mask & IBV_SRQ_INIT_ATTR_PD))
		return fail_null(EINVAL);
	switch (mask & IBV_SRQ_INIT_ATTR_TYPE ? a->srq_type : IBV_SRQT_BASIC) {
	case IBV_SRQT_BASIC:
		return create_srq(c, a->pd, a->srq_context, &a->attr, NULL, NULL);
	case IBV_SRQT_XRC:
		if ((mask & xrc) != xrc)
			return fail_null(EINVAL);
		return create_srq(c, a->pd, a->srq_context, &a->attr, a->xrcd, a->cq);
	default:
		return fail_null(EOPNOTSUPP);
	}
}

int get_srq_num(struct ibv_srq *srq, uint32_t *num)
{
	if (!((struct srq *)srq)->num)
		return EINVAL;
	*num = ((struct srq *)srq)->num;
	return 0;
}

PUBLIC int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *a, int mask)
{
	return fail(engine->modify_srq(srq->handle, (struct sr_srq_attr *)a, mask));
}

PUBLIC int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *a)
{
	return fail(engine->query_srq(srq->handle, (struct sr_srq_attr *)a));
}

PUBLIC int ibv_destroy_srq(struct ibv_srq *srq)
{
	struct srq *s = (struct srq *)srq;
	int err = FOREIGN(srq, srq) ? ENOENT : begin_destroy(&s->life);
	if (err)
		return fail(err);
	if (srq->handle) {
		if ((err = engine->destroy_srq(srq->handle)))
			return fail(undo_destroy(&s->life, err));
		srq->handle = 0; // another SRQ may soon have this handle
	}
	mark_gone(&s->life);
	wait_acked(&s->life, &srq->mutex, &srq->cond, &srq->events_completed, &s->events.async);
	end_destroy(&s->life, s);
	return 0;
}

int post_srq_recv(struct ibv_srq *srq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	enter_engine();
	int done = 0, err = engine->post_srq_recv(srq->handle, (struct sr_recv_wr *)wr, &done);
	if (err)
		SET_BAD(wr, done, bad);
	return err;
}

struct ibv_xrcd *open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *a)
{
	uint32_t need = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	if (c->device->transport_type == IBV_TRANSPORT_IWARP)
		return fail_null(EOPNOTSUPP);
	if ((a->comp_mask & need) != need)
		return fail_null(EINVAL);
	struct xrcd *x = calloc(1, sizeof *x);
	if (!x)
		return NULL;
	int err = engine->open_xrcd(to_context(c)->handle, a->fd, a->oflags, &x->handle);
	if (err) {
		free(x);
		return fail_null(err);
	}
	x->ibv.context = x->made_by = c;
	publish(&x->life);
	return &x->ibv;
}

int close_xrcd(struct ibv_xrcd *v)
{
	struct xrcd *x = (struct xrcd *)v;
	int err = FOREIGN(xrcd, v) ? ENOENT : begin_destroy(&x->life);
	if (err)
		return fail(err);
	if ((err = engine->close_xrcd(x->handle)))
		return fail(undo_destroy(&x->life, err));
	x->handle = 0;
	end_destroy(&x->life, x);
	return 0;
}
