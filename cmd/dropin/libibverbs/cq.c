// Creation, changes and destruction of completion queues.
#include "cq.h"

PUBLIC void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	if (!n)
		return;
	count_ack(&((struct cq *)cq)->life, &cq->mutex, &cq->cond, &cq->comp_events_completed, n);
}

static struct cq *create_cq(struct ibv_context *c, int cqe, void *cq_context, struct ibv_comp_channel *ch, uint32_t vector,
	uint64_t wc_flags)
{
	if (vector) // num_comp_vectors is 1
		return fail_null(EINVAL);
	struct cq *q = aligned_alloc(64, sizeof *q);
	if (!q)
		return NULL;
	memset(q, 0, sizeof *q);
	start_idle(q, &((struct device *)c->device)->sr.idle);
	q->arrivals = ((struct device *)c->device)->sr.arrivals;
	q->stamped = !!(wc_flags & ~(uint64_t)IBV_WC_STANDARD_FLAGS);
	uint32_t channel = ch ? ((struct comp_channel *)ch)->handle : 0;
	int err = engine->create_cq(to_context(c)->handle, cqe, channel, q->stamped, &q->events, &q->ready, &q->ibv.handle,
		&q->ibv.cqe);
	if (err) {
		free(q);
		return fail_null(err);
	}
	q->ibv.context = q->made_by = c;
	q->ibv.channel = ch;
	q->ibv.cq_context = cq_context;
	pthread_mutex_init(&q->ibv.mutex, NULL);
	pthread_cond_init(&q->ibv.cond, NULL);
	pthread_mutex_init(&q->lock, NULL);
	if (ch)
		__atomic_add_fetch(&ch->refcnt, 1, __ATOMIC_RELAXED);
	cq_ops(q, wc_flags);
	publish(&q->life);
	return q;
}

PUBLIC struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *cq_context, struct ibv_comp_channel *ch, int vector)
{
	return (struct ibv_cq *)create_cq(c, cqe, cq_context, ch, vector, IBV_WC_STANDARD_FLAGS);
}

struct ibv_cq_ex *create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *a)
{
	uint64_t known = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK |
		IBV_WC_EX_WITH_CVLAN | IBV_WC_EX_WITH_FLOW_TAG;
	if (a->comp_mask & ~(uint32_t)(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD) || a->wc_flags & ~known ||
	    (a->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS && a->flags & ~(uint32_t)IBV_CREATE_CQ_ATTR_SINGLE_THREADED))
		return fail_null(EOPNOTSUPP);
	return (struct ibv_cq_ex *)create_cq(c, a->cqe, a->cq_context, a->channel, a->comp_vector, a->wc_flags);
}

PUBLIC int ibv_resize_cq(struct ibv_cq *cq, int cqe) { return fail(engine->resize_cq(cq->handle, cqe, &cq->cqe)); }

int modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *a)
{
	if (a->attr_mask != IBV_CQ_ATTR_MODERATE)
		return EINVAL;
	return engine->modify_cq(cq->handle, a->moderate.cq_count, a->moderate.cq_period);
}

PUBLIC int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct cq *q = (struct cq *)cq;
	int err = FOREIGN(cq, cq) ? ENOENT : begin_destroy(&q->life);
	if (err)
		return fail(err);
	if (cq->handle) {
		if ((err = engine->destroy_cq(cq->handle)))
			return fail(undo_destroy(&q->life, err));
		cq->handle = 0; // another CQ may soon have this handle
		unpair_cq(q);
		if (cq->channel)
			__atomic_sub_fetch(&cq->channel->refcnt, 1, __ATOMIC_RELAXED);
	}
	mark_gone(&q->life);
	wait_acked(&q->life, &cq->mutex, &cq->cond, &cq->comp_events_completed, &q->events.comp);
	wait_acked(&q->life, &cq->mutex, &cq->cond, &cq->async_events_completed, &q->events.async);
	end_destroy(&q->life, q);
	return 0;
}

int req_notify_cq(struct ibv_cq *cq, int solicited_only)
{
	return fail(engine->req_notify_cq(cq->handle, solicited_only, !cq->channel || !waits_in_get(&((struct comp_channel *)cq->channel)->idle)));
}
