// All calls of the libraries, in groups that a thread can repeat while other threads make them too.
// See stress.c.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <rdma/rsocket.h>

// When a thread exits, calls of the others may fail: those then wait for the end.
static int leaving;

#define CHECK(x) \
	do { \
		if (!(x)) { \
			int err = errno; \
			while (__atomic_load_n(&leaving, __ATOMIC_RELAXED)) \
				pause(); \
			printf("line %d: not so: %s (errno %d, %s)\n", __LINE__, #x, err, strerror(err)); \
			_exit(1); \
		} \
	} while (0)

#include "loopback.h"

int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size); // in no header

static char *own; // the device's address

// Objects that all threads share.
static struct loopback common;
static struct ibv_comp_channel *common_channel;
static struct ibv_cq *common_events; // of the channel
static struct ibv_srq *common_srq;
static struct rdma_event_channel *common_cm;
static int common_rsocket;

// Objects that a thread has created and must destroy, even if it is cancelled. destroy may be
// called again after it was cancelled itself.
struct held {
	void (*destroy)(void *);
	void *object;
};

static __thread struct held held[64];
static __thread int holds;
static __thread unsigned int seed;

// The call of each thread: the number of a group and 1; -1: nothing yet; 0: there is no thread.
#define MOST 32
static int called[MOST];

static void *hold(void *object, void (*destroy)(void *))
{
	CHECK(object && holds < 64);
	held[holds++] = (struct held){destroy, object};
	return object;
}

static void drop(int left)
{
	for (; holds > left; holds--)
		held[holds - 1].destroy(held[holds - 1].object);
}

static void drop_all(void *unused)
{
	(void)unused;
	drop(0);
}

static int any(int n) { return rand_r(&seed) % n; }

// Destroyers, which must succeed: no other thread has the objects.
#define DESTROYER(name, type, call) \
	static void name(void *v) \
	{ \
		type *o = v; \
		CHECK(!call(o)); \
	}
DESTROYER(end_context, struct ibv_context, ibv_close_device)
DESTROYER(end_pd, struct ibv_pd, ibv_dealloc_pd)
DESTROYER(end_td, struct ibv_td, ibv_dealloc_td)
DESTROYER(end_mr, struct ibv_mr, ibv_dereg_mr)
DESTROYER(end_dm, struct ibv_dm, ibv_free_dm)
DESTROYER(end_mw, struct ibv_mw, ibv_dealloc_mw)
DESTROYER(end_ah, struct ibv_ah, ibv_destroy_ah)
DESTROYER(end_channel, struct ibv_comp_channel, ibv_destroy_comp_channel)
DESTROYER(end_cq, struct ibv_cq, ibv_destroy_cq)
DESTROYER(end_qp, struct ibv_qp, ibv_destroy_qp)
DESTROYER(end_srq, struct ibv_srq, ibv_destroy_srq)
DESTROYER(end_xrcd, struct ibv_xrcd, ibv_close_xrcd)
DESTROYER(end_id, struct rdma_cm_id, rdma_destroy_id)

static void end_cm(void *ch) { rdma_destroy_event_channel(ch); }
static void end_cm_qp(void *id) { rdma_destroy_qp(id); }
static void end_addrinfo(void *r) { rdma_freeaddrinfo(r); }
static void end_rsocket(void *fd) { CHECK(!rclose((intptr_t)fd)); }
static void ack_cq(void *cq) { ibv_ack_cq_events(cq, 1); }

#define HOLD(object, destroy) hold(object, destroy)

static void queries(void)
{
	struct ibv_device_attr attr;
	struct ibv_device_attr_ex ex;
	struct ibv_port_attr port;
	struct ibv_gid_entry table[32];
	struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
	union ibv_gid g;
	__be16 pkey;
	char text[64];
	int n;
	CHECK(!ibv_query_device(ctx, &attr) && !ibv_query_device_ex(ctx, NULL, &ex) && !ibv_query_port(ctx, 1, &port));
	CHECK(!ibv_query_gid(ctx, 1, 1, &g) && !ibv_query_pkey(ctx, 1, 0, &pkey) && !ibv_query_rt_values_ex(ctx, &values));
	CHECK(ibv_query_gid_table(ctx, table, 32, 0) > 0 && ibv_get_pkey_index(ctx, 1, pkey) == 0);
	CHECK(ibv_read_sysfs_file(ctx->device->ibdev_path, "node_guid", text, sizeof text) > 0);
	struct ibv_device **list = ibv_get_device_list(&n);
	CHECK(list && n > 0);
	struct ibv_context *c = HOLD(ibv_open_device(list[any(n)]), end_context);
	ibv_free_device_list(list);
	fcntl(c->async_fd, F_SETFL, O_NONBLOCK);
	struct ibv_async_event e;
	CHECK(ibv_get_async_event(c, &e) == -1);
}

