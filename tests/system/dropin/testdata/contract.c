// Guarantees of libibverbs's manual pages about events, SRQs, XRC, extended CQs, counters, flows,
// memory windows of type 1, address handles and multicast. Each has a line: "ok", "BAD" with the
// actual result, or "none" if the device lacks the object.
#define _GNU_SOURCE
#include "loopback.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/wait.h>

static void say(const char *result, const char *promise, long got, int error)
{
	printf("%s: %s", result, promise);
	if (!strcmp(result, "BAD"))
		printf(" [%ld, errno %d, %s]", got, error, strerror(error));
	printf("\n");
	fflush(stdout);
}

// PROMISE checks an expression. The expression may use got, the number that is printed if it is
// false.
#define PROMISE(text, value, condition) \
	do { \
		errno = 0; \
		long got = (long)(value); \
		int error = errno; \
		(void)error; \
		say((condition) ? "ok" : "BAD", text, got, error); \
	} while (0)

static int unsupported(int error) { return error == EOPNOTSUPP || error == ENOSYS || error == EPROTONOSUPPORT; }

// none reports that the device lacks the objects of a group of promises, or that their creation
// failed otherwise.
static void none(const char *what)
{
	say(unsupported(errno) ? "none" : "BAD", what, 0, errno);
}

static int readable(int fd, int milliseconds)
{
	struct pollfd p = {fd, POLLIN, 0};
	return poll(&p, 1, milliseconds);
}

// next_event returns the type of the next asynchronous event, acknowledged, or -1 if none arrives
// within two seconds.
static int next_event(struct ibv_async_event *event)
{
	if (readable(ctx->async_fd, 2000) != 1 || ibv_get_async_event(ctx, event))
		return -1;
	ibv_ack_async_event(event);
	return event->event_type;
}

static void drop_events(void)
{
	struct ibv_async_event event;
	while (readable(ctx->async_fd, 100) == 1 && !ibv_get_async_event(ctx, &event))
		ibv_ack_async_event(&event);
}

static int to_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	return ibv_modify_qp(qp, &attr, IBV_QP_STATE);
}

static int post_recv(struct ibv_qp *qp, struct ibv_mr *mr, uint64_t id, uint32_t length)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr, length, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
	return ibv_post_recv(qp, &wr, &bad);
}

static int post_send(struct ibv_qp *qp, struct ibv_mr *mr, uint64_t id, uint32_t length, int flags)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr + 4096, length, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = flags}, *bad;
	return ibv_post_send(qp, &wr, &bad);
}

static void *destroy_cq(void *cq) { return (void *)(intptr_t)ibv_destroy_cq(cq); }

