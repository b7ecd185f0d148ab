// No completion and no event is lost, or given twice. In each round, threads post receive requests
// and SENDs on pairs of QPs with one CQ, which others poll: with events only, or beside threads
// that poll all the time, while the CQ is resized. At a random moment the QPs enter ERR, so that
// posts race with the flush. The program exits with 1 at the first failed check.
//
//	polls SECONDS
#define _GNU_SOURCE
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include "loopback.h"

#define PAIRS 2
#define MOST 4000 // messages of a pair in a round
#define DEPTH 32

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct pair {
	struct ibv_qp *qp, *peer;
	uint32_t sent, received; // requests posted
	uint32_t done_sends, done_recvs;
} pairs[PAIRS];
static unsigned char seen[PAIRS][2][MOST];
static struct ibv_mr *mr;
static int with_events_only, posting, stop;

static unsigned int any(unsigned int *state, unsigned int n) { return (*state = *state * 1103515245 + 12345) / 65536 % n; }

static uint32_t load(uint32_t *p) { return __atomic_load_n(p, __ATOMIC_ACQUIRE); }

// saw counts a completion.
static void saw(struct ibv_wc *wc)
{
	int i = wc->wr_id >> 32 & 0xff, is_recv = wc->wr_id >> 40;
	uint32_t id = wc->wr_id;
	CHECK(wc->status == IBV_WC_SUCCESS || wc->status == IBV_WC_WR_FLUSH_ERR || wc->status == IBV_WC_RETRY_EXC_ERR ||
		wc->status == IBV_WC_REM_OP_ERR || wc->status == IBV_WC_RNR_RETRY_EXC_ERR);
	CHECK(id < MOST && !__atomic_fetch_add(&seen[i][is_recv][id], 1, __ATOMIC_RELAXED));
	CHECK(wc->qp_num == (is_recv ? pairs[i].peer : pairs[i].qp)->qp_num);
	__atomic_add_fetch(is_recv ? &pairs[i].done_recvs : &pairs[i].done_sends, 1, __ATOMIC_RELEASE);
}

static void *poster(void *v)
{
	struct pair *p = v;
	uint64_t which = (uint64_t)(p - pairs) << 32;
	unsigned int rnd = (uintptr_t)p / 64 + time(NULL);
	struct ibv_sge sge = {(uintptr_t)mr->addr, 8, mr->lkey};
	double t = now();
	while (load(&p->sent) < MOST - 4 && __atomic_load_n(&posting, __ATOMIC_RELAXED)) {
		CHECK(now() - t < 60);
		if (load(&p->received) - load(&p->done_recvs) > DEPTH - 4 || load(&p->sent) - load(&p->done_sends) > DEPTH - 4) {
			sched_yield();
			continue;
		}
		unsigned int n = 1 + any(&rnd, 3);
		struct ibv_recv_wr r[4], *bad_r;
		for (unsigned int i = 0; i < n; i++)
			r[i] = (struct ibv_recv_wr){.wr_id = 1ull << 40 | which | (p->received + i), .next = i + 1 < n ? &r[i + 1] : NULL,
				.sg_list = &sge, .num_sge = 1};
		CHECK(!ibv_post_recv(p->peer, r, &bad_r));
		__atomic_add_fetch(&p->received, n, __ATOMIC_RELEASE);
		for (unsigned int i = 0; i < n; i++) {
			struct ibv_send_wr s = {.wr_id = which | p->sent, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				.send_flags = IBV_SEND_SIGNALED}, *bad_s;
			CHECK(!ibv_post_send(p->qp, &s, &bad_s));
			__atomic_add_fetch(&p->sent, 1, __ATOMIC_RELEASE);
		}
	}
	return NULL;
}

static int poll_some(unsigned int *rnd)
{
	struct ibv_wc wc[8];
	int n = ibv_poll_cq(cq, 1 + any(rnd, 8), wc);
	CHECK(n >= 0);
	for (int i = 0; i < n; i++)
		saw(&wc[i]);
	return n;
}

static void *poller(void *v)
{
	unsigned int rnd = (uintptr_t)v;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED))
		if (!poll_some(&rnd) && !any(&rnd, 64))
			sched_yield();
	return NULL;
}