static void memory(void)
{
	static char room[1 << 16];
	struct ibv_pd *p = HOLD(ibv_alloc_pd(ctx), end_pd);
	struct ibv_td_init_attr none = {0};
	struct ibv_td *td = HOLD(ibv_alloc_td(ctx, &none), end_td);
	struct ibv_parent_domain_init_attr of = {.pd = p, .td = td};
	HOLD(ibv_alloc_parent_domain(ctx, &of), end_pd);
	struct ibv_mr *mr = HOLD(ibv_reg_mr(p, room, sizeof room, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ), end_mr);
	CHECK(!ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, NULL, room + 4096, 4096, 0));
	HOLD(ibv_alloc_null_mr(p), end_mr);
	struct ibv_alloc_dm_attr dm_attr = {.length = 64};
	struct ibv_dm *dm = HOLD(ibv_alloc_dm(ctx, &dm_attr), end_dm);
	uint32_t word = 7, back;
	CHECK(!ibv_memcpy_to_dm(dm, 4, &word, 4) && !ibv_memcpy_from_dm(&back, dm, 4, 4) && back == 7);
	HOLD(ibv_reg_dm_mr(p, dm, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE), end_mr);
	HOLD(ibv_alloc_mw(p, any(2) ? IBV_MW_TYPE_1 : IBV_MW_TYPE_2), end_mw);
	struct ibv_ah_attr ah = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid, .sgid_index = 1, .hop_limit = 1}};
	HOLD(ibv_create_ah(p, &ah), end_ah);
}

// write_and_poll writes over the QPs of all threads. Any thread that polls gets the completions.
static void write_and_poll(void)
{
	struct ibv_sge sge = {(uintptr_t)common.memory, 64, common.mr->lkey};
	struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {(uintptr_t)common.memory + 4096, common.mr->rkey}}, *bad;
	struct ibv_wc wc[4];
	for (int i = 0; i < 20; i++) {
		ibv_post_send(common.qp, &wr, &bad); // there may be no room
		for (int k = any(200); k > 0; k--)
			CHECK(ibv_poll_cq(common.cq, 4, wc) >= 0);
	}
}

// poll_long polls like a program that has nothing else to do.
static void poll_long(void)
{
	struct ibv_wc wc;
	for (int i = 0; i < 200000; i++)
		CHECK(ibv_poll_cq(common.cq, 1, &wc) >= 0);
}

static struct ibv_qp *connected(struct ibv_cq *cq, struct ibv_srq *srq)
{
	struct ibv_qp_init_attr_ex a = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .cap = {16, 16, 1, 1, 64}, .qp_type = IBV_QPT_RC, .pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
			.send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ibv_qp *qp = HOLD(ibv_create_qp_ex(ctx, &a), end_qp);
	connect_qp(qp, qp->qp_num); // to itself
	return qp;
}

