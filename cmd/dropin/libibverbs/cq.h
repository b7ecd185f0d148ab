// Shared by the files of completion queues. cq.c creates and destroys CQs, cqcache.c polls them,
// and cqex.c has ibv_start_poll and the functions that follow it. idle.c has the idle policy.
#ifndef CQ_H
#define CQ_H
#include "front.h"

// begin_taking and end_taking enclose each call of the engine that may take completions. The lock
// is held. In between, a poll that does not hold the lock does not report an empty CQ. Otherwise a
// thread that was woken for these completions would go to sleep again.
static inline void begin_taking(struct cq *q) { __atomic_store_n(&q->taking, 1, __ATOMIC_RELEASE); }

static inline void end_taking(struct cq *q, int got)
{
	__atomic_store_n(&q->at, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&q->n, got, __ATOMIC_RELAXED);
	__atomic_store_n(&q->taking, 0, __ATOMIC_RELEASE);
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
// this poll need not enter the engine to receive. If no program polls, the engine's own threads
// receive. A poll enters the engine if packets have arrived. It does not do so soon after an empty
// poll, because another thread may be receiving the packets.
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
int refill(struct cq *q, enum idle_action *p);

// unpair_cq reverts pair_cqs. When it returns, no poll of the other CQ uses q.
void unpair_cq(struct cq *q);

#endif
