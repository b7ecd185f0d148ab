// One side of a transfer with an event:
//
//	transfer server ADDR PORT         accepts a connection, and waits for its end
//	transfer server ADDR PORT unmap   also unmaps the memory that the client writes to
//	transfer client ADDR PORT exit    writes to the server's memory, and exits with status 7
//	transfer client ADDR PORT signal  the same, from a signal handler
//	transfer client ADDR PORT error   writes until a write fails, prints how, waits for the end
//	transfer client ADDR PORT fail    writes until a write fails, prints how, and exits
//
// The program exits with 1 at the first failed check.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <sys/time.h>
#include "cmevents.h"

#define SIZE (1 << 20)
#define DEPTH 16

static struct rdma_cm_id *conn;

static void make_qp(struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr a = {.cap = {DEPTH, DEPTH, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	CHECK(!rdma_create_qp(id, NULL, &a));
}

static struct ibv_mr *memory(struct rdma_cm_id *id)
{
	void *m = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(m != MAP_FAILED);
	memset(m, 1, SIZE);
	struct ibv_mr *mr = ibv_reg_mr(id->pd, m, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	return mr;
}

static void server(struct sockaddr *addr, int unmap)
{
	struct rdma_cm_id *listener;
	CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) && !rdma_bind_addr(listener, addr) && !rdma_listen(listener, 1));
	printf("listens\n");
	struct rdma_cm_event *e = take(RDMA_CM_EVENT_CONNECT_REQUEST);
	conn = e->id;
	rdma_ack_cm_event(e);
	make_qp(conn);
	struct ibv_mr *mr = memory(conn);
	struct target t = {(uintptr_t)mr->addr, mr->rkey};
	struct rdma_conn_param p = {.private_data = &t, .private_data_len = sizeof t, .rnr_retry_count = 7};
	CHECK(!rdma_accept(conn, &p));
	rdma_ack_cm_event(take(RDMA_CM_EVENT_ESTABLISHED));
	char *last = (char *)mr->addr + SIZE - 1;
	while (unmap && *(volatile char *)last != 2) // until the client writes
		usleep(1000);
	if (unmap)
		CHECK(!munmap(mr->addr, SIZE));
	rdma_ack_cm_event(take(RDMA_CM_EVENT_DISCONNECTED));
	printf("disconnected\n");
	rdma_destroy_qp(conn);
	CHECK(!ibv_dereg_mr(mr) && !rdma_destroy_id(conn) && !rdma_destroy_id(listener));
}

static void leave(int signal)
{
	(void)signal;
	exit(7);
}

static void client(struct sockaddr *addr, const char *how)
{
	struct target t;
	resolve(&conn, addr);
	make_qp(conn);
	struct ibv_mr *mr = memory(conn);
	memset(mr->addr, 2, SIZE);
	struct rdma_conn_param p = {.retry_count = strcmp(how, "fail") ? 7 : 1, .rnr_retry_count = 7};
	CHECK(!rdma_connect(conn, &p));
	struct rdma_cm_event *e = take(RDMA_CM_EVENT_ESTABLISHED);
	memcpy(&t, e->param.conn.private_data, sizeof t);
	rdma_ack_cm_event(e);
	double began = now();
	int posted = 0, done = 0;
	for (;;) {
		struct ibv_wc wc;
		int n = ibv_poll_cq(conn->send_cq, 1, &wc);
		CHECK(n >= 0);
		if (n && wc.status) {
			printf("a write failed: %s\n", ibv_wc_status_str(wc.status));
			if (!strcmp(how, "fail"))
				exit(0);
			CHECK(!strcmp(how, "error"));
			break;
		}
		if (n && !done)
			printf("writes\n");
		if (n && !done++ && !strcmp(how, "signal")) {
			struct itimerval it = {.it_value = {0, 20000 + getpid() % 997 * 20}};
			signal(SIGALRM, leave);
			CHECK(!setitimer(ITIMER_REAL, &it, NULL));
		}
		if (!strcmp(how, "exit") && done > 2 && now() - began > 0.1)
			exit(7);
		if (posted - done < DEPTH) {
			struct ibv_sge sge = {(uintptr_t)mr->addr, SIZE, mr->lkey};
			struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
				.wr.rdma = {t.addr, t.rkey}}, *bad;
			CHECK(!ibv_post_send(conn->qp, &wr, &bad));
			posted++;
		}
	}
	CHECK(!rdma_disconnect(conn));
	rdma_ack_cm_event(take(RDMA_CM_EVENT_DISCONNECTED));
	rdma_destroy_qp(conn);
	CHECK(!ibv_dereg_mr(mr) && !rdma_destroy_id(conn));
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	CHECK(argc > 3);
	struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[3]))};
	CHECK(inet_aton(argv[2], &addr.sin_addr));
	CHECK((channel = rdma_create_event_channel()));
	if (!strcmp(argv[1], "server"))
		server((struct sockaddr *)&addr, argc > 4);
	else
		client((struct sockaddr *)&addr, argc > 4 ? argv[4] : "");
	return 0;
}
