// Completion queues.
#include "front.h"
#include <sched.h>

PUBLIC void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
	if (!n)
		return;
	count_ack(&cq->mutex, &cq->cond, &cq->comp_events_completed, n);
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

// begin_taking and end_taking enclose each call of the engine that may take completions. The lock
// is held. In between, a poll that does not hold the lock does not report an empty CQ: a thread
// woken for these completions would go to sleep again.
static inline void begin_taking(struct cq *q) { __atomic_store_n(&q->taking, 1, __ATOMIC_RELEASE); }

static inline void end_taking(struct cq *q, int got)
{
	__atomic_store_n(&q->at, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&q->n, got, __ATOMIC_RELAXED);
	__atomic_store_n(&q->taking, 0, __ATOMIC_RELEASE);
}

static pthread_mutex_t pair_mutex = PTHREAD_MUTEX_INITIALIZER; // held where the field pair is written

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

// unpair_cq undoes pair_cqs. When it returns, no poll of the other CQ uses q.
static void unpair_cq(struct cq *q)
{
	pthread_mutex_lock(&pair_mutex);
	struct cq *o = q->pair;
	if (o) {
		__atomic_store_n(&q->pair, NULL, __ATOMIC_SEQ_CST);
		__atomic_store_n(&o->pair, NULL, __ATOMIC_SEQ_CST);
		while (__atomic_load_n(&o->using_pair, __ATOMIC_SEQ_CST))
			sched_yield(); // at most for one call of the engine
	}
	pthread_mutex_unlock(&pair_mutex);
}

// lock_pair returns the paired CQ, locked and empty, if this thread polls both, and else NULL. Each
// call is followed by unlock_pair. got is the number of completions taken for the pair.
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

PUBLIC int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct cq *q = (struct cq *)cq;
	int err = FOREIGN(cq, cq) ? ENOENT : begin_destroy(&q->life);
	if (err)
		return fail(err);
	if (cq->handle) {
		if ((err = engine->destroy_cq(cq->handle)))
			return fail(undo_destroy(&q->life, err));
		cq->handle = 0; // soon another CQ's
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

// arrived reports whether packets have arrived that the engine has not taken.
static inline int arrived(const struct sr_arrivals *a)
{
	uint32_t pages = __atomic_load_n(&a->pages, __ATOMIC_ACQUIRE);
	for (const char *p = (const char *)a + a->size; pages; pages >>= 1, p += a->size) {
		if (pages & 1 && __atomic_load_n((uint64_t *)(p + SR_ARRIVED), __ATOMIC_RELAXED) !=
		    __atomic_load_n((uint64_t *)(p + SR_TAKEN), __ATOMIC_RELAXED))
			return 1;
	}
	return 0;
}

// nothing_to_poll reports, without a lock, whether a poll can return at once: the CQ is empty, and
// this poll need not enter the engine to receive. The engine's own threads receive if no program
// polls. A poll enters the engine if packets have arrived, but not soon after an empty one: another
// thread may be receiving them.
static inline __attribute__((always_inline)) int nothing_to_poll(struct cq *q)
{
	// The order matters: the engine clears ready between the writes of taking and n.
	if (__atomic_load_n(&q->ready, __ATOMIC_ACQUIRE) || __atomic_load_n(&q->taking, __ATOMIC_ACQUIRE) ||
	    __atomic_load_n(&q->n, __ATOMIC_RELAXED) != __atomic_load_n(&q->at, __ATOMIC_RELAXED))
		return 0;
	unsigned int empty = __atomic_load_n(&q->empty, __ATOMIC_RELAXED) + 1;
	if (q->arrivals && empty >= __atomic_load_n(&q->check_from, __ATOMIC_RELAXED) && arrived(q->arrivals))
		return 0;
	if (empty == __atomic_load_n(&q->polls_per_call, __ATOMIC_RELAXED))
		empty = 0;
	__atomic_store_n(&q->empty, empty, __ATOMIC_RELAXED);
	return empty != 0;
}

// refill takes a batch of completions from the engine. The lock is held and the CQ is empty. It
// returns 0 or an errno, and the idle action if no completion came.
static int refill(struct cq *q, enum idle_action *p)
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
	int k = 0, err = engine_missing();
	enum idle_action p = NONE;
	if (err)
		return minus_one(err);
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
		return k; // without idling: a thread that were cancelled now would lose them
	idle(q, p);
	return err ? minus_one(err) : 0;
}

int poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	struct cq *q = (struct cq *)cq;
	return nothing_to_poll(q) ? 0 : poll(q, n, wc);
}

// The most data of a post that takes completions, in bytes: other threads that poll the CQ wait
// while it is copied.
#define SMALL 4096

