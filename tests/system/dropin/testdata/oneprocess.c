// Two QPs of one process: guarantees of libibverbs that ping-pongs do not use. The program exits
// with 1 at the first failed check.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
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

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static union ibv_gid gid;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec * 1e-9;
}

static void connect_qp(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1,
		.qp_access_flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
	CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	struct ibv_qp_attr rtr = {
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer, .max_dest_rd_atomic = 1, .min_rnr_timer = 12,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 1, .flow_label = 0xffffffff}},
	};
	CHECK(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
		IBV_QP_MAX_QP_RD_ATOMIC));
	CHECK(qp->state == IBV_QPS_RTS);
}

static struct ibv_wc wait_for(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	double t = now();
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)))
		CHECK(now() - t < 10);
	CHECK(n == 1);
	return wc;
}

// regions of device memory, of all memory, and changed regions.
static void regions(void)
{
	struct ibv_device_attr_ex ex;
	CHECK(!ibv_query_device_ex(ctx, NULL, &ex) && ex.max_dm_size >= 4096 && ex.odp_caps.general_caps & IBV_ODP_SUPPORT_IMPLICIT);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr ia = {.send_cq = cq, .recv_cq = cq, .cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *a = ibv_create_qp(pd, &ia), *b = ibv_create_qp(pd, &ia);
	CHECK(cq && a && b);
	connect_qp(a, b->qp_num);
	connect_qp(b, a->qp_num);

	// A WRITE from any memory to device memory, whose regions count from 0.
	struct ibv_alloc_dm_attr da = {.length = ex.max_dm_size + 4};
	CHECK(!ibv_alloc_dm(ctx, &da));
	da.length = 4096;
	struct ibv_dm *dm = ibv_alloc_dm(ctx, &da);
	CHECK(dm);
	struct ibv_mr *md = ibv_reg_dm_mr(pd, dm, 1024, 1024, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(md && !ibv_reg_dm_mr(pd, dm, 4000, 1024, IBV_ACCESS_ZERO_BASED) && errno == EINVAL);
	CHECK(ibv_free_dm(dm) == EBUSY);
	struct ibv_mr *all = ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_ON_DEMAND);
	CHECK(all && !all->addr && all->length == SIZE_MAX);
	char *text = strdup("from anywhere"), got[16];
	struct ibv_sge from = {(uintptr_t)text, 14, all->lkey};
	struct ibv_send_wr wr = {.wr_id = 1, .sg_list = &from, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {8, md->rkey}}, *bad;
	CHECK(!ibv_post_send(a, &wr, &bad) && wait_for(cq).status == IBV_WC_SUCCESS);
	CHECK(!ibv_memcpy_from_dm(got, dm, 1024 + 8, 16) && !strcmp(got, text));
	CHECK(ibv_memcpy_from_dm(got, dm, 1, 4) == EINVAL && ibv_memcpy_from_dm(got, dm, 4096 - 8, 16) == EINVAL);

	// Device memory of length 0 is a region too, without an accessible byte.
	struct ibv_mr *none = ibv_reg_dm_mr(pd, dm, 1024, 0, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_mr *empty = ibv_reg_mr(pd, text, 0, 0);
	CHECK(none && !none->length && empty && !ibv_dereg_mr(empty));
	struct ibv_send_wr beyond = wr;
	beyond.wr.rdma.remote_addr = 0;
	beyond.wr.rdma.rkey = none->rkey;
	CHECK(!ibv_post_send(a, &beyond, &bad) && wait_for(cq).status == IBV_WC_REM_ACCESS_ERR);
	struct ibv_qp_attr again = {.qp_state = IBV_QPS_RESET};
	CHECK(!ibv_modify_qp(a, &again, IBV_QP_STATE) && !ibv_modify_qp(b, &again, IBV_QP_STATE) && !ibv_dereg_mr(none));
	connect_qp(a, b->qp_num);
	connect_qp(b, a->qp_num);

	// Keys survive a change of access, which takes effect immediately.
	uint32_t rkey = md->rkey;
	CHECK(!ibv_rereg_mr(md, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE) && md->rkey == rkey);
	CHECK(!ibv_post_send(a, &wr, &bad) && wait_for(cq).status == IBV_WC_REM_ACCESS_ERR);

	// A QP in RESET leaves no completion behind.
	struct ibv_recv_wr rr = {.wr_id = 2}, *rbad;
	CHECK(!ibv_post_recv(a, &rr, &rbad));
	struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
	struct ibv_wc wc;
	CHECK(!ibv_modify_qp(a, &reset, IBV_QP_STATE) && !ibv_modify_qp(b, &reset, IBV_QP_STATE));
	CHECK(!ibv_poll_cq(cq, 1, &wc));
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(all) && !ibv_dereg_mr(md) && !ibv_free_dm(dm));
}

// Datagrams have the type of their network header in wc.sl, as with RoCEv2 devices, and can be
// answered.
static void datagrams(void)
{
	// The link-local IPv6 address, and the IPv4 address.
	static const struct { int index, sl; } gids[] = {{0, 8 | 1}, {1, 8 | 2}};
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr ia = {.send_cq = cq, .recv_cq = cq, .cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_UD};
	struct ibv_qp *qp = ibv_create_qp(pd, &ia);
	CHECK(cq && qp);
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 7}, rtr = {.qp_state = IBV_QPS_RTR},
		rts = {.qp_state = IBV_QPS_RTS};
	CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	CHECK(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE) && !ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN));
	char buf[64];
	struct ibv_mr *mr = ibv_reg_mr(pd, buf, sizeof buf, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	for (int i = 0; i < 2; i++) {
		struct ibv_ah_attr to = {.is_global = 1, .port_num = 1, .grh = {.sgid_index = gids[i].index, .hop_limit = 1}}, back;
		CHECK(!ibv_query_gid(ctx, 1, gids[i].index, &to.grh.dgid));
		struct ibv_ah *ah = ibv_create_ah(pd, &to);
		CHECK(ah);
		struct ibv_sge into = {(uintptr_t)buf, sizeof buf, mr->lkey}, from = {(uintptr_t)buf, 8, mr->lkey};
		struct ibv_recv_wr rr = {.wr_id = 1, .sg_list = &into, .num_sge = 1}, *rbad;
		struct ibv_send_wr wr = {.sg_list = &from, .num_sge = 1, .opcode = IBV_WR_SEND, .wr.ud = {ah, qp->qp_num, 7}}, *bad;
		wr.send_flags = IBV_SEND_SIGNALED;
		CHECK(!ibv_post_recv(qp, &rr, &rbad) && !ibv_post_send(qp, &wr, &bad));
		struct ibv_wc wc = wait_for(cq), other = wait_for(cq);
		if (wc.opcode != IBV_WC_RECV)
			wc = other;
		CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.sl == gids[i].sl);
		CHECK(!ibv_init_ah_from_wc(ctx, 1, &wc, (struct ibv_grh *)buf, &back));
		CHECK(back.sl == 0 && back.grh.sgid_index == gids[i].index && !memcmp(&back.grh.dgid, &to.grh.dgid, 16));
		CHECK(!ibv_destroy_ah(ah));
	}
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr));
}