// transfer has its own objects: an extended CQ, an SRQ, a QP.
static void transfer(void)
{
	struct ibv_cq_init_attr_ex ca = {.cqe = 32, .wc_flags = any(2) ? IBV_WC_EX_WITH_COMPLETION_TIMESTAMP : IBV_WC_EX_WITH_BYTE_LEN};
	struct ibv_cq_ex *x = ibv_create_cq_ex(ctx, &ca);
	struct ibv_cq *cq = HOLD(ibv_cq_ex_to_cq(x), end_cq);
	struct ibv_srq_init_attr sa = {.attr = {16, 1, 0}};
	struct ibv_srq *srq = HOLD(ibv_create_srq(pd, &sa), end_srq);
	struct ibv_srq_attr limit = {.srq_limit = 1};
	CHECK(!ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) && !ibv_query_srq(srq, &limit));
	struct ibv_qp *qp = connected(cq, srq);
	struct ibv_qp_ex *q = ibv_qp_to_qp_ex(qp);
	struct ibv_sge sge = {(uintptr_t)common.memory, 64, common.mr->lkey};
	struct ibv_recv_wr rr = {.sg_list = &sge, .num_sge = 1}, *bad;
	CHECK(!ibv_post_srq_recv(srq, &rr, &bad));
	ibv_post_srq_recv(common_srq, &rr, &bad); // it has room for some
	ibv_wr_start(q);
	q->wr_id = 1;
	q->wr_flags = IBV_SEND_SIGNALED;
	ibv_wr_send(q);
	ibv_wr_set_sge(q, sge.lkey, sge.addr, sge.length);
	ibv_wr_rdma_write(q, common.mr->rkey, (uintptr_t)common.memory);
	ibv_wr_set_inline_data(q, "inline", 6);
	CHECK(!ibv_wr_complete(q));
	ibv_wr_start(q);
	ibv_wr_abort(q);
	struct ibv_poll_cq_attr pa = {0};
	double t = now();
	for (int got = 0; got < 3;) {
		CHECK(now() - t < 20);
		if (ibv_start_poll(x, &pa))
			continue;
		do {
			CHECK(x->status == IBV_WC_SUCCESS && ibv_wc_read_opcode(x) <= IBV_WC_RECV_RDMA_WITH_IMM);
			got++;
		} while (!ibv_next_poll(x));
		ibv_end_poll(x);
	}
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_ERR};
	struct ibv_qp_init_attr init;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE) && !ibv_query_qp(qp, &attr, IBV_QP_STATE, &init));
	attr.qp_state = IBV_QPS_RESET;
	CHECK(!ibv_modify_qp(qp, &attr, IBV_QP_STATE) && !ibv_resize_cq(cq, 64));
}

// datagrams has a UD QP in a group, and an XRC domain.
static void datagrams(void)
{
	struct ibv_cq *cq = HOLD(ibv_create_cq(ctx, 16, NULL, NULL, 0), end_cq);
	struct ibv_qp_init_attr a = {.send_cq = cq, .recv_cq = cq, .cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_UD};
	struct ibv_qp *qp = HOLD(ibv_create_qp(pd, &a), end_qp);
	struct ibv_qp_attr init = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = 5};
	CHECK(!ibv_modify_qp(qp, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_QKEY));
	union ibv_gid group = {.raw = {0xff, 0x0e, [10] = 0xff, 0xff, 239, 1, any(4), 1}};
	CHECK(!ibv_attach_mcast(qp, &group, 0) && !ibv_detach_mcast(qp, &group, 0));
	struct ibv_xrcd_init_attr xa = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT};
	struct ibv_xrcd *x = HOLD(ibv_open_xrcd(ctx, &xa), end_xrcd);
	struct ibv_srq_init_attr_ex sa = {
		.attr = {4, 1, 0}, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = x, .cq = cq,
		.comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
	};
	struct ibv_srq *srq = HOLD(ibv_create_srq_ex(ctx, &sa), end_srq);
	uint32_t num;
	CHECK(!ibv_get_srq_num(srq, &num) && num);
}

// events waits for an event of a CQ. With late it destroys the CQ before it acknowledges it, which
// waits until the thread is cancelled.
static void events_of(int late)
{
	struct ibv_comp_channel *ch = HOLD(ibv_create_comp_channel(ctx), end_channel);
	struct ibv_cq *cq = HOLD(ibv_create_cq(ctx, 16, NULL, ch, 0), end_cq), *of;
	int mark = holds;
	struct ibv_qp *qp = connected(cq, NULL);
	void *context;
	for (int i = 0; i < 5; i++) {
		struct ibv_sge sge = {(uintptr_t)common.memory, 8, common.mr->lkey};
		struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = {(uintptr_t)common.memory, common.mr->rkey}}, *bad;
		CHECK(!ibv_req_notify_cq(cq, 0) && !ibv_post_send(qp, &wr, &bad));
		int got;
		while ((got = ibv_get_cq_event(ch, &of, &context)) && errno == EINTR)
			;
		CHECK(!got && of == cq);
		if (late) {
			struct ibv_wc wc;
			drop(mark);
			while (ibv_poll_cq(cq, 1, &wc) > 0)
				;
			hold(cq, ack_cq); // before its destruction, which then continues
			CHECK(!ibv_destroy_cq(cq) && !"acknowledged");
		}
		ibv_ack_cq_events(cq, 1);
		struct ibv_wc wc = wait_for(cq);
		CHECK(wc.status == IBV_WC_SUCCESS);
	}
}

static void events(void) { events_of(0); }
static void late_events(void) { events_of(1); }

// Waits that only another thread ends.
static void wait_cq_event(void)
{
	struct ibv_cq *of;
	void *context;
	if (!ibv_get_cq_event(common_channel, &of, &context))
		ibv_ack_cq_events(of, 1);
}

