// A QP with a CQ for each queue, both polled by one thread. The CQ of the receive queue is
// destroyed while the thread polls the other, and the next QP has a new one. The program exits with
// 1 at the first failed check.
#include <pthread.h>
#include <stdint.h>
#include "loopback.h"

#define ROUNDS 1000 // more than the destroyed objects that are kept

// CQs are in their own pages, which are not reused, so that access to a freed CQ raises SIGSEGV.
#define PAGES 8192
#define OBJECTS (ROUNDS + 16)

static char *objects;
static int used;

void __libc_free(void *);

void *aligned_alloc(size_t alignment, size_t n)
{
	if (!objects)
		objects = mmap(NULL, (size_t)OBJECTS * PAGES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (objects == MAP_FAILED || n > PAGES || alignment > 4096 || used == OBJECTS)
		return NULL;
	return objects + (size_t)used++ * PAGES;
}

void free(void *p)
{
	if (objects && (char *)p >= objects && (char *)p < objects + (size_t)OBJECTS * PAGES)
		mprotect(p, PAGES, PROT_NONE);
	else
		__libc_free(p);
}

static struct ibv_cq *send_cq, *recv_cq;
static int round_begun, round_seen; // by the main thread, and by the polling thread

// poll_both takes a completion of each of the two CQs of every round.
static void *poll_both(void *unused)
{
	(void)unused;
	for (int i = 1; i <= ROUNDS; i++) {
		struct ibv_wc wc;
		int sent = 0, received = 0;
		while (__atomic_load_n(&round_begun, __ATOMIC_ACQUIRE) < i)
			sent += ibv_poll_cq(send_cq, 1, &wc);
		for (double t = now(); !sent || !received;) {
			CHECK(now() - t < 20);
			int n = ibv_poll_cq(send_cq, 1, &wc);
			CHECK(!n || (n == 1 && !sent++ && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_SEND && wc.wr_id == 2 * (uint64_t)i));
			n = ibv_poll_cq(recv_cq, 1, &wc);
			CHECK(!n || (n == 1 && !received++ && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.wr_id == 2 * (uint64_t)i +
				1));
		}
		for (int k = 0; k < 1000; k++) // some of which call the engine
			CHECK(!ibv_poll_cq(k % 2 ? send_cq : recv_cq, 1, &wc));
		__atomic_store_n(&round_seen, i, __ATOMIC_RELEASE);
	}
	return NULL;
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	device_open();
	char *memory = calloc(1, 64);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 64, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr && (send_cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)));
	pthread_t poller;
	CHECK(!pthread_create(&poller, NULL, poll_both, NULL));
	for (int i = 1; i <= ROUNDS; i++) {
		CHECK((recv_cq = ibv_create_cq(ctx, 16, NULL, NULL, 0)));
		struct ibv_qp_init_attr a = {.send_cq = send_cq, .recv_cq = recv_cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
		struct ibv_qp *qp = ibv_create_qp(pd, &a);
		CHECK(qp);
		connect_qp(qp, qp->qp_num); // to itself
		struct ibv_sge sge = {(uintptr_t)memory, 8, mr->lkey};
		struct ibv_recv_wr recv = {.wr_id = 2 * i + 1, .sg_list = &sge, .num_sge = 1}, *bad_recv;
		struct ibv_send_wr send = {.wr_id = 2 * i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED},
			*bad;
		CHECK(!ibv_post_recv(qp, &recv, &bad_recv));
		__atomic_store_n(&round_begun, i, __ATOMIC_RELEASE);
		CHECK(!ibv_post_send(qp, &send, &bad));
		for (double t = now(); __atomic_load_n(&round_seen, __ATOMIC_ACQUIRE) < i;)
			CHECK(now() - t < 30);
		CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(recv_cq));
	}
	CHECK(!pthread_join(poller, NULL) && !ibv_destroy_cq(send_cq));
	return 0;
}
