// IDs, from creation to a resolved route.
#include "cm.h"

int get_addr(struct sr_cm_addr *to, const struct sockaddr *from)
{
	memset(to, 0, sizeof *to);
	if (!from)
		return EINVAL;
	switch (from->sa_family) {
	case AF_INET:
		memcpy(to->bytes, from, sizeof(struct sockaddr_in));
		return 0;
	case AF_INET6:
		memcpy(to->bytes, from, sizeof(struct sockaddr_in6));
		return 0;
	default:
		return EINVAL;
	}
}

struct cm_id *alloc_id(struct rdma_event_channel *ch, void *context, int port_space, enum ibv_qp_type type)
{
	struct cm_id *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	s->id.channel = ch;
	s->id.context = context;
	s->id.ps = port_space;
	s->id.qp_type = type;
	pthread_mutex_init(&s->mutex, NULL);
	pthread_cond_init(&s->acked, NULL);
	publish(&s->life);
	return s;
}

void free_id(struct cm_id *s)
{
	while (s->groups) {
		struct group *g = s->groups;
		s->groups = g->next;
		free(g);
	}
	free(s->qp_init_attr);
	s->qp_init_attr = NULL;
	rdma_freeaddrinfo(s->resolved);
	s->resolved = NULL;
	end_destroy(&s->life, s);
}

int create_id(struct rdma_event_channel *ch, struct rdma_cm_id **id, void *context, int port_space, enum ibv_qp_type type)
{
	int sync = !ch;
	if (sync && !(ch = rdma_create_event_channel()))
		return -1;
	struct cm_id *s = alloc_id(ch, context, port_space, type);
	int err = ENOMEM;
	if (s) {
		s->sync = sync;
		publish(&s->life);
		err = engine->cm_create_id(to_channel(ch)->handle, (uintptr_t)s, port_space, &s->handle);
	}
	if (err) {
		if (s)
			free_id(s);
		if (sync)
			rdma_destroy_event_channel(ch);
		return result(err);
	}
	*id = &s->id;
	return 0;
}

PUBLIC int rdma_create_id(struct rdma_event_channel *ch, struct rdma_cm_id **id, void *context, enum rdma_port_space ps)
{
	int datagrams = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB;
	return create_id(ch, id, context, ps, datagrams ? IBV_QPT_UD : IBV_QPT_RC);
}

struct wait {
	struct cm_id *id;
	void (*stop)(struct cm_id *);
};

static void stop_waiting(void *v)
{
	struct wait *w = v;
	pthread_mutex_unlock(&w->id->mutex);
	w->stop(w->id);
}

void wait_acks(struct cm_id *s, uint32_t n, void (*stop)(struct cm_id *))
{
	struct wait w = {s, stop};
	pthread_mutex_lock(&s->mutex);
	pthread_cleanup_push(stop_waiting, &w);
	while ((int32_t)(s->completed - n) < 0)
		pthread_cond_wait(&s->acked, &s->mutex);
	pthread_cleanup_pop(0);
	pthread_mutex_unlock(&s->mutex);
}

void ack_own_event(struct rdma_cm_id *id)
{
	struct rdma_cm_event *e = __atomic_exchange_n(&id->event, NULL, __ATOMIC_ACQ_REL);
	if (e)
		rdma_ack_cm_event(e);
}

// destroy_later makes it possible to call rdma_destroy_id again, which completes the destruction.
static void destroy_later(struct cm_id *s) { undo_destroy(&s->life, 0); }

// If two threads destroy an ID at once, the second gets ENOENT, as from the kernel.
PUBLIC int rdma_destroy_id(struct rdma_cm_id *id)
{
	struct cm_id *s = to_id(id);
	int err = begin_destroy(&s->life);
	if (err)
		return result(err == EBUSY ? ENOENT : err);
	if (s->handle) {
		err = engine->cm_destroy_id(s->handle, &s->events);
		if (err)
			return result(undo_destroy(&s->life, err));
		s->handle = 0; // another ID may soon have this handle
	}
	ack_own_event(id);
	wait_acks(s, s->events, destroy_later);
	if (s->sync)
		rdma_destroy_event_channel(id->channel);
	free_id(s);
	return 0;
}

// forget_channel does nothing. The ID has its new channel. The previous channel of a synchronous ID
// stays until the process ends.
static void forget_channel(struct cm_id *s) { (void)s; }

PUBLIC int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *ch)
{
	struct cm_id *s = to_id(id);
	int sync = !ch;
	uint32_t events = 0;
	if (sync && s->sync)
		return result(EINVAL);
	if (sync && !(ch = rdma_create_event_channel()))
		return -1;
	int err = engine->cm_migrate_id(s->handle, to_channel(ch)->handle, &events);
	if (err) {
		if (sync)
			rdma_destroy_event_channel(ch);
		return result(err);
	}
	struct rdma_event_channel *old = s->sync ? id->channel : NULL;
	if (old)
		ack_own_event(id);
	id->channel = ch;
	s->sync = sync;
	wait_acks(s, events, forget_channel);
	if (old)
		rdma_destroy_event_channel(old);
	return 0;
}

