// A CQ takes completions from the engine in batches, and keeps those that are not yet polled.
#include "cq.h"
#include <sched.h>

// Held where the field pair is written.
static pthread_mutex_t pair_mutex = PTHREAD_MUTEX_INITIALIZER;

void pair_cqs(struct ibv_cq *a, struct ibv_cq *b)
{
	struct cq *p = (struct cq *)a, *q = (struct cq *)b;
	if (p->stamped || q->stamped)
		return;
	pthread_mutex_lock(&pair_mutex);
	if (!p->pair && !q->pair) {
		__atomic_store_n(&p->pair, q, __ATOMIC_RELEASE);
		__atomic_store_n(&q->pair, p, __ATOMIC_RELEASE);
	}
	pthread_mutex_unlock(&pair_mutex);
}

void unlock_pairs(void) { pthread_mutex_init(&pair_mutex, NULL); }

void unpair_cq(struct cq *q)
{
	pthread_mutex_lock(&pair_mutex);
	struct cq *o = q->pair;
	if (o) {
		__atomic_store_n(&q->pair, NULL, __ATOMIC_SEQ_CST);
		__atomic_store_n(&o->pair, NULL, __ATOMIC_SEQ_CST);
		while (__atomic_load_n(&o->using_pair, __ATOMIC_SEQ_CST))
			sched_yield(); // for the time of one call of the engine at most
	}
	pthread_mutex_unlock(&pair_mutex);
}

// lock_pair returns the paired CQ, locked and empty, if this thread polls both CQs, and otherwise
// NULL. Each call is followed by unlock_pair. got is the number of completions taken for the pair.
static struct cq *lock_pair(struct cq *q)
{
	__atomic_store_n(&q->using_pair, 1, __ATOMIC_SEQ_CST);
	struct cq *o = __atomic_load_n(&q->pair, __ATOMIC_SEQ_CST);
	if (!o || __atomic_load_n(&o->poller, __ATOMIC_RELAXED) != &thread_state || pthread_mutex_trylock(&o->lock))
		return NULL;
	if (o->n != o->at) {
		pthread_mutex_unlock(&o->lock);
		return NULL;
	}
	begin_taking(o);
	return o;
}

static void unlock_pair(struct cq *q, struct cq *o, int got)
{
	if (o) {
		end_taking(o, got);
		pthread_mutex_unlock(&o->lock);
	}
	__atomic_store_n(&q->using_pair, 0, __ATOMIC_RELEASE);
}

int refill(struct cq *q, enum idle_action *p)
{
	enter_engine();
	begin_taking(q);
	__atomic_store_n(&q->poller, &thread_state, __ATOMIC_RELAXED);
	struct cq *o = lock_pair(q);
	int got = 0, others = 0;
	int err = engine->poll_cq(q->ibv.handle, CQ_BATCH, q->wc, q->stamped ? q->ex : NULL, &got, o ? o->ibv.handle : 0,
		o ? o->wc : NULL, &others);
	end_taking(q, got);
	unlock_pair(q, o, others);
	__atomic_store_n(&q->empty, 0, __ATOMIC_RELAXED);
	if (got)
		end_idle(q);
	else
		*p = empty_call(q);
	return err;
}

// poll takes completions from the CQ and the engine.
static __attribute__((noinline)) int poll(struct cq *q, int n, struct ibv_wc *wc)
{
	int k = 0, err = 0;
	enum idle_action p = NONE;
	if (inherited(&q->life))
		return minus_one(ENODEV);
	pthread_mutex_lock(&q->lock);
	while (k < n && !err) {
		if (q->at == q->n) {
			if (k && !__atomic_load_n(&q->ready, __ATOMIC_ACQUIRE))
				break;
			err = refill(q, &p);
			if (q->at == q->n)
				break;
		}
		int take = n - k < q->n - q->at ? n - k : q->n - q->at;
		memcpy(wc + k, q->wc + q->at, take * sizeof *wc);
		__atomic_store_n(&q->at, q->at + take, __ATOMIC_RELAXED);
		k += take;
	}
	pthread_mutex_unlock(&q->lock);
	if (k)
		return k; // without idling: if the thread were cancelled now, they would be lost
	idle(q, p);
	return err ? minus_one(err) : 0;
}

int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct cq *q = (struct cq *)cq;
	return nothing_to_poll(q) ? 0 : poll(q, n, wc);
}

// The limit in bytes for a post that takes completions. Other threads that poll the CQ wait while
// its data is copied.
#define SMALL 4096

// is_small tells whether a list is a single request whose data is at most SMALL.
static int is_small(const struct ibv_send_wr *wr)
{
	if (!wr || wr->next || wr->num_sge > 1)
		return 0;
	return wr->num_sge != 1 || !wr->sg_list || wr->sg_list->length <= SMALL;
}

struct cq *take_with_post(struct qp *q, struct ibv_send_wr *wr)
{
	struct cq *cq = (struct cq *)q->ibv.qp_base.send_cq;
	unsigned int n = __atomic_load_n(&q->empty_posts, __ATOMIC_RELAXED);
	if (n) {
		__atomic_store_n(&q->empty_posts, (n + 1) % cq->policy->posts_per_take, __ATOMIC_RELAXED);
		return NULL;
	}
	if (!cq || cq->stamped || !is_small(wr))
		return NULL;
	if (__atomic_load_n(&cq->n, __ATOMIC_RELAXED) != __atomic_load_n(&cq->at, __ATOMIC_RELAXED) || pthread_mutex_trylock(&cq->lock))
		return NULL;
	if (cq->n == cq->at) {
		begin_taking(cq);
		return cq;
	}
	pthread_mutex_unlock(&cq->lock);
	return NULL;
}

void taken_with_post(struct qp *q, struct cq *cq, int got)
{
	end_taking(cq, got);
	if (got) {
		__atomic_store_n(&cq->empty, 0, __ATOMIC_RELAXED);
	} else {
		__atomic_store_n(&q->empty_posts, 1, __ATOMIC_RELAXED);
	}
	pthread_mutex_unlock(&cq->lock);
}

void drop_completions(struct ibv_cq *cq, uint32_t qp_num)
{
	struct cq *q = (struct cq *)cq;
	int n = 0;
	lock(&q->life, &q->lock);
	for (int i = q->at; i < q->n; i++) {
		if (q->wc[i].qp_num == qp_num)
			continue;
		q->wc[n] = q->wc[i];
		q->ex[n++] = q->ex[i];
	}
	__atomic_store_n(&q->at, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&q->n, n, __ATOMIC_RELAXED);
	unlock(&q->life, &q->lock);
}
