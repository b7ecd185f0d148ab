// The idle policy of polls, and of threads that wait for events. The parameters come from the
// engine's package link/idle, which explains them.
#include "front.h"
#include <sched.h>
#include <time.h>

int64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ll + t.tv_nsec;
}

void start_idle(struct cq *q, const struct sr_idle *policy)
{
	q->policy = policy;
	q->polls_per_call = policy->polls_per_call;
}

// end_idle is called when a poll has found completions. The lock is held. After a completion, a
// program often waits for the next. For a while, more of its polls therefore enter the engine. This
// costs nothing in a program that polls for long, and saves other programs up to a microsecond.
void end_idle(struct cq *q)
{
	const struct sr_idle *p = q->policy;
	__atomic_store_n(&q->polls_per_call, p->polls_per_call < p->polls_per_call_soon ? p->polls_per_call : p->polls_per_call_soon,
		__ATOMIC_RELAXED);
	__atomic_store_n(&q->check_from, 0, __ATOMIC_RELAXED);
	q->empty_calls = 0;
}

// sleep_due reports whether a poll must sleep. It need not if another poll has slept a moment ago.
// The lock is held.
static int sleep_due(struct cq *q)
{
	int64_t at = now();
	if (at - q->slept_at < q->policy->sleep_interval)
		return 0;
	q->slept_at = at;
	return 1;
}

// empty_call is called when a call of the engine has found no completions. It returns the idle
// action of the poll. The lock is held. If the CQ sees packets arrive, the engine's only work
// without packets is to send delayed ones.
enum idle_action empty_call(struct cq *q)
{
	const struct sr_idle *p = q->policy;
	int arrivals = q->arrivals && __atomic_load_n(&q->arrivals->pages, __ATOMIC_RELAXED);
	unsigned int n = ++q->empty_calls;
	__atomic_store_n(&q->check_from, p->polls_per_call_soon, __ATOMIC_RELAXED);
	if (n >= (arrivals ? p->calls_soon_arrivals : p->calls_soon))
		__atomic_store_n(&q->polls_per_call, p->polls_per_call, __ATOMIC_RELAXED);
	if (n % (!arrivals && n < p->calls_soon ? p->calls_per_yield_soon : p->calls_per_yield))
		return NONE;
	return n < p->calls_before_sleep ? YIELD : sleep_due(q) ? SLEEP : NONE;
}

void idle(struct cq *q, enum idle_action action)
{
	if (action == YIELD) {
		sched_yield();
	} else if (action == SLEEP) {
		struct timespec nap = {0, q->policy->sleep};
		nanosleep(&nap, NULL);
	}
}

void start_channel_idle(struct channel_idle *ch, const struct sr_idle *policy)
{
	cpu_set_t cpus;
	ch->policy = policy;
	// With one processor, the peer may need it.
	ch->may_spin = sched_getaffinity(0, sizeof cpus, &cpus) || CPU_COUNT(&cpus) > 1;
	ch->spin = ch->may_spin ? policy->first_spin : 0;
}

// waits_in_get reports whether the program is assumed to wait for events in ibv_get_cq_event, not
// in poll or epoll.
int waits_in_get(const struct channel_idle *ch) { return __atomic_load_n(&ch->assumed, __ATOMIC_RELAXED) > 0; }

// asked_for_event is called when the program asks for an event and would wait for it. pending says
// whether an event was pending.
void asked_for_event(struct channel_idle *ch, int pending)
{
	uint32_t assumed = __atomic_load_n(&ch->assumed, __ATOMIC_RELAXED);
	if (!pending)
		__atomic_store_n(&ch->assumed, ch->policy->events_before_poll, __ATOMIC_RELAXED);
	else if (assumed)
		__atomic_store_n(&ch->assumed, assumed - 1, __ATOMIC_RELAXED);
}

// spin_time returns how long a thread spins for an event before it sleeps, in nanoseconds.
int64_t spin_time(const struct channel_idle *ch) { return __atomic_load_n(&ch->spin, __ATOMIC_RELAXED); }

// channel_slept computes the time of the next spin from the time of a sleep, in nanoseconds. It
// does the same as method Slept of the engine's idle.Spin.
void channel_slept(struct channel_idle *ch, int64_t ns)
{
	const struct sr_idle *p = ch->policy;
	int64_t spin = spin_time(ch);
	if (!ch->may_spin)
		return;
	if (ns >= p->short_sleep) {
		spin = spin < p->first_spin / 8 ? 0 : spin / 2;
	} else {
		spin = 2 * spin > p->first_spin ? 2 * spin : p->first_spin;
		spin = spin < p->longest_spin ? spin : p->longest_spin;
	}
	__atomic_store_n(&ch->spin, spin, __ATOMIC_RELAXED);
}