struct cq *take_with_post(struct qp *q, struct ibv_send_wr *wr)
{
	struct cq *cq = (struct cq *)q->ibv.qp_base.send_cq;
	unsigned int n = __atomic_load_n(&q->empty_posts, __ATOMIC_RELAXED);
	if (n) {
		__atomic_store_n(&q->empty_posts, (n + 1) % cq->policy->posts_per_take, __ATOMIC_RELAXED);
		return NULL;
	}
	if (!cq || cq->stamped || !wr || wr->next || wr->num_sge > 1 || (wr->num_sge == 1 && wr->sg_list && wr->sg_list->length > SMALL))
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
	lock(&q->lock);
	for (int i = q->at; i < q->n; i++) {
		if (q->wc[i].qp_num == qp_num)
			continue;
		q->wc[n] = q->wc[i];
		q->ex[n++] = q->ex[i];
	}
	__atomic_store_n(&q->at, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&q->n, n, __ATOMIC_RELAXED);
	unlock(&q->lock);
}

// ibv_start_poll and the functions that follow it. wc[at] is the current completion until next_poll
// or end_poll.

static int current(struct cq *q, enum idle_action *p)
{
	if (q->at == q->n) {
		int err = engine_missing();
		if (!err)
			err = refill(q, p);
		if (err)
			return err;
		if (q->at == q->n)
			return ENOENT;
	}
	q->ibv.wr_id = q->wc[q->at].wr_id;
	q->ibv.status = q->wc[q->at].status;
	return 0;
}

static int start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
{
	struct cq *q = (struct cq *)cq;
	enum idle_action p = NONE;
	if (attr->comp_mask)
		return EINVAL;
	if (nothing_to_poll(q))
		return ENOENT;
	lock(&q->lock);
	int err = current(q, &p);
	if (err) {
		unlock(&q->lock);
		idle(q, p);
	}
	return err;
}

static void step(struct cq *q) { __atomic_store_n(&q->at, q->at + 1, __ATOMIC_RELAXED); }

static int next_poll(struct ibv_cq_ex *cq)
{
	struct cq *q = (struct cq *)cq;
	enum idle_action ignored; // the lock is held until end_poll
	if (q->at == q->n)
		return current(q, &ignored); // the last next_poll found none; one may have come since
	step(q);
	if (q->at == q->n && !__atomic_load_n(&q->ready, __ATOMIC_ACQUIRE))
		return ENOENT;
	return current(q, &ignored);
}

static void end_poll(struct ibv_cq_ex *cq)
{
	struct cq *q = (struct cq *)cq;
	if (q->at < q->n)
		step(q);
	unlock(&q->lock);
}

#define WC(cq) (&((struct cq *)(cq))->wc[((struct cq *)(cq))->at])
#define EX(cq) (&((struct cq *)(cq))->ex[((struct cq *)(cq))->at])

static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *cq) { return WC(cq)->opcode; }
static uint32_t read_vendor_err(struct ibv_cq_ex *cq) { return WC(cq)->vendor_err; }
static uint32_t read_byte_len(struct ibv_cq_ex *cq) { return WC(cq)->byte_len; }
static __be32 read_imm_data(struct ibv_cq_ex *cq) { return WC(cq)->imm_data; }
static uint32_t read_qp_num(struct ibv_cq_ex *cq) { return WC(cq)->qp_num; }
static uint32_t read_src_qp(struct ibv_cq_ex *cq) { return WC(cq)->src_qp; }
static unsigned int read_wc_flags(struct ibv_cq_ex *cq) { return WC(cq)->wc_flags; }
static uint32_t read_slid(struct ibv_cq_ex *cq) { return WC(cq)->slid; }
static uint8_t read_sl(struct ibv_cq_ex *cq) { return WC(cq)->sl; }
static uint8_t read_dlid_path_bits(struct ibv_cq_ex *cq) { return WC(cq)->dlid_path_bits; }
static uint64_t read_completion_ts(struct ibv_cq_ex *cq) { return EX(cq)->completion_ts; }
static uint64_t read_wallclock_ns(struct ibv_cq_ex *cq) { return EX(cq)->wallclock_ns; }
static uint16_t read_cvlan(struct ibv_cq_ex *cq) { return EX(cq)->cvlan; }
static uint32_t read_flow_tag(struct ibv_cq_ex *cq) { return EX(cq)->flow_tag; }

void cq_ops(struct cq *q, uint64_t wc_flags)
{
	struct ibv_cq_ex *x = &q->ibv;
	x->start_poll = start_poll;
	x->next_poll = next_poll;
	x->end_poll = end_poll;
	x->read_opcode = read_opcode;
	x->read_vendor_err = read_vendor_err;
	x->read_byte_len = read_byte_len;
	x->read_imm_data = read_imm_data;
	x->read_qp_num = read_qp_num;
	x->read_src_qp = read_src_qp;
	x->read_wc_flags = read_wc_flags;
	x->read_slid = read_slid;
	x->read_sl = read_sl;
	x->read_dlid_path_bits = read_dlid_path_bits;
	if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP)
		x->read_completion_ts = read_completion_ts;
	if (wc_flags & IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK)
		x->read_completion_wallclock_ns = read_wallclock_ns;
	if (wc_flags & IBV_WC_EX_WITH_CVLAN)
		x->read_cvlan = read_cvlan;
	if (wc_flags & IBV_WC_EX_WITH_FLOW_TAG)
		x->read_flow_tag = read_flow_tag;
}
