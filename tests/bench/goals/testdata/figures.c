// The cost of calls of libibverbs, in one process: figures call | poll | write | stall SECONDS |
// qp. It prints one number. call: nanoseconds of a call from C into the engine, which is in Go, and
// back, without any work there. poll: nanoseconds of a poll of an empty CQ. write: nanoseconds of
// an RDMA WRITE of 8 bytes, from ibv_post_send until ibv_poll_cq returns its completion. stall:
// four threads poll CQs, and the number is the longest time in milliseconds for which a thread gave
// up the processor within a poll. Preemption, by other programs or, with fewer processors, by the
// other threads, is not counted. qp: the number of the first QP, for those who measure the whole
// program.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <infiniband/verbs.h>

#include "../../../../cmd/dropin/libsoftrnic/softrnic.h"

#define CHECK(x) \
	do { \
		if (!(x)) { \
			fprintf(stderr, "line %d: not so: %s\n", __LINE__, #x); \
			exit(1); \
		} \
	} while (0)

static struct ibv_context *ctx;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

// least returns the least nanoseconds per turn of ten tries.
static double least(void (*f)(int turns, void *arg), int turns, void *arg)
{
	double best = 0;
	f(turns / 10, arg);
	for (int i = 0; i < 10; i++) {
		double t = now();
		f(turns, arg);
		t = (now() - t) / turns;
		if (!i || t < best)
			best = t;
	}
	return best;
}

static void call_engine(int turns, void *v)
{
	const struct sr_engine *e = v;
	while (turns--)
		CHECK(!e->thread(0));
}

// the_engine returns the table of the engine's functions, which libibverbs.so.1 has for
// librdmacm.so.1.
static void *the_engine(void)
{
	const struct sr_engine *(*get)(void) = (const struct sr_engine *(*)(void))dlvsym(RTLD_DEFAULT, "front_engine", "SOFTRNIC_1");
	CHECK(get);
	return (void *)get();
}

static void poll_empty(int turns, void *cq)
{
	struct ibv_wc wc[16];
	while (turns--)
		CHECK(!ibv_poll_cq(cq, 16, wc));
}

struct write {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_send_wr wr;
};

static void post_and_poll(int turns, void *arg)
{
	struct write *w = arg;
	struct ibv_send_wr *bad;
	struct ibv_wc wc;
	while (turns--) {
		CHECK(!ibv_post_send(w->qp, &w->wr, &bad));
		while (!ibv_poll_cq(w->cq, 1, &wc))
			;
		CHECK(wc.status == IBV_WC_SUCCESS);
	}
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr a = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	CHECK(!ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	union ibv_gid gid;
	CHECK(!ibv_query_gid(ctx, 1, 1, &gid));
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 1}},
	};
	CHECK(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

static struct ibv_qp *new_qp(struct ibv_pd *pd, struct ibv_cq *cq)
{
	struct ibv_qp_init_attr ia = {.send_cq = cq, .recv_cq = cq, .cap = {32, 32, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = ibv_create_qp(pd, &ia);
	CHECK(qp);
	return qp;
}

static double write_of_8_bytes(struct ibv_pd *pd, struct ibv_cq *cq)
{
	static char memory[64];
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp *a = new_qp(pd, cq), *b = new_qp(pd, cq);
	CHECK(mr);
	connect_qp(a, b->qp_num);
	connect_qp(b, a->qp_num);
	struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
	struct write w = {cq, a, {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {(uintptr_t)memory + 8, mr->rkey}}};
	return least(post_and_poll, 20000, &w);
}

static double until;

static long slept(void)
{
	struct rusage r;
	getrusage(RUSAGE_THREAD, &r);
	return r.ru_nvcsw;
}

static void *poll_long(void *arg)
{
	double *longest = arg, t, u;
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_wc wc[4];
	CHECK(cq);
	for (int i = 0; i < 2000; i++)
		CHECK(!ibv_poll_cq(cq, 4, wc));
	long before = slept();
	for (t = now(); t < until; t = u) {
		CHECK(!ibv_poll_cq(cq, 4, wc));
		if ((u = now()) - t < 3e5) // nanoseconds
			continue;
		long n = slept();
		if (n != before && u - t > *longest)
			*longest = u - t;
		before = n;
		u = now();
	}
	return NULL;
}

static double longest_stall(double seconds)
{
	pthread_t threads[4];
	double longest[4] = {0}, all = 0;
	until = now() + seconds * 1e9;
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&threads[i], NULL, poll_long, &longest[i]));
	for (int i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		if (longest[i] > all)
			all = longest[i];
	}
	return all / 1e6;
}

int main(int argc, char **argv)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(argc > 1 && list && *list && (ctx = ibv_open_device(*list)));
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, NULL, NULL, 0);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(cq && pd);
	if (!strcmp(argv[1], "call"))
		printf("%.1f\n", least(call_engine, 100000, the_engine()));
	else if (!strcmp(argv[1], "poll"))
		printf("%.1f\n", least(poll_empty, 1000000, cq));
	else if (!strcmp(argv[1], "write"))
		printf("%.1f\n", write_of_8_bytes(pd, cq));
	else if (!strcmp(argv[1], "qp"))
		printf("%u\n", new_qp(pd, cq)->qp_num);
	else
		printf("%.3f\n", longest_stall(argc > 2 ? atof(argv[2]) : 1));
	return 0;
}
