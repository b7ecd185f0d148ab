// Completion channels, and how a thread waits for an event of one: it makes the device progress itself for a while, as the
// answer of a peer that is quick takes less time than putting a thread to sleep and waking it, and then sleeps.
#include "front.h"
#include <fcntl.h>
#include <sched.h>
#include <time.h>
#include <unistd.h>

// How long a thread looks for an event before it sleeps, in nanoseconds. Who was woken soon after it went to sleep looks
// longer the next time; who slept for long looks less long, and in the end not at all.
#define FIRST_LOOK 50000
#define LONGEST_LOOK 200000
#define SOON 200000

// So many events that were there when a program came for them are enough to think that it waits elsewhere, in poll or epoll.
#define PATIENCE 4

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
	cpu_set_t cpus;
	ch->may_look = sched_getaffinity(0, sizeof cpus, &cpus) || CPU_COUNT(&cpus) > 1; // else the peer may need this processor
	ch->look = ch->may_look ? FIRST_LOOK : 0;
	return &ch->ibv;
}

PUBLIC int ibv_destroy_comp_channel(struct ibv_comp_channel *v)
{
	struct comp_channel *ch = (struct comp_channel *)v;
	int err = begin_destroy(&ch->life);
	if (err)
		return fail(err);
	if ((err = engine->destroy_channel(ch->handle)))
		return fail(keep(&ch->life, err));
	ch->handle = 0;
	ch->ibv.fd = -1;
	end_destroy(&ch->life, ch);
	return 0;
}

int waits_here(struct ibv_comp_channel *ch)
{
	return __atomic_load_n(&((struct comp_channel *)ch)->patience, __ATOMIC_RELAXED) > 0;
}

static int event_there(struct comp_channel *ch)
{
	return __atomic_load_n(&ch->events, __ATOMIC_ACQUIRE) != __atomic_load_n(&ch->taken, __ATOMIC_RELAXED);
}

static int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

// look makes the device progress until there is an event, but not for long. It returns 0 or an errno.
static int look(struct comp_channel *ch, uint32_t context)
{
	int64_t ns = __atomic_load_n(&ch->look, __ATOMIC_RELAXED), began = now();
	entering();
	while (now() - began < ns)
		for (int i = 0; i < 4; i++) {
			int busy, err = engine->progress(context, &busy);
			if (err || event_there(ch))
				return err;
			if (!busy)
				sched_yield(); // the peer may be on this processor
		}
	return 0;
}

// take waits for an event and takes it off the descriptor. It returns 0, or -1 and sets errno.
static int take(struct comp_channel *ch)
{
	uint32_t context = to_context(ch->ibv.context)->handle;
	int slept = 0;
	int64_t began = 0;
	if (lost())
		return minus_one(ENODEV);
	if (event_there(ch)) {
		int patience = __atomic_load_n(&ch->patience, __ATOMIC_RELAXED);
		if (patience > 0)
			__atomic_store_n(&ch->patience, patience - 1, __ATOMIC_RELAXED);
	} else {
		int flags = fcntl(ch->ibv.fd, F_GETFL);
		if (!(flags & O_NONBLOCK)) {
			__atomic_store_n(&ch->patience, PATIENCE, __ATOMIC_RELAXED);
			int err = look(ch, context);
			if (err)
				return minus_one(err);
		}
		if (!event_there(ch)) {
			int err = engine->end_progress(context);
			if (err)
				return minus_one(err);
			if ((slept = !(flags & O_NONBLOCK)))
				began = now();
		}
	}
	if (take_count(ch->ibv.fd))
		return -1;
	__atomic_add_fetch(&ch->taken, 1, __ATOMIC_RELAXED);
	if (slept && ch->may_look) {
		int64_t longest = ch->look;
		if (now() - began > SOON)
			longest = longest < FIRST_LOOK / 8 ? 0 : longest / 2;
		else
			longest = longest < FIRST_LOOK ? FIRST_LOOK : longest * 2 < LONGEST_LOOK ? longest * 2 : LONGEST_LOOK;
		__atomic_store_n(&ch->look, longest, __ATOMIC_RELAXED);
	}
	return 0;
}

PUBLIC int ibv_get_cq_event(struct ibv_comp_channel *v, struct ibv_cq **cq, void **cq_context)
{
	struct comp_channel *ch = (struct comp_channel *)v;
	for (;;) {
		struct sr_events *of;
		if (take(ch))
			return -1;
		int err = engine->get_cq_event(ch->handle, &of);
		if (err == EAGAIN) { // the CQ was destroyed, and its events are not counted any more
			__atomic_sub_fetch(&ch->taken, 1, __ATOMIC_RELAXED);
			continue;
		}
		if (err)
			return minus_one(err);
		*cq = (struct ibv_cq *)((char *)of - offsetof(struct cq, events));
		reached(&((struct cq *)*cq)->life);
		*cq_context = (*cq)->cq_context;
		return 0;
	}
}
