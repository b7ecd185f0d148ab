// A program that is not linked to libibverbs, like NCCL's network plugin. It loads the library, and
// looks the functions up by their names and versions.
//
//	rails PORT PREFIX RAILS MIB             receives; both sides use a TCP port of 127.0.0.1
//	rails PORT PREFIX RAILS MIB 127.0.0.1   sends
//
// It uses the devices whose names begin with PREFIX, which must be RAILS, with an RC QP on each.
// The receiver writes to the sender's memory when there is room for a message. Each rail carries a
// part of it by RDMA WRITE, and the number of the message as immediate data. The receiver then
// reads one byte over a QP that is connected to itself, like a receiver with a GPU's memory, and
// compares the whole message. It exits with 1 at the first failed check.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
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

#define MAX_RAILS 8
#define MESSAGE (64 << 20)

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_get_device_list

static struct {
	int (*fork_init)(void);
	struct ibv_device **(*get_device_list)(int *);
	void (*free_device_list)(struct ibv_device **);
	const char *(*get_device_name)(struct ibv_device *);
	struct ibv_context *(*open_device)(struct ibv_device *);
	int (*close_device)(struct ibv_context *);
	int (*get_async_event)(struct ibv_context *, struct ibv_async_event *);
	void (*ack_async_event)(struct ibv_async_event *);
	int (*query_device)(struct ibv_context *, struct ibv_device_attr *);
	int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);
	int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *);
	int (*query_qp)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *);
	int (*dealloc_pd)(struct ibv_pd *);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
	struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);
	int (*dereg_mr)(struct ibv_mr *);
	struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	int (*destroy_cq)(struct ibv_cq *);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
	int (*destroy_qp)(struct ibv_qp *);
	const char *(*event_type_str)(enum ibv_event_type);
	int (*query_ece)(struct ibv_qp *, struct ibv_ece *);
	int (*set_ece)(struct ibv_qp *, struct ibv_ece *);
} v;

static void *lib;

static void load_one(void *to, const char *name, const char *version)
{
	void *f = dlvsym(lib, name, version);
	if (!f)
		printf("%s of %s: %s\n", name, version, dlerror());
	CHECK(f);
	memcpy(to, &f, sizeof f);
}

#define LOAD(name, version) load_one(&v.name, "ibv_" #name, version)

static void load(void)
{
	const char *file = getenv("NCCL_LIBIBVERBS_SO");
	lib = dlopen(file ? file : "libibverbs.so", RTLD_NOW);
	if (!lib)
		lib = dlopen("libibverbs.so.1", RTLD_NOW);
	CHECK(lib);
	LOAD(fork_init, "IBVERBS_1.1");
	LOAD(get_device_list, "IBVERBS_1.1");
	LOAD(free_device_list, "IBVERBS_1.1");
	LOAD(get_device_name, "IBVERBS_1.1");
	LOAD(open_device, "IBVERBS_1.1");
	LOAD(close_device, "IBVERBS_1.1");
	LOAD(get_async_event, "IBVERBS_1.1");
	LOAD(ack_async_event, "IBVERBS_1.1");
	LOAD(query_device, "IBVERBS_1.1");
	LOAD(query_port, "IBVERBS_1.1");
	LOAD(query_gid, "IBVERBS_1.1");
	LOAD(query_qp, "IBVERBS_1.1");
	LOAD(alloc_pd, "IBVERBS_1.1");
	LOAD(dealloc_pd, "IBVERBS_1.1");
	LOAD(reg_mr, "IBVERBS_1.1");
	LOAD(reg_mr_iova2, "IBVERBS_1.8");
	LOAD(reg_dmabuf_mr, "IBVERBS_1.12");
	LOAD(dereg_mr, "IBVERBS_1.1");
	LOAD(create_cq, "IBVERBS_1.1");
	LOAD(destroy_cq, "IBVERBS_1.1");
	LOAD(create_qp, "IBVERBS_1.1");
	LOAD(modify_qp, "IBVERBS_1.1");
	LOAD(destroy_qp, "IBVERBS_1.1");
	LOAD(event_type_str, "IBVERBS_1.1");
	LOAD(query_ece, "IBVERBS_1.10");
	LOAD(set_ece, "IBVERBS_1.10");
	CHECK(!v.fork_init());
}

// Parameters of a rail, which the sides exchange.
struct address {
	union ibv_gid gid;
	uint32_t qpn, flush_qpn;
	uint64_t addr; // of the message, or in the sender of the credit
	uint32_t rkey;
};

