// One side of a connection whose programs wait for completion counters only:
//
//	counters server ADDR PORT   counts what arrives
//	counters client ADDR PORT   sends, writes and reads, and then reads memory that is not there
//
// The program exits with 1 at the first failed check.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include "cmevents.h"

enum { SENDS = 4, READS = 2, WRITES = 3, SIZE = 1000, BYTES = 1 };

// Of rdma-core 65.
struct counter { struct ibv_context *context; };
struct counter_init { uint32_t comp_mask; int type; uint32_t flags; };
struct attach { uint32_t comp_mask, op_mask; };
enum { OP_SEND = 1, OP_RECV = 2, OP_READ = 4, OP_REMOTE_READ = 8, OP_WRITE = 16, OP_REMOTE_WRITE = 32 };

static struct rdma_cm_id *conn;
static struct ibv_mr *mr;

static void *later(const char *name)
{
	void *f = dlsym(RTLD_DEFAULT, name);
	if (!f)
		printf("there is no %s\n", name);
	CHECK(f);
	return f;
}

static struct counter *attached(int type, uint32_t op)
{
	struct counter *(*create)(struct ibv_context *, struct counter_init *) = later("ibv_create_comp_cntr");
	int (*attach)(struct ibv_qp *, struct counter *, struct attach *) = later("ibv_qp_attach_comp_cntr");
	struct counter_init init = {.type = type};
	struct attach to = {.op_mask = op};
	struct counter *c = create(conn->verbs, &init);
	CHECK(c && c->context == conn->verbs && !attach(conn->qp, c, &to));
	return c;
}

// wait_for_count waits until a counter has a value, which it does not exceed.
static void wait_for_count(struct counter *c, uint64_t want, const char *name)
{
	int (*query)(struct counter *, uint64_t *) = later(name);
	uint64_t v = 0;
	for (double began = now(); v != want && now() - began < 20; usleep(100))
		CHECK(!query(c, &v) && v <= want);
	if (v != want)
		printf("%s: %lu, want %lu\n", name, (unsigned long)v, (unsigned long)want);
	CHECK(v == want);
}

static void counts(struct counter *c, uint64_t want)
{
	wait_for_count(c, want, "ibv_read_comp_cntr");
	wait_for_count(c, 0, "ibv_read_err_comp_cntr");
}

static void make_qp(void)
{
	struct ibv_qp_init_attr a = {.cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	CHECK(!rdma_create_qp(conn, NULL, &a));
	void *m = calloc(SIZE, 2);
	CHECK((mr = ibv_reg_mr(conn->pd, m, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)));
}

static void server(struct sockaddr *addr)
{
	struct rdma_cm_id *listener;
	CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) && !rdma_bind_addr(listener, addr) && !rdma_listen(listener, 1));
	printf("listens\n");
	struct rdma_cm_event *e = take(RDMA_CM_EVENT_CONNECT_REQUEST);
	conn = e->id;
	rdma_ack_cm_event(e);
	make_qp();
	struct counter *received = attached(0, OP_RECV), *written = attached(BYTES, OP_REMOTE_WRITE), *read = attached(0, OP_REMOTE_READ);
	for (int i = 0; i < SENDS; i++) {
		struct ibv_sge sge = {(uintptr_t)mr->addr, SIZE, mr->lkey};
		struct ibv_recv_wr wr = {.sg_list = &sge, .num_sge = 1}, *bad;
		CHECK(!ibv_post_recv(conn->qp, &wr, &bad));
	}
	struct target t = {(uintptr_t)mr->addr + SIZE, mr->rkey};
	struct rdma_conn_param p = {.private_data = &t, .private_data_len = sizeof t, .rnr_retry_count = 7, .responder_resources = 1};
	CHECK(!rdma_accept(conn, &p));
	rdma_ack_cm_event(take(RDMA_CM_EVENT_ESTABLISHED));
	counts(received, SENDS);
	counts(written, WRITES * SIZE);
	counts(read, READS);
	rdma_ack_cm_event(take(RDMA_CM_EVENT_DISCONNECTED));
}

// post posts requests that have no completion.
static void post(enum ibv_wr_opcode opcode, int n, const struct target *t)
{
	for (int i = 0; i < n; i++) {
		struct ibv_sge sge = {(uintptr_t)mr->addr, SIZE, mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .wr.rdma = {t->addr, t->rkey}}, *bad;
		CHECK(!ibv_post_send(conn->qp, &wr, &bad));
	}
}

static void client(struct sockaddr *addr)
{
	struct target t;
	resolve(&conn, addr);
	make_qp();
	struct counter *sent = attached(BYTES, OP_SEND), *written = attached(0, OP_WRITE), *read = attached(0, OP_READ);
	struct rdma_conn_param p = {.retry_count = 7, .rnr_retry_count = 7, .initiator_depth = 1};
	CHECK(!rdma_connect(conn, &p));
	struct rdma_cm_event *e = take(RDMA_CM_EVENT_ESTABLISHED);
	memcpy(&t, e->param.conn.private_data, sizeof t);
	rdma_ack_cm_event(e);
	post(IBV_WR_SEND, SENDS, &t);
	post(IBV_WR_RDMA_WRITE, WRITES, &t);
	post(IBV_WR_RDMA_READ, READS, &t);
	counts(sent, SENDS * SIZE);
	counts(written, WRITES);
	counts(read, READS);
	struct ibv_wc wc;
	CHECK(!ibv_poll_cq(conn->send_cq, 1, &wc));
	t.rkey++;
	post(IBV_WR_RDMA_READ, 1, &t);
	wait_for_count(read, 1, "ibv_read_err_comp_cntr");
	wait_for_count(read, READS, "ibv_read_comp_cntr");
	printf("counted\n");
	rdma_disconnect(conn);
	rdma_ack_cm_event(take(RDMA_CM_EVENT_DISCONNECTED));
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	CHECK(argc > 3);
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
	CHECK(inet_aton(argv[2], &addr.sin_addr));
	CHECK((channel = rdma_create_event_channel()));
	if (!strcmp(argv[1], "server"))
		server((struct sockaddr *)&addr);
	else
		client((struct sockaddr *)&addr);
	return 0;
}
