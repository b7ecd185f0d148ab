// Misuse of the libraries, in one process. The program exits with 1 at the first failed check.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <arpa/inet.h>
#include <rdma/rdma_cma.h>
#include "loopback.h"

#define THREADS 64

// Each of many threads uses its own QP.
static void *use_one(void *v)
{
	long seed = (long)v;
	struct loopback l;
	loopback_open(&l);
	for (int i = 0; i < 200; i++) {
		memset(l.memory, seed + i, 1024);
		loopback_write(&l, (uintptr_t)l.memory, l.mr->lkey, (uintptr_t)l.memory + 4096, l.mr->rkey, 1024);
		CHECK(wait_for(l.cq).status == IBV_WC_SUCCESS);
		CHECK(!memcmp(l.memory, l.memory + 4096, 1024));
	}
	loopback_close(&l);
	return NULL;
}

static void threads(void)
{
	pthread_t t[THREADS];
	for (long i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&t[i], NULL, use_one, (void *)i));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(t[i], NULL));
}

static struct ibv_comp_channel *channel;

static void *take_events(void *v)
{
	struct ibv_cq *cq;
	void *context;
	(void)v;
	for (;;) { // until the channel is closed
		if (ibv_get_cq_event(channel, &cq, &context))
			return NULL;
		if (context == channel) { // the last
			ibv_ack_cq_events(cq, 1);
			return NULL;
		}
		ibv_ack_cq_events(cq, 1);
	}
}

static struct ibv_qp *self_connected(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = ibv_create_qp(pd, &a);
	CHECK(qp);
	connect_qp(qp, qp->qp_num);
	return qp;
}

static void write_nothing(struct ibv_qp *qp)
{
	struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
	CHECK(!ibv_post_send(qp, &wr, &bad));
}

// CQs are destroyed with unread events, and while another thread takes them.
static void events(void)
{
	CHECK((channel = ibv_create_comp_channel(ctx)));
	for (int round = 0; round < 20; round++) {
		struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, channel, 0);
		CHECK(cq && !ibv_req_notify_cq(cq, 0));
		struct ibv_qp *qp = self_connected(cq);
		write_nothing(qp);
		CHECK(wait_for(cq).status == IBV_WC_SUCCESS);
		CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
		struct pollfd fd = {channel->fd, POLLIN, 0};
		CHECK(poll(&fd, 1, 0) == 0);
	}
	pthread_t t;
	CHECK(!pthread_create(&t, NULL, take_events, NULL));
	for (int round = 0; round < 300; round++) {
		struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, channel, 0);
		CHECK(cq && !ibv_req_notify_cq(cq, 0));
		struct ibv_qp *qp = self_connected(cq);
		write_nothing(qp);
		CHECK(wait_for(cq).status == IBV_WC_SUCCESS);
		// Waits for the acknowledgement of taken events.
		CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq));
	}
	struct ibv_cq *last = ibv_create_cq(ctx, 16, channel, channel, 0);
	CHECK(last && !ibv_req_notify_cq(last, 0));
	struct ibv_qp *qp = self_connected(last);
	write_nothing(qp);
	CHECK(!pthread_join(t, NULL) && !ibv_destroy_qp(qp) && !ibv_destroy_cq(last) && !ibv_destroy_comp_channel(channel));
}

// Invalid arguments have an errno.
static void nonsense(void)
{
	struct loopback l;
	loopback_open(&l);
	struct ibv_sge far = {(uintptr_t)l.memory, 8193, l.mr->lkey}, wrap = {UINT64_MAX - 4, 64, l.mr->lkey},
		other = {(uintptr_t)l.memory, 8, l.mr->lkey ^ 0xff};
	struct ibv_sge *bad_sges[] = {&far, &wrap, &other};
	for (int i = 0; i < 3; i++) {
		struct ibv_send_wr wr = {.sg_list = bad_sges[i], .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {(uintptr_t)l.memory, l.mr->rkey}}, *bad;
		if (!ibv_post_send(l.qp, &wr, &bad))
			CHECK(wait_for(l.cq).status == IBV_WC_LOC_PROT_ERR);
		loopback_close(&l);
		loopback_open(&l);
	}
	struct ibv_send_wr wr = {.num_sge = -1, .opcode = IBV_WR_SEND}, *bad = NULL;
	CHECK(ibv_post_send(l.qp, &wr, &bad) == EINVAL && bad == &wr);
	wr.num_sge = 1 << 30;
	CHECK(ibv_post_send(l.qp, &wr, &bad) == EINVAL);
	CHECK(!ibv_create_cq(ctx, -1, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(ctx, 1 << 30, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, l.memory, SIZE_MAX - 1, 0) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, NULL, 4096, 0) && errno == EFAULT);
	struct ibv_qp_init_attr a = {.send_cq = l.cq, .recv_cq = l.cq, .cap = {1 << 30, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	CHECK(!ibv_create_qp(pd, &a) && errno);
	wr.send_flags = IBV_SEND_INLINE;
	CHECK(ibv_post_send(l.qp, &wr, &bad) == EINVAL);
	wr.num_sge = 1;
	wr.sg_list = NULL;
	CHECK(ibv_post_send(l.qp, &wr, &bad) == EINVAL);
	struct ibv_ah_attr ah;
	struct ibv_wc wc = {0};
	CHECK(ibv_init_ah_from_wc(ctx, 1, &wc, NULL, &ah) == -1 && errno == EINVAL);
	struct ibv_sge there = {(uintptr_t)l.memory, 8192, l.mr->lkey};
	CHECK(!ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &there, 1));
	struct ibv_sge longer = {(uintptr_t)l.memory, 8193, l.mr->lkey}, unknown = {(uintptr_t)l.memory, 1, l.mr->lkey ^ 0x5a5a00};
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &longer, 1) == EFAULT);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &unknown, 1) == ENOENT);
	struct ibv_mr *read_only = ibv_reg_mr(pd, l.memory, 8192, 0);
	struct ibv_sge r = {(uintptr_t)l.memory, 8192, read_only->lkey};
	CHECK(!ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &r, 1));
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &r, 1) == EPERM && !ibv_dereg_mr(read_only));
	struct ibv_pd *another = ibv_alloc_pd(ctx);
	CHECK(another && ibv_advise_mr(another, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &there, 1) == EPERM && !ibv_dealloc_pd(another));
	loopback_close(&l);
}