static void wait_async_event(void)
{
	struct ibv_async_event e;
	if (!ibv_get_async_event(ctx, &e))
		ibv_ack_async_event(&e);
}

static void wait_cm_event(void)
{
	struct rdma_cm_event *e;
	if (!rdma_get_cm_event(common_cm, &e))
		rdma_ack_cm_event(e);
}

static void wait_rsocket(void)
{
	struct pollfd p = {.fd = common_rsocket, .events = POLLIN};
	char c;
	if (any(2))
		rpoll(&p, 1, -1);
	else
		rrecv(common_rsocket, &c, 1, 0);
}

// take_cm takes the next event of a channel. It returns an error for a connection between two IDs
// that fails.
static enum rdma_cm_event_type take_cm(struct rdma_event_channel *ch, struct rdma_cm_id **id)
{
	struct rdma_cm_event *e;
	int got;
	while ((got = rdma_get_cm_event(ch, &e)) && errno == EINTR)
		;
	CHECK(!got);
	enum rdma_cm_event_type t = e->event;
	if (e->status)
		printf("%s: status %d\n", rdma_event_str(t), e->status);
	*id = e->id;
	CHECK(!rdma_ack_cm_event(e));
	return t;
}

static struct sockaddr *address(const char *host, int port)
{
	static __thread struct sockaddr_in a;
	a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
	CHECK(inet_aton(host, &a.sin_addr));
	return (struct sockaddr *)&a;
}

// connections connects two IDs of one channel, and disconnects them.
static void connections(void)
{
	struct rdma_event_channel *ch = HOLD(rdma_create_event_channel(), end_cm);
	struct rdma_cm_id *listener, *client, *id, *server = NULL;
	CHECK(!rdma_create_id(ch, &listener, NULL, RDMA_PS_TCP));
	HOLD(listener, end_id);
	CHECK(!rdma_bind_addr(listener, address(own, 0)) && !rdma_listen(listener, 4));
	CHECK(!rdma_create_id(ch, &client, NULL, RDMA_PS_TCP));
	HOLD(client, end_id);
	CHECK(!rdma_resolve_addr(client, NULL, address(own, ntohs(rdma_get_src_port(listener))), 2000));
	struct rdma_conn_param p = {.retry_count = 7, .rnr_retry_count = 7};
	for (int established = 0, gone = 0; gone < 2;) {
		struct ibv_qp_init_attr a = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
		switch (take_cm(ch, &id)) {
		case RDMA_CM_EVENT_ADDR_RESOLVED:
			CHECK(!rdma_resolve_route(id, 2000));
			break;
		case RDMA_CM_EVENT_ROUTE_RESOLVED:
			CHECK(!rdma_create_qp(id, NULL, &a));
			HOLD(id, end_cm_qp);
			CHECK(!rdma_connect(id, &p));
			break;
		case RDMA_CM_EVENT_CONNECT_REQUEST:
			server = HOLD(id, end_id);
			CHECK(!rdma_create_qp(id, NULL, &a));
			HOLD(id, end_cm_qp);
			CHECK(!rdma_accept(id, &p));
			break;
		case RDMA_CM_EVENT_ESTABLISHED:
			if (++established == 2)
				CHECK(!rdma_disconnect(any(2) ? client : server));
			break;
		case RDMA_CM_EVENT_DISCONNECTED:
			gone++;
			rdma_disconnect(id); // the answer
			break;
		case RDMA_CM_EVENT_TIMEWAIT_EXIT:
			break;
		default:
			CHECK(!"a connection");
		}
	}
}

// groups joins a multicast group and leaves it.
static void groups(void)
{
	struct rdma_event_channel *ch = HOLD(rdma_create_event_channel(), end_cm);
	struct rdma_cm_id *id, *of;
	CHECK(!rdma_create_id(ch, &id, NULL, RDMA_PS_UDP));
	HOLD(id, end_id);
	CHECK(!rdma_bind_addr(id, address(own, 0)));
	struct ibv_qp_init_attr a = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_UD};
	CHECK(!rdma_create_qp(id, NULL, &a));
	HOLD(id, end_cm_qp);
	char group[32];
	snprintf(group, sizeof group, "239.7.1.%d", 1 + any(5));
	CHECK(!rdma_join_multicast(id, address(group, 0), NULL));
	CHECK(take_cm(ch, &of) == RDMA_CM_EVENT_MULTICAST_JOIN && of == id);
	CHECK(!rdma_leave_multicast(id, address(group, 0)));
	CHECK(rdma_leave_multicast(id, address(group, 0)) == -1 && errno == EADDRNOTAVAIL);
	struct rdma_addrinfo hints = {.ai_flags = RAI_NUMERICHOST | RAI_PASSIVE, .ai_port_space = RDMA_PS_TCP}, *r;
	CHECK(!rdma_getaddrinfo(own, "0", &hints, &r));
	HOLD(r, end_addrinfo);
	int n;
	struct ibv_context **list = rdma_get_devices(&n);
	CHECK(list && n > 0);
	rdma_free_devices(list);
}

