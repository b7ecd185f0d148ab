// Shared by the programs of this directory: a device, and two connected RC QPs of one process.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>
#include <infiniband/verbs.h>

#ifndef CHECK
#define CHECK(x) \
	do { \
		if (!(x)) { \
			printf("line %d: not so: %s (errno %d, %s)\n", __LINE__, #x, errno, strerror(errno)); \
			exit(1); \
		} \
	} while (0)
#endif

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static union ibv_gid gid;

static inline double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static inline void device_open(void)
{
	int n;
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n > 0);
	int roce = 0; // not the iWARP device, which comes first with SOFTRNIC_TRANSPORT
	while (roce < n && list[roce]->transport_type != IBV_TRANSPORT_IB)
		roce++;
	CHECK(roce < n && (ctx = ibv_open_device(list[roce])));
	ibv_free_device_list(list);
	CHECK((pd = ibv_alloc_pd(ctx)) && !ibv_query_gid(ctx, 1, 1, &gid));
}

static inline void connect_qp(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
	CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 1}},
	};
	CHECK(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
}

// struct loopback is a QP that posts, with its CQ, the QP that it is connected to, and 8 KiB of
// registered memory.
struct loopback {
	struct ibv_cq *cq;
	struct ibv_qp *qp, *peer;
	struct ibv_mr *mr;
	char *memory;
};

static inline void loopback_open(struct loopback *l)
{
	CHECK((l->cq = ibv_create_cq(ctx, 64, NULL, NULL, 0)));
	struct ibv_qp_init_attr a = {.send_cq = l->cq, .recv_cq = l->cq, .cap = {32, 32, 1, 1, 0}, .qp_type = IBV_QPT_RC}, b = a;
	CHECK((l->qp = ibv_create_qp(pd, &a)) && (l->peer = ibv_create_qp(pd, &b)));
	connect_qp(l->qp, l->peer->qp_num);
	connect_qp(l->peer, l->qp->qp_num);
	CHECK((l->memory = malloc(8192)));
	memset(l->memory, 1, 8192);
	CHECK((l->mr = ibv_reg_mr(pd, l->memory, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
}

static inline void loopback_write(struct loopback *l, uint64_t from, uint32_t lkey, uint64_t to, uint32_t rkey, uint32_t length)
{
	struct ibv_sge sge = {from, length, lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {to, rkey}}, *bad;
	CHECK(!ibv_post_send(l->qp, &wr, &bad));
}

static inline struct ibv_wc wait_for(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	double t = now();
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		CHECK(now() - t < 20);
	CHECK(n == 1);
	return wc;
}

static inline void loopback_close(struct loopback *l)
{
	CHECK(!ibv_destroy_qp(l->qp) && !ibv_destroy_qp(l->peer) && !ibv_destroy_cq(l->cq) && !ibv_dereg_mr(l->mr));
	free(l->memory);
}