static void completion_events(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(ctx);
	int context;
	struct ibv_cq *send_cq = ibv_create_cq(ctx, 16, &context, channel, 0), *recv_cq = ibv_create_cq(ctx, 16, &context, channel, 0);
	struct loopback l;
	loopback_open(&l);
	struct ibv_qp_init_attr a = {.send_cq = send_cq, .recv_cq = recv_cq, .cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_RC}, b = a;
	struct ibv_qp *qp = ibv_create_qp(pd, &a), *peer = ibv_create_qp(pd, &b);
	connect_qp(qp, peer->qp_num);
	connect_qp(peer, qp->qp_num);

	PROMISE("a completion channel that has CQs is busy", ibv_destroy_comp_channel(channel), got == EBUSY);
	PROMISE("a comp_vector beyond num_comp_vectors is refused", ibv_create_cq(ctx, 16, NULL, channel, ctx->num_comp_vectors), !got &&
		error == EINVAL);
	PROMISE("a CQ of more than max_cqe entries is refused", ibv_create_cq(ctx, 1 << 30, NULL, NULL, 0), !got && error == EINVAL);
	PROMISE("a CQ of 0 entries is refused", ibv_create_cq(ctx, 0, NULL, NULL, 0), !got && error == EINVAL);

	CHECK(!ibv_req_notify_cq(recv_cq, 1) && !post_recv(peer, l.mr, 1, 64) && !post_recv(peer, l.mr, 2, 64) &&
		!post_recv(peer, l.mr, 3, 64));
	CHECK(!post_send(qp, l.mr, 1, 8, IBV_SEND_SIGNALED) && wait_for(send_cq).status == IBV_WC_SUCCESS);
	PROMISE("a SEND that is not solicited raises no event of a CQ that waits for solicited ones", readable(channel->fd, 200), got == 0);
	CHECK(!post_send(qp, l.mr, 2, 8, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED) && wait_for(send_cq).status == IBV_WC_SUCCESS);
	PROMISE("a solicited SEND raises one", readable(channel->fd, 2000), got == 1);
	struct ibv_cq *cq = NULL;
	void *cq_context = NULL;
	PROMISE("ibv_get_cq_event returns the CQ and its context", ibv_get_cq_event(channel, &cq, &cq_context), !got && cq == recv_cq &&
		cq_context == &context);
	CHECK(!post_send(qp, l.mr, 3, 8, IBV_SEND_SIGNALED | IBV_SEND_SOLICITED) && wait_for(send_cq).status == IBV_WC_SUCCESS);
	PROMISE("a request for notification serves once", readable(channel->fd, 200), got == 0);
	CHECK(!ibv_req_notify_cq(send_cq, 1));
	to_error(qp);
	post_send(qp, l.mr, 4, 8, IBV_SEND_SIGNALED);
	PROMISE("an unsuccessful completion raises an event as a solicited one does", readable(channel->fd, 2000), got == 1);
	if (readable(channel->fd, 0) == 1 && !ibv_get_cq_event(channel, &cq, &cq_context))
		ibv_ack_cq_events(cq, 1);
	int flags = fcntl(channel->fd, F_GETFL);
	fcntl(channel->fd, F_SETFL, flags | O_NONBLOCK);
	PROMISE("ibv_get_cq_event of a descriptor that does not block is EAGAIN", ibv_get_cq_event(channel, &cq, &cq_context), got == -1 &&
		error == EAGAIN);
	fcntl(channel->fd, F_SETFL, flags);

	CHECK(!ibv_destroy_qp(peer) && !ibv_destroy_qp(qp));
	pthread_t thread;
	pthread_create(&thread, NULL, destroy_cq, recv_cq);
	struct timespec soon;
	clock_gettime(CLOCK_REALTIME, &soon);
	soon.tv_nsec += 300000000;
	soon.tv_sec += soon.tv_nsec / 1000000000;
	soon.tv_nsec %= 1000000000;
	void *result = NULL;
	PROMISE("ibv_destroy_cq waits until the CQ's events are acknowledged", pthread_timedjoin_np(thread, &result, &soon), got == ETIMEDOUT);
	ibv_ack_cq_events(recv_cq, 1);
	PROMISE("and succeeds then", pthread_join(thread, &result), !got && !result);
	PROMISE("a channel without CQs can be destroyed", ibv_destroy_cq(send_cq) || ibv_destroy_comp_channel(channel), got == 0);
	loopback_close(&l);
}

static void async_events(void)
{
	struct ibv_async_event event;
	drop_events();
	int flags = fcntl(ctx->async_fd, F_GETFL);
	fcntl(ctx->async_fd, F_SETFL, flags | O_NONBLOCK);
	PROMISE("ibv_get_async_event of a descriptor that does not block is EAGAIN", ibv_get_async_event(ctx, &event), got == -1 &&
		error == EAGAIN);
	fcntl(ctx->async_fd, F_SETFL, flags);

	struct loopback l;
	loopback_open(&l);
	loopback_write(&l, (uintptr_t)l.memory, l.mr->lkey, (uintptr_t)l.memory, l.mr->rkey ^ 0x5a5a00, 8);
	PROMISE("a WRITE to an unknown key ends with REM_ACCESS_ERR", wait_for(l.cq).status, got == IBV_WC_REM_ACCESS_ERR);
	PROMISE("and the responder's QP has QP_ACCESS_ERR", next_event(&event), got == IBV_EVENT_QP_ACCESS_ERR && event.element.qp == l.peer);
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	PROMISE("the requester's QP is in ERR", ibv_query_qp(l.qp, &attr, IBV_QP_STATE, &init), !got && attr.qp_state == IBV_QPS_ERR);
	loopback_close(&l);
	drop_events();
}

