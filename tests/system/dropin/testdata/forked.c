// Children of a process that has opened a device:
//
//	forked objects N   N children, and a child of each, have devices of their own, and exchange data
//	                   with the first process. Its objects are errors for them.
//	forked prefork N   N workers listen by rdma_cm; the first process connects to each
//	forked missing     the children have none, as the engine's file is gone
//
// The program exits with 1 at the first failed check, also of a child.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>
#include "loopback.h"

#define FAILS(x) CHECK((errno = 0, (x)) != 0)
#define HUNG 60

// The objects of the first process.
static struct loopback first;
static struct ibv_comp_channel *channel;
static struct ibv_cq *events;
static struct ibv_srq *srq;
static struct ibv_dm *dm;
static struct rdma_event_channel *cm;
static struct rdma_cm_id *id;
static int rsock;
static struct ibv_context *of_first;
static struct ibv_pd *pd_of_first;

static struct rdma_cm_id *resolve(struct rdma_event_channel *ch)
{
	struct rdma_cm_id *to;
	CHECK(!rdma_create_id(ch, &to, NULL, RDMA_PS_TCP));
	return to;
}

static void make_objects(void)
{
	struct ibv_srq_init_attr s = {.attr = {4, 1, 0}};
	struct ibv_alloc_dm_attr d = {.length = 4096};
	device_open();
	loopback_open(&first);
	CHECK((channel = ibv_create_comp_channel(ctx)) && (events = ibv_create_cq(ctx, 4, NULL, channel, 0)));
	CHECK((srq = ibv_create_srq(pd, &s)) && (dm = ibv_alloc_dm(ctx, &d)));
	CHECK((cm = rdma_create_event_channel()));
	id = resolve(cm);
	CHECK((rsock = rsocket(AF_INET, SOCK_STREAM, 0)) >= 0);
	of_first = ctx;
	pd_of_first = pd;
}

// inherited_fail checks the objects of the first process in a child.
static void inherited_fail(void)
{
	struct ibv_wc wc;
	struct ibv_cq *cq;
	struct ibv_async_event async;
	struct rdma_cm_event *event;
	struct rdma_cm_id *new;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_qp_init_attr got, init = {.send_cq = first.cq, .recv_cq = first.cq, .cap = {1, 1, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_srq_init_attr s = {.attr = {4, 1, 0}};
	struct ibv_send_wr wr = {0}, *bad;
	struct ibv_recv_wr rr = {0}, *bad_rr;
	struct sockaddr_in any = {.sin_family = AF_INET};
	void *context;
	char byte;
	for (int i = 0; i < 1000; i++)
		CHECK(ibv_poll_cq(first.cq, 1, &wc) <= 0);
	FAILS(!ibv_alloc_pd(of_first));
	FAILS(!ibv_reg_mr(pd_of_first, first.memory, 64, 0));
	FAILS(!ibv_alloc_mw(pd_of_first, IBV_MW_TYPE_1));
	FAILS(!ibv_create_cq(of_first, 4, NULL, NULL, 0));
	FAILS(!ibv_create_comp_channel(of_first));
	FAILS(!ibv_create_qp(pd_of_first, &init));
	FAILS(!ibv_create_srq(pd_of_first, &s));
	FAILS(ibv_modify_qp(first.qp, &attr, IBV_QP_STATE));
	FAILS(ibv_query_qp(first.qp, &attr, IBV_QP_STATE, &got));
	FAILS(ibv_post_send(first.qp, &wr, &bad));
	FAILS(ibv_post_recv(first.qp, &rr, &bad_rr));
	FAILS(ibv_post_srq_recv(srq, &rr, &bad_rr));
	FAILS(ibv_req_notify_cq(events, 0));
	FAILS(ibv_resize_cq(first.cq, 128));
	FAILS(ibv_get_cq_event(channel, &cq, &context));
	FAILS(ibv_get_async_event(of_first, &async));
	ibv_ack_cq_events(events, 1);
	FAILS(ibv_destroy_qp(first.qp));
	FAILS(ibv_destroy_cq(first.cq));
	FAILS(ibv_destroy_srq(srq));
	FAILS(ibv_dereg_mr(first.mr));
	FAILS(ibv_free_dm(dm));
	FAILS(ibv_dealloc_pd(pd_of_first));
	FAILS(ibv_destroy_comp_channel(channel)); // it has a CQ
	FAILS(rdma_get_cm_event(cm, &event));
	FAILS(rdma_create_id(cm, &new, NULL, RDMA_PS_TCP));
	FAILS(rdma_bind_addr(id, (struct sockaddr *)&any));
	FAILS(rdma_listen(id, 1));
	FAILS(rdma_destroy_id(id));
	FAILS(rbind(rsock, (struct sockaddr *)&any, sizeof any));
	FAILS(rrecv(rsock, &byte, 1, 0) < 0);
	CHECK(!ibv_close_device(of_first) && of_first->async_fd < 0); // the child's copies of its descriptors
	CHECK(!ibv_close_device(of_first));
}

// What the two ends of a connection tell each other.
struct end {
	union ibv_gid gid;
	uint32_t qpn, rkey;
	uint64_t addr;
};

static void tell(int fd, const void *p, size_t n) { CHECK(write(fd, p, n) == (ssize_t)n); }
static void hear(int fd, void *p, size_t n) { CHECK(read(fd, p, n) == (ssize_t)n); }

// exchange connects a QP with another process's, writes to its memory, and waits until the other
// has written here.
static void exchange(int fd)
{
	struct ibv_cq *cq = ibv_create_cq(ctx, 8, NULL, NULL, 0);
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp;
	char *memory = calloc(1, 256), go = 'g';
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 256, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(cq && mr && (qp = ibv_create_qp(pd, &a)));
	union ibv_gid own = gid;
	struct end mine = {own, qp->qp_num, mr->rkey, (uintptr_t)memory}, peer;
	tell(fd, &mine, sizeof mine);
	hear(fd, &peer, sizeof peer);
	gid = peer.gid;
	connect_qp(qp, peer.qpn);
	gid = own;
	tell(fd, &go, 1);
	hear(fd, &go, 1); // both are connected
	memset(memory + 128, 0x5a, 128);
	struct ibv_sge sge = {(uintptr_t)memory + 128, 128, mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {peer.addr, peer.rkey}}, *bad;
	CHECK(!ibv_post_send(qp, &wr, &bad) && wait_for(cq).status == IBV_WC_SUCCESS);
	tell(fd, &go, 1);
	hear(fd, &go, 1);
	for (int i = 0; i < 128; i++)
		CHECK(memory[i] == 0x5a);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr));
	free(memory);
}