static struct rail {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp, *flush;
	struct ibv_mr *mr, *credit;
	int gid;
	struct address own, peer;
} rails[MAX_RAILS];

static char *message;
// In the sender: the number of the message for which there is room.
static volatile uint64_t credits[MAX_RAILS];

static struct ibv_qp *make_qp(struct rail *r)
{
	struct ibv_qp_init_attr a = {.send_cq = r->cq, .recv_cq = r->cq, .cap = {64, 64, 1, 1, 64}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *qp = v.create_qp(r->pd, &a);
	CHECK(qp);
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
	CHECK(!v.modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	return qp;
}

static void connect_qp(struct rail *r, struct ibv_qp *qp, const union ibv_gid *gid, uint32_t qpn)
{
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = qpn, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .sgid_index = r->gid, .hop_limit = 255}},
	};
	CHECK(!v.modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
		IBV_QP_MIN_RNR_TIMER));
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 20, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!v.modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

static int open_rails(const char *prefix)
{
	int n, count = 0;
	struct ibv_device **list = v.get_device_list(&n);
	CHECK(list);
	for (int i = 0; i < n; i++) {
		struct ibv_device_attr a;
		struct ibv_port_attr p;
		if (strncmp(v.get_device_name(list[i]), prefix, strlen(prefix)))
			continue;
		CHECK(count < MAX_RAILS);
		struct rail *r = &rails[count];
		CHECK((r->ctx = v.open_device(list[i])) && !v.query_device(r->ctx, &a) && a.max_qp > 2);
		memset(&p, 0, sizeof p);
		CHECK(!v.query_port(r->ctx, 1, &p) && p.state == IBV_PORT_ACTIVE && p.link_layer == IBV_LINK_LAYER_ETHERNET);
		for (int g = 0; g < p.gid_tbl_len; g++) { // an IPv4 address
			static const char mapped[12] = {[10] = -1, [11] = -1};
			union ibv_gid gid;
			if (!v.query_gid(r->ctx, 1, g, &gid) && !memcmp(&gid, mapped, sizeof mapped)) {
				r->own.gid = gid;
				r->gid = g;
			}
		}
		CHECK(r->own.gid.global.interface_id);
		for (int k = 0; k < count; k++)
			CHECK(memcmp(&rails[k].own.gid, &r->own.gid, 16));
		CHECK((r->pd = v.alloc_pd(r->ctx)) && (r->cq = v.create_cq(r->ctx, 256, NULL, NULL, 0)));
		CHECK((r->mr = v.reg_mr_iova2(r->pd, message, MESSAGE, (uintptr_t)message,
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_RELAXED_ORDERING)));
		CHECK((r->credit = v.reg_mr(r->pd, (void *)&credits[count], 8, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
		CHECK(!v.reg_dmabuf_mr(r->pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE) && errno == EBADF);
		r->qp = make_qp(r);
		struct ibv_ece ece;
		CHECK(v.query_ece(r->qp, &ece) == EOPNOTSUPP);
		r->own.qpn = r->qp->qp_num;
		count++;
	}
	v.free_device_list(list);
	return count;
}

static int open_stream(int port, const char *host)
{
	struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	int s = socket(AF_INET, SOCK_STREAM, 0), one = 1, c;
	CHECK(s >= 0);
	if (host) {
		CHECK(!connect(s, (struct sockaddr *)&a, sizeof a));
		return s;
	}
	CHECK(!setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) && !bind(s, (struct sockaddr *)&a, sizeof a) && !listen(s, 1));
	CHECK((c = accept(s, NULL, NULL)) >= 0);
	return c;
}

static struct ibv_wc wait_for(struct rail *r)
{
	struct ibv_wc wc;
	int n;
	time_t began = time(NULL);
	while (!(n = ibv_poll_cq(r->cq, 1, &wc)))
		CHECK(time(NULL) - began < 60);
	if (n == 1 && wc.status)
		printf("completion with status %d\n", wc.status);
	CHECK(n == 1 && !wc.status);
	return wc;
}

static void post(struct rail *r, struct ibv_qp *qp, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	(void)r;
	CHECK(!ibv_post_send(qp, wr, &bad));
}

// pattern is word i of message m.
static uint64_t pattern(uint64_t m, uint64_t i) { return (m * 0x9e3779b97f4a7c15 + i) * 0xbf58476d1ce4e5b9; }

static void send_message(uint32_t m, int n)
{
	size_t part = MESSAGE / n;
	for (uint64_t i = 0; i < MESSAGE / 8; i++)
		((uint64_t *)message)[i] = pattern(m, i);
	for (int k = 0; k < n; k++) {
		struct rail *r = &rails[k];
		time_t began = time(NULL);
		while (credits[k] != m)
			CHECK(time(NULL) - began < 60);
		struct ibv_sge sge = {(uintptr_t)message + k * part, part, r->mr->lkey};
		struct ibv_send_wr last = {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .imm_data = htonl(m), .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {r->peer.addr, r->peer.rkey}};
		struct ibv_send_wr data = {.next = &last, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.wr.rdma = {r->peer.addr + k * part, r->peer.rkey}};
		post(r, r->qp, &data);
	}
	for (int k = 0; k < n; k++)
		CHECK(wait_for(&rails[k]).opcode == IBV_WC_RDMA_WRITE);
}

static void receive_message(uint32_t m, int n)
{
	for (int k = 0; k < n; k++) {
		struct rail *r = &rails[k];
		struct ibv_recv_wr recv = {.wr_id = m}, *bad;
		CHECK(!ibv_post_recv(r->qp, &recv, &bad));
		uint64_t credit = m;
		struct ibv_sge sge = {(uintptr_t)&credit, sizeof credit, 0};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED, .wr.rdma = {r->peer.addr, r->peer.rkey}};
		post(r, r->qp, &wr);
	}
	for (int k = 0; k < n; k++) {
		struct rail *r = &rails[k];
		for (int i = 0; i < 2; i++) {
			struct ibv_wc wc = wait_for(r);
			if (wc.opcode == IBV_WC_RDMA_WRITE)
				continue;
			CHECK(wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM && wc.wc_flags & IBV_WC_WITH_IMM && ntohl(wc.imm_data) == m && wc.wr_id == m);
		}
		struct ibv_sge sge = {(uintptr_t)&credits[k], 1, r->credit->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_READ, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {(uintptr_t)message, r->mr->rkey}};
		post(r, r->flush, &wr);
		CHECK(wait_for(r).opcode == IBV_WC_RDMA_READ);
	}
	for (uint64_t i = 0; i < MESSAGE / 8; i++)
		CHECK(((uint64_t *)message)[i] == pattern(m, i));
}

int main(int argc, char **argv)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	CHECK(argc > 4);
	const char *host = argc > 5 ? argv[5] : NULL;
	uint32_t messages = atoi(argv[4]) / (MESSAGE >> 20);
	CHECK(!posix_memalign((void **)&message, 4096, MESSAGE));
	memset(message, 0, MESSAGE);
	load();
	int n = open_rails(argv[2]), s;
	CHECK(n == atoi(argv[3]));
	s = open_stream(atoi(argv[1]), host);
	for (int k = 0; k < n; k++) {
		struct rail *r = &rails[k];
		r->own.addr = host ? (uintptr_t)&credits[k] : (uintptr_t)message;
		r->own.rkey = host ? r->credit->rkey : r->mr->rkey;
		CHECK(write(s, &r->own, sizeof r->own) == sizeof r->own && recv(s, &r->peer, sizeof r->peer, MSG_WAITALL) == sizeof r->peer);
		connect_qp(r, r->qp, &r->peer.gid, r->peer.qpn);
		if (!host) {
			r->flush = make_qp(r);
			connect_qp(r, r->flush, &r->own.gid, r->flush->qp_num);
		}
	}
	char ready = 1;
	CHECK(write(s, &ready, 1) == 1 && recv(s, &ready, 1, MSG_WAITALL) == 1);
	for (uint32_t m = 1; m <= messages; m++) {
		if (host)
			send_message(m, n);
		else
			receive_message(m, n);
	}
	CHECK(write(s, &ready, 1) == 1 && recv(s, &ready, 1, MSG_WAITALL) == 1);
	for (int k = 0; k < n; k++) {
		struct rail *r = &rails[k];
		CHECK(!v.destroy_qp(r->qp) && (host || !v.destroy_qp(r->flush)) && !v.destroy_cq(r->cq));
		CHECK(!v.dereg_mr(r->mr) && !v.dereg_mr(r->credit) && !v.dealloc_pd(r->pd) && !v.close_device(r->ctx));
	}
	printf("%u messages over %d rails\n", messages, n);
	return 0;
}