static struct ibv_srq *make_srq(uint32_t wrs)
{
	struct ibv_srq_init_attr attr = {.attr = {.max_wr = wrs, .max_sge = 1}};
	return ibv_create_srq(pd, &attr);
}

static int post_srq(struct ibv_srq *srq, struct ibv_mr *mr, uint64_t id)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr, 64, mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = 1}, *bad;
	return ibv_post_srq_recv(srq, &wr, &bad);
}

static void shared_receives(void)
{
	struct loopback l;
	loopback_open(&l);
	struct ibv_srq_attr attr = {0};
	struct ibv_srq *srq = make_srq(16);
	if (!srq) {
		none("shared receive queues");
		loopback_close(&l);
		return;
	}
	PROMISE("ibv_query_srq returns at least the requested sizes", ibv_query_srq(srq, &attr), !got && attr.max_wr >= 16 &&
		attr.max_sge >= 1 && attr.srq_limit == 0);
	uint32_t most = attr.max_wr;
	struct ibv_srq_attr wrong = {.srq_limit = most + 1};
	PROMISE("a limit above max_wr is refused", ibv_modify_srq(srq, &wrong, IBV_SRQ_LIMIT), got == EINVAL);
	PROMISE("and changes nothing", ibv_query_srq(srq, &attr), !got && attr.srq_limit == 0);
	struct ibv_srq_init_attr huge = {.attr = {.max_wr = 1u << 30, .max_sge = 1}};
	PROMISE("an SRQ of more than max_srq_wr is refused", ibv_create_srq(pd, &huge), !got && error == EINVAL);

	struct ibv_qp_init_attr a = {.send_cq = l.cq, .recv_cq = l.cq, .srq = srq, .cap = {8, 0, 1, 0, 0}, .qp_type = IBV_QPT_RC}, b = a;
	struct ibv_qp *qp = ibv_create_qp(pd, &a), *peer = ibv_create_qp(pd, &b);
	CHECK(qp && peer);
	connect_qp(qp, peer->qp_num);
	connect_qp(peer, qp->qp_num);
	PROMISE("an SRQ that a QP uses is busy", ibv_destroy_srq(srq), got == EBUSY);
	PROMISE("ibv_post_recv to a QP of an SRQ is refused", post_recv(peer, l.mr, 1, 64), got == EINVAL);
	PROMISE("ibv_query_qp returns the SRQ", ({ struct ibv_qp_attr q; struct ibv_qp_init_attr i; ibv_query_qp(peer, &q, IBV_QP_STATE, &i)
		? 0 : i.srq == srq; }), got == 1);

	for (uint32_t i = 0; i < most; i++)
		CHECK(!post_srq(srq, l.mr, i));
	struct ibv_sge sge = {(uintptr_t)l.memory, 64, l.mr->lkey};
	struct ibv_recv_wr second = {.wr_id = 102, .sg_list = &sge, .num_sge = 1},
		first = {.wr_id = 101, .next = &second, .sg_list = &sge, .num_sge = 1}, *bad = NULL;
	PROMISE("a full SRQ refuses, and bad_wr is the first that it refused", ibv_post_srq_recv(srq, &first, &bad), got == ENOMEM &&
		bad == &first);
	struct ibv_sge many[2] = {sge, sge};
	struct ibv_recv_wr wide = {.sg_list = many, .num_sge = 1000};
	PROMISE("more SGEs than max_sge are refused", ibv_post_srq_recv(srq, &wide, &bad), got == EINVAL || got == ENOMEM);

	struct ibv_async_event event;
	drop_events();
	struct ibv_srq_attr limit = {.srq_limit = most};
	PROMISE("a limit can be set", ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), got == 0);
	CHECK(!post_send(qp, l.mr, 1, 8, 0));
	struct ibv_wc wc = wait_for(l.cq);
	PROMISE("requests are taken in their order, and the completion names the QP", wc.wr_id, got == 0 && wc.qp_num == peer->qp_num &&
		wc.byte_len == 8);
	PROMISE("below its limit the SRQ has SRQ_LIMIT_REACHED", next_event(&event), got == IBV_EVENT_SRQ_LIMIT_REACHED &&
		event.element.srq == srq);
	PROMISE("after which the limit is 0", ibv_query_srq(srq, &attr), !got && attr.srq_limit == 0);
	CHECK(!post_send(qp, l.mr, 2, 8, 0) && wait_for(l.cq).wr_id == 1);
	PROMISE("and no other event comes", readable(ctx->async_fd, 200), got == 0);
	CHECK(!to_error(peer));
	PROMISE("a QP of an SRQ in ERR has QP_LAST_WQE_REACHED", next_event(&event), got == IBV_EVENT_QP_LAST_WQE_REACHED &&
		event.element.qp == peer);
	CHECK(!ibv_destroy_qp(peer) && !ibv_destroy_qp(qp));
	PROMISE("an SRQ with requests in it can be destroyed", ibv_destroy_srq(srq), got == 0);
	loopback_close(&l);
	drop_events();
}