// use checks that this process's device works.
static void use(void)
{
	struct loopback l;
	loopback_open(&l);
	loopback_write(&l, (uintptr_t)l.memory, l.mr->lkey, (uintptr_t)l.memory + 4096, l.mr->rkey, 4096);
	CHECK(wait_for(l.cq).status == IBV_WC_SUCCESS);
	loopback_close(&l);
}

static void wait_child(pid_t child)
{
	int status;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	if (status)
		printf("a child ended with status %#x\n", status);
	CHECK(!status);
}

// copy_is_closed checks that no descriptor of the engine's file is left.
static void copy_is_closed(void)
{
	char file[256];
	ssize_t n;
	struct dirent *e;
	DIR *d = opendir("/proc/self/fd");
	CHECK(d);
	while ((e = readdir(d)))
		if ((n = readlinkat(dirfd(d), e->d_name, file, sizeof file - 1)) > 0) {
			file[n] = 0;
			CHECK(!strstr(file, "libsoftrnic.so"));
		}
	closedir(d);
}

static void *end_thread(void *v) { return v; }

// child opens a device, in the first process's list if before is not NULL. fd leads to the first
// process.
static void child(int fd, struct ibv_device *before, int depth)
{
	pthread_t t;
	alarm(HUNG);
	inherited_fail();
	if (before) {
		CHECK((ctx = ibv_open_device(before)) && (pd = ibv_alloc_pd(ctx)) && !ibv_query_gid(ctx, 1, 1, &gid));
	} else {
		device_open();
	}
	inherited_fail();
	CHECK(ibv_query_device(of_first, &(struct ibv_device_attr){0}) == 0);
	use();
	exchange(fd);
	copy_is_closed();
	struct rdma_event_channel *ch = rdma_create_event_channel();
	CHECK(ch && !rdma_destroy_id(resolve(ch)));
	rdma_destroy_event_channel(ch);
	int r = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(r >= 0 && !rclose(r));
	CHECK(!pthread_create(&t, NULL, end_thread, NULL) && !pthread_join(t, NULL));
	if (depth > 0) {
		pid_t grandchild = fork();
		if (!grandchild) {
			child(fd, NULL, depth - 1);
			exit(0);
		}
		wait_child(grandchild);
		use();
	}
	CHECK(!rclose(rsock)); // the copy of its descriptor
	rdma_destroy_event_channel(cm);
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
}

static void objects(int n)
{
	make_objects();
	struct ibv_device *own = ctx->device;
	for (int i = 0; i < n; i++) {
		int pair[2];
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair));
		pid_t p = fork();
		if (!p) {
			close(pair[0]);
			child(pair[1], i % 2 ? own : NULL, 1);
			exit(0); // with the parent's handler of exit
		}
		close(pair[1]);
		alarm(2 * HUNG);
		exchange(pair[0]); // with the child
		exchange(pair[0]); // with the grandchild
		wait_child(p);
		close(pair[0]);
		use();
	}
	loopback_write(&first, (uintptr_t)first.memory, first.mr->lkey, (uintptr_t)first.memory + 4096, first.mr->rkey, 64);
	CHECK(wait_for(first.cq).status == IBV_WC_SUCCESS);
	loopback_close(&first);
	CHECK(!ibv_destroy_cq(events) && !ibv_destroy_comp_channel(channel) && !ibv_destroy_srq(srq) && !ibv_free_dm(dm));
	CHECK(!rdma_destroy_id(id) && !rclose(rsock));
	rdma_destroy_event_channel(cm);
}

