// A connection that fails over as NCCL's does: after a failed completion it waits for its port,
// looks for the index of its GID again, and connects its QP anew.
//
//	failover PORT MESSAGES GID             receives; both sides use a TCP port of 127.0.0.1
//	failover PORT MESSAGES GID 127.0.0.1   sends, until MESSAGES have arrived after a failover
//
// GID is the IPv4 address of this side. The sender writes numbered messages with immediate data,
// and repeats one whose completion failed. It prints each failure, event and reconnection. Both
// sides exit with 1 at the first failed check.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#define CHECK(x) \
	do { \
		if (!(x)) { \
			printf("line %d: not so: %s (errno %d, %s)\n", __LINE__, #x, errno, strerror(errno)); \
			exit(1); \
		} \
	} while (0)

#define SIZE 65536
#define LAST (1u << 31) // in immediate data
#define LIMIT 40 // seconds

struct address {
	union ibv_gid gid;
	uint32_t qpn, rkey;
	uint64_t addr;
};

static struct ibv_context *ctx;
static struct ibv_cq *cq;
static struct ibv_qp *qp;
static struct address own, peer;
static int sock;

// gid_index returns the index of this side's GID, which moves if addresses come and go.
static int gid_index(void)
{
	struct ibv_port_attr p;
	CHECK(!ibv_query_port(ctx, 1, &p));
	for (int i = 0; i < p.gid_tbl_len; i++) {
		union ibv_gid g;
		if (!ibv_query_gid(ctx, 1, i, &g) && !memcmp(&g, &own.gid, sizeof g))
			return i;
	}
	return -1;
}

// exchange moves the QP to RTS, when both sides are here.
static void exchange(void)
{
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	CHECK(!ibv_modify_qp(qp, &reset, IBV_QP_STATE));
	CHECK(write(sock, &own, sizeof own) == sizeof own && recv(sock, &peer, sizeof peer, MSG_WAITALL) == sizeof peer);
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE};
	CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	int index = gid_index();
	CHECK(index >= 0);
	struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = peer.gid, .sgid_index = index, .hop_limit = 64}}};
	CHECK(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 13, .retry_cnt = 4, .rnr_retry = 7};
	CHECK(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
	char ready = 1;
	CHECK(write(sock, &ready, 1) == 1 && recv(sock, &ready, 1, MSG_WAITALL) == 1);
	printf("connected with GID index %d\n", index);
}

// take_event prints an event if there is one, and returns its type or -1.
static int take_event(int ms)
{
	struct pollfd p = {.fd = ctx->async_fd, .events = POLLIN};
	struct ibv_async_event e;
	if (poll(&p, 1, ms) != 1)
		return -1;
	CHECK(!ibv_get_async_event(ctx, &e));
	printf("event: %s\n", ibv_event_type_str(e.event_type));
	int t = e.event_type;
	ibv_ack_async_event(&e);
	return t;
}

static void wait_for_port(void)
{
	struct ibv_port_attr p;
	for (time_t began = time(NULL);;) {
		CHECK(!ibv_query_port(ctx, 1, &p));
		if (p.state == IBV_PORT_ACTIVE && gid_index() >= 0)
			break;
		CHECK(time(NULL) - began < LIMIT);
		take_event(20);
	}
	while (take_event(0) >= 0)
		;
}

static struct ibv_wc wait_for(void)
{
	struct ibv_wc wc;
	int n;
	char again;
	time_t began = time(NULL);
	for (unsigned int i = 1; !(n = ibv_poll_cq(cq, 1, &wc)); i++) {
		CHECK(time(NULL) - began < LIMIT);
		if (i % 256 == 0 && recv(sock, &again, 1, MSG_DONTWAIT | MSG_PEEK) == 1) { // the peer connects anew
			wc.status = IBV_WC_GENERAL_ERR;
			return wc;
		}
	}
	CHECK(n == 1);
	return wc;
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	CHECK(argc > 3);
	const char *host = argc > 4 ? argv[4] : NULL;
	uint32_t messages = atoi(argv[2]), after = 0;
	own.gid.raw[10] = own.gid.raw[11] = 0xff;
	CHECK(inet_pton(AF_INET, argv[3], own.gid.raw + 12) == 1);

	struct ibv_device **list = ibv_get_device_list(NULL);
	CHECK(list && list[0] && (ctx = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	struct ibv_pd *pd = ibv_alloc_pd(ctx);
	CHECK(pd && (cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
	// Messages use its halves in turn, because the receiver may still compare the last one.
	char *memory = aligned_alloc(4096, 2 * SIZE);
	CHECK(memory);
	memset(memory, 0, 2 * SIZE);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(mr);
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .cap = {16, 16, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	CHECK((qp = ibv_create_qp(pd, &a)));
	own.qpn = qp->qp_num;
	own.rkey = mr->rkey;
	own.addr = (uintptr_t)memory;

	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[1])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int s = socket(AF_INET, SOCK_STREAM, 0), one = 1;
	if (host) {
		CHECK(!connect(s, (struct sockaddr *)&at, sizeof at));
		sock = s;
	} else {
		CHECK(!setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) && !bind(s, (struct sockaddr *)&at, sizeof at) && !listen(s, 1));
		CHECK((sock = accept(s, NULL, NULL)) >= 0);
	}
	exchange();
	int failovers = 0;
	uint32_t m = 1;
	for (;;) {
		int failed;
		uint32_t last = failovers && after + 1 >= messages ? LAST : 0;
		char *part = memory + m % 2 * SIZE;
		if (host) {
			memset(part, (int)m, SIZE);
			struct ibv_sge sge = {(uintptr_t)part, SIZE, mr->lkey};
			struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htonl(m | last),
				.send_flags = IBV_SEND_SIGNALED, .wr.rdma = {peer.addr + m % 2 * SIZE, peer.rkey}}, *bad;
			CHECK(!ibv_post_send(qp, &wr, &bad));
			struct ibv_wc wc = wait_for();
			if ((failed = wc.status != IBV_WC_SUCCESS))
				printf("message %u: %s\n", m, ibv_wc_status_str(wc.status));
			usleep(1000);
		} else {
			struct ibv_recv_wr wr = {.wr_id = m}, *bad;
			CHECK(!ibv_post_recv(qp, &wr, &bad));
			struct ibv_wc wc = wait_for();
			if (!(failed = wc.status != IBV_WC_SUCCESS)) {
				uint32_t got = ntohl(wc.imm_data) & ~LAST;
				if (got == m - 1) // the acknowledgement of a repeated one was lost
					continue;
				CHECK(got == m && part[0] == (char)got && part[SIZE - 1] == (char)got);
				last = ntohl(wc.imm_data) & LAST;
			}
		}
		if (failed) {
			failovers++;
			wait_for_port();
			exchange();
			continue;
		}
		if (last)
			break;
		after += failovers > 0;
		m++;
	}
	char end = 1; // of the sender first: until then it takes a byte for a new connection
	CHECK(host ? write(sock, &end, 1) == 1 && recv(sock, &end, 1, MSG_WAITALL) == 1
		: recv(sock, &end, 1, MSG_WAITALL) == 1 && write(sock, &end, 1) == 1);
	printf("%u messages, %d failovers\n", m, failovers);
	CHECK(!ibv_destroy_qp(qp) && !ibv_dereg_mr(mr) && !ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	return 0;
}