static void xrc(void)
{
	struct ibv_xrcd_init_attr attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	errno = 0;
	struct ibv_xrcd *xrcd = ibv_open_xrcd(ctx, &attr);
	if (!xrcd) {
		none("XRC domains");
		return;
	}
	struct loopback l;
	loopback_open(&l);
	struct ibv_srq_init_attr_ex sa = {.attr = {.max_wr = 16, .max_sge = 1},
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ | IBV_SRQ_INIT_ATTR_PD,
		.srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = l.cq};
	struct ibv_srq *srq = ibv_create_srq_ex(ctx, &sa);
	uint32_t number = 0;
	PROMISE("an XRC SRQ has a number", srq ? ibv_get_srq_num(srq, &number) : -1, got == 0);
	struct ibv_qp_init_attr_ex ra = {.qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrcd};
	struct ibv_qp_init_attr_ex se = {.qp_type = IBV_QPT_XRC_SEND, .send_cq = l.cq, .cap = {8, 0, 1, 0, 0}, .comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pd};
	struct ibv_qp *receiver = ibv_create_qp_ex(ctx, &ra), *sender = ibv_create_qp_ex(ctx, &se);
	CHECK(srq && receiver && sender);
	PROMISE("a domain that has an SRQ is busy", ibv_close_xrcd(xrcd), got == EBUSY);
	connect_qp(receiver, sender->qp_num);
	connect_qp(sender, receiver->qp_num);
	CHECK(!post_srq(srq, l.mr, 7));
	struct ibv_sge sge = {(uintptr_t)l.memory + 4096, 8, l.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 8, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED,
		.qp_type.xrc.remote_srqn = number}, *bad;
	CHECK(!ibv_post_send(sender, &wr, &bad));
	struct ibv_wc one = wait_for(l.cq), two = wait_for(l.cq), *received = one.opcode & IBV_WC_RECV ? &one : &two;
	PROMISE("a SEND arrives in the SRQ that it names", received->wr_id, got == 7 && received->status == IBV_WC_SUCCESS);
	PROMISE("and its completion has the number of the receiver's QP", received->qp_num, got == receiver->qp_num);
	struct ibv_qp_open_attr oa = {.comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE,
		.qp_num = receiver->qp_num, .xrcd = xrcd, .qp_type = IBV_QPT_XRC_RECV};
	struct ibv_qp *shared = ibv_open_qp(ctx, &oa);
	PROMISE("ibv_open_qp finds the receiver's QP by its number", shared ? shared->qp_num : 0, shared && got == receiver->qp_num);
	PROMISE("and it lives until both are destroyed", !shared || ibv_destroy_qp(shared) || post_srq(srq, l.mr, 9) ||
		ibv_post_send(sender, &wr, &bad) || wait_for(l.cq).status || wait_for(l.cq).status, got == 0);
	oa.qp_num = 0xfffff0;
	PROMISE("a number that no QP of the domain has is refused", ibv_open_qp(ctx, &oa), !got && (error == EINVAL || error == ENOENT));
	CHECK(!ibv_destroy_qp(sender) && !ibv_destroy_qp(receiver) && !ibv_destroy_srq(srq));
	PROMISE("a domain without SRQs and QPs can be closed", ibv_close_xrcd(xrcd), got == 0);
	loopback_close(&l);
}

