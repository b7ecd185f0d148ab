// Completion channels. A thread that waits for an event of a channel first spins: for a while it
// makes the device progress. A fast peer answers in less time than it takes to put a thread to
// sleep and wake it. After that the thread sleeps.
#include "front.h"
#include <fcntl.h>
#include <sched.h>
#include <unistd.h>

PUBLIC struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct comp_channel *ch = aligned_alloc(64, sizeof *ch);
	if (!ch)
		return NULL;
	memset(ch, 0, sizeof *ch);
	int err = engine->create_channel(to_context(c)->handle, &ch->events, &ch->handle, &ch->ibv.fd);
	if (err) {
		free(ch);
		return fail_null(err);
	}
	ch->ibv.context = c;
	publish(&ch->life);
	start_channel_idle(&ch->idle, &((struct device *)c->device)->sr.idle);
	return &ch->ibv;
}

PUBLIC int ibv_destroy_comp_channel(struct ibv_comp_channel *v)
{
	struct comp_channel *ch = (struct comp_channel *)v;
	if (inherited(&ch->life) && !ch->ibv.refcnt) {
		close_copy(&ch->ibv.fd);
		return 0;
	}
	int err = begin_destroy(&ch->life);
	if (err)
		return fail(err);
	if ((err = engine->destroy_channel(ch->handle)))
		return fail(undo_destroy(&ch->life, err));
	ch->handle = 0;
	ch->ibv.fd = -1;
	end_destroy(&ch->life, ch);
	return 0;
}

static int event_pending(struct comp_channel *ch)
{
	return __atomic_load_n(&ch->events, __ATOMIC_ACQUIRE) != __atomic_load_n(&ch->taken, __ATOMIC_RELAXED);
}

// spin makes the device progress until an event is pending or the time to spin has passed. It
// returns 0 or an errno.
static int spin(struct comp_channel *ch, uint32_t context)
{
	int64_t ns = spin_time(&ch->idle), began = now();
	enter_engine();
	while (now() - began < ns)
		for (uint32_t i = 0; i < ch->idle.policy->calls_per_clock; i++) {
			int busy, err = engine->progress(context, &busy);
			if (err || event_pending(ch))
				return err;
			if (!busy)
				sched_yield(); // the peer may be on this processor
		}
	return 0;
}

// take_event waits for an event and reads it from the descriptor. It returns 0, or -1 and sets
// errno.
static int take_event(struct comp_channel *ch)
{
	uint32_t context = to_context(ch->ibv.context)->handle;
	int slept = 0;
	int64_t began = 0;
	if (inherited(&ch->life))
		return minus_one(ENODEV);
	if (event_pending(ch)) {
		asked_for_event(&ch->idle, 1);
	} else {
		int flags = fcntl(ch->ibv.fd, F_GETFL);
		if (!(flags & O_NONBLOCK)) {
			asked_for_event(&ch->idle, 0);
			int err = spin(ch, context);
			if (err)
				return minus_one(err);
		}
		if (!event_pending(ch)) {
			int err = engine->end_progress(context);
			if (err)
				return minus_one(err);
			if ((slept = !(flags & O_NONBLOCK)))
				began = now();
		}
	}
	if (read_event(ch->ibv.fd))
		return -1;
	__atomic_add_fetch(&ch->taken, 1, __ATOMIC_RELAXED);
	if (slept)
		channel_slept(&ch->idle, now() - began);
	return 0;
}

PUBLIC int ibv_get_cq_event(struct ibv_comp_channel *v, struct ibv_cq **cq, void **cq_context)
{
	struct comp_channel *ch = (struct comp_channel *)v;
	for (;;) {
		struct sr_events *of;
		if (take_event(ch))
			return -1;
		int err = engine->get_cq_event(ch->handle, &of);
		if (err == EAGAIN) { // the CQ was destroyed, and its events are no longer counted
			__atomic_sub_fetch(&ch->taken, 1, __ATOMIC_RELAXED);
			continue;
		}
		if (err)
			return minus_one(err);
		*cq = (struct ibv_cq *)((char *)of - offsetof(struct cq, events));
		acquire(&((struct cq *)*cq)->life);
		*cq_context = (*cq)->cq_context;
		return 0;
	}
}
