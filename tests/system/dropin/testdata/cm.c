// Guarantees of librdmacm that its example programs do not use. The program exits with 1 at the
// first failed check.
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include "loopback.h"

// overwrite fills memory that was freed and that the allocator returns again.
static void overwrite(void)
{
	static char *block[64];
	for (size_t size = 16; size < 8192; size += size / 4) {
		for (int i = 0; i < 64; i++)
			memset((block[i] = malloc(size)), 'A', size);
		for (int i = 0; i < 64; i++)
			free(block[i]);
	}
}

// A thread that uses an object which another thread has just destroyed gets an error. rping's
// threads do this.
static void destroyed(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_event *e;
	CHECK(ch && !rdma_create_id(ch, &id, NULL, RDMA_PS_TCP) && !rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
	overwrite();
	CHECK(rdma_get_cm_event(ch, &e) == -1 && errno == EBADF);
	CHECK(rdma_disconnect(id) == -1 && errno == EINVAL);

	struct loopback l;
	loopback_open(&l);
	struct ibv_comp_channel *events = ibv_create_comp_channel(ctx);
	struct ibv_cq *cq = ibv_create_cq(ctx, 16, NULL, events, 0), *of;
	void *context;
	CHECK(events && cq && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(events));
	loopback_close(&l);
	overwrite();
	struct ibv_wc wc;
	struct ibv_recv_wr wr = {0}, *bad;
	CHECK(ibv_get_cq_event(events, &of, &context) == -1);
	CHECK(ibv_req_notify_cq(l.cq, 0) == ENOENT);
	for (int i = 0; i < 1000; i++)
		CHECK(ibv_poll_cq(l.cq, 1, &wc) <= 0);
	CHECK(ibv_post_recv(l.qp, &wr, &bad) == ENOENT);
}

static struct sockaddr *address(const char *host, int port)
{
	static __thread struct sockaddr_in a;
	a = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
	CHECK(inet_aton(host, &a.sin_addr));
	return (struct sockaddr *)&a;
}

// OWN is the device's address.
#define OWN "10.9.0.1"

#define FAILS(call, err) \
	do { \
		errno = 0; \
		int got = call; \
		if (got != -1 || errno != err) { \
			printf("line %d: %s is %d with errno %d (%s), not -1 with %d\n", __LINE__, #call, got, errno, strerror(errno), err); \
			exit(1); \
		} \
	} while (0)

// take takes the next event of a channel, which must be of the given type, and acknowledges it.
static int take(struct rdma_event_channel *ch, enum rdma_cm_event_type type, struct rdma_cm_id **id)
{
	struct rdma_cm_event *e;
	CHECK(!rdma_get_cm_event(ch, &e));
	if (e->event != type)
		printf("%s, status %d, in place of %s\n", rdma_event_str(e->event), e->status, rdma_event_str(type));
	CHECK(e->event == type);
	int status = e->status;
	if (id)
		*id = e->id;
	CHECK(!rdma_ack_cm_event(e));
	return status;
}

// Misplaced calls return the kernel's errno.
static void refused(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id, *other;
	struct ibv_qp_init_attr a = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct rdma_conn_param p = {.retry_count = 7};
	struct ibv_qp_attr qa = {.qp_state = IBV_QPS_INIT};
	int mask, value = 1;
	CHECK(ch && !rdma_create_id(ch, &id, NULL, RDMA_PS_TCP));
	FAILS(rdma_get_cm_event(ch, NULL), EINVAL);
	FAILS(rdma_connect(id, &p), EINVAL);
	FAILS(rdma_accept(id, &p), EINVAL);
	FAILS(rdma_reject(id, NULL, 0), EINVAL);
	FAILS(rdma_disconnect(id), EINVAL);
	FAILS(rdma_resolve_route(id, 1000), EINVAL);
	FAILS(rdma_create_qp(id, NULL, &a), EINVAL);
	FAILS(rdma_init_qp_attr(id, &qa, &mask), EINVAL);
	FAILS(rdma_establish(id), EINVAL);
	FAILS(rdma_notify(id, IBV_EVENT_QP_FATAL), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &value, sizeof value), EINVAL);
	FAILS(rdma_set_option(id, RDMA_OPTION_ID, 99, &value, sizeof value), ENOSYS);
	FAILS(rdma_leave_multicast(id, address("239.1.2.3", 0)), EADDRNOTAVAIL);
	struct sockaddr unix_address = {.sa_family = AF_UNIX};
	FAILS(rdma_bind_addr(id, &unix_address), EINVAL);
	FAILS(rdma_bind_addr(id, address("192.0.2.1", 0)), EADDRNOTAVAIL);
	CHECK(!rdma_bind_addr(id, address(OWN, 7000)));
	FAILS(rdma_bind_addr(id, address(OWN, 7001)), EINVAL);
	CHECK(!rdma_listen(id, 4));
	FAILS(rdma_resolve_addr(id, NULL, address(OWN, 7002), 1000), EINVAL);
	CHECK(!rdma_create_id(ch, &other, NULL, RDMA_PS_TCP));
	FAILS(rdma_bind_addr(other, address(OWN, 7000)), EADDRINUSE);
	CHECK(!rdma_destroy_id(other) && !rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

// connect_to resolves a port of the device's own address, and connects to it.
static struct rdma_cm_id *connect_to(struct rdma_event_channel *ch, int port)
{
	struct rdma_cm_id *id;
	struct ibv_qp_init_attr a = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
	struct rdma_conn_param p = {.retry_count = 7, .rnr_retry_count = 7};
	CHECK(!rdma_create_id(ch, &id, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(id, NULL, address(OWN, port), 10000));
	CHECK(!take(ch, RDMA_CM_EVENT_ADDR_RESOLVED, NULL) && !rdma_resolve_route(id, 10000));
	CHECK(!take(ch, RDMA_CM_EVENT_ROUTE_RESOLVED, NULL));
	CHECK(!rdma_create_qp(id, NULL, &a) && !rdma_connect(id, &p));
	return id;
}

// poll reports an event on the descriptor of a channel, and with O_NONBLOCK a call does not wait
// for one.
static void nonblocking(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_event *e;
	CHECK(ch);
	struct pollfd fd = {ch->fd, POLLIN, 0};
	CHECK(!rdma_create_id(ch, &id, NULL, RDMA_PS_TCP) && poll(&fd, 1, 0) == 0);
	int flags = fcntl(ch->fd, F_GETFL);
	CHECK(!fcntl(ch->fd, F_SETFL, flags | O_NONBLOCK));
	FAILS(rdma_get_cm_event(ch, &e), EAGAIN);
	CHECK(!rdma_resolve_addr(id, NULL, address(OWN, 7003), 10000) && poll(&fd, 1, 10000) == 1);
	CHECK(!take(ch, RDMA_CM_EVENT_ADDR_RESOLVED, NULL) && poll(&fd, 1, 0) == 0);
	FAILS(rdma_get_cm_event(ch, &e), EAGAIN);
	// An event that is not taken disappears with its ID.
	CHECK(!rdma_resolve_route(id, 10000) && poll(&fd, 1, 10000) == 1 && !rdma_destroy_id(id) && poll(&fd, 1, 0) == 0);
	CHECK(!fcntl(ch->fd, F_SETFL, flags));
	// There is no listener.
	id = connect_to(ch, 7004);
	CHECK(take(ch, RDMA_CM_EVENT_REJECTED, NULL));
	rdma_destroy_qp(id);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

static int destroyed_id;

static void *destroy(void *id)
{
	CHECK(!rdma_destroy_id(id));
	__atomic_store_n(&destroyed_id, 1, __ATOMIC_SEQ_CST);
	return NULL;
}

// rdma_destroy_id waits until the taken events of the ID are acknowledged.
static void acknowledgements(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_event *e;
	pthread_t t;
	CHECK(!rdma_create_id(ch, &id, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(id, NULL, address(OWN, 7005), 10000));
	CHECK(!rdma_get_cm_event(ch, &e) && e->id == id && !pthread_create(&t, NULL, destroy, id));
	usleep(50000);
	CHECK(!__atomic_load_n(&destroyed_id, __ATOMIC_SEQ_CST));
	CHECK(!rdma_ack_cm_event(e) && !pthread_join(t, NULL) && destroyed_id);
	rdma_destroy_event_channel(ch);
}

#define THREADS 16
#define ROUNDS 5

static void *serve(void *v)
{
	struct rdma_event_channel *ch = v;
	for (int ended = 0; ended < THREADS * ROUNDS;) {
		struct rdma_cm_event *e;
		CHECK(!rdma_get_cm_event(ch, &e));
		struct rdma_cm_id *id = e->id;
		enum rdma_cm_event_type type = e->event;
		CHECK(!rdma_ack_cm_event(e));
		struct ibv_qp_init_attr a = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_RC};
		if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
			CHECK(!rdma_create_qp(id, NULL, &a) && !rdma_accept(id, NULL));
		} else if (type == RDMA_CM_EVENT_DISCONNECTED) {
			rdma_disconnect(id);
			rdma_destroy_qp(id);
			CHECK(!rdma_destroy_id(id));
			ended++;
		}
	}
	return NULL;
}

static void *connect_often(void *v)
{
	(void)v;
	struct rdma_event_channel *ch = rdma_create_event_channel();
	for (int i = 0; i < ROUNDS; i++) {
		struct rdma_cm_id *id = connect_to(ch, 7006);
		CHECK(!take(ch, RDMA_CM_EVENT_ESTABLISHED, NULL) && !rdma_disconnect(id));
		take(ch, RDMA_CM_EVENT_DISCONNECTED, NULL);
		rdma_destroy_qp(id);
		CHECK(!rdma_destroy_id(id));
	}
	rdma_destroy_event_channel(ch);
	return NULL;
}

// Many threads, each with its own channel, connect to one listener of the process.
static void threads(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *listener;
	pthread_t server, client[THREADS];
	CHECK(!rdma_create_id(ch, &listener, NULL, RDMA_PS_TCP) && !rdma_bind_addr(listener, address(OWN, 7006)) &&
		!rdma_listen(listener, THREADS));
	CHECK(!pthread_create(&server, NULL, serve, ch));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&client[i], NULL, connect_often, NULL));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(client[i], NULL));
	CHECK(!pthread_join(server, NULL) && !rdma_destroy_id(listener));
	rdma_destroy_event_channel(ch);
}

// A listener may live for a moment after its destruction. An ID that is bound to its address has
// one like any other.
static void after_listener(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id;
	uint8_t timeout = 14;
	CHECK(ch);
	for (int i = 0; i < 3; i++) {
		struct ibv_qp_init_attr a = {.cap = {4, 4, 1, 1, 0}, .qp_type = IBV_QPT_UD};
		CHECK(!rdma_create_id(ch, &id, NULL, RDMA_PS_UDP) && !rdma_bind_addr(id, address(OWN, 7007)) && !rdma_listen(id, 4));
		CHECK(!rdma_destroy_id(id));
		CHECK(!rdma_create_id(ch, &id, NULL, RDMA_PS_UDP) && !rdma_bind_addr(id, address(OWN, 7007)));
		if (i == 1)
			CHECK(!rdma_create_qp(id, NULL, &a));
		if (i == 2)
			CHECK(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout, sizeof timeout));
		CHECK(!rdma_join_multicast(id, address("239.1.2.3", 0), NULL));
		CHECK(!take(ch, RDMA_CM_EVENT_MULTICAST_JOIN, NULL));
		CHECK(!rdma_leave_multicast(id, address("239.1.2.3", 0)));
		if (i == 1)
			rdma_destroy_qp(id);
		CHECK(!rdma_destroy_id(id));
	}
	rdma_destroy_event_channel(ch);
}