static void extended_cq(void)
{
	struct ibv_cq_init_attr_ex attr = {.cqe = 16,
		.wc_flags = IBV_WC_EX_WITH_BYTE_LEN | IBV_WC_EX_WITH_IMM | IBV_WC_EX_WITH_QP_NUM | IBV_WC_EX_WITH_SRC_QP};
	errno = 0;
	struct ibv_cq_ex *ex = ibv_create_cq_ex(ctx, &attr);
	if (!ex) {
		none("extended CQs");
		return;
	}
	struct ibv_cq_init_attr_ex wrong = attr;
	wrong.wc_flags = 1ull << 60;
	PROMISE("unknown wc_flags are refused", ibv_create_cq_ex(ctx, &wrong), !got && (error == EOPNOTSUPP || error == EINVAL));
	wrong = attr;
	wrong.comp_mask = 1u << 30;
	PROMISE("an unknown comp_mask is refused", ibv_create_cq_ex(ctx, &wrong), !got && (error == EOPNOTSUPP || error == EINVAL));
	struct loopback l;
	loopback_open(&l);
	struct ibv_cq *cq = ibv_cq_ex_to_cq(ex);
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_RC}, b = a;
	struct ibv_qp *qp = ibv_create_qp(pd, &a), *peer = ibv_create_qp(pd, &b);
	CHECK(qp && peer);
	connect_qp(qp, peer->qp_num);
	connect_qp(peer, qp->qp_num);
	struct ibv_poll_cq_attr pa = {0};
	PROMISE("ibv_start_poll of an empty CQ is ENOENT", ibv_start_poll(ex, &pa), got == ENOENT);
	CHECK(!post_recv(peer, l.mr, 21, 64));
	struct ibv_sge sge = {(uintptr_t)l.memory, 24, l.mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 22, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND_WITH_IMM, .send_flags = 0,
		.imm_data = htonl(0x01020304)}, *bad;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	double begun = now();
	int r;
	while ((r = ibv_start_poll(ex, &pa)) == ENOENT)
		CHECK(now() - begun < 20);
	CHECK(!r);
	PROMISE("wr_id and status are in the CQ", ex->wr_id, got == 21 && ex->status == IBV_WC_SUCCESS);
	PROMISE("the opcode, the length and the QP are read", ibv_wc_read_byte_len(ex), got == 24 && ibv_wc_read_opcode(ex) == IBV_WC_RECV &&
		ibv_wc_read_qp_num(ex) == peer->qp_num);
	PROMISE("immediate data and their flag are read", ntohl(ibv_wc_read_imm_data(ex)), got == 0x01020304 &&
		ibv_wc_read_wc_flags(ex) & IBV_WC_WITH_IMM);
	PROMISE("ibv_next_poll without another completion is ENOENT", ibv_next_poll(ex), got == ENOENT);
	ibv_end_poll(ex);
	CHECK(!post_recv(peer, l.mr, 23, 64));
	wr.send_flags = IBV_SEND_SIGNALED;
	CHECK(!ibv_post_send(qp, &wr, &bad));
	struct ibv_wc one = wait_for(cq), two = wait_for(cq);
	PROMISE("ibv_poll_cq takes from it too", one.wr_id + two.wr_id, got == 45);
	CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_qp(peer));
	PROMISE("it is destroyed as a CQ", ibv_destroy_cq(cq), got == 0);
	loopback_close(&l);
}

