// Several threads destroy an object at once. One succeeds. The others get the kernel's errors, and
// nothing is freed twice.
//
//	twice ADDR N
//
// The program exits with 1 at the first failed check.
#define _GNU_SOURCE
#include "calls.h"

#define THREADS 3

static pthread_barrier_t together;
static int (*destroy)(void *);
static void *object;
static int loser1, loser2; // permitted errors of the threads that fail
static const char *name;
static int won;

static void *destroyer(void *unused)
{
	(void)unused;
	pthread_barrier_wait(&together);
	errno = 0;
	int err = destroy(object);
	if (!err)
		__atomic_add_fetch(&won, 1, __ATOMIC_RELAXED);
	else if (err != loser1 && err != loser2) {
		printf("%s: %d (%s)\n", name, err, strerror(err));
		_exit(1);
	}
	return NULL;
}

// at_once destroys an object.
static void at_once(const char *what, void *o, int (*f)(void *), int err1, int err2)
{
	pthread_t t[THREADS];
	CHECK(o);
	name = what;
	object = o;
	destroy = f;
	loser1 = err1;
	loser2 = err2;
	won = 0;
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&t[i], NULL, destroyer, NULL));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(t[i], NULL));
	if (won != 1) {
		printf("%s: %d of %d threads have destroyed it\n", what, won, THREADS);
		_exit(1);
	}
}

// result is the errno of a call that returns -1, and otherwise its return value.
static int result(int got) { return got == -1 ? errno : got; }

#define F(name, call) \
	static int name(void *v) { return result(call); }
F(close_context, ibv_close_device(v))
F(dealloc_pd, ibv_dealloc_pd(v))
F(dealloc_thread_domain, ibv_dealloc_td(v))
F(dereg_mr, ibv_dereg_mr(v))
F(free_memory, ibv_free_dm(v))
F(dealloc_window, ibv_dealloc_mw(v))
F(destroy_ah, ibv_destroy_ah(v))
F(destroy_channel, ibv_destroy_comp_channel(v))
F(destroy_cq, ibv_destroy_cq(v))
F(destroy_qp, ibv_destroy_qp(v))
F(destroy_srq, ibv_destroy_srq(v))
F(close_domain, ibv_close_xrcd(v))
F(destroy_id, rdma_destroy_id(v))
F(close_rsocket, rclose((intptr_t)v))

// Functions without a result: the first to finish has succeeded.
static int once;

#define V(name, call) \
	static int name(void *v) \
	{ \
		call(v); \
		return __atomic_fetch_add(&once, 1, __ATOMIC_RELAXED) ? ENOENT : 0; \
	}
V(destroy_cm_channel, rdma_destroy_event_channel)
V(destroy_cm_qp, rdma_destroy_qp)
V(destroy_cm_srq, rdma_destroy_srq)

static char group[32];

static int leave(void *id) { return result(rdma_leave_multicast(id, address(group, 0))); }

static void verbs_objects(void)
{
	struct ibv_td_init_attr none = {0};
	struct ibv_alloc_dm_attr dm = {.length = 64};
	struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 1}};
	struct ibv_srq_init_attr srq = {.attr = {4, 1, 0}};
	struct ibv_xrcd_init_attr xrcd = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_qp_init_attr qp = {.send_cq = common.cq, .recv_cq = common.cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	at_once("context", ibv_open_device(ctx->device), close_context, EBUSY, ENOENT);
	at_once("PD", ibv_alloc_pd(ctx), dealloc_pd, EBUSY, ENOENT);
	at_once("thread domain", ibv_alloc_td(ctx, &none), dealloc_thread_domain, EBUSY, ENOENT);
	struct ibv_parent_domain_init_attr of = {.pd = pd};
	at_once("parent domain", ibv_alloc_parent_domain(ctx, &of), dealloc_pd, EBUSY, ENOENT);
	at_once("MR", ibv_reg_mr(pd, common.memory, 64, 0), dereg_mr, EBUSY, ENOENT);
	at_once("device memory", ibv_alloc_dm(ctx, &dm), free_memory, EBUSY, ENOENT);
	at_once("MW", ibv_alloc_mw(pd, IBV_MW_TYPE_1), dealloc_window, EBUSY, ENOENT);
	at_once("AH", ibv_create_ah(pd, &ah), destroy_ah, EBUSY, ENOENT);
	at_once("channel", ibv_create_comp_channel(ctx), destroy_channel, EBUSY, ENOENT);
	at_once("CQ", ibv_create_cq(ctx, 4, NULL, NULL, 0), destroy_cq, EBUSY, ENOENT);
	at_once("QP", ibv_create_qp(pd, &qp), destroy_qp, EBUSY, ENOENT);
	at_once("SRQ", ibv_create_srq(pd, &srq), destroy_srq, EBUSY, ENOENT);
	at_once("XRC domain", ibv_open_xrcd(ctx, &xrcd), close_domain, EBUSY, ENOENT);
}

static void cm_objects(int i)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id, *of;
	struct ibv_qp_init_attr qp = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_UD};
	struct ibv_srq_init_attr srq = {.attr = {4, 1, 0}};
	CHECK(ch && !rdma_create_id(ch, &id, NULL, RDMA_PS_UDP) && !rdma_bind_addr(id, address(own, 0)));
	once = 0;
	CHECK(!rdma_create_srq(id, pd, &srq) && id->srq);
	at_once("SRQ of an ID", id, destroy_cm_srq, ENOENT, ENOENT);
	once = 0;
	CHECK(!rdma_create_qp(id, NULL, &qp));
	snprintf(group, sizeof group, "239.7.2.%d", 1 + i % 5);
	CHECK(!rdma_join_multicast(id, address(group, 0), NULL) && take_cm(ch, &of) == RDMA_CM_EVENT_MULTICAST_JOIN);
	at_once("multicast group", id, leave, EADDRNOTAVAIL, EADDRNOTAVAIL);
	at_once("QP of an ID", id, destroy_cm_qp, ENOENT, ENOENT);
	CHECK(!id->qp);
	at_once("ID", id, destroy_id, ENOENT, ENOENT);
	once = 0;
	at_once("event channel", ch, destroy_cm_channel, ENOENT, ENOENT);
	int s = rsocket(AF_INET, any(2) ? SOCK_STREAM : SOCK_DGRAM, 0);
	CHECK(s > 0);
	at_once("rsocket", (void *)(intptr_t)s, close_rsocket, EBADF, EBADF);
}

int main(int argc, char **argv)
{
	CHECK(argc == 3);
	setvbuf(stdout, NULL, _IONBF, 0);
	CHECK(!pthread_barrier_init(&together, NULL, THREADS));
	begin(argv[1]);
	for (int i = 0; i < atoi(argv[2]); i++) {
		verbs_objects();
		cm_objects(i);
	}
	return 0;
}