// A member that only sends to a group joins and leaves it like another.
static void send_only(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_join_mc_attr_ex attr = {.comp_mask = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS,
		.join_flags = RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER};
	CHECK(ch && !rdma_create_id(ch, &id, NULL, RDMA_PS_UDP) && !rdma_bind_addr(id, address(OWN, 7008)));
	attr.addr = address("239.1.2.4", 0);
	CHECK(!rdma_join_multicast_ex(id, &attr, NULL));
	CHECK(!take(ch, RDMA_CM_EVENT_MULTICAST_JOIN, NULL));
	CHECK(!rdma_leave_multicast(id, attr.addr));
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

// ai_family selects the address, without RAI_FAMILY too.
static void families(void)
{
	struct rdma_addrinfo *r, hints = {.ai_family = AF_INET, .ai_port_space = RDMA_PS_TCP};
	CHECK(!rdma_getaddrinfo("127.0.0.1", "7009", &hints, &r) && r->ai_family == AF_INET);
	rdma_freeaddrinfo(r);
	CHECK(rdma_getaddrinfo("::1", "7009", &hints, &r));
	hints.ai_family = AF_INET6;
	CHECK(rdma_getaddrinfo("127.0.0.1", "7009", &hints, &r));
}

// Functions of rdma-core 60 and later, which the installed headers may lack.
static int (*write_event)(struct rdma_cm_id *, enum rdma_cm_event_type, int, uint64_t);
static int (*resolve_addrinfo)(struct rdma_cm_id *, const char *, const char *, const struct rdma_addrinfo *);
static int (*query_addrinfo)(struct rdma_cm_id *, struct rdma_addrinfo **);
static const enum rdma_cm_event_type ADDRINFO_RESOLVED = (enum rdma_cm_event_type)16, USER = (enum rdma_cm_event_type)18;
enum { SA = 0x10, DNS = 0x20 }; // flags of rdma_addrinfo

// A program's own events are in order with those of the device, whatever the state of the ID, and
// go with an ID to its next channel. They are acknowledged as others are.
static void own_events(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel(), *next = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_event *e;
	CHECK(ch && next && !rdma_create_id(ch, &id, &id, RDMA_PS_TCP));
	for (int type = -1; type < 21; type++) {
		if (type != (int)USER)
			FAILS(write_event(id, (enum rdma_cm_event_type)type, 0, 0), EINVAL);
	}
	CHECK(!write_event(id, USER, -7, 0x123456789abcdef0) && !rdma_resolve_addr(id, NULL, address(OWN, 7020), 10000));
	CHECK(!rdma_get_cm_event(ch, &e) && e->event == USER && e->id == id && !e->listen_id && e->status == -7);
	uint64_t arg;
	memcpy(&arg, &e->param, sizeof arg);
	CHECK(arg == 0x123456789abcdef0 && e->id->context == &id && !rdma_ack_cm_event(e));
	CHECK(!take(ch, RDMA_CM_EVENT_ADDR_RESOLVED, NULL) && !write_event(id, USER, 1, 1) && !write_event(id, USER, 2, 2));
	CHECK(!rdma_migrate_id(id, next) && !write_event(id, USER, 3, 3));
	for (int i = 1; i <= 3; i++)
		CHECK(take(next, USER, NULL) == i);
	struct pollfd fds[] = {{ch->fd, POLLIN, 0}, {next->fd, POLLIN, 0}};
	CHECK(poll(fds, 2, 0) == 0 && !write_event(id, USER, 0, 0) && poll(fds, 2, 10000) == 1 && fds[1].revents == POLLIN);
	CHECK(!rdma_destroy_id(id) && poll(fds, 2, 0) == 0); // an event that was not taken is dropped
	FAILS(write_event(id, USER, 0, 0), EINVAL);

	// Those of a listener.
	CHECK(!rdma_create_id(ch, &id, NULL, RDMA_PS_TCP) && !rdma_bind_addr(id, address(OWN, 7021)) && !write_event(id, USER, 4, 0));
	CHECK(!rdma_listen(id, 1) && take(ch, USER, NULL) == 4 && !write_event(id, USER, 5, 0) && take(ch, USER, NULL) == 5);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(next);
	rdma_destroy_event_channel(ch);
}

// Names are resolved with an event, and the result is taken once. There are no service records of
// InfiniBand.
static void names(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *id, *sync;
	struct rdma_addrinfo *r = NULL, hints = {.ai_flags = RAI_PASSIVE | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_UDP};
	CHECK(ch && !rdma_create_id(ch, &id, NULL, RDMA_PS_UDP));
	FAILS(query_addrinfo(id, &r), ENOENT);
	FAILS(query_addrinfo(id, NULL), EINVAL);
	FAILS(query_addrinfo(NULL, &r), EINVAL);
	FAILS(resolve_addrinfo(NULL, OWN, "7022", NULL), EINVAL);
	FAILS(resolve_addrinfo(id, NULL, NULL, NULL), EINVAL);
	FAILS(resolve_addrinfo(id, "no.number", "7022", &hints), EAI_NONAME); // not an errno, as in rdma-core
	CHECK(!resolve_addrinfo(id, OWN, "7022", &hints));
	FAILS(resolve_addrinfo(id, OWN, "7022", &hints), EBUSY);
	struct rdma_cm_id *of;
	CHECK(!take(ch, ADDRINFO_RESOLVED, &of) && of == id && !query_addrinfo(id, &r));
	CHECK(r && !r->ai_next && r->ai_flags == RAI_PASSIVE && r->ai_family == AF_INET && r->ai_qp_type == IBV_QPT_UD);
	CHECK(r->ai_port_space == RDMA_PS_UDP && r->ai_src_len == sizeof(struct sockaddr_in) && !r->ai_dst_len);
	CHECK(!memcmp(r->ai_src_addr, address(OWN, 7022), sizeof(struct sockaddr_in)));
	FAILS(query_addrinfo(id, &r), ENOENT);
	CHECK(!rdma_bind_addr(id, r->ai_src_addr));
	rdma_freeaddrinfo(r);

	// Again, with a bound ID, and without taking the result.
	hints = (struct rdma_addrinfo){.ai_flags = DNS};
	CHECK(!resolve_addrinfo(id, OWN, "7023", &hints) && !take(ch, ADDRINFO_RESOLVED, NULL) && !rdma_destroy_id(id));

	CHECK(!rdma_create_id(NULL, &sync, NULL, RDMA_PS_TCP) && !resolve_addrinfo(sync, OWN, "7024", NULL));
	CHECK(sync->event && sync->event->event == ADDRINFO_RESOLVED && !query_addrinfo(sync, &r) && !r->ai_src_len);
	CHECK(!memcmp(r->ai_dst_addr, address(OWN, 7024), sizeof(struct sockaddr_in)) && r->ai_port_space == RDMA_PS_TCP);
	CHECK(!rdma_resolve_addr(sync, NULL, r->ai_dst_addr, 10000));
	rdma_freeaddrinfo(r);
	CHECK(!rdma_destroy_id(sync));

	CHECK(!rdma_create_id(ch, &id, NULL, RDMA_PS_TCP));
	hints = (struct rdma_addrinfo){.ai_flags = SA};
	FAILS(resolve_addrinfo(id, NULL, "1", &hints), EINVAL); // the ID has no device
	CHECK(!rdma_bind_addr(id, address(OWN, 0)));
	FAILS(resolve_addrinfo(id, NULL, "1", &hints), EOPNOTSUPP);
	FAILS(resolve_addrinfo(id, NULL, NULL, &hints), EINVAL);
	FAILS(resolve_addrinfo(id, OWN, "1", &hints), EOPNOTSUPP);
	FAILS(rdma_getaddrinfo(NULL, "1", &hints, &r), ENOENT);
	FAILS(rdma_getaddrinfo(NULL, NULL, &hints, &r), EINVAL);
	FAILS(rdma_getaddrinfo(OWN, "1", &hints, &r), EOPNOTSUPP);
	hints.ai_flags |= DNS;
	FAILS(resolve_addrinfo(id, NULL, "1", &hints), EOPNOTSUPP);
	FAILS(rdma_getaddrinfo(NULL, "1", &hints, &r), EOPNOTSUPP);
	CHECK(!rdma_destroy_id(id));
	rdma_destroy_event_channel(ch);
}

static void later(void)
{
	write_event = dlsym(RTLD_DEFAULT, "rdma_write_cm_event");
	resolve_addrinfo = dlsym(RTLD_DEFAULT, "rdma_resolve_addrinfo");
	query_addrinfo = dlsym(RTLD_DEFAULT, "rdma_query_addrinfo");
	CHECK(write_event && resolve_addrinfo && query_addrinfo);
	own_events();
	names();
}

int main(void)
{
	setvbuf(stdout, NULL, _IONBF, 0);
	device_open();
	refused();
	send_only();
	families();
	nonblocking();
	acknowledgements();
	after_listener();
	threads();
	destroyed();
	later();
	return 0;
}