// address returns the device's IPv4 address, which entry 1 of the GID table has.
static void address(char *text)
{
	CHECK(!ibv_query_gid(ctx, 1, 1, &gid) && inet_ntop(AF_INET, gid.raw + 12, text, INET_ADDRSTRLEN));
}

// worker serves one connection: it returns a message.
static void worker(int fd, int port)
{
	char addr[INET_ADDRSTRLEN] = "", service[12], b[64];
	struct rdma_addrinfo hints = {.ai_flags = RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *ai;
	struct ibv_qp_init_attr a = {.cap = {4, 4, 1, 1, 0}, .sq_sig_all = 1};
	struct rdma_cm_id *listener, *conn;
	struct ibv_wc wc;
	alarm(HUNG);
	device_open();
	address(addr);
	sprintf(service, "%d", port);
	CHECK(!rdma_getaddrinfo(addr, service, &hints, &ai) && !rdma_create_ep(&listener, ai, NULL, &a) && !rdma_listen(listener, 4));
	tell(fd, addr, sizeof addr);
	CHECK(!rdma_get_request(listener, &conn));
	struct ibv_mr *mr = rdma_reg_msgs(conn, b, sizeof b);
	CHECK(mr && !rdma_post_recv(conn, NULL, b, sizeof b, mr) && !rdma_accept(conn, NULL) && rdma_get_recv_comp(conn, &wc) == 1);
	CHECK(!rdma_post_send(conn, NULL, b, wc.byte_len, mr, 0) && rdma_get_send_comp(conn, &wc) == 1 && !wc.status);
	hear(fd, b, 1); // the client has the answer
	rdma_dereg_mr(mr);
	rdma_destroy_ep(conn);
	rdma_destroy_ep(listener);
}

static void ask(const char *addr, int port)
{
	char service[12], b[64] = "hello", got[64];
	struct rdma_addrinfo hints = {.ai_port_space = RDMA_PS_TCP}, *ai;
	struct ibv_qp_init_attr a = {.cap = {4, 4, 1, 1, 0}, .sq_sig_all = 1};
	struct rdma_cm_id *conn;
	struct ibv_wc wc;
	sprintf(service, "%d", port);
	CHECK(!rdma_getaddrinfo(addr, service, &hints, &ai) && !rdma_create_ep(&conn, ai, NULL, &a));
	struct ibv_mr *mr = rdma_reg_msgs(conn, b, sizeof b), *to = rdma_reg_msgs(conn, got, sizeof got);
	CHECK(mr && to && !rdma_post_recv(conn, NULL, got, sizeof got, to) && !rdma_connect(conn, NULL));
	CHECK(!rdma_post_send(conn, NULL, b, sizeof b, mr, 0) && rdma_get_send_comp(conn, &wc) == 1 && !wc.status);
	CHECK(rdma_get_recv_comp(conn, &wc) == 1 && !wc.status && !strcmp(got, b));
	rdma_dereg_mr(mr);
	rdma_dereg_mr(to);
	rdma_destroy_ep(conn);
	rdma_freeaddrinfo(ai);
}

static void prefork(int n)
{
	int fd[n], pair[2];
	pid_t workers[n];
	char addr[INET_ADDRSTRLEN];
	device_open();
	alarm(2 * HUNG);
	for (int i = 0; i < n; i++) {
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, pair) && (workers[i] = fork()) >= 0);
		if (!workers[i]) {
			worker(pair[1], 7600 + i);
			exit(0);
		}
		close(pair[1]);
		fd[i] = pair[0];
	}
	for (int i = 0; i < n; i++) {
		hear(fd[i], addr, sizeof addr);
		ask(addr, 7600 + i);
		tell(fd[i], "", 1);
		wait_child(workers[i]);
	}
	use();
}

static void missing(const char *library)
{
	device_open();
	CHECK(!unlink(library));
	pid_t p = fork();
	if (!p) {
		alarm(HUNG);
		for (int i = 0; i < 2; i++)
			CHECK(!ibv_get_device_list(NULL) && errno == ENODEV);
		exit(0);
	}
	wait_child(p);
	use();
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	CHECK(argc == 3);
	if (!strcmp(argv[1], "objects"))
		objects(atoi(argv[2]));
	else if (!strcmp(argv[1], "prefork"))
		prefork(atoi(argv[2]));
	else
		missing(argv[2]);
	return 0;
}