// windows are of type 1: ibv_bind_mw binds them.
static void windows(void)
{
	errno = 0;
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	if (!mw) {
		none("memory windows of type 1");
		return;
	}
	struct loopback l;
	loopback_open(&l);
	char *memory = aligned_alloc(4096, 8192);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND);
	CHECK(mr);
	uint32_t before = mw->rkey;
	struct ibv_mw_bind bind = {.wr_id = 31, .send_flags = IBV_SEND_SIGNALED,
		.bind_info = {.mr = mr, .addr = (uintptr_t)memory, .length = 4096, .mw_access_flags = IBV_ACCESS_REMOTE_WRITE}};
	PROMISE("ibv_bind_mw is posted, and the window's key is another", ibv_bind_mw(l.peer, mw, &bind), !got && mw->rkey != before);
	struct ibv_wc wc = wait_for(l.cq);
	PROMISE("it completes as BIND_MW", wc.opcode, got == IBV_WC_BIND_MW && wc.status == IBV_WC_SUCCESS && wc.wr_id == 31);
	PROMISE("a region that has a window is busy", ibv_dereg_mr(mr), got == EBUSY || got == EINVAL);
	loopback_write(&l, (uintptr_t)l.memory, l.mr->lkey, (uintptr_t)memory, mw->rkey, 64);
	PROMISE("a WRITE through the window arrives", wait_for(l.cq).status, got == IBV_WC_SUCCESS && memory[63] == 1);
	struct ibv_mw_bind wrong = bind;
	wrong.bind_info.mr = l.mr;
	wrong.bind_info.addr = (uintptr_t)l.memory;
	PROMISE("a region without MW_BIND is refused", ({ int r = ibv_bind_mw(l.peer, mw, &wrong); r
		? r : wait_for(l.cq).status == IBV_WC_SUCCESS ? 0 : EINVAL; }), got != 0);
	loopback_close(&l);

	loopback_open(&l); // the refused bind may have ended the connection
	CHECK(!ibv_bind_mw(l.peer, mw, &bind) && wait_for(l.cq).status == IBV_WC_SUCCESS);
	loopback_write(&l, (uintptr_t)l.memory, l.mr->lkey, (uintptr_t)memory + 4090, mw->rkey, 64);
	PROMISE("a WRITE beyond the window is REM_ACCESS_ERR", wait_for(l.cq).status, got == IBV_WC_REM_ACCESS_ERR);
	loopback_close(&l);

	loopback_open(&l);
	CHECK(!ibv_bind_mw(l.peer, mw, &bind) && wait_for(l.cq).status == IBV_WC_SUCCESS);
	struct ibv_mw_bind nothing = {.wr_id = 32, .send_flags = IBV_SEND_SIGNALED,
		.bind_info = {.mr = mr, .addr = (uintptr_t)memory, .length = 0}};
	uint32_t bound = mw->rkey;
	PROMISE("a bind of no bytes ends the binding", ibv_bind_mw(l.peer, mw, &nothing) ? -1 : (long)wait_for(l.cq).status,
		got == IBV_WC_SUCCESS);
	loopback_write(&l, (uintptr_t)l.memory, l.mr->lkey, (uintptr_t)memory, bound, 64);
	PROMISE("after which the key is invalid", wait_for(l.cq).status, got == IBV_WC_REM_ACCESS_ERR);
	PROMISE("a window can be deallocated", ibv_dealloc_mw(mw), got == 0);
	PROMISE("and then its region be deregistered", ibv_dereg_mr(mr), got == 0);
	free(memory);
	loopback_close(&l);
	drop_events();
}

static struct ibv_qp *datagrams(struct ibv_cq *cq, uint32_t qkey)
{
	struct ibv_qp_init_attr attr = {.send_cq = cq, .recv_cq = cq, .cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_UD};
	struct ibv_qp *qp = ibv_create_qp(pd, &attr);
	CHECK(qp);
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = qkey}, rtr = {.qp_state = IBV_QPS_RTR},
		rts = {.qp_state = IBV_QPS_RTS};
	CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	CHECK(!ibv_modify_qp(qp, &rtr, IBV_QP_STATE) && !ibv_modify_qp(qp, &rts, IBV_QP_STATE | IBV_QP_SQ_PSN));
	return qp;
}

static int send_datagram(struct ibv_qp *qp, struct ibv_mr *mr, struct ibv_ah *ah, uint32_t to, uint32_t qkey)
{
	struct ibv_sge sge = {(uintptr_t)mr->addr + 4096, 16, mr->lkey};
	struct ibv_send_wr wr = {.wr_id = 41, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .wr.ud = {ah, to, qkey}}, *bad;
	return ibv_post_send(qp, &wr, &bad);
}