static struct ibv_xrcd *open_xrcd(int fd, int oflags)
{
	struct ibv_xrcd_init_attr a = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = fd, .oflags = oflags};
	errno = 0;
	return ibv_open_xrcd(ctx, &a);
}

// An XRC domain is opened with the right flags, or the call has the errno of ib_uverbs_open_xrcd in
// Linux.
static void xrc_domains(void)
{
	char name[] = "/tmp/xrcd.XXXXXX";
	int fd = mkstemp(name);
	CHECK(fd >= 0 && !unlink(name));
	CHECK(!open_xrcd(fd, 0) && errno == EAGAIN);
	CHECK(!open_xrcd(fd, O_EXCL) && errno == EAGAIN);
	struct ibv_xrcd *first = open_xrcd(fd, O_CREAT | O_EXCL), *again = open_xrcd(fd, 0), *own = open_xrcd(-1, 0);
	CHECK(first && again && own);
	CHECK(!open_xrcd(fd, O_CREAT | O_EXCL) && errno == EINVAL);
	CHECK(!open_xrcd(fd, O_EXCL) && errno == EINVAL);
	CHECK(!ibv_close_xrcd(first) && !ibv_close_xrcd(again) && !ibv_close_xrcd(own));
	CHECK(!open_xrcd(fd, 0) && errno == EAGAIN); // it ended with the last
	CHECK(!close(fd));
	CHECK(!open_xrcd(fd, O_CREAT) && errno == EBADF);
	CHECK(!open_xrcd(-2, O_CREAT) && errno == EBADF);
}

static struct ibv_srq *create_srq(struct ibv_pd *p)
{
	struct ibv_srq_init_attr a = {.attr = {4, 1, 0}};
	struct ibv_srq *srq = ibv_create_srq(p, &a);
	CHECK(srq);
	return srq;
}

// reach_limit gets an event of an SRQ's limit, since the SRQ has no requests.
static void reach_limit(struct ibv_srq *srq)
{
	struct ibv_srq_attr a = {.srq_limit = 1};
	CHECK(!ibv_modify_srq(srq, &a, IBV_SRQ_LIMIT));
}

static void wait_async(struct ibv_context *c)
{
	struct pollfd fd = {c->async_fd, POLLIN, 0};
	CHECK(poll(&fd, 1, 10000) == 1);
}

// A device is closed while it has SRQs. Only the program uses the number of its descriptor
// afterwards.
static void closed_device(void)
{
	int pair[2];
	char byte;
	struct ibv_async_event e;
	CHECK(!socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair));
	struct ibv_context *other = ibv_open_device(ctx->device);
	struct ibv_pd *p = other ? ibv_alloc_pd(other) : NULL;
	CHECK(p);
	struct ibv_srq *early = create_srq(p), *late = create_srq(p), *ours = create_srq(pd);
	reach_limit(early);
	wait_async(other);
	int fd = other->async_fd;
	CHECK(!ibv_close_device(other) && dup2(pair[0], fd) == fd && write(pair[1], "8 bytes.", 8) == 8);
	reach_limit(late);
	reach_limit(ours);
	wait_async(ctx); // reported after the other one would be
	CHECK(!ibv_get_async_event(ctx, &e) && e.element.srq == ours);
	ibv_ack_async_event(&e);
	CHECK(!ibv_destroy_srq(early) && !ibv_destroy_srq(late) && !ibv_destroy_srq(ours) && !ibv_dealloc_pd(p));
	CHECK(read(pair[1], &byte, 1) == -1 && errno == EAGAIN);
	for (int i = 0; i < 8; i++)
		CHECK(read(fd, &byte, 1) == 1);
	CHECK(!close(fd) && !close(pair[0]) && !close(pair[1]));
}

