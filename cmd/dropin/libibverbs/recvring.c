// Posts of receive requests. The requests of a QP of RoCE are added to a ring, from which the
// engine takes them when a message arrives. That saves a call of the engine for each.
#include "front.h"

void make_recv_ring(struct qp *q)
{
	struct sr_recv_ring *r = &q->recvs;
	size_t n = q->cap.max_recv_wr, sges = n * q->cap.max_recv_sge;
	pthread_mutex_init(&q->recvs_lock, NULL);
	if (!n)
		return;
	r->wrs = calloc(n, sizeof *r->wrs);
	r->sges = calloc(sges + 1, sizeof *r->sges);
	r->size = n;
	if (!r->wrs || !r->sges || engine->use_recv_ring(q->ibv.qp_base.handle, r))
		free_recv_ring(q); // posts call the engine
}

void free_recv_ring(struct qp *q)
{
	pthread_mutex_lock(&q->recvs_lock); // a program may post while it destroys the QP
	__atomic_store_n(&q->recvs.size, 0, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&q->recvs_lock);
	free(q->recvs.wrs);
	free(q->recvs.sges);
	q->recvs.wrs = NULL;
	q->recvs.sges = NULL;
}

// call_post_recv posts by a call of the engine.
static int call_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, int *done)
{
	enter_engine();
	*done = 0;
	return engine->post_recv(qp->handle, (struct sr_recv_wr *)wr, done);
}

// add adds a request to the ring. It returns 0 if the engine must be called to post it, or to say
// what is wrong with it.
static int add(struct qp *q, const struct ibv_recv_wr *wr)
{
	struct sr_recv_ring *r = &q->recvs;
	if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->cap.max_recv_sge || (wr->num_sge && !wr->sg_list))
		return 0;
	if (q->recvs_posted - __atomic_load_n(&r->completed, __ATOMIC_ACQUIRE) >= r->size)
		return 0;
	struct sr_ring_wr *to = &r->wrs[q->recvs_next];
	to->wr_id = wr->wr_id;
	to->num_sge = wr->num_sge;
	struct sr_sge *list = &r->sges[(size_t)q->recvs_next * q->cap.max_recv_sge];
	for (int i = 0; i < wr->num_sge; i++)
		list[i] = ((struct sr_sge *)wr->sg_list)[i];
	if (++q->recvs_next == r->size)
		q->recvs_next = 0;
	q->recvs_posted++;
	return 1;
}

// add_all adds the requests of a list to the ring, up to the first for which the engine must be
// called. It returns that one, or NULL. The lock is held.
static struct ibv_recv_wr *add_all(struct qp *q, struct ibv_recv_wr *wr)
{
	struct sr_recv_ring *r = &q->recvs;
	int n = 0, none;
	if (r->size && !__atomic_load_n(&r->closed, __ATOMIC_ACQUIRE))
		for (; wr && add(q, wr); wr = wr->next)
			n++;
	if (!n)
		return wr;
	__atomic_store_n(&r->posted, r->posted + n, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&r->closed, __ATOMIC_SEQ_CST)) // perhaps before the engine saw the requests
		call_post_recv(&q->ibv.qp_base, NULL, &none);
	return wr;
}

int post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct qp *q = (struct qp *)qp;
	int done, err = 0;
	if (!__atomic_load_n(&q->recvs.size, __ATOMIC_RELAXED) || inherited(&q->life) || !qp->handle) {
		if ((err = call_post_recv(qp, wr, &done)))
			SET_BAD(wr, done, bad);
		return err;
	}
	pthread_mutex_lock(&q->recvs_lock);
	wr = add_all(q, wr);
	if (wr) {
		err = call_post_recv(qp, wr, &done);
		q->recvs_posted += done;
	}
	pthread_mutex_unlock(&q->recvs_lock);
	if (err)
		SET_BAD(wr, done, bad);
	return err;
}