static void address_handles(void)
{
	struct loopback l;
	loopback_open(&l);
	struct ibv_ah_attr right = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 1}}, wrong = right;
	wrong.port_num = 0;
	PROMISE("port 0 is refused", ibv_create_ah(pd, &wrong), !got && error == EINVAL);
	wrong = right, wrong.port_num = 200;
	PROMISE("a port that the device lacks is refused", ibv_create_ah(pd, &wrong), !got && error == EINVAL);
	wrong = right, wrong.is_global = 0;
	PROMISE("an address without GRH is refused, as the link is Ethernet", ibv_create_ah(pd, &wrong), !got && error == EINVAL);
	wrong = right, wrong.grh.sgid_index = 250;
	PROMISE("an sgid_index beyond the table is refused", ibv_create_ah(pd, &wrong), !got);
	struct ibv_ah *ah = ibv_create_ah(pd, &right);
	CHECK(ah);
	struct ibv_qp *from = datagrams(l.cq, 0x1111), *to = datagrams(l.cq, 0x2222);
	CHECK(!post_recv(to, l.mr, 42, 64) && !send_datagram(from, l.mr, ah, to->qp_num, 0x2222));
	struct ibv_wc wc = wait_for(l.cq);
	PROMISE("a datagram has 40 bytes more, its sender and the flag GRH", wc.byte_len, got == 56 && wc.src_qp == from->qp_num &&
		wc.wc_flags & IBV_WC_GRH);
	struct ibv_ah_attr back;
	memset(&back, 0, sizeof back);
	PROMISE("ibv_init_ah_from_wc finds the sender's address", ibv_init_ah_from_wc(ctx, 1, &wc, (struct ibv_grh *)l.memory, &back), !got &&
		back.is_global && !memcmp(&back.grh.dgid, &gid, sizeof gid));
	struct ibv_ah *answer = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)l.memory, 1);
	PROMISE("and ibv_create_ah_from_wc a handle that reaches it", answer ? post_recv(from, l.mr, 43, 64) ||
		send_datagram(to, l.mr, answer, wc.src_qp, 0x1111) || wait_for(l.cq).wr_id != 43 : -1, got == 0);
	CHECK(!post_recv(to, l.mr, 44, 64) && !send_datagram(from, l.mr, ah, to->qp_num, 0x3333));
	usleep(200000);
	struct ibv_wc none;
	PROMISE("a datagram with another Q_Key is dropped", ibv_poll_cq(l.cq, 1, &none), got == 0);
	PROMISE("a handle can be destroyed", ibv_destroy_ah(ah) || (answer && ibv_destroy_ah(answer)), got == 0);
	CHECK(!ibv_destroy_qp(from) && !ibv_destroy_qp(to));
	loopback_close(&l);
}

static void multicast(void)
{
	struct loopback l;
	loopback_open(&l);
	union ibv_gid group = {.raw = {[10] = 0xff, [11] = 0xff, [12] = 239, [13] = 83, [14] = 7, [15] = 9}};
	struct ibv_qp *qp = datagrams(l.cq, 0x1111);
	PROMISE("a connected QP joins no group", ibv_attach_mcast(l.qp, &group, 0), got == EINVAL);
	PROMISE("an address that is not a group's is refused", ibv_attach_mcast(qp, &gid, 0), got == EINVAL);
	PROMISE("a QP cannot leave a group that it has not joined", ibv_detach_mcast(qp, &group, 0), got == EINVAL || got == ENOENT);
	PROMISE("a datagram QP joins", ibv_attach_mcast(qp, &group, 0), got == 0);
	PROMISE("twice, too", ibv_attach_mcast(qp, &group, 0), got == 0);
	struct ibv_ah_attr attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = group, .sgid_index = 1, .hop_limit = 1}};
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);
	struct ibv_qp *from = datagrams(l.cq, 0x2222);
	CHECK(!post_recv(qp, l.mr, 51, 64) && !post_recv(qp, l.mr, 52, 64));
	if (!ah || send_datagram(from, l.mr, ah, 0xffffff, 0x1111))
		none("sending to a group");
	else {
		usleep(300000);
		struct ibv_wc wc[4];
		PROMISE("it gets one copy", ibv_poll_cq(l.cq, 4, wc), got == 1 && wc[0].wr_id == 51);
	}
	PROMISE("a QP that is in a group is busy", ibv_destroy_qp(qp), got == EBUSY);
	if (!ibv_detach_mcast(qp, &group, 0))
		ibv_detach_mcast(qp, &group, 0); // as often as it has joined, for devices that count
	PROMISE("it is destroyed when it has left", ibv_destroy_qp(qp), got == 0);
	CHECK(!ibv_destroy_qp(from) && (!ah || !ibv_destroy_ah(ah)));
	loopback_close(&l);
}