// waiter waits for events. An event that is lost ends the progress of a round with events only.
static void *waiter(void *v)
{
	unsigned int rnd = (uintptr_t)v;
	struct pollfd fd = {.fd = channel->fd, .events = POLLIN};
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		struct ibv_cq *of;
		void *context;
		if (poll(&fd, 1, 20) <= 0 || ibv_get_cq_event(channel, &of, &context))
			continue;
		CHECK(of == cq && context == &cq);
		ibv_ack_cq_events(cq, 1);
		CHECK(!ibv_req_notify_cq(cq, 0));
		while (poll_some(&rnd))
			;
	}
	return NULL;
}

static void *resizer(void *v)
{
	unsigned int rnd = (uintptr_t)v;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		CHECK(!ibv_resize_cq(cq, PAIRS * 2 * DEPTH + any(&rnd, 512)));
		usleep(any(&rnd, 300));
	}
	return NULL;
}

static int all_done(void)
{
	for (int i = 0; i < PAIRS; i++)
		if (load(&pairs[i].done_sends) != pairs[i].sent || load(&pairs[i].done_recvs) != pairs[i].received)
			return 0;
	return 1;
}

static void one_round(unsigned int *rnd, int number)
{
	pthread_t posters[PAIRS], others[4];
	int n = 0;
	struct ibv_qp_attr err = {.qp_state = IBV_QPS_ERR};
	memset(seen, 0, sizeof seen);
	memset(pairs, 0, sizeof pairs);
	with_events_only = number % 2;
	posting = 1;
	stop = 0;
	CHECK((channel = ibv_create_comp_channel(ctx)) && !fcntl(channel->fd, F_SETFL, O_NONBLOCK));
	CHECK((cq = ibv_create_cq(ctx, PAIRS * 2 * DEPTH, &cq, channel, 0)) && !ibv_req_notify_cq(cq, 0));
	for (int i = 0; i < PAIRS; i++) {
		struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .cap = {DEPTH, DEPTH, 1, 1, 0}, .qp_type = IBV_QPT_RC}, b = a;
		CHECK((pairs[i].qp = ibv_create_qp(pd, &a)) && (pairs[i].peer = ibv_create_qp(pd, &b)));
		connect_qp(pairs[i].qp, pairs[i].peer->qp_num);
		connect_qp(pairs[i].peer, pairs[i].qp->qp_num);
	}
	CHECK(!pthread_create(&others[n++], NULL, waiter, (void *)(uintptr_t)any(rnd, 1 << 15)));
	CHECK(!pthread_create(&others[n++], NULL, resizer, (void *)(uintptr_t)any(rnd, 1 << 15)));
	for (int i = 0; i < 2; i++)
		CHECK(!pthread_create(&others[n++], NULL, with_events_only ? waiter : poller, (void *)(uintptr_t)any(rnd, 1 << 15)));
	for (int i = 0; i < PAIRS; i++)
		CHECK(!pthread_create(&posters[i], NULL, poster, &pairs[i]));
	usleep(any(rnd, 30000));
	for (int i = 0; i < PAIRS; i++) {
		CHECK(!ibv_modify_qp(pairs[i].peer, &err, IBV_QP_STATE));
		CHECK(!ibv_modify_qp(pairs[i].qp, &err, IBV_QP_STATE));
	}
	usleep(any(rnd, 1000));
	__atomic_store_n(&posting, 0, __ATOMIC_RELAXED);
	for (int i = 0; i < PAIRS; i++)
		CHECK(!pthread_join(posters[i], NULL));
	for (double t = now(); !all_done(); usleep(100))
		CHECK(now() - t < 20);
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	while (n)
		CHECK(!pthread_join(others[--n], NULL));
	CHECK(!poll_some(rnd));
	for (int i = 0; i < PAIRS; i++)
		CHECK(!ibv_destroy_qp(pairs[i].qp) && !ibv_destroy_qp(pairs[i].peer));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel));
}

int main(int argc, char **argv)
{
	unsigned int rnd = time(NULL);
	static char memory[64];
	device_open();
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE)));
	int rounds = 0;
	uint64_t messages = 0;
	for (double t = now(); now() - t < (argc > 1 ? atof(argv[1]) : 5);) {
		one_round(&rnd, rounds++);
		for (int i = 0; i < PAIRS; i++)
			messages += pairs[i].sent;
	}
	printf("%d rounds, %lu messages\n", rounds, (unsigned long)messages);
	return 0;
}