int refresh(struct cm_id *s)
{
	struct rdma_cm_id *id = &s->id;
	struct sr_cm_id info;
	int err = engine->cm_query_id(s->handle, &info);
	if (err)
		return err;
	if (info.src.bytes[0] || info.src.bytes[1])
		memcpy(&id->route.addr.src_storage, info.src.bytes, sizeof info.src.bytes);
	if (info.dst.bytes[0] || info.dst.bytes[1])
		memcpy(&id->route.addr.dst_storage, info.dst.bytes, sizeof info.dst.bytes);
	if (info.dev >= 0 && !s->dev) {
		struct cm_device *d = open_cm_device(info.dev);
		if (!d)
			return errno;
		s->dev = d;
		id->verbs = d->verbs;
		id->pd = d->pd;
	}
	id->port_num = info.port;
	if (info.qp_type == IBV_QPT_XRC_RECV)
		id->qp_type = IBV_QPT_XRC_RECV;
	if (info.routed) {
		struct rdma_ib_addr *a = &id->route.addr.addr.ibaddr;
		memcpy(a->sgid.raw, info.sgid, 16);
		memcpy(a->dgid.raw, info.dgid, 16);
		a->pkey = htobe16(0xffff);
	}
	return 0;
}

void set_path(struct cm_id *s)
{
	struct sr_cm_id info;
	if (!s->id.verbs || s->id.verbs->device->transport_type == IBV_TRANSPORT_IWARP ||
	    engine->cm_query_id(s->handle, &info) || !info.routed)
		return;
	struct ibv_sa_path_rec *p = &s->path;
	memset(p, 0, sizeof *p);
	memcpy(p->sgid.raw, info.sgid, 16);
	memcpy(p->dgid.raw, info.dgid, 16);
	p->hop_limit = 64;
	p->traffic_class = info.traffic_class;
	p->reversible = 1;
	p->numb_path = 1;
	p->pkey = htobe16(0xffff);
	p->sl = info.sl;
	p->mtu_selector = p->rate_selector = p->packet_life_time_selector = 2; // 2: exactly this value
	p->mtu = info.mtu;
	p->rate = IBV_RATE_100_GBPS;
	p->packet_life_time = 18; // Linux's value for RoCE: about 1 s
	s->id.route.path_rec = p;
	s->id.route.num_paths = 1;
}

int complete(struct cm_id *s, int err)
{
	struct rdma_cm_id *id = &s->id;
	if (err)
		return result(err);
	if (!s->sync)
		return 0;
	ack_own_event(id);
	if (rdma_get_cm_event(id->channel, &id->event))
		return -1;
	if (!id->event->status)
		return 0;
	if (id->event->event == RDMA_CM_EVENT_REJECTED)
		return result(ECONNREFUSED);
	return result(id->event->status < 0 ? -id->event->status : id->event->status);
}

PUBLIC int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *addr)
{
	struct sr_cm_addr a;
	int err = get_addr(&a, addr);
	if (!err)
		err = engine->cm_bind(to_id(id)->handle, &a);
	if (!err)
		err = refresh(to_id(id));
	return result(err);
}

PUBLIC int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout_ms)
{
	struct sr_cm_addr s, d;
	struct sockaddr_storage before = id->route.addr.dst_storage;
	int err = get_addr(&d, dst);
	if (!err && src)
		err = get_addr(&s, src);
	if (!err) {
		// This comes before the call, because another thread may take the event at once.
		memcpy(&id->route.addr.dst_storage, d.bytes, sizeof d.bytes);
		err = engine->cm_resolve_addr(to_id(id)->handle, src ? &s : NULL, &d, timeout_ms);
		if (err)
			id->route.addr.dst_storage = before;
	}
	return complete(to_id(id), err);
}

PUBLIC int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	(void)timeout_ms; // the engine resolves routes without a query
	return complete(to_id(id), engine->cm_resolve_route(to_id(id)->handle));
}

PUBLIC int rdma_set_option(struct rdma_cm_id *id, int level, int option, void *value, size_t length)
{
	if (level != RDMA_OPTION_ID)
		return result(ENOSYS); // RDMA_OPTION_IB: IP determines the routes
	size_t want;
	switch (option) {
	case RDMA_OPTION_ID_TOS:
	case RDMA_OPTION_ID_ACK_TIMEOUT:
		want = sizeof(uint8_t);
		break;
	case RDMA_OPTION_ID_REUSEADDR:
	case RDMA_OPTION_ID_AFONLY:
		want = sizeof(int);
		break;
	default:
		return result(ENOSYS);
	}
	if (!value || length != want)
		return result(EINVAL);
	int v = want == sizeof(int) ? *(int *)value : *(uint8_t *)value;
	return result(engine->cm_set_option(to_id(id)->handle, option, v));
}

static __be16 port_of(const struct sockaddr *a)
{
	switch (a->sa_family) {
	case AF_INET:
		return ((const struct sockaddr_in *)a)->sin_port;
	case AF_INET6:
		return ((const struct sockaddr_in6 *)a)->sin6_port;
	default:
		return 0;
	}
}

PUBLIC __be16 rdma_get_src_port(struct rdma_cm_id *id) { return port_of(&id->route.addr.src_addr); }
PUBLIC __be16 rdma_get_dst_port(struct rdma_cm_id *id) { return port_of(&id->route.addr.dst_addr); }