// streams connects two rsockets and sends over them.
static void streams(void)
{
	struct sockaddr_in at;
	socklen_t len = sizeof at;
	int s = rsocket(AF_INET, SOCK_STREAM, 0);
	CHECK(s >= 0);
	HOLD((void *)(intptr_t)s, end_rsocket);
	CHECK(!rbind(s, address(own, 0), sizeof at) && !rlisten(s, 4) && !rgetsockname(s, (struct sockaddr *)&at, &len));
	int c = rsocket(AF_INET, SOCK_STREAM, 0), got;
	CHECK(c >= 0);
	HOLD((void *)(intptr_t)c, end_rsocket);
	CHECK(!rfcntl(c, F_SETFL, O_NONBLOCK) && rconnect(c, (struct sockaddr *)&at, len) == -1 && errno == EINPROGRESS);
	while ((got = raccept(s, NULL, NULL)) < 0 && errno == EINTR)
		;
	CHECK(got >= 0);
	HOLD((void *)(intptr_t)got, end_rsocket);
	struct pollfd p = {.fd = c, .events = POLLOUT};
	while (rpoll(&p, 1, 5000) < 0 && errno == EINTR)
		;
	char b[64] = "a stream";
	CHECK(rsend(c, b, sizeof b, 0) == sizeof b);
	for (size_t n = 0; n < sizeof b;) {
		ssize_t k = rrecv(got, b, sizeof b - n, 0);
		CHECK(k > 0 || (k < 0 && errno == EINTR));
		n += k > 0 ? k : 0;
	}
	CHECK(!rshutdown(c, SHUT_RDWR));
}

static const struct {
	const char *name;
	void (*call)(void);
	int endless; // only another thread ends it
} groups_of_calls[] = {
	{"queries", queries, 0},
	{"memory", memory, 0},
	{"write_and_poll", write_and_poll, 0},
	{"poll_long", poll_long, 0},
	{"transfer", transfer, 0},
	{"datagrams", datagrams, 0},
	{"events", events, 0},
	{"connections", connections, 0},
	{"groups", groups, 0},
	{"streams", streams, 0},
	{"wait_cq_event", wait_cq_event, 1},
	{"wait_async_event", wait_async_event, 1},
	{"wait_cm_event", wait_cm_event, 1},
	{"wait_rsocket", wait_rsocket, 1},
	{"late_events", late_events, 1},
};

#define GROUPS ((int)(sizeof groups_of_calls / sizeof *groups_of_calls))

static int stop;

static void end_call(void *call) { __atomic_store_n((int *)call, 0, __ATOMIC_RELAXED); }

// call_groups calls random groups until it is stopped or cancelled.
static inline void call_groups(unsigned int first, int endless)
{
	int *call = called, none = 0;
	while (!__atomic_compare_exchange_n(call, &none, -1, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
		none = 0;
		CHECK(++call < called + MOST);
	}
	seed = first;
	hold(call, end_call);
	pthread_cleanup_push(drop_all, NULL);
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		int i = any(GROUPS);
		if (groups_of_calls[i].endless && !endless)
			continue;
		__atomic_store_n(call, i + 1, __ATOMIC_RELAXED);
		groups_of_calls[i].call();
		drop(1);
	}
	pthread_cleanup_pop(1);
}

static void begin(char *address_of_own)
{
	own = address_of_own;
	device_open();
	loopback_open(&common);
	common_channel = ibv_create_comp_channel(ctx);
	common_events = ibv_create_cq(ctx, 16, NULL, common_channel, 0);
	struct ibv_srq_init_attr sa = {.attr = {16, 1, 0}};
	common_srq = ibv_create_srq(pd, &sa);
	common_cm = rdma_create_event_channel();
	common_rsocket = rsocket(AF_INET, SOCK_DGRAM, 0);
	CHECK(common_channel && common_events && common_srq && common_cm && common_rsocket >= 0);
	CHECK(!rbind(common_rsocket, address(own, 0), sizeof(struct sockaddr_in)));
}