static void *destroy_srq(void *srq) { return (void *)(intptr_t)ibv_destroy_srq(srq); }

// A thread uses an SRQ late, while another one destroys it. It does not reach a new SRQ in its
// place.
static void late_call(void)
{
	struct ibv_srq *old = create_srq(pd), *new[32];
	struct ibv_async_event e;
	struct ibv_srq_attr a;
	pthread_t t;
	void *err;
	reach_limit(old);
	// Waits for the acknowledgement.
	CHECK(!ibv_get_async_event(ctx, &e) && !pthread_create(&t, NULL, destroy_srq, old));
	double began = now();
	while (!ibv_query_srq(old, &a))
		CHECK(now() - began < 10);
	for (int i = 0; i < 32; i++)
		new[i] = create_srq(pd);
	CHECK(ibv_query_srq(old, &a) == ENOENT && ibv_destroy_srq(old) == ENOENT);
	ibv_ack_async_event(&e);
	CHECK(!pthread_join(t, &err) && !err);
	for (int i = 0; i < 32; i++)
		CHECK(!ibv_destroy_srq(new[i]));
}

// A child that waits for events gets ENODEV, and takes none of the parent's.
static void child_waits(void)
{
	struct ibv_srq *srq = create_srq(pd);
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_event *event;
	struct ibv_async_event e;
	int status;
	CHECK(ch);
	reach_limit(srq);
	wait_async(ctx);
	pid_t child = fork();
	if (!child) {
		alarm(5);
		if (ibv_get_async_event(ctx, &e) != -1 || errno != ENODEV)
			_exit(1);
		_exit(rdma_get_cm_event(ch, &event) == -1 && errno == ENODEV ? 0 : 2);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status));
	CHECK(!fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK) && !ibv_get_async_event(ctx, &e) && !fcntl(ctx->async_fd, F_SETFL, 0));
	ibv_ack_async_event(&e);
	CHECK(!ibv_destroy_srq(srq));
	rdma_destroy_event_channel(ch);
}

static struct rdma_event_channel *cm_events;

// A thread that takes the event of a resolved route sees the route.
static void *take_routes(void *rounds)
{
	struct rdma_cm_event *e;
	for (intptr_t n = (intptr_t)rounds; n > 0;) {
		CHECK(!rdma_get_cm_event(cm_events, &e) && !e->status);
		struct rdma_cm_id *id = e->id;
		enum rdma_cm_event_type type = e->event;
		CHECK(type == RDMA_CM_EVENT_ADDR_RESOLVED || (type == RDMA_CM_EVENT_ROUTE_RESOLVED && id->route.num_paths == 1 &&
			id->route.path_rec->mtu));
		if (type == RDMA_CM_EVENT_ADDR_RESOLVED)
			CHECK(!sem_post(id->context));
		CHECK(!rdma_ack_cm_event(e));
		n -= type == RDMA_CM_EVENT_ROUTE_RESOLVED;
	}
	return NULL;
}

static void routes(void)
{
	intptr_t rounds = 200;
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_addr.s_addr = *(uint32_t *)&gid.raw[12], .sin_port = htons(7)};
	struct rdma_cm_id *ids[200];
	sem_t resolved;
	pthread_t t;
	CHECK((cm_events = rdma_create_event_channel()) && !sem_init(&resolved, 0, 0));
	CHECK(!pthread_create(&t, NULL, take_routes, (void *)rounds));
	for (int i = 0; i < rounds; i++) {
		CHECK(!rdma_create_id(cm_events, &ids[i], &resolved, RDMA_PS_TCP));
		CHECK(!rdma_resolve_addr(ids[i], NULL, (struct sockaddr *)&to, 2000) && !sem_wait(&resolved));
		CHECK(!rdma_resolve_route(ids[i], 2000));
	}
	CHECK(!pthread_join(t, NULL));
	for (int i = 0; i < rounds; i++)
		CHECK(!rdma_destroy_id(ids[i]));
	rdma_destroy_event_channel(cm_events);
}

// Closing the library is harmless, though its threads continue.
static void dl_close(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW);
	CHECK(lib && !dlclose(lib) && !dlclose(lib));
	usleep(20000);
	use_one(NULL);
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	device_open();
	// Like a program that resets the actions of all signals.
	CHECK(signal(SIGSTKFLT, SIG_DFL) != SIG_ERR);
	nonsense();
	xrc_domains();
	closed_device();
	late_call();
	child_waits();
	routes();
	events();
	threads();
	dl_close();
	return 0; // with the device open
}