static void flows(void)
{
	struct loopback l;
	loopback_open(&l);
	struct {
		struct ibv_flow_attr attr;
		struct ibv_flow_spec_eth eth;
	} rule = {
		.attr = {.type = IBV_FLOW_ATTR_NORMAL, .size = sizeof rule, .num_of_specs = 1, .port = 1},
		.eth = {.type = IBV_FLOW_SPEC_ETH, .size = sizeof rule.eth, .val.dst_mac = {2, 0, 0, 0, 0, 1},
			.mask.dst_mac = {255, 255, 255, 255, 255, 255}},
	};
	PROMISE("a flow to a connected QP is refused", ibv_create_flow(l.qp, &rule.attr), !got);
	struct ibv_qp_init_attr attr = {.send_cq = l.cq, .recv_cq = l.cq, .cap = {8, 8, 1, 1, 0}, .qp_type = IBV_QPT_RAW_PACKET};
	errno = 0;
	struct ibv_qp *raw = ibv_create_qp(pd, &attr);
	if (!raw) {
		say(unsupported(errno) || errno == EPERM || errno == EINVAL ? "none" : "BAD", "raw packet QPs", 0, errno);
	} else {
		struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1};
		CHECK(!ibv_modify_qp(raw, &init, IBV_QP_STATE | IBV_QP_PORT));
		struct ibv_flow *flow = ibv_create_flow(raw, &rule.attr);
		PROMISE("a flow to a raw packet QP is accepted", flow != NULL, got == 1);
		rule.attr.num_of_specs = 200;
		PROMISE("more specifications than there is room for are refused", ibv_create_flow(raw, &rule.attr), !got && error == EINVAL);
		rule.attr.num_of_specs = 1;
		rule.attr.port = 99;
		PROMISE("a port that the device lacks is refused", ibv_create_flow(raw, &rule.attr), !got && error == EINVAL);
		PROMISE("a flow is destroyed", flow ? ibv_destroy_flow(flow) : -1, got == 0);
		CHECK(!ibv_destroy_qp(raw));
	}
	loopback_close(&l);
}

static void counters(void)
{
	struct ibv_counters_init_attr attr = {0};
	errno = 0;
	struct ibv_counters *all = ibv_create_counters(ctx, &attr);
	if (!all) {
		none("counters");
		return;
	}
	uint64_t value[4];
	PROMISE("counters of nothing are refused, or 0", ibv_read_counters(all, value, 1, 0), got == EINVAL || (!got && !value[0]));
	PROMISE("they can be destroyed", ibv_destroy_counters(all), got == 0);
}

static const struct {
	const char *name;
	void (*run)(void);
} groups[] = {
	{"completion events", completion_events}, {"asynchronous events", async_events}, {"shared receives", shared_receives}, {"XRC", xrc},
	{"extended CQs", extended_cq}, {"memory windows", windows}, {"address handles", address_handles}, {"multicast", multicast},
	{"flows", flows}, {"counters", counters},
};

// Each group has its own process, so that a group that hangs or crashes does not affect the others.
int main(void)
{
	for (size_t i = 0; i < sizeof groups / sizeof *groups; i++) {
		pid_t pid = fork();
		CHECK(pid >= 0);
		if (!pid) {
			alarm(60);
			device_open();
			groups[i].run();
			exit(0);
		}
		int status;
		CHECK(waitpid(pid, &status, 0) == pid);
		if (status)
			printf("BAD: %s end early\n", groups[i].name);
		fflush(stdout);
	}
	return 0;
}