int main(void)
{
	int n;
	setvbuf(stdout, NULL, _IONBF, 0);
	// A child of a fork before any use of RDMA has it, too.
	pid_t child = fork();
	if (!child) {
		struct ibv_device **l = ibv_get_device_list(&n);
		_exit(l && n == 2 ? 0 : 1);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n == 2);
	CHECK(list[0]->node_type == IBV_NODE_CA && list[1]->node_type == IBV_NODE_RNIC);
	CHECK(ibv_get_device_guid(list[0]) != ibv_get_device_guid(list[1]));
	CHECK((ctx = ibv_open_device(list[0])));
	ibv_free_device_list(list);
	CHECK((pd = ibv_alloc_pd(ctx)));
	CHECK(!ibv_query_gid(ctx, 1, 1, &gid));
	struct ibv_gid_entry entries[256];
	CHECK(ibv_query_gid_table(ctx, entries, 256, 0) >= 2);
	struct ibv_device_attr_ex ex;
	CHECK(!ibv_query_device_ex(ctx, NULL, &ex) && ex.orig_attr.max_qp > 0);

	// Two RC QPs, the second with the extended interface, each with a CQ; the first CQ has a
	// channel.
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	CHECK(ch);
	struct ibv_cq *cq = ibv_create_cq(ctx, 64, &n, ch, 0);
	CHECK(cq && cq->cqe >= 64 && ch->refcnt == 1);
	struct ibv_cq_init_attr_ex ca = {.cqe = 64, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP};
	struct ibv_cq_ex *cqx = ibv_create_cq_ex(ctx, &ca);
	CHECK(cqx);
	struct ibv_qp_init_attr ia = {.send_cq = cq, .recv_cq = cq, .cap = {32, 32, 4, 4, 64}, .qp_type = IBV_QPT_RC};
	struct ibv_qp *a = ibv_create_qp(pd, &ia);
	CHECK(a && ia.cap.max_inline_data >= 64);
	struct ibv_qp_init_attr_ex xa = {
		.send_cq = ibv_cq_ex_to_cq(cqx), .recv_cq = ibv_cq_ex_to_cq(cqx), .cap = {32, 32, 4, 4, 64}, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ibv_qp *b = ibv_create_qp_ex(ctx, &xa);
	CHECK(b && ibv_qp_to_qp_ex(b) && !ibv_qp_to_qp_ex(a));
	connect_qp(a, b->qp_num);
	connect_qp(b, a->qp_num);

	// Memory on the heap and the stack.
	char *heap = malloc(1 << 16), stack[4096];
	memset(heap, 7, 1 << 16);
	struct ibv_mr *mh = ibv_reg_mr(pd, heap, 1 << 16,
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
	struct ibv_mr *ms = ibv_reg_mr(pd, stack, sizeof stack, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK(mh && ms && mh->addr == heap && mh->length == 1 << 16);

	// A WRITE of inline data that is not registered, in two pieces, with an event of the channel.
	CHECK(!ibv_req_notify_cq(cq, 0));
	char words[2][4] = {"abc", "def"};
	struct ibv_sge pieces[2] = {{(uintptr_t)words[0], 3, 0}, {(uintptr_t)words[1], 4, 0}};
	struct ibv_send_wr wr = {.wr_id = 5, .sg_list = pieces, .num_sge = 2, .opcode = IBV_WR_RDMA_WRITE,
		.send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE, .wr.rdma = {(uintptr_t)stack, ms->rkey}}, *bad;
	CHECK(!ibv_post_send(a, &wr, &bad));
	struct pollfd fd = {ch->fd, POLLIN, 0};
	CHECK(poll(&fd, 1, 10000) == 1);
	struct ibv_cq *of;
	void *of_context;
	CHECK(!ibv_get_cq_event(ch, &of, &of_context) && of == cq && of_context == &n);
	struct ibv_wc wc = wait_for(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5 && wc.opcode == IBV_WC_RDMA_WRITE && wc.qp_num == a->qp_num);
	CHECK(!strcmp(stack, "abcdef"));
	ibv_ack_cq_events(cq, 1);
	CHECK(!fcntl(ch->fd, F_SETFL, O_NONBLOCK));
	CHECK(ibv_get_cq_event(ch, &of, &of_context) == -1 && errno == EAGAIN);

	// An atomic.
	*(uint64_t *)heap = 41;
	struct ibv_sge eight = {(uintptr_t)heap + 64, 8, mh->lkey};
	struct ibv_send_wr add = {.wr_id = 6, .sg_list = &eight, .num_sge = 1, .opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
		.send_flags = IBV_SEND_SIGNALED, .wr.atomic = {.remote_addr = (uintptr_t)heap, .rkey = mh->rkey, .compare_add = 1}};
	CHECK(!ibv_post_send(a, &add, &bad));
	wc = wait_for(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && *(uint64_t *)heap == 42 && *(uint64_t *)(heap + 64) == 41);

	// ibv_wr_… to ibv_post_recv, and ibv_start_poll.
	struct ibv_sge into = {(uintptr_t)heap + 128, 64, mh->lkey};
	struct ibv_recv_wr rr = {.wr_id = 8, .sg_list = &into, .num_sge = 1}, *rbad;
	CHECK(!ibv_post_recv(a, &rr, &rbad));
	struct ibv_qp_ex *bx = ibv_qp_to_qp_ex(b);
	ibv_wr_start(bx);
	bx->wr_id = 7;
	bx->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_rdma_write(bx, mh->rkey, (uintptr_t)heap + 256);
	ibv_wr_set_sge(bx, ms->lkey, (uintptr_t)stack, 7);
	ibv_wr_send(bx);
	ibv_wr_set_inline_data(bx, "hello", 6);
	CHECK(!ibv_wr_complete(bx));
	wc = wait_for(cq);
	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RECV && wc.byte_len == 6 && wc.wr_id == 8);
	CHECK(!strcmp(heap + 128, "hello") && !strcmp(heap + 256, "abcdef"));
	struct ibv_poll_cq_attr pa = {0};
	double t = now();
	int err;
	while ((err = ibv_start_poll(cqx, &pa)) == ENOENT)
		CHECK(now() - t < 10);
	CHECK(!err && cqx->wr_id == 7 && cqx->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(cqx) == IBV_WC_RDMA_WRITE &&
		ibv_wc_read_completion_ts(cqx));
	while ((err = ibv_next_poll(cqx)) == ENOENT && now() - t < 10) {
		ibv_end_poll(cqx);
		while ((err = ibv_start_poll(cqx, &pa)) == ENOENT)
			CHECK(now() - t < 10);
		break;
	}
	CHECK(!err && ibv_wc_read_opcode(cqx) == IBV_WC_SEND);
	ibv_end_poll(cqx);
	// All or nothing.
	ibv_wr_start(bx);
	ibv_wr_rdma_write(bx, mh->rkey, (uintptr_t)heap + 256);
	ibv_wr_set_sge(bx, ms->lkey, (uintptr_t)stack, 7);
	ibv_wr_send(bx);
	ibv_wr_set_inline_data(bx, heap, 1000);
	CHECK(ibv_wr_complete(bx) == EINVAL);

	// bad_wr names the refused request, and the requests before it are posted.
	struct ibv_send_wr wrong = wr;
	wr.next = &wrong;
	wrong.opcode = 77;
	CHECK(ibv_post_send(a, &wr, &bad) == EINVAL && bad == &wrong);
	wr.next = NULL;
	CHECK(wait_for(cq).status == IBV_WC_SUCCESS);

	// Missing features are reported.
	errno = 0;
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, 0) && errno == EBADF);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_comp_channel(ch) == EBUSY);

	// A child of a fork after use has a device of its own, and not the parent's objects.
	child = fork();
	if (!child) {
		alarm(20);
		if (ibv_post_send(a, &wr, &bad) != ENODEV || ibv_alloc_pd(ctx) || errno != ENODEV)
			_exit(1);
		struct ibv_device **own = ibv_get_device_list(&n);
		struct ibv_context *c = own && n == 2 ? ibv_open_device(own[0]) : NULL;
		_exit(c && ibv_alloc_pd(c) && ibv_post_send(a, &wr, &bad) && !ibv_alloc_pd(ctx) ? 0 : 2);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);

	// Memory that becomes inaccessible under the device. It is not unmapped: the engine might get
	// its place for its own memory.
	char *map = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mm = ibv_reg_mr(pd, map, 1 << 16, IBV_ACCESS_LOCAL_WRITE);
	CHECK(mm && !mprotect(map, 1 << 16, PROT_NONE));
	struct ibv_sge gone = {(uintptr_t)map, 64, mm->lkey};
	struct ibv_send_wr from = {.wr_id = 9, .sg_list = &gone, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {(uintptr_t)stack, ms->rkey}};
	CHECK(!ibv_post_send(a, &from, &bad));
	CHECK(wait_for(cq).status == IBV_WC_LOC_PROT_ERR);

	regions();
	datagrams();

	// An empty poll, for a reader of the log.
	struct ibv_wc none[4];
	t = now();
	for (int i = 0; i < 1000000; i++)
		CHECK(!ibv_poll_cq(cq, 4, none));
	printf("an empty poll takes %.1f ns\n", (now() - t) * 1e3);

	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b));
	CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_cq(ibv_cq_ex_to_cq(cqx)) && !ibv_destroy_comp_channel(ch));
	CHECK(!ibv_dereg_mr(mh) && !ibv_dereg_mr(ms) && !ibv_dereg_mr(mm));
	CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(ctx));
	return 0;
}
